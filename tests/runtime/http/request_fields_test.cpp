// Each field of vLLM's requests, by API: it changes the request, or is a hint that changes no
// answer, or is refused by name. A field that nobody reads is none of these.
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/anthropic.hpp"
#include "runtime/http/pooling.hpp"
#include "runtime/http/responses.hpp"
#include "runtime/http/speech.hpp"
#include "runtime/reasoning/reasoning_format.hpp"
#include "runtime/tool_parsers/tool_format.hpp"
#include "tests/runtime/http/request_defaults.hpp"

namespace troupe {
namespace {

enum class Use : std::uint8_t { kHonoured, kHint, kRefused };

struct FieldRow {
  const char* name;
  const char* value;  ///< not the default
  Use use = Use::kHonoured;
  const char* beside = "{}";  ///< other fields that it needs
};

constexpr const char* kTools =
    R"({"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]})";
constexpr const char* kAnthropicTools =
    R"({"tools":[{"name":"f","input_schema":{}},{"name":"g","input_schema":{}}]})";
constexpr const char* kResponsesTools =
    R"({"tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}]})";

/// Of all that generate, under these names.
constexpr FieldRow kSamplingRows[] = {
    {"model", R"("m")"},
    {"temperature", "0.5"},
    {"top_p", "0.5"},
    {"top_k", "5"},
    {"min_p", "0.5"},
    {"frequency_penalty", "0.5"},
    {"presence_penalty", "0.5"},
    {"repetition_penalty", "1.5"},
    {"seed", "5"},
    {"stream", "true"},
    {"stream_interval", "3"},
    {"stop_token_ids", "[5]"},
    {"include_stop_str_in_output", "true"},
    {"ignore_eos", "true"},
    {"min_tokens", "2"},
    {"skip_special_tokens", "false"},
    {"spaces_between_special_tokens", "false"},
    {"logit_bias", R"({"5":1})"},
    {"allowed_token_ids", "[5]"},
    {"bad_words", R"(["w"])"},
    {"repetition_detection", R"({"max_pattern_size":3,"min_pattern_size":1,"min_count":2})"},
    {"priority", "3"},
    {"cache_salt", R"("s")"},
    {"request_id", R"("r")"},
    {"session_id", R"("s")"},
    {"kv_transfer_params", R"({"do_remote_decode":true})"},
    {"ec_transfer_params", R"({"a":1})", Use::kHint},
    {"vllm_xargs", R"({"a":1})", Use::kRefused},
    {"structured_outputs", R"({"regex":"a"})"},
    {"thinking_token_budget", "7"},
};
/// Of OpenAI's older APIs.
constexpr FieldRow kOpenAiRows[] = {
    {"n", "2"},
    {"stop", R"(["s"])"},
    {"stream_options", R"({"include_usage":true})", Use::kHonoured, R"({"stream":true})"},
    {"user", R"("u")"},
    {"echo", "true"},
    {"max_tokens", "5"},
    {"prompt_logprobs", "2"},
    {"logprob_token_ids", "[5]", Use::kHonoured, R"({"logprobs":1})"},
    {"response_format", R"({"type":"json_object"})"},
    {"return_tokens_as_token_ids", "true"},
    {"return_token_ids", "true"},
    {"truncate_prompt_tokens", "5"},
    {"truncation_side", R"("right")", Use::kRefused},
    {"use_beam_search", "true", Use::kRefused},
    {"length_penalty", "0.5", Use::kRefused},
    {"return_token_offsets", "true", Use::kRefused},
    {"watermarking", R"({"a":1})", Use::kRefused},
    {"prompt_embeds", R"("AA==")", Use::kRefused},
    {"guided_json", R"({"type":"object"})"},
    {"guided_regex", R"("a")"},
    {"guided_choice", R"(["a"])"},
    {"guided_grammar", R"("root ::= 'a'")"},
};
constexpr FieldRow kCompletionRows[] = {
    {"prompt", R"("b")"},
    {"logprobs", "2"},
    {"suffix", R"("z")", Use::kRefused},
    {"add_special_tokens", "false"},
};
constexpr FieldRow kChatRows[] = {
    {"messages", R"([{"role":"user","content":"b"}])"},
    {"logprobs", "true"},
    {"top_logprobs", "2", Use::kHonoured, R"({"logprobs":true})"},
    {"max_completion_tokens", "5"},
    {"tools", R"([{"type":"function","function":{"name":"f"}}])"},
    {"tool_choice", R"("required")", Use::kHonoured, kTools},
    {"parallel_tool_calls", "false", Use::kHonoured, kTools},
    {"reasoning_effort", R"("low")"},
    {"include_reasoning", "false"},
    {"add_generation_prompt", "false"},
    {"continue_final_message", "true", Use::kHonoured, R"({"add_generation_prompt":false})"},
    {"add_special_tokens", "true"},
    {"documents", R"([{"text":"d"}])"},
    {"chat_template", R"("{{ x }}")"},
    {"chat_template_kwargs", R"({"x":1})"},
    {"media_io_kwargs", R"({"image":{}})"},
    {"mm_processor_kwargs", R"({"a":1})"},
    {"return_prompt_text", "true"},
    {"mm_payload", R"("urls")", Use::kRefused},
    {"return_mm_kwargs", "true", Use::kRefused},
    {"metadata", R"({"a":"b"})", Use::kHint},
    {"store", "true", Use::kRefused},
    {"prompt_cache_key", R"("k")"},
    {"safety_identifier", R"("u")"},
    {"prompt_cache_retention", R"("24h")", Use::kHint},
    {"service_tier", R"("flex")", Use::kRefused},
    {"verbosity", R"("low")", Use::kRefused},
    {"modalities", R"(["audio"])", Use::kRefused},
    {"audio", R"({"voice":"v"})", Use::kRefused},
    {"prediction", R"({"type":"content"})", Use::kRefused},
    {"web_search_options", R"({"a":1})", Use::kRefused},
    {"functions", R"([{"name":"f"}])", Use::kRefused},
    {"function_call", R"("auto")", Use::kRefused},
    {"routed_experts_prompt_start", "1", Use::kRefused},
};
constexpr FieldRow kResponsesRows[] = {
    {"input", R"("b")"},
    {"instructions", R"("Be kind.")"},
    {"max_output_tokens", "5"},
    {"max_tool_calls", "2"},
    {"metadata", R"({"a":"b"})"},
    {"parallel_tool_calls", "false", Use::kHonoured, kResponsesTools},
    {"previous_response_id", R"("resp_1")"},
    {"reasoning", R"({"effort":"low"})"},
    {"store", "false"},
    {"background", "true"},
    {"top_logprobs", "2"},
    {"include", R"(["message.output_text.logprobs"])"},
    {"text", R"({"format":{"type":"json_object"}})"},
    {"tools", R"([{"type":"function","name":"f"}])"},
    {"tool_choice", R"("required")", Use::kHonoured, kResponsesTools},
    {"truncation", R"("auto")"},
    {"user", R"("u")"},
    {"stop", R"(["s"])"},
    {"logprob_token_ids", "[5]", Use::kHonoured, R"({"top_logprobs":1})"},
    {"chat_template", R"("{{ x }}")"},
    {"chat_template_kwargs", R"({"x":1})"},
    {"media_io_kwargs", R"({"image":{}})"},
    {"mm_processor_kwargs", R"({"a":1})"},
    {"prompt_cache_key", R"("k")"},
    {"service_tier", R"("flex")", Use::kRefused},
    {"prompt", R"({"id":"p"})", Use::kRefused},
    {"conversation", R"("c")", Use::kRefused},
    {"enable_response_messages", "true", Use::kRefused},
    {"previous_input_messages", "[1]", Use::kRefused},
    {"include_reasoning", "false"},
    {"mm_payload", R"("urls")", Use::kRefused},
    {"return_mm_kwargs", "true", Use::kRefused},
    {"watermarking", R"({"a":1})", Use::kRefused},
};
constexpr FieldRow kMessagesRows[] = {
    {"messages", R"([{"role":"user","content":"b"}])"},
    {"max_tokens", "5"},
    {"system", R"("Be kind.")"},
    {"stop_sequences", R"(["s"])"},
    {"tools", R"([{"name":"f","input_schema":{}}])"},
    {"tool_choice", R"({"type":"any","disable_parallel_tool_use":true})", Use::kHonoured,
     kAnthropicTools},
    {"thinking", R"({"type":"enabled","budget_tokens":1024})", Use::kHonoured,
     R"({"max_tokens":2000})"},
    {"output_config", R"({"format":{"type":"json_schema","schema":{"type":"object"}}})"},
    {"output_format", R"({"type":"json_schema","schema":{"type":"object"}})"},
    {"cache_control", R"({"type":"ephemeral"})"},
    {"metadata", R"({"user_id":"u"})", Use::kHint},
    {"service_tier", R"("auto")", Use::kHint},
    {"chat_template_kwargs", R"({"x":1})"},
    {"mcp_servers", R"([{"name":"s"}])", Use::kRefused},
    {"container", R"("c")", Use::kRefused},
    {"mm_payload", R"("urls")", Use::kRefused},
    {"return_mm_kwargs", "true", Use::kRefused},
    {"watermarking", R"({"a":1})", Use::kRefused},
};
constexpr FieldRow kTokenizeRows[] = {
    {"model", R"("m")"},
    {"prompt", R"("b")"},
    {"add_special_tokens", "false"},
    {"return_token_strs", "true"},
};
constexpr FieldRow kTokenizeChatRows[] = {
    {"model", R"("m")"},
    {"messages", R"([{"role":"user","content":"b"}])"},
    {"add_generation_prompt", "false"},
    {"continue_final_message", "true", Use::kHonoured, R"({"add_generation_prompt":false})"},
    {"add_special_tokens", "true"},
    {"return_token_strs", "true"},
    {"chat_template", R"("{{ x }}")"},
    {"chat_template_kwargs", R"({"x":1})"},
    {"tools", R"([{"type":"function","function":{"name":"f"}}])"},
    {"mm_processor_kwargs", R"({"a":1})"},
};
constexpr FieldRow kDetokenizeRows[] = {{"model", R"("m")"}, {"tokens", "[5]"}};
/// Of all pooling APIs.
constexpr FieldRow kPoolingRows[] = {
    {"model", R"("m")"},
    {"request_id", R"("r")"},
    {"priority", "3"},
    {"user", R"("u")"},
    {"truncate_prompt_tokens", "5"},
    {"truncation_side", R"("right")", Use::kRefused},
    {"cache_salt", R"("s")"},
    {"task", R"("token_embed")", Use::kRefused},
    {"late_interaction", "true", Use::kRefused},
    {"max_tokens_per_query", "5", Use::kRefused},
    {"max_tokens_per_doc", "5", Use::kRefused},
    {"padding", R"("max_length")", Use::kRefused},
};
/// Of pairs of texts.
constexpr FieldRow kPairRows[] = {
    {"instruction", R"("Find it.")", Use::kRefused},
    {"chat_template_kwargs", R"({"x":1})", Use::kRefused},
};
constexpr FieldRow kEmbeddingRows[] = {
    {"input", R"("b")"},
    {"dimensions", "5"},
    {"encoding_format", R"("base64")"},
    {"add_special_tokens", "false"},
    {"normalize", "false"},
    {"use_activation", "false"},
    {"embed_dtype", R"("float16")", Use::kRefused},
    {"endianness", R"("big")", Use::kRefused},
    {"prompt_embeds", R"("AA==")", Use::kRefused},
};
constexpr FieldRow kScoreRows[] = {{"text_1", R"("b")"}, {"text_2", R"("b")"}};
constexpr FieldRow kRerankRows[] = {
    {"query", R"("b")"}, {"documents", R"(["b","c","d"])"}, {"top_n", "1"}};
