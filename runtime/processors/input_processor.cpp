#include "runtime/processors/input_processor.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/base/clock.hpp"
#include "runtime/base/ordered_json.hpp"
#include "runtime/base/request_time.hpp"
#include "runtime/multimodal/image_inputs.hpp"
#include "runtime/multimodal/media_io.hpp"
#include "runtime/multimodal/speech_inputs.hpp"
#include "runtime/processors/sampling_params_check.hpp"
#include "runtime/scheduler/work_queue.hpp"
#include "runtime/structured_output/grammar_cache.hpp"

namespace troupe {

namespace {

/// A template may show the time: it is that of the request's arrival, also after a resubmission.
ChatClock clock_of(const GenerateRequest& request, ChatClock now) {
  if (request.arrival_time > 0) now.unix_us = std::llround(request.arrival_time * 1e6);
  return now;
}

/// Further eos ids stop a request like its own stop ids; min_tokens masks all of them.
void add_stop_ids(SamplingParams& params, std::optional<TokenId> eos,
                  const std::vector<TokenId>& model_eos_ids) {
  const auto add = [](SharedVector<TokenId>& ids, TokenId id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.edit().push_back(id);
  };
  params.eos_token_id = params.ignore_eos ? std::nullopt : eos;
  params.all_stop_token_ids = params.stop_token_ids;
  if (eos) add(params.all_stop_token_ids, *eos);
  for (const TokenId id : model_eos_ids) {
    add(params.all_stop_token_ids, id);
    if (!params.ignore_eos && id != eos) add(params.stop_token_ids, id);
  }
}

std::size_t bytes_of(const std::vector<std::string>& texts) {
  std::size_t num_bytes = 0;
  for (const std::string& text : texts) num_bytes += text.size();
  return num_bytes;
}

/// Of text that takes as long as a byte of a schema, pattern or grammar.
constexpr std::size_t kCompiledBytes = 32;

std::size_t bytes_of(const Prompt& prompt) {
  if (const auto* tokens = std::get_if<TokensPrompt>(&prompt)) return tokens->token_ids.size();
  const auto* chat = std::get_if<ChatPrompt>(&prompt);
  // A client's own template may take any time, and so may an image that is fetched from a host.
  const bool is_any = chat != nullptr && (!chat->chat_template.empty() ||
                                          chat->messages_json.find("\"image") != std::string::npos);
  return text_bytes(prompt) + (is_any ? WorkQueue::kLongBytes : 0);
}

}  // namespace

std::size_t text_bytes(const Prompt& prompt) noexcept {
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) return text->text.size();
  const auto* chat = std::get_if<ChatPrompt>(&prompt);
  if (chat == nullptr) return 0;
  return chat->messages_json.size() + chat->tools_json.size() + chat->documents_json.size() +
         chat->template_kwargs_json.size() + chat->chat_template.size();
}

std::size_t input_bytes(const GenerateRequest& request) {
  const auto& structured = request.params.structured_outputs;
  return bytes_of(request.prompt) + bytes_of(request.params.stop) +
         bytes_of(request.params.bad_words) +
         (structured ? kCompiledBytes * bytes_of(structured->texts) : 0);
}

std::size_t input_bytes(const RenderRequest& request) { return bytes_of(request.prompt); }

InputProcessor::InputProcessor(std::shared_ptr<const Tokenizer> tokenizer,
                               std::shared_ptr<ChatRenderer> chat_renderer,
                               InputProcessorOptions options)
    : tokenizer_(std::move(tokenizer)),
      chat_renderer_(std::move(chat_renderer)),
      options_(std::move(options)) {
  for (std::size_t id = 0; id < tokenizer_->id_limit(); ++id) {
    const auto token = tokenizer_->id_to_token(static_cast<TokenId>(id));
    if (token) longest_token_bytes_ = std::max(longest_token_bytes_, token->size());
  }
}

