#include "runtime/http/generation_fields.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/http/structured_fields.hpp"
#include "runtime/http/unsupported_fields.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxStopStrings = 4;
constexpr std::size_t kMaxBadWords = 128;
constexpr std::size_t kMaxCacheSaltBytes = 128;
constexpr double kMaxSamples = 1 << 20;  ///< hard limit of all servers
/// Approximate size of a log-probability in a response, with its token.
constexpr std::int64_t kLogprobBytes = 64;
constexpr std::int64_t kTokenIdBytes = 8;   ///< in a response
constexpr std::int64_t kBytesPerToken = 4;  ///< estimate for text that is not tokenized yet
constexpr float kMaxLogitBias = 100;
constexpr double kMaxInt32 = kAnyInt32.max;

/// kMinRepetitionPenalty, as errors show it.
constexpr Interval kRepetitionPenalties = {0.01, kMaxRepetitionPenalty};
static_assert(static_cast<float>(kRepetitionPenalties.min) == kMinRepetitionPenalty);

struct FloatField {
  std::string_view name;
  float SamplingParams::*member;
  Interval range;
};
constexpr FloatField kFloatFields[] = {
    {"presence_penalty", &SamplingParams::presence_penalty, {-2, 2}},
    {"frequency_penalty", &SamplingParams::frequency_penalty, {-2, 2}},
    {"repetition_penalty", &SamplingParams::repetition_penalty, kRepetitionPenalties},
    {"temperature", &SamplingParams::temperature, {0, 2}},
    {"top_p", &SamplingParams::top_p, {0, 1, true}},
    {"min_p", &SamplingParams::min_p, {0, 1}},
};

struct IntegerField {
  std::string_view name;
  std::int32_t SamplingParams::*member;
  Interval range;
};
constexpr IntegerField kIntegerFields[] = {
    {"n", &SamplingParams::n, {1, kMaxSamples}},
    {"top_k", &SamplingParams::top_k, {-1, kMaxInt32}},
    {"min_tokens", &SamplingParams::min_tokens, {0, kMaxInt32}},
};

struct BooleanField {
  std::string_view name;
  bool SamplingParams::*member;
};
constexpr BooleanField kBooleanFields[] = {
    {"ignore_eos", &SamplingParams::ignore_eos},
    {"skip_special_tokens", &SamplingParams::skip_special_tokens},
    {"spaces_between_special_tokens", &SamplingParams::spaces_between_special_tokens},
    {"include_stop_str_in_output", &SamplingParams::include_stop_str_in_output},
};

/// Fields that are validated, and change no answer.
constexpr std::string_view kIgnoredObjects[] = {"ec_transfer_params", "metadata"};
constexpr double kMaxLimitSeconds = 86400;
constexpr std::string_view kIgnoredTexts[] = {"prompt_cache_retention", "guided_decoding_backend"};

SamplingParams params_from(const SamplingDefaults& defaults) {
  SamplingParams params;
  params.temperature = defaults.temperature.value_or(params.temperature);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.top_k = defaults.top_k.value_or(params.top_k);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);
  return params;
}

void read_stop(const JsonFields& fields, const ServerDefaults& defaults, SamplingParams& params) {
  if (auto stop = fields.texts("stop", kMaxStopStrings)) {
    if (std::any_of(stop->begin(), stop->end(), [](const auto& text) { return text.empty(); })) {
      fields.wrong_value("stop", "stop cannot contain an empty string");
    }
    params.stop = *std::move(stop);
  }
  if (auto ids = fields.tokens("stop_token_ids", defaults.vocab_size)) {
    params.stop_token_ids = *std::move(ids);
  }
}

void read_logit_bias(const JsonFields& fields, const ServerDefaults& defaults,
                     SamplingParams& params) {
  const auto biases = fields.numbers("logit_bias", static_cast<std::size_t>(defaults.vocab_size));
  if (!biases) return;
  std::vector<std::pair<TokenId, float>> by_token;
  by_token.reserve(biases->size());
  for (const auto& [key, bias] : *biases) {
    TokenId token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc{} || end != key.data() + key.size() || token < 0 ||
        token >= defaults.vocab_size) {
      fields.wrong_value("logit_bias", "logit_bias has the key \"" + key.substr(0, 32) +
                                           "\", keys must be token ids in [0, " +
                                           std::to_string(defaults.vocab_size) + ")");
      return;
    }
    by_token.emplace_back(
        token, static_cast<float>(std::clamp<double>(bias, -kMaxLogitBias, kMaxLogitBias)));
  }
  params.logit_bias = std::move(by_token);
}