constexpr FieldRow kSpeechRows[] = {
    {"model", R"("m")"},
    {"language", R"("de")"},
    {"prompt", R"("b")"},
    {"response_format", R"("srt")"},
    {"timestamp_granularities[]", R"("word")", Use::kRefused},
    {"stream", R"("true")"},
    {"temperature", R"("0.5")"},
    {"top_p", R"("0.5")"},
    {"top_k", R"("5")"},
    {"min_p", R"("0.5")"},
    {"seed", R"("5")"},
    {"frequency_penalty", R"("0.5")"},
    {"presence_penalty", R"("0.5")"},
    {"repetition_penalty", R"("1.5")"},
    {"max_completion_tokens", R"("5")"},
    {"to_language", R"("fr")", Use::kRefused},
    {"include[]", R"("logprobs")", Use::kRefused},
    {"hotwords", R"("Ada")", Use::kRefused},
    {"vllm_xargs", R"("{}")", Use::kRefused},
    {"stream_include_usage", R"("true")", Use::kRefused},
    {"stream_continuous_usage_stats", R"("true")", Use::kRefused},
    {"use_beam_search", R"("true")", Use::kRefused},
    {"n", R"("2")", Use::kRefused},
    {"length_penalty", R"("2")", Use::kRefused},
    {"chunking_strategy", R"("server_vad")", Use::kRefused},
    {"known_speaker_names[]", R"("Ada")", Use::kRefused},
};