Result<ProcessedRequest> InputProcessor::process(GenerateRequest request,
                                                 const InputContext& context) const {
  if (request.pooling.has_value() != options_.is_pooling)
    return Error{ErrorCode::kUnsupported,
                 options_.is_pooling ? "the model gives embeddings, it generates no text"
                                     : "the model generates text, it gives no embeddings",
                 "model"};
  SamplingParams& params = request.params;
  const bool reads_no_cache = params.skip_reading_prefix_cache;
  RETURN_IF_ERROR(normalize_sampling_params(params, {.vocab_size = options_.vocab_size,
                                                     .max_logprobs = options_.max_logprobs,
                                                     .max_num_samples = options_.max_num_samples}));
  InputContext arrival = context;
  arrival.clock = clock_of(request, context.clock);
  const auto* const text = std::get_if<TextPrompt>(&request.prompt);
  const bool is_pair = text != nullptr && text->second;
  ASSIGN_OR_RETURN(
      TokenizedPrompt prompt,
      is_pair ? tokenize_pair(*text, request.truncate_prompt_tokens, context.limits)
              : tokenize(request.prompt, arrival, /*must_fit=*/!request.truncate_prompt_tokens));
  if (request.truncate_prompt_tokens && !is_pair) {
    const std::int32_t num_generated = request.pooling ? 0 : params.max_tokens.value_or(1);
    RETURN_IF_ERROR(truncate(prompt, *request.truncate_prompt_tokens, num_generated));
  }
  RETURN_IF_ERROR(check_prompt(prompt.token_ids, /*generates=*/!request.pooling));
  std::vector<PrefixPin> pins;
  if (options_.pins_prefixes && !request.cache_breakpoints.empty() &&
      !request.truncate_prompt_tokens) {
    if (const auto* const chat = std::get_if<ChatPrompt>(&request.prompt))
      pins = pins_of(*chat, request.cache_breakpoints, prompt.token_ids, arrival);
    else
      pins.push_back({.num_tokens = static_cast<std::int32_t>(prompt.token_ids.size()),
                      .ttl_s = request.cache_breakpoints.back().ttl_s});
  }
  RETURN_IF_ERROR(check_size(params, prompt.token_ids.size()));
  if (request.return_prompt_text && std::holds_alternative<TokensPrompt>(request.prompt))
    prompt.text = tokenizer_->decode(prompt.token_ids, /*skip_special_tokens=*/false);
  RETURN_IF_ERROR(complete_params(params, prompt.token_ids.size(), context.limits));
  RETURN_IF_ERROR(check_grammar(params));
  const bool resubmitted = !request.emitted.empty();
  if (resubmitted && request.emitted.size() != static_cast<std::size_t>(params.n)) {
    return invalid_argument("the request continues the tokens of " +
                                std::to_string(request.emitted.size()) + " samples, n is " +
                                std::to_string(params.n),
                            "n");
  }
  if (params.seed) params.philox_key = static_cast<std::uint64_t>(*params.seed);

  ProcessedRequest processed;
  processed.output = {.id = request.id,
                      .external_id = request.external_id,
                      .prompt_token_ids = std::move(prompt.token_ids),
                      .prompt_text = request.return_prompt_text ? std::move(prompt.text) : "",
                      .params = params,
                      .pooling = request.pooling,
                      .arrival_time = request.arrival_time,
                      .emitted = request.emitted,
                      .num_mm_queries = prompt.num_mm_queries,
                      .num_mm_hits = prompt.num_mm_hits};
  EngineCoreRequest sample;
  sample.external_id = std::move(request.external_id);
  sample.prompt_token_ids = processed.output.prompt_token_ids;
  sample.mm_features = std::move(prompt.items);
  sample.second_text_begin = prompt.second_text_begin;
  sample.params = params;
  sample.pooling = request.pooling.has_value();
  sample.params.n = 1;
  // Stop strings are handled by the OutputProcessor: the engine sees only tokens.
  sample.params.stop = {};
  sample.params.bad_words = {};
  sample.arrival_time = request.arrival_time;
  sample.priority = request.priority;
  sample.cache_salt = std::move(request.cache_salt);
  sample.lora = std::move(request.lora);
  sample.limits = request.limits;
  sample.age_s = request.age_s;
  if (resubmitted) {
    sample.limits.max_queue_time_s = 0;   // it was scheduled before
    if (sample.params.prompt_logprobs) {  // they were already returned
      sample.params.prompt_logprobs.reset();
      sample.params.skip_reading_prefix_cache = reads_no_cache;
    }
  }
  sample.tenant = request.tenant;
  processed.samples.reserve(static_cast<std::size_t>(params.n));
  for (std::int32_t i = 0; i < params.n; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    if (resubmitted) {
      if (request.emitted[index].finished) continue;
      sample.output_token_ids = std::move(request.emitted[index].token_ids);
    }
    sample.id = RequestId{value(request.id) + index};
    sample.params.philox_key = params.philox_key + index;
    if (params.seed) sample.params.seed = static_cast<std::int64_t>(sample.params.philox_key);
    processed.samples.push_back(sample);
    processed.samples.back().pins = std::exchange(pins, {});  // one of them is enough
  }
  return processed;
}