void read_word_lists(const JsonFields& fields, const ServerDefaults& defaults,
                     SamplingParams& params) {
  if (auto ids = fields.tokens("allowed_token_ids", defaults.vocab_size)) {
    if (ids->empty()) {
      fields.wrong_value("allowed_token_ids", "allowed_token_ids must not be empty");
    }
    params.allowed_token_ids = *std::move(ids);
  }
  if (auto words = fields.texts("bad_words", kMaxBadWords)) {
    if (std::any_of(words->begin(), words->end(), [](const auto& word) { return word.empty(); })) {
      fields.wrong_value("bad_words", "bad_words cannot contain an empty string");
    }
    params.bad_words = *std::move(words);
  }
}

void read_repetition_detection(const JsonFields& fields, SamplingParams& params) {
  const std::optional<JsonFields> object = fields.object("repetition_detection");
  if (!object) return;
  RepetitionDetection detection;
  const auto read = [&](std::string_view name, const Interval& range, std::int32_t& target) {
    if (const auto value = object->integer(name, range)) target = static_cast<std::int32_t>(*value);
  };
  read("max_pattern_size", {0, kMaxInt32}, detection.max_pattern_size);
  read("min_pattern_size", {0, kMaxInt32}, detection.min_pattern_size);
  read("min_count", {2, kMaxInt32}, detection.min_count);
  if (detection.min_pattern_size > detection.max_pattern_size) {
    object->wrong_value("min_pattern_size", "min_pattern_size must be at most max_pattern_size, " +
                                                std::to_string(detection.max_pattern_size));
  }
  params.repetition_detection = detection;
}

void read_stream(const JsonFields& fields, const ServerDefaults& defaults,
                 GenerationFields& request) {
  request.stream = fields.boolean("stream").value_or(false);
  request.params.output_kind = request.stream ? OutputKind::kDelta : OutputKind::kFinalOnly;
  if (const std::optional<JsonFields> options = fields.object("stream_options")) {
    if (!request.stream) {
      fields.wrong_value("stream_options", "stream_options can only be set when stream is true");
    }
    request.stream_options.include_usage = options->boolean("include_usage").value_or(false);
    request.stream_options.continuous_usage_stats =
        options->boolean("continuous_usage_stats").value_or(false);
  }
  const auto interval = fields.integer("stream_interval", {1, kMaxInt32});
  request.params.stream_interval =
      std::max(defaults.stream_interval, static_cast<std::int32_t>(interval.value_or(1)));
}

/// The server's limits, or the request's if shorter.
void read_limits(const JsonFields& fields, const ServerDefaults& defaults,
                 GenerationFields& request) {
  request.limits = defaults.limits;
  const auto read = [&](std::string_view name, double& limit) {
    const auto asked = fields.number(name, {0, kMaxLimitSeconds, true});
    if (asked) limit = limit > 0 ? std::min(limit, *asked) : *asked;
  };
  read("max_queue_time_s", request.limits.max_queue_time_s);
  read("max_request_time_s", request.limits.max_request_time_s);
}

void read_what_is_not_used(const JsonFields& fields) {
  refuse_unsupported_fields(fields);
  for (const std::string_view name : kIgnoredObjects) fields.object(name);
  for (const std::string_view name : kIgnoredTexts) fields.text(name);
  if (fields.number("length_penalty").value_or(1) != 1)
    fields.fail(unsupported("length_penalty", "beam search, to which length_penalty belongs,"));
  // They are for extensions of the sampler, of which there are none.
  if (const auto extra = fields.object("vllm_xargs")) {
    if (const auto name = extra->other_name({}))
      fields.fail(unsupported("vllm_xargs", "vllm_xargs." + *name));
  }
}

/// Whose requests share the work fairly with those of others, and which ones share a prefix.
void read_identity(const JsonFields& fields, GenerationFields& request) {
  const auto user = fields.text("user");
  request.user = fields.text("safety_identifier").value_or(user.value_or(""));
  const auto cache_key = fields.text("prompt_cache_key");
  request.placement.session_id = fields.text("session_id").value_or(cache_key.value_or(""));
}

void read_request_id(const JsonFields& fields, GenerationFields& request) {
  request.request_id = fields.text("request_id").value_or("");
  if (request.request_id.size() <= kMaxRequestIdBytes) return;
  fields.wrong_value("request_id", "request_id has " + std::to_string(request.request_id.size()) +
                                       " bytes, at most " + std::to_string(kMaxRequestIdBytes) +
                                       " are allowed");
}

}  // namespace