// ---- What has been made of a body, in a form that can be compared

struct Seen {
  GenerateRequest request;
  Placement placement;
  std::vector<Prompt> prompts;
  std::string rest;
  bool operator==(const Seen&) const = default;
};

Seen seen(const GenerationFields& fields) {
  Seen all;
  all.request.external_id = fields.request_id;
  all.request.params = fields.params;
  all.request.pooling = fields.pooling;
  all.request.truncate_prompt_tokens = fields.truncate_prompt_tokens;
  all.request.cache_salt = fields.cache_salt;
  all.request.priority = fields.priority;
  all.request.limits = fields.limits;
  all.request.cache_breakpoints = fields.cache_breakpoints;
  all.placement = fields.placement;
  all.rest = fields.model + '\n' + fields.user + '\n';
  for (const bool flag : {fields.stream, fields.stream_options.include_usage,
                          fields.stream_options.continuous_usage_stats, fields.echo,
                          fields.return_token_ids, fields.return_tokens_as_token_ids})
    all.rest += flag ? '1' : '0';
  return all;
}

Seen seen(const CompletionRequest& request) {
  Seen all = seen(static_cast<const GenerationFields&>(request));
  all.prompts = request.prompts;
  return all;
}

Seen seen(const ChatRequest& request) {
  Seen all = seen(static_cast<const GenerationFields&>(request));
  all.prompts = {request.prompt};
  all.rest += std::to_string(request.top_logprobs) + request.role + request.echo_text;
  for (const bool flag :
       {request.return_prompt_text, request.answer.include_reasoning,
        request.answer.parallel_tool_calls, request.answer.declarations != nullptr})
    all.rest += flag ? '1' : '0';
  if (request.response) all.rest += request.response->fields + request.response->conversation;
  return all;
}