RenderReply InputProcessor::render(const RenderRequest& request,
                                   const InputContext& context) const {
  RenderReply reply;
  if (const auto* chat = std::get_if<ChatPrompt>(&request.prompt);
      chat != nullptr && options_.speech != nullptr) {
    Result<std::string> features = options_.speech->features(*chat);
    if (features.ok())
      reply.text = std::move(features).value();
    else
      reply.error = features.error();
    return reply;
  }
  auto prompt = tokenize(request.prompt, context, /*must_fit=*/false);
  if (!prompt.ok()) {
    reply.error = std::move(prompt).error();
    return reply;
  }
  if (const auto* given = std::get_if<TokensPrompt>(&request.prompt)) {
    if (const auto status = check_token_ids(given->token_ids); !status.ok()) {
      reply.error = status.error();
      return reply;
    }
    prompt->text = tokenizer_->decode(given->token_ids, false);
  }
  if (request.return_token_strings) {
    for (const TokenId id : prompt->token_ids) {
      reply.token_strings.emplace_back(tokenizer_->id_to_token(id).value_or(""));
    }
  }
  reply.token_ids = std::move(prompt->token_ids);
  reply.text = std::move(prompt->text);
  return reply;
}

ProcessorCache* InputProcessor::processor_cache() const noexcept {
  return options_.images == nullptr ? nullptr : options_.images->cache().get();
}

const MediaLoader* InputProcessor::media_loader() const noexcept {
  return options_.images == nullptr ? nullptr : &options_.images->loader();
}

WorkLimits InputProcessor::limits_of_work(std::shared_ptr<const std::atomic<bool>> cancelled,
                                          std::chrono::steady_clock::time_point now) const {
  WorkLimits limits{.cancelled = std::move(cancelled), .deadline = std::nullopt};
  if (options_.max_input_time_s > 0) {
    limits.deadline = now + from_seconds(options_.max_input_time_s);
  }
  return limits;
}

Result<InputProcessor::TokenizedPrompt> InputProcessor::tokenize(const Prompt& prompt,
                                                                 const InputContext& context,
                                                                 bool must_fit) const {
  auto result = try_tokenize(prompt, context, must_fit);
  if (!result.ok()) return with_limit(std::move(result).error());
  return result;
}

Error InputProcessor::with_limit(Error error) const {
  return error.code == ErrorCode::kTimeout ? input_time_error(options_.max_input_time_s) : error;
}