Error not_by_priority(std::int32_t priority) {
  return invalid_argument("priority is " + std::to_string(priority) +
                              ", this server does not schedule by priority (see its option "
                              "--scheduling-policy)",
                          "priority");
}

void read_cache_salt(const JsonFields& fields, GenerationFields& request) {
  const auto salt = fields.text("cache_salt");
  if (!salt) return;
  if (salt->empty() || salt->size() > kMaxCacheSaltBytes) {
    fields.wrong_value("cache_salt", "cache_salt has " + std::to_string(salt->size()) +
                                         " bytes, it must have 1 to " +
                                         std::to_string(kMaxCacheSaltBytes));
  } else if (salt->find_first_of(std::string_view("@/\\\0", 4)) != std::string::npos) {
    fields.wrong_value("cache_salt", "cache_salt must not contain @, /, \\ or NUL");
  }
  request.cache_salt = *salt;
}

void read_priority(const JsonFields& fields, const ServerDefaults& defaults,
                   GenerationFields& request) {
  request.priority = static_cast<std::int32_t>(fields.integer("priority", kAnyInt32).value_or(0));
  if (request.priority != 0 && !defaults.by_priority)
    fields.wrong_value("priority", not_by_priority(request.priority).message);
}

void read_thinking_budget(const JsonFields& fields, const ServerDefaults& defaults,
                          const std::optional<ReasoningFormat>& reasoning, SamplingParams& params) {
  constexpr std::string_view kField = "thinking_token_budget";
  const auto budget = fields.integer(kField, {-1, kMaxInt32});
  if (!budget || *budget == -1) return;
  const AnswerDefaults& answers = defaults.answers;
  if (!answers.reasoning)
    return fields.wrong_value(kField, std::string(kField) +
                                          " needs a model whose reasoning is parsed (see the "
                                          "server's option --reasoning-parser)");
  if (!reasoning) return;
  std::vector<std::string> ends = {std::string(reasoning->end)};
  for (const std::string_view end : reasoning->implicit_ends) ends.emplace_back(end);
  params.thinking_budget = {
      .num_tokens = static_cast<std::int32_t>(*budget),
      .starts_inside = reasoning->starts_inside,
      .begin = answers.budget_begin.empty() ? std::string(reasoning->begin) : answers.budget_begin,
      .ends = std::move(ends),
      .forced_end = answers.budget_end.empty() ? std::string(reasoning->end) : answers.budget_end};
}

void read_generation_fields(const JsonFields& fields, const ServerDefaults& defaults,
                            GenerationFields& request) {
  SamplingParams& params = request.params;
  params = params_from(defaults.sampling);
  for (const FloatField& field : kFloatFields) {
    if (const auto value = fields.number(field.name, field.range)) {
      params.*field.member = static_cast<float>(*value);
    }
  }
  for (const IntegerField& field : kIntegerFields) {
    if (const auto value = fields.integer(field.name, field.range)) {
      params.*field.member = static_cast<std::int32_t>(*value);
    }
  }
  for (const BooleanField& field : kBooleanFields) {
    if (const auto value = fields.boolean(field.name)) params.*field.member = *value;
  }
  // Requests for several samples are sampled, even if the model's default is greedy.
  if (defaults.sampling.do_sample == false && params.n > 1 && !fields.has("temperature"))
    params.temperature = SamplingParams{}.temperature;
  if (const auto seed = fields.integer("seed"); seed && *seed != -1) params.seed = *seed;
  read_stream(fields, defaults, request);
  read_stop(fields, defaults, params);
  read_logit_bias(fields, defaults, params);
  read_word_lists(fields, defaults, params);
  read_repetition_detection(fields, params);
  read_cache_salt(fields, request);
  read_limits(fields, defaults, request);
  read_structured_outputs(fields, params);
  read_what_is_not_used(fields);

  if (const auto count = fields.integer("prompt_logprobs", {kAllLogprobs, kMaxInt32})) {
    if (request.stream) {
      fields.wrong_value("prompt_logprobs", "prompt_logprobs are not available with stream");
    }
    check_num_logprobs(fields, "prompt_logprobs", defaults, *count);
    params.prompt_logprobs = static_cast<std::int32_t>(*count);
  }
  if (const auto last = fields.integer("truncate_prompt_tokens",
                                       {-1, static_cast<double>(defaults.max_model_len)})) {
    request.truncate_prompt_tokens = static_cast<std::int32_t>(*last);
  }
  request.model = fields.text("model").value_or("");
  request.echo = fields.boolean("echo").value_or(false);
  request.return_token_ids = fields.boolean("return_token_ids").value_or(false);
  request.return_tokens_as_token_ids = fields.boolean("return_tokens_as_token_ids").value_or(false);
  read_priority(fields, defaults, request);
  if (auto ids = fields.tokens("logprob_token_ids", defaults.vocab_size)) {
    if (ids->size() > kMaxLogprobTokenIds)
      fields.wrong_value("logprob_token_ids",
                         "logprob_token_ids has " + std::to_string(ids->size()) +
                             " token ids, at most " + std::to_string(kMaxLogprobTokenIds) +
                             " are allowed");
    params.logprob_token_ids = *std::move(ids);
  }
  if (const auto rank = fields.integer("data_parallel_rank",
                                       {0, static_cast<double>(defaults.data_parallel_size - 1)})) {
    request.placement.data_parallel_rank = static_cast<std::int32_t>(*rank);
  }
  request.placement.kv_transfer_params =
      fields.raw("kv_transfer_params", JsonKind::kObject).value_or(std::string());
  read_request_id(fields, request);
  read_identity(fields, request);
}