Seen seen(const TokenizeRequest& request) {
  return {.prompts = {request.render.prompt},
          .rest = request.model + (request.render.return_token_strings ? "1" : "0")};
}
Seen seen(const DetokenizeRequest& request) {
  return {.prompts = {request.render.prompt}, .rest = request.model};
}

Seen seen(const PoolingRequest& request) {
  Seen all = seen(static_cast<const GenerationFields&>(request));
  all.prompts = request.prompts;
  all.rest += (request.as_base64 ? "1 " : "0 ") + std::to_string(request.num_queries) + ' ' +
              std::to_string(request.max_results);
  return all;
}

Seen seen(const SpeechRequest& request) {
  Seen all = seen(static_cast<const GenerationFields&>(request));
  all.rest += request.language + '\n' + request.previous_text + '\n' +
              std::to_string(static_cast<int>(request.format));
  return all;
}

ServerDefaults open_defaults() {
  ServerDefaults all = defaults();
  all.max_model_len = 4000;
  all.trust_request_chat_template = true;
  all.hidden_size = 8;
  all.answers.tools = find_tool_format("hermes");
  all.answers.reasoning = *find_reasoning_format("deepseek_r1");
  return all;
}

template <class Request>
Result<Seen> seen_of(const Result<Request>& request) {
  if (!request.ok()) return request.error();
  return seen(request.value());
}

template <auto parse>
Result<Seen> read(const std::string& body) {
  return seen_of(parse(body, open_defaults()));
}

Result<Seen> read_response(const std::string& body) {
  ASSIGN_OR_RETURN(ResponsesRequest request, parse_responses_request(body));
  const std::string own = request.previous_id + (request.store ? '1' : '0') +
                          (request.may_truncate ? '1' : '0') +
                          (request.settings.in_background ? '1' : '0');
  ASSIGN_OR_RETURN(const ChatRequest chat, chat_of(std::move(request), "", open_defaults()));
  Seen all = seen(chat);
  all.rest += own;
  return all;
}

/// The fields as those of a form.
Result<Seen> read_form(const std::string& body) {
  const auto fields = nlohmann::ordered_json::parse(body);
  std::string form;
  for (const auto& [name, value] : fields.items())
    form += "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" +
            (value.is_string() ? value.get<std::string>() : value.dump()) + "\r\n";
  return seen_of(
      parse_speech_request("multipart/form-data; boundary=b", form + "--b--\r\n", false));
}

std::string reason(const Result<Seen>& body) { return body.ok() ? "" : body.error().message; }

void check_rows(Result<Seen> (*read_body)(const std::string&), const std::string& base,
                std::span<const FieldRow> rows) {
  using Json = nlohmann::ordered_json;
  for (const FieldRow& row : rows) {
    Json plain = Json::parse(base);
    plain.update(Json::parse(row.beside));
    Json given = plain;
    given[row.name] = Json::parse(row.value);
    BOOST_TEST_CONTEXT(given.dump()) {
      const Result<Seen> without = read_body(plain.dump()), with = read_body(given.dump());
      BOOST_REQUIRE_MESSAGE(without.ok(), reason(without));
      if (row.use == Use::kRefused) {
        BOOST_REQUIRE(!with.ok());
        BOOST_TEST(std::string_view(row.name).starts_with(with.error().param), with.error().param);
        BOOST_TEST(!with.error().param.empty());
        continue;
      }
      BOOST_REQUIRE_MESSAGE(with.ok(), reason(with));
      BOOST_TEST((with.value() != without.value()) == (row.use == Use::kHonoured));
      if (row.use != Use::kHint) continue;
      given[row.name] = Json::parse("[[[true]]]");  // hints are read, too
      BOOST_TEST(!read_body(given.dump()).ok());
    }
  }
}