Result<InputProcessor::TokenizedPrompt> InputProcessor::try_tokenize(const Prompt& prompt,
                                                                     const InputContext& context,
                                                                     bool must_fit) const {
  if (options_.speech != nullptr) return tokenize_speech(prompt, context);
  if (const auto* tokens = std::get_if<TokensPrompt>(&prompt)) {
    return TokenizedPrompt{.token_ids = tokens->token_ids};
  }
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) {
    if (must_fit) RETURN_IF_ERROR(check_text(text->text, "prompt"));
    ASSIGN_OR_RETURN(auto ids, encode(text->text, text->add_special_tokens, context.limits));
    return TokenizedPrompt{.token_ids = std::move(ids), .text = text->text};
  }
  const auto& chat = std::get<ChatPrompt>(prompt);
  if (chat_renderer_ == nullptr) {
    return invalid_argument("this model has no chat template", "messages");
  }
  RETURN_IF_ERROR(parse_media_io_kwargs({}, chat.media_io_kwargs_json));
  ASSIGN_OR_RETURN(RenderedChat rendered,
                   chat_renderer_->render(chat, context.clock, context.limits));
  if (!rendered.media.empty())
    return tokenize_with_images(std::move(rendered), chat, context, must_fit);
  if (must_fit) RETURN_IF_ERROR(check_text(rendered.text, "prompt"));
  ASSIGN_OR_RETURN(auto ids, encode(rendered.text, chat.add_special_tokens, context.limits));
  return TokenizedPrompt{.token_ids = std::move(ids), .text = std::move(rendered.text)};
}

Result<InputProcessor::TokenizedPrompt> InputProcessor::tokenize_pair(
    const TextPrompt& pair, std::optional<std::int32_t> num_kept, const WorkLimits& limits) const {
  if (!num_kept) {
    for (const std::string* text : {&pair.text, &*pair.second})
      RETURN_IF_ERROR(check_text(*text, "prompt"));
  }
  auto encoded = tokenizer_->encode_pair(pair.text, *pair.second, pair.add_special_tokens, limits);
  if (!encoded.ok()) return with_limit(std::move(encoded).error());
  std::vector<TokenId> ids;
  std::int32_t second_text_begin = 0;
  std::int64_t num_dropped = 0;
  if (num_kept) {
    const std::int32_t limit = *num_kept == -1 ? options_.max_model_len : *num_kept;
    num_dropped = std::max<std::int64_t>(0, std::ssize(encoded->ids) - limit);
  }
  const auto num_second = std::ranges::count(encoded->sequence_ids, std::optional<int>(1));
  if (num_dropped > num_second)
    return invalid_argument(
        "truncate_prompt_tokens leaves no room for the second text of a pair, "
        "the first one has " +
            std::to_string(std::ssize(encoded->ids) - num_second) + " tokens",
        "truncate_prompt_tokens");
  std::int64_t num_left = num_second - num_dropped;
  for (std::size_t i = 0; i < encoded->ids.size(); ++i) {
    if (encoded->sequence_ids[i] == 1 && num_left-- <= 0) continue;
    if (encoded->type_ids[i] == 1 && second_text_begin == 0)
      second_text_begin = static_cast<std::int32_t>(ids.size());
    ids.push_back(encoded->ids[i]);
  }
  return TokenizedPrompt{.token_ids = std::move(ids), .second_text_begin = second_text_begin};
}

Result<std::vector<TokenId>> InputProcessor::encode(std::string_view text, bool add_special_tokens,
                                                    const WorkLimits& limits) const {
  const std::string& separator = options_.separator;
  if (separator.empty()) return tokenizer_->encode(text, add_special_tokens, limits);
  std::vector<TokenId> between;
  ASSIGN_OR_RETURN(between, tokenizer_->encode(separator, false, limits));
  // What the template puts around a text stands around the first piece: the end of it is moved.
  std::vector<TokenId> ids;
  std::vector<TokenId> end;
  std::size_t next = std::min(text.find(separator), text.size());
  ASSIGN_OR_RETURN(const Encoding first, tokenizer_->encode_with_offsets(
                                             text.substr(0, next), add_special_tokens, limits));
  std::size_t num_ids = first.ids.size();
  while (num_ids > 0 && first.special_tokens_mask[num_ids - 1]) --num_ids;
  const auto behind = first.ids.begin() + static_cast<std::ptrdiff_t>(num_ids);
  ids.assign(first.ids.begin(), behind);
  end.assign(behind, first.ids.end());
  // An empty piece does not separate the tokens added before and after: all count as before.
  if (num_ids == 0) std::swap(ids, end);
  while (next < text.size()) {
    text.remove_prefix(next + separator.size());
    next = std::min(text.find(separator), text.size());
    ids.insert(ids.end(), between.begin(), between.end());
    if (next == 0) continue;
    ASSIGN_OR_RETURN(const auto piece, tokenizer_->encode(text.substr(0, next), false, limits));
    ids.insert(ids.end(), piece.begin(), piece.end());
  }
  ids.insert(ids.end(), end.begin(), end.end());
  return ids;
}