void finish_sampling_params(const JsonFields& fields, const ServerDefaults& defaults,
                            GenerationFields& request) {
  SamplingParams& params = request.params;
  if (params.greedy()) {
    if (params.n > 1) {
      fields.wrong_value("n", "n must be 1 when temperature is 0, got " + std::to_string(params.n));
    }
    params.top_p = 1;
    params.top_k = 0;
    params.min_p = 0;
  } else {
    params.temperature = std::max(params.temperature, kMinTemperature);
  }
  if (params.max_tokens && params.min_tokens > *params.max_tokens) {
    fields.wrong_value("min_tokens", "min_tokens must be at most max_tokens, " +
                                         std::to_string(*params.max_tokens));
  }
  if (params.min_tokens > defaults.max_model_len) {
    fields.wrong_value("min_tokens", "min_tokens must be at most max_model_len, " +
                                         std::to_string(defaults.max_model_len));
  }
  if (!params.logprob_token_ids.empty() && !params.logprobs)
    fields.wrong_value("logprob_token_ids", "logprob_token_ids needs logprobs");
  // Cached positions have no logits for log-probabilities.
  params.skip_reading_prefix_cache = params.prompt_logprobs.has_value();
}

std::vector<Prompt> read_prompts(const JsonFields& fields, std::string_view name,
                                 std::int32_t vocab_size, std::size_t max_count) {
  const bool add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  fields.require(name);
  std::vector<Prompt> prompts;
  const auto add_texts = [&] {
    for (std::string& text : fields.texts(name, max_count).value_or(std::vector<std::string>{})) {
      prompts.push_back(TextPrompt{std::move(text), add_special_tokens});
    }
  };
  switch (fields.kind(name)) {
    case JsonKind::kAbsent:
    case JsonKind::kNull:
      return prompts;
    case JsonKind::kString:
      add_texts();
      if (prompts.size() == 1 && std::get<TextPrompt>(prompts[0]).text.empty()) prompts.clear();
      break;
    case JsonKind::kArray:
      if (fields.element_kind(name) == JsonKind::kNumber) {
        if (auto tokens = fields.tokens(name, vocab_size)) {
          prompts.push_back(TokensPrompt{*std::move(tokens)});
        }
      } else if (fields.element_kind(name) == JsonKind::kArray) {
        for (auto& tokens : fields.token_lists(name, vocab_size, max_count)
                                .value_or(std::vector<std::vector<TokenId>>{})) {
          if (tokens.empty()) {
            fields.wrong_value(
                name, std::string(name) + " " + std::to_string(prompts.size()) + " has no tokens");
          }
          prompts.push_back(TokensPrompt{std::move(tokens)});
        }
      } else {
        add_texts();
      }
      break;
    default:
      fields.wrong_form(name, "a string, an array of strings or arrays of token ids");
      return prompts;
  }
  if (prompts.empty()) fields.wrong_value(name, std::string(name) + " must not be empty");
  return prompts;
}