constexpr const char* kPrompt = R"({"prompt":"a"})";
constexpr const char* kChat = R"({"messages":[{"role":"user","content":"a"}]})";

BOOST_AUTO_TEST_CASE(each_field_of_generating_requests_is_honoured_or_refused_by_name) {
  for (const auto rows :
       {std::span<const FieldRow>(kSamplingRows), std::span<const FieldRow>(kOpenAiRows)}) {
    check_rows(read<parse_completion_request>, kPrompt, rows);
  }
  check_rows(read<parse_completion_request>, kPrompt, kCompletionRows);
  check_rows(read<parse_chat_request>, kChat, kSamplingRows);
  for (FieldRow row : kOpenAiRows) {
    if (std::string_view(row.name) == "logprob_token_ids") row.beside = R"({"logprobs":true})";
    // What is repeated is the last message, of the same role.
    if (std::string_view(row.name) == "echo") row.beside = R"({"add_generation_prompt":false})";
    check_rows(read<parse_chat_request>, kChat, {&row, 1});
  }
  check_rows(read<parse_chat_request>, kChat, kChatRows);
  check_rows(read_response, R"({"input":"a"})", kSamplingRows);
  check_rows(read_response, R"({"input":"a"})", kResponsesRows);
  constexpr const char* kMessage = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":9})";
  check_rows(read<parse_messages_request>, kMessage, kSamplingRows);
  check_rows(read<parse_messages_request>, kMessage, kMessagesRows);
}

BOOST_AUTO_TEST_CASE(each_field_of_other_requests_is_honoured_or_refused_by_name) {
  check_rows(read<parse_tokenize_request>, kPrompt, kTokenizeRows);
  check_rows(read<parse_tokenize_request>, kChat, kTokenizeChatRows);
  check_rows(read<parse_detokenize_request>, R"({"tokens":[1]})", kDetokenizeRows);
  constexpr const char* kInput = R"({"input":"a"})";
  check_rows(read<parse_embedding_request>, kInput, kPoolingRows);
  check_rows(read<parse_embedding_request>, kInput, kEmbeddingRows);
  check_rows(read<parse_pooling_request>, kInput, kPoolingRows);
  check_rows(read<parse_pooling_request>, kInput, kEmbeddingRows);
  constexpr const char* kTexts = R"({"text_1":"a","text_2":"a"})";
  check_rows(read<parse_score_request>, kTexts, kPoolingRows);
  check_rows(read<parse_score_request>, kTexts, kScoreRows);
  check_rows(read<parse_score_request>, kTexts, kPairRows);
  constexpr const char* kQuery = R"({"query":"a","documents":["a","b"]})";
  check_rows(read<parse_rerank_request>, kQuery, kPoolingRows);
  check_rows(read<parse_rerank_request>, kQuery, kRerankRows);
  check_rows(read<parse_rerank_request>, kQuery, kPairRows);
  check_rows(read_form, R"({"file":"x"})", kSpeechRows);
}

BOOST_AUTO_TEST_CASE(scores_of_pairs_have_an_activation_of_their_own) {
  using enum ClassActivation;
  ServerDefaults defaults;
  defaults.pooler = {.type = PoolingType::kLast,
                     .labels = {"LABEL_0"},
                     .activation = kSigmoid,
                     .score_activation = kNone};
  const std::string texts = R"({"text_1":"a","text_2":"a"})";
  const std::string query = R"({"query":"a","documents":["a"]})";
  const auto activation = [&](auto parse, const std::string& body) {
    return parse(body, defaults).value().pooling->activation;
  };
  BOOST_CHECK(activation(parse_classify_request, R"({"input":"a"})") == kSigmoid);
  BOOST_CHECK(activation(parse_score_request, texts) == kNone);
  BOOST_CHECK(activation(parse_rerank_request, query) == kNone);
  std::swap(defaults.pooler.activation, defaults.pooler.score_activation);
  BOOST_CHECK(activation(parse_classify_request, R"({"input":"a"})") == kNone);
  BOOST_CHECK(activation(parse_score_request, texts) == kSigmoid);
  BOOST_CHECK(activation(parse_rerank_request, query) == kSigmoid);
}

}  // namespace
}  // namespace troupe