namespace {

void cut_content(nlohmann::ordered_json& message, std::int32_t length) {
  nlohmann::ordered_json& content = message["content"];
  if (content.is_string())
    content = content.get<std::string>().substr(0, static_cast<std::size_t>(length));
  else if (content.is_array() && std::cmp_less(length, content.size()))
    content.erase(content.begin() + length, content.end());
  message.erase("tool_calls");
}

/// The conversation up to a breakpoint; nullopt: there is no such place.
std::optional<ChatPrompt> cut_at(const ChatPrompt& chat, nlohmann::ordered_json messages,
                                 const CacheBreakpoint& breakpoint) {
  if (!messages.is_array() || std::cmp_greater_equal(breakpoint.message, messages.size()))
    return std::nullopt;
  nlohmann::ordered_json& last = messages[static_cast<std::size_t>(breakpoint.message)];
  if (!last.is_object()) return std::nullopt;
  if (breakpoint.length >= 0) cut_content(last, breakpoint.length);
  // Some templates write a system message with the next one.
  const auto role = last.find("role");
  const bool needs_next = role != last.end() && (*role == "system" || *role == "developer");
  auto end = messages.begin() + breakpoint.message + 1;
  if (needs_next && end != messages.end() && end->is_object()) cut_content(*end++, 0);
  messages.erase(end, messages.end());
  ChatPrompt cut = chat;
  cut.messages_json =
      messages.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  cut.add_generation_prompt = cut.continue_final_message = false;
  return cut;
}

}  // namespace

/// A conversation that ends there begins with the same tokens, except for those that the template
/// adds after the last message. If it cannot be rendered, nothing is pinned.
std::vector<PrefixPin> InputProcessor::pins_of(const ChatPrompt& chat,
                                               const std::vector<CacheBreakpoint>& breakpoints,
                                               const std::vector<TokenId>& token_ids,
                                               const InputContext& context) const {
  std::vector<PrefixPin> pins;
  const auto messages =
      nlohmann::ordered_json::parse(chat.messages_json, nullptr, /*allow_exceptions=*/false);
  for (const CacheBreakpoint& breakpoint : breakpoints) {
    const std::optional<ChatPrompt> cut = cut_at(chat, messages, breakpoint);
    if (!cut) continue;
    const auto before = try_tokenize(*cut, context, /*must_fit=*/false);
    if (!before.ok()) continue;
    const auto [end, other] = std::ranges::mismatch(token_ids, before->token_ids);
    pins.push_back({.num_tokens = static_cast<std::int32_t>(end - token_ids.begin()),
                    .ttl_s = breakpoint.ttl_s});
  }
  return pins;
}

Result<InputProcessor::TokenizedPrompt> InputProcessor::tokenize_speech(
    const Prompt& prompt, const InputContext& context) const {
  const auto* const chat = std::get_if<ChatPrompt>(&prompt);
  if (chat == nullptr) return not_speech();
  ASSIGN_OR_RETURN(const SpeechTask task, parse_speech_prompt(*chat));
  std::vector<TokenId> previous;
  if (!task.previous_text.empty()) {
    ASSIGN_OR_RETURN(previous, tokenizer_->encode(task.previous_text, false, context.limits));
  }
  ASSIGN_OR_RETURN(SpeechInputs::Expanded expanded,
                   options_.speech->expand(task, std::move(previous)));
  TokenizedPrompt tokenized{.token_ids = std::move(expanded.token_ids)};
  tokenized.items.push_back(std::move(expanded.item));
  return tokenized;
}