void check_request_size(const JsonFields& fields, const ServerDefaults& defaults,
                        const GenerationFields& request, const PromptSizes& prompts) {
  const SamplingParams& params = request.params;
  const RequestSizeLimits& limits = defaults.size;
  const std::int64_t num_samples = prompts.count * params.n;
  if (num_samples > limits.max_samples) {
    return fields.wrong_value(
        "n", "the request has " + std::to_string(num_samples) + " samples (" +
                 std::to_string(prompts.count) + " prompts, n of each), at most " +
                 std::to_string(limits.max_samples) + " are allowed (max_request_samples)");
  }
  const std::int64_t num_prompt_tokens = prompts.num_tokens + prompts.num_bytes / kBytesPerToken;
  const std::int64_t num_tokens =
      params.n * num_prompt_tokens +
      num_samples * std::min(params.max_tokens.value_or(0), defaults.max_model_len);
  if (num_samples > 1 && num_tokens > limits.max_tokens) {
    return fields.wrong_value(params.n > 1 ? "n" : "prompt",
                              "the request has " + std::to_string(num_samples) +
                                  " samples, with their prompts and max_tokens " +
                                  std::to_string(num_tokens) + " tokens, at most " +
                                  std::to_string(limits.max_tokens) +
                                  " are allowed (max_request_tokens)");
  }
  std::int64_t bytes_per_token = prompts.num_shown_ids * kTokenIdBytes;
  if (params.prompt_logprobs) {
    const std::int64_t each =
        *params.prompt_logprobs == kAllLogprobs ? defaults.vocab_size : *params.prompt_logprobs + 1;
    bytes_per_token += kLogprobBytes * each;
  }
  const std::int64_t echo_bytes =
      params.n * (prompts.num_shown_bytes + bytes_per_token * num_prompt_tokens);
  if (echo_bytes > limits.max_echo_bytes) {
    fields.wrong_value(params.prompt_logprobs ? "prompt_logprobs" : "n",
                       "the response would repeat " + std::to_string(echo_bytes) +
                           " bytes of its prompts in " + std::to_string(num_samples) +
                           " samples, at most " + std::to_string(limits.max_echo_bytes) +
                           " are allowed (max_echo_bytes)");
  }
}

void check_num_logprobs(const JsonFields& fields, std::string_view name,
                        const ServerDefaults& defaults, std::int64_t num_logprobs) {
  if (defaults.max_logprobs == kAllLogprobs) return;
  if (num_logprobs == kAllLogprobs) {
    fields.wrong_value(name, std::string(name) + " of the whole vocabulary is more than the " +
                                 std::to_string(defaults.max_logprobs) + " allowed");
  } else if (num_logprobs > defaults.max_logprobs) {
    fields.wrong_value(name, std::string(name) + " is " + std::to_string(num_logprobs) +
                                 ", at most " + std::to_string(defaults.max_logprobs) +
                                 " are allowed");
  }
}

std::optional<std::int32_t> capped_max_tokens(std::optional<std::int64_t> requested,
                                              const ServerDefaults& defaults) {
  std::optional<std::int32_t> max_tokens = defaults.sampling.max_new_tokens;
  if (requested) {
    const auto asked = static_cast<std::int32_t>(*requested);
    max_tokens = max_tokens ? std::min(*max_tokens, asked) : asked;
  }
  return max_tokens;
}

Result<SamplingDefaults> parse_sampling_defaults(std::string_view json,
                                                 const SamplingDefaults& base) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(json));
  SamplingDefaults defaults = base;
  const auto read_float = [&](std::string_view name, const Interval& range,
                              std::optional<float>& target) {
    if (const auto value = fields.number(name, range)) target = static_cast<float>(*value);
  };
  const auto read_integer = [&](std::string_view name, const Interval& range,
                                std::optional<std::int32_t>& target) {
    if (const auto value = fields.integer(name, range)) target = static_cast<std::int32_t>(*value);
  };
  if (const auto value = fields.boolean("do_sample")) defaults.do_sample = *value;
  read_float("temperature", {0, 2}, defaults.temperature);
  read_float("top_p", {0, 1, true}, defaults.top_p);
  read_float("min_p", {0, 1}, defaults.min_p);
  read_float("repetition_penalty", kRepetitionPenalties, defaults.repetition_penalty);
  read_integer("top_k", {-1, kMaxInt32}, defaults.top_k);
  read_integer("max_new_tokens", {1, kMaxInt32}, defaults.max_new_tokens);
  RETURN_IF_ERROR(fields.result());
  return defaults;
}

}  // namespace troupe