Result<InputProcessor::TokenizedPrompt> InputProcessor::tokenize_with_images(
    RenderedChat rendered, const ChatPrompt& chat, const InputContext& context,
    bool must_fit) const {
  const auto other = std::ranges::find_if(
      rendered.media, [](const MediaPart& part) { return part.modality != "image"; });
  if (options_.images == nullptr || other != rendered.media.end()) {
    const MediaPart& refused = other != rendered.media.end() ? *other : rendered.media.front();
    return Error{ErrorCode::kUnsupported,
                 "messages have " + std::to_string(rendered.media.size()) + " items, one of type " +
                     refused.modality + ", the model takes " +
                     (options_.images == nullptr ? "text alone" : "text and images"),
                 "messages"};
  }
  std::vector<ImageSource> sources;
  for (MediaPart& part : rendered.media)
    sources.push_back({.url = std::move(part.url), .uuid = std::move(part.uuid)});
  ASSIGN_OR_RETURN(ImageInputs::Expanded expanded,
                   options_.images->expand(rendered.text, sources,
                                           {.processor_kwargs = chat.mm_processor_kwargs_json,
                                            .media_io_kwargs = chat.media_io_kwargs_json,
                                            .with_data = context.with_item_data,
                                            .remote = context.remote},
                                           context.limits));
  if (must_fit) RETURN_IF_ERROR(check_text(expanded.text, "prompt"));
  ASSIGN_OR_RETURN(auto ids,
                   tokenizer_->encode(expanded.text, chat.add_special_tokens, context.limits));
  RETURN_IF_ERROR(options_.images->place(ids, expanded.items));
  return TokenizedPrompt{.token_ids = std::move(ids),
                         .text = std::move(expanded.text),
                         .items = std::move(expanded.items),
                         .num_mm_queries = static_cast<std::int32_t>(sources.size()),
                         .num_mm_hits = expanded.num_hits};
}

Result<void> InputProcessor::truncate(TokenizedPrompt& prompt, std::int32_t num_kept,
                                      std::int32_t num_generated) const {
  if (num_kept < -1 || num_kept > options_.max_model_len) {
    return invalid_argument("truncate_prompt_tokens is " + std::to_string(num_kept) +
                                ", it must be between -1 and max_model_len, which is " +
                                std::to_string(options_.max_model_len),
                            "truncate_prompt_tokens");
  }
  // Generated tokens need room, too.
  if (num_kept == -1) {
    num_kept = std::max(options_.max_model_len - num_generated, 1);
  }
  const auto num_dropped = static_cast<std::int32_t>(prompt.token_ids.size()) - num_kept;
  if (num_dropped <= 0) return {};
  prompt.token_ids.erase(prompt.token_ids.begin(), prompt.token_ids.begin() + num_dropped);
  std::erase_if(prompt.items, [&](const MultiModalFeature& item) {
    return item.offset + item.length <= num_dropped;
  });
  for (MultiModalFeature& item : prompt.items) {
    item.offset -= num_dropped;
    if (item.offset < 0)
      return invalid_argument("truncate_prompt_tokens is " + std::to_string(num_kept) +
                                  ", which cuts an image of " + std::to_string(item.length) +
                                  " tokens",
                              "truncate_prompt_tokens");
  }
  return {};
}

Result<void> InputProcessor::check_prompt(const std::vector<TokenId>& token_ids,
                                          bool generates) const {
  if (token_ids.empty()) return invalid_argument("prompt is empty", "prompt");
  const std::string size = std::to_string(token_ids.size());
  const std::string limit = std::to_string(options_.max_model_len);
  if (token_ids.size() > static_cast<std::size_t>(options_.max_model_len)) {
    return invalid_argument("prompt has " + size + " tokens, max_model_len is " + limit, "prompt");
  }
  if (generates && token_ids.size() == static_cast<std::size_t>(options_.max_model_len)) {
    return invalid_argument("prompt has " + size + " tokens, max_model_len is " + limit +
                                ", which leaves no room to generate one",
                            "prompt");
  }
  return check_token_ids(token_ids);
}

Result<void> InputProcessor::check_grammar(const SamplingParams& params) const {
  if (!params.structured_outputs) return {};
  if (options_.grammars == nullptr) {
    return Error{ErrorCode::kUnsupported, "structured output is not supported by this server",
                 params.structured_outputs->field};
  }
  const auto compiled = options_.grammars->get(*params.structured_outputs);
  if (!compiled.ok()) return compiled.error();
  return {};
}

/// Encoding takes many times the memory of the text.
Result<void> InputProcessor::check_text(std::string_view text, const std::string& field) const {
  const auto limit = static_cast<std::size_t>(options_.max_model_len);
  if (text.size() / longest_token_bytes_ <= limit) return {};
  return invalid_argument(field + " has " + std::to_string(text.size()) +
                              " bytes, max_model_len is " + std::to_string(limit) +
                              " tokens of at most " + std::to_string(longest_token_bytes_) +
                              " bytes",
                          field);
}

Result<void> InputProcessor::check_size(const SamplingParams& params,
                                        std::size_t num_prompt_tokens) const {
  const auto num_tokens = static_cast<std::int64_t>(num_prompt_tokens) +
                          std::min(params.max_tokens.value_or(0), options_.max_model_len);
  if (params.n == 1 || params.n * num_tokens <= options_.max_request_tokens) return {};
  return invalid_argument("the request has " + std::to_string(params.n) + " samples of " +
                              std::to_string(num_tokens) +
                              " tokens (prompt and max_tokens), the limit of all together is " +
                              std::to_string(options_.max_request_tokens) + " (max_request_tokens)",
                          "n");
}

Result<void> InputProcessor::check_token_ids(const std::vector<TokenId>& token_ids) const {
  for (const TokenId id : token_ids) {
    if (id >= 0 && id < options_.vocab_size) continue;
    return invalid_argument("prompt has token id " + std::to_string(id) + ", the vocabulary has " +
                                std::to_string(options_.vocab_size) + " tokens",
                            "prompt");
  }
  return {};
}

Result<void> InputProcessor::complete_budget(ThinkingBudget& budget,
                                             const WorkLimits& limits) const {
  const auto tokens_of = [&](const std::string& text) {
    return tokenizer_->encode(text, /*add_special_tokens=*/false, limits);
  };
  ASSIGN_OR_RETURN(budget.begin_token_ids, tokens_of(budget.begin));
  std::vector<std::vector<TokenId>> ends;
  for (const std::string& end : budget.ends) {
    ASSIGN_OR_RETURN(auto tokens, tokens_of(end));
    ends.push_back(std::move(tokens));
  }
  budget.end_token_ids = std::move(ends);
  ASSIGN_OR_RETURN(budget.forced_token_ids, tokens_of(budget.forced_end));
  return {};
}

Result<void> InputProcessor::complete_params(SamplingParams& params, std::size_t num_prompt_tokens,
                                             const WorkLimits& limits) const {
  if (!params.max_tokens) {
    params.max_tokens = options_.max_model_len - static_cast<std::int32_t>(num_prompt_tokens);
  }
  std::optional<TokenId> eos = tokenizer_->eos_id();
  if (!eos && !options_.eos_token_ids.empty()) eos = options_.eos_token_ids.front();
  add_stop_ids(params, eos, options_.eos_token_ids);
  for (const std::string& word : params.bad_words) RETURN_IF_ERROR(check_text(word, "bad_words"));
  auto bad_words = tokenize_bad_words(*tokenizer_, params.bad_words, limits);
  if (!bad_words.ok()) return with_limit(std::move(bad_words).error());
  params.bad_words_token_ids = std::move(bad_words).value();
  if (params.bad_words_token_ids.size() > options_.max_num_bad_words) {
    return invalid_argument("bad_words make " + std::to_string(params.bad_words_token_ids.size()) +
                                " token sequences, the limit is " +
                                std::to_string(options_.max_num_bad_words),
                            "bad_words");
  }
  if (params.thinking_budget) {
    if (auto done = complete_budget(*params.thinking_budget, limits); !done.ok())
      return with_limit(std::move(done).error());
  }
  // Tokens found in the cache have no logits.
  if (params.prompt_logprobs) params.skip_reading_prefix_cache = true;
  return {};
}

}  // namespace troupe
