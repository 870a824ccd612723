// Requests that are wrong, and what is said of them.
#include "runtime/http/openai_request.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/tool_parsers/tool_format.hpp"
#include "tests/runtime/http/request_defaults.hpp"

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(all_errors_of_form_are_listed_but_no_more_than_ten) {
  const auto two =
      parse_completion_request(R"({"prompt":"a","n":"two","temperature":[1]})", defaults());
  BOOST_REQUIRE(!two.ok());
  BOOST_TEST((two.error().code == ErrorCode::kCorrupt));
  BOOST_TEST(two.error().message ==
             "2 validation errors:\n  temperature: should be a number, got an array\n"
             "  n: should be an integer of 64 bits, got \"two\"");
  BOOST_TEST(two.error().param == "temperature");

  std::string body = R"({"prompt":"a")";
  for (const char* name : {"n", "seed", "stop", "stream", "echo", "top_k", "top_p", "min_p",
                           "priority", "model", "logprobs", "max_tokens"}) {
    body += std::string(",\"") + name + "\":{}";
  }
  const auto many = parse_completion_request(body + "}", defaults());
  BOOST_REQUIRE(!many.ok());
  BOOST_TEST(many.error().message.starts_with("12 validation errors:"));
  BOOST_TEST(std::count(many.error().message.begin(), many.error().message.end(), '\n') == 10);
}

BOOST_AUTO_TEST_CASE(one_fault_is_one_error) {
  const auto request = parse_chat_request(R"({"messages":"hi"})", defaults());
  BOOST_REQUIRE(!request.ok());
  BOOST_TEST(request.error().message ==
             "1 validation error:\n  messages: should be an array of objects, got \"hi\"");
}

BOOST_AUTO_TEST_CASE(values_without_effect_are_accepted) {
  ServerDefaults server = defaults();
  server.answers.tools = find_tool_format("hermes");
  const auto request = parse_chat_request(
      R"({"messages":[{"role":"user","content":"a"}],"functions":null,"function_call":"none",)"
      R"("modalities":["text"],"store":false,"service_tier":"auto","verbosity":"medium",)"
      R"("metadata":{"a":"b"},"best_of":1,"parallel_tool_calls":true,"include_reasoning":true,)"
      R"("tools":[{"type":"function","function":{"name":"f","strict":false}}],)"
      R"("prompt_cache_key":"k","safety_identifier":"s","user":"u","guided_json":null})",
      server);
  BOOST_TEST(request.ok(), (request.ok() ? "" : request.error().message));
}

BOOST_AUTO_TEST_CASE(what_is_echoed_of_a_bad_value_is_short) {
  const auto request = parse_completion_request(
      R"({"prompt":"a","n":")" + std::string(100000, 'x') + R"("})", defaults());
  BOOST_REQUIRE(!request.ok());
  BOOST_TEST(request.error().message.size() < 400u);
}

struct BadField {
  const char* fields;
  const char* param;
  ErrorCode code;
};
constexpr ErrorCode kForm = ErrorCode::kCorrupt;
constexpr ErrorCode kValue = ErrorCode::kInvalidArgument;
constexpr ErrorCode kNotOffered = ErrorCode::kUnsupported;

/// Fields that no request may have, in either API.
constexpr BadField kBadFields[] = {
    {R"("n":0)", "n", kValue},
    {R"("n":-1)", "n", kValue},
    {R"("n":16385)", "n", kValue},
    {R"("n":1.5)", "n", kForm},
    {R"("n":1e400)", "body", kForm},
    {R"("n":99999999999999999999)", "body", kForm},
    {R"("n":true)", "n", kForm},
    {R"("n":"1")", "n", kForm},
    {R"("n":[1])", "n", kForm},
    {R"("n":2,"temperature":0)", "n", kValue},
    {R"("temperature":-0.1)", "temperature", kValue},
    {R"("temperature":2.1)", "temperature", kValue},
    {R"("temperature":"hot")", "temperature", kForm},
    {R"("temperature":1e39)", "temperature", kValue},
    {R"("temperature":NaN)", "body", kForm},
    {R"("temperature":Infinity)", "body", kForm},
    {R"("top_p":0)", "top_p", kValue},
    {R"("top_p":1.01)", "top_p", kValue},
    {R"("top_p":{})", "top_p", kForm},
    {R"("top_k":-2)", "top_k", kValue},
    {R"("top_k":4294967296)", "top_k", kValue},
    {R"("top_k":0.5)", "top_k", kForm},
    {R"("min_p":-0.01)", "min_p", kValue},
    {R"("min_p":1.5)", "min_p", kValue},
    {R"("presence_penalty":-2.5)", "presence_penalty", kValue},
    {R"("presence_penalty":"x")", "presence_penalty", kForm},
    {R"("frequency_penalty":3)", "frequency_penalty", kValue},
    {R"("repetition_penalty":0)", "repetition_penalty", kValue},
    {R"("repetition_penalty":-1)", "repetition_penalty", kValue},
    {R"("repetition_penalty":1e-40)", "repetition_penalty", kValue},
    {R"("repetition_penalty":1e30)", "repetition_penalty", kValue},
    {R"("seed":9223372036854775808)", "seed", kForm},
    {R"("seed":"x")", "seed", kForm},
    {R"("seed":1.5)", "seed", kForm},
    {R"("stop":"")", "stop", kValue},
    {R"("stop":["a",""])", "stop", kValue},
    {R"("stop":["a","b","c","d","e"])", "stop", kValue},
    {R"("stop":[1])", "stop.0", kForm},
    {R"("stop":7)", "stop", kForm},
    {R"("stop_token_ids":[100])", "stop_token_ids", kValue},
    {R"("stop_token_ids":[-1])", "stop_token_ids", kValue},
    {R"("stop_token_ids":["a"])", "stop_token_ids.0", kForm},
    {R"("stop_token_ids":3)", "stop_token_ids", kForm},
    {R"("ignore_eos":"yes")", "ignore_eos", kForm},
    {R"("ignore_eos":1)", "ignore_eos", kForm},
    {R"("max_tokens":0)", "max_tokens", kValue},
    {R"("max_tokens":-5)", "max_tokens", kValue},
    {R"("max_tokens":"ten")", "max_tokens", kForm},
    {R"("max_tokens":3000000000)", "max_tokens", kValue},
    {R"("min_tokens":-1)", "min_tokens", kValue},
    {R"("min_tokens":20,"max_tokens":10)", "min_tokens", kValue},
    {R"("min_tokens":2000,"max_tokens":3000)", "min_tokens", kValue},
    {R"("prompt_logprobs":-2)", "prompt_logprobs", kValue},
    {R"("prompt_logprobs":21)", "prompt_logprobs", kValue},
    {R"("prompt_logprobs":-1)", "prompt_logprobs", kValue},
    {R"("prompt_logprobs":true)", "prompt_logprobs", kForm},
    {R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs", kValue},
    {R"("skip_special_tokens":"no")", "skip_special_tokens", kForm},
    {R"("include_stop_str_in_output":0)", "include_stop_str_in_output", kForm},
    {R"("spaces_between_special_tokens":[])", "spaces_between_special_tokens", kForm},
    {R"("logit_bias":[1])", "logit_bias", kForm},
    {R"("logit_bias":{"a":1})", "logit_bias", kValue},
    {R"("logit_bias":{"100":1})", "logit_bias", kValue},
    {R"("logit_bias":{"-1":1})", "logit_bias", kValue},
    {R"("logit_bias":{"1":"x"})", "logit_bias.1", kForm},
    {R"("logit_bias":{"1":null})", "logit_bias.1", kForm},
    {R"("allowed_token_ids":[])", "allowed_token_ids", kValue},
    {R"("allowed_token_ids":[100])", "allowed_token_ids", kValue},
    {R"("allowed_token_ids":"a")", "allowed_token_ids", kForm},
    {R"("bad_words":[""])", "bad_words", kValue},
    {R"("bad_words":[1])", "bad_words.0", kForm},
    {R"("repetition_detection":1)", "repetition_detection", kForm},
    {R"("repetition_detection":{"min_count":1})", "repetition_detection.min_count", kValue},
    {R"("repetition_detection":{"min_pattern_size":3})", "repetition_detection.min_pattern_size",
     kValue},
    {R"("stream":"true")", "stream", kForm},
    {R"("stream":1)", "stream", kForm},
    {R"("stream_options":{})", "stream_options", kValue},
    {R"("stream_options":{"include_usage":true})", "stream_options", kValue},
    {R"("stream":true,"stream_options":{"include_usage":"yes"})", "stream_options.include_usage",
     kForm},
    {R"("stream":true,"stream_options":true)", "stream_options", kForm},
    {R"("stream":true,"stream_options":{"continuous_usage_stats":1})",
     "stream_options.continuous_usage_stats", kForm},
    {R"("stream_interval":0)", "stream_interval", kValue},
    {R"("cache_salt":"")", "cache_salt", kValue},
    {R"("cache_salt":"a@b")", "cache_salt", kValue},
    {R"("cache_salt":"a/b")", "cache_salt", kValue},
    {R"("cache_salt":"a\\b")", "cache_salt", kValue},
    {R"("cache_salt":"a\u0000b")", "cache_salt", kValue},
    {R"("cache_salt":7)", "cache_salt", kForm},
    {R"("response_format":"json")", "response_format", kForm},
    {R"("response_format":{})", "response_format.type", kForm},
    {R"("response_format":{"type":"xml"})", "response_format.type", kValue},
    {R"("response_format":{"type":"json_schema"})", "response_format", kValue},
    {R"("thinking_token_budget":5)", "thinking_token_budget", kValue},
    {R"("thinking_token_budget":-2)", "thinking_token_budget", kValue},
    {R"("thinking_token_budget":"a")", "thinking_token_budget", kForm},
    {R"("logprob_token_ids":[1])", "logprob_token_ids", kValue},
    {R"("logprob_token_ids":[100])", "logprob_token_ids", kValue},
    {R"("functions":[{"name":"f"}])", "functions", kNotOffered},
    {R"("function_call":"auto")", "function_call", kNotOffered},
    {R"("function_call":{"name":"f"})", "function_call", kNotOffered},
    {R"("modalities":["text","audio"])", "modalities", kNotOffered},
    {R"("modalities":[5])", "modalities.0", kForm},
    {R"("audio":{"voice":"v","format":"wav"})", "audio", kNotOffered},
    {R"("prediction":{"type":"content","content":"a"})", "prediction", kNotOffered},
    {R"("web_search_options":{})", "web_search_options", kNotOffered},
    {R"("store":true)", "store", kNotOffered},
    {R"("service_tier":"flex")", "service_tier", kNotOffered},
    {R"("verbosity":"low")", "verbosity", kNotOffered},
    {R"("best_of":3)", "best_of", kNotOffered},
    {R"("return_token_offsets":true)", "return_token_offsets", kNotOffered},
    {R"("request_id":")"
     "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
     "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
     "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
     R"(")",
     "request_id", kValue},
    {R"("use_beam_search":true)", "use_beam_search", kNotOffered},
    {R"("use_beam_search":"x")", "use_beam_search", kForm},
    {R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens", kValue},
    {R"("truncate_prompt_tokens":1001)", "truncate_prompt_tokens", kValue},
    {R"("truncate_prompt_tokens":"all")", "truncate_prompt_tokens", kForm},
    {R"("truncation_side":"right")", "truncation_side", kNotOffered},
    {R"("truncation_side":"up")", "truncation_side", kNotOffered},
    {R"("model":5)", "model", kForm},
    {R"("user":5)", "user", kForm},
    {R"("priority":"high")", "priority", kForm},
    {R"("priority":3000000000)", "priority", kValue},
    {R"("request_id":1)", "request_id", kForm},
    {R"("echo":"yes")", "echo", kForm},
    {R"("return_token_ids":1)", "return_token_ids", kForm},
    {R"("return_tokens_as_token_ids":"a")", "return_tokens_as_token_ids", kForm},
    {R"("add_special_tokens":"a")", "add_special_tokens", kForm},
    {R"("kv_transfer_params":[1])", "kv_transfer_params", kForm},
    {R"("vllm_xargs":"x")", "vllm_xargs", kForm},
};

constexpr BadField kBadCompletions[] = {
    {R"({})", "prompt", kForm},
    {R"({"prompt":null})", "prompt", kForm},
    {R"({"prompt":""})", "prompt", kValue},
    {R"({"prompt":[]})", "prompt", kValue},
    {R"({"prompt":[[]]})", "prompt", kValue},
    {R"({"prompt":5})", "prompt", kForm},
    {R"({"prompt":true})", "prompt", kForm},
    {R"({"prompt":{"text":"a"}})", "prompt", kForm},
    {R"({"prompt":["a",1]})", "prompt.1", kForm},
    {R"({"prompt":[1,"a"]})", "prompt.1", kForm},
    {R"({"prompt":[1,-1]})", "prompt", kValue},
    {R"({"prompt":[100]})", "prompt", kValue},
    {R"({"prompt":[1e18]})", "prompt.0", kForm},
    {R"({"prompt":[1.5]})", "prompt.0", kForm},
    {R"({"prompt":[[1],2]})", "prompt.1", kForm},
    {R"({"prompt":[[1],["a"]]})", "prompt.1.0", kForm},
    {R"({"prompt":[null]})", "prompt.0", kForm},
    {R"({"prompt":"a","logprobs":21})", "logprobs", kValue},
    {R"({"prompt":"a","logprobs":-1})", "logprobs", kValue},
    {R"({"prompt":"a","logprobs":-2})", "logprobs", kValue},
    {R"({"prompt":"a","logprobs":true})", "logprobs", kForm},
    {R"({"prompt":"a","suffix":1})", "suffix", kForm},
    {R"({"prompt":"a","suffix":"z"})", "suffix", kNotOffered},
    {R"({"prompt":"a","prompt_embeds":"x"})", "prompt_embeds", kNotOffered},
    {R"({"prompt":"a","echo":true,"max_tokens":-1})", "max_tokens", kValue},
};

constexpr BadField kBadChats[] = {
    {R"({})", "messages", kForm},
    {R"({"messages":null})", "messages", kForm},
    {R"({"messages":[]})", "messages", kValue},
    {R"({"messages":"hi"})", "messages", kForm},
    {R"({"messages":{"role":"user"}})", "messages", kForm},
    {R"({"messages":["hi"]})", "messages.0", kForm},
    {R"({"messages":[{}]})", "messages.0.role", kForm},
    {R"({"messages":[{"role":1}]})", "messages.0.role", kForm},
    {R"({"messages":[{"role":"user","content":5}]})", "messages.0.content", kForm},
    {R"({"messages":[{"role":"user","content":{}}]})", "messages.0.content", kForm},
    {R"({"messages":[{"role":"user","content":["a"]}]})", "messages.0.content.0", kForm},
    {R"({"messages":[{"role":"user","tool_calls":"x"}]})", "messages.0.tool_calls", kForm},
};

/// Behind a good conversation.
constexpr BadField kBadChatFields[] = {
    {R"("logprobs":1)", "logprobs", kForm},
    {R"("top_logprobs":2)", "top_logprobs", kValue},
    {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", kValue},
    {R"("logprobs":true,"top_logprobs":-1)", "top_logprobs", kValue},
    {R"("logprobs":true,"top_logprobs":-2)", "top_logprobs", kValue},
    {R"("logprobs":true,"top_logprobs":"a")", "top_logprobs", kForm},
    {R"("max_completion_tokens":0)", "max_completion_tokens", kValue},
    {R"("max_completion_tokens":"a")", "max_completion_tokens", kForm},
    {R"("tools":[])", "tools", kValue},
    {R"("tools":{})", "tools", kForm},
    {R"("tools":["f"])", "tools.0", kForm},
    {R"("tools":[{}])", "tools.0.function", kForm},
    {R"("tools":[{"function":{}}])", "tools.0.function.name", kForm},
    {R"("tools":[{"function":{"name":1}}])", "tools.0.function.name", kForm},
    {R"("tool_choice":"auto")", "tool_choice", kValue},
    {R"("tool_choice":"required")", "tool_choice", kValue},
    {R"("tool_choice":"maybe")", "tool_choice", kValue},
    {R"("tool_choice":5)", "tool_choice", kForm},
    {R"("tool_choice":{})", "tool_choice", kValue},
    {R"("tools":[{"function":{"name":"f"}}],"tool_choice":{"function":{"name":"g"}})",
     "tool_choice", kValue},
    {R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}})",
     "tool_choice", kValue},
    {R"("tools":[{"function":{"name":"f"}}],"tool_choice":{"allowed_tools":{"mode":"auto"}})",
     "tool_choice", kValue},
    {R"("tools":[{"function":{"name":"f"}}],"tool_choice":{"allowed_tools":{"mode":"never",)"
     R"("tools":[{"function":{"name":"f"}}]}})",
     "tool_choice", kValue},
    {R"("tools":[{"function":{"name":"f"}}],"tool_choice":{"allowed_tools":{"mode":"required",)"
     R"("tools":[{"function":{"name":"g"}}]}})",
     "tool_choice", kValue},
    {R"("add_generation_prompt":1)", "add_generation_prompt", kForm},
    {R"("continue_final_message":true)", "continue_final_message", kValue},
    {R"("continue_final_message":"a")", "continue_final_message", kForm},
    {R"("chat_template":"{{ x }}")", "chat_template", kValue},
    {R"("chat_template":1)", "chat_template", kForm},
    {R"("chat_template_kwargs":[])", "chat_template_kwargs", kForm},
    {R"("documents":"d")", "documents", kForm},
    {R"("documents":["d"])", "documents.0", kForm},
    {R"("chat_template_kwargs":{"tokenize":true})", "chat_template_kwargs.tokenize", kValue},
    {R"("tools":[{"function":{"name":"f"}},{"function":{"name":"f"}}])", "tools.1.function.name",
     kValue},
    {R"("reasoning_effort":"huge")", "reasoning_effort", kValue},
    {R"("reasoning_effort":1)", "reasoning_effort", kForm},
    {R"("parallel_tool_calls":"no")", "parallel_tool_calls", kForm},
    {R"("media_io_kwargs":[])", "media_io_kwargs", kForm},
    {R"("tools":[{"function":{"name":"f"}}])", "tools", kValue},  // no format of calls
    {R"("tools":[{"function":{"name":"f"}}],"tool_choice":"auto")", "tools", kValue},
    {R"("routed_experts_prompt_start":1)", "routed_experts_prompt_start", kNotOffered},
    {R"("tools":[{"type":"custom","custom":{"name":"f"}}])", "tools", kNotOffered},
};

constexpr const char* kNotJson[] = {
    "",
    " ",
    "{",
    "}",
    "[]",
    "null",
    "5",
    "\"prompt\"",
    "{\"prompt\":\"a\"",
    "{\"prompt\":\"a\",}",
    "{\"prompt\":\"a\"}}",
    "{\"prompt\":'a'}",
    "{prompt:\"a\"}",
    "{\"prompt\":\"a\" \"n\":1}",
    "{\"prompt\":\"\\ud800\"}",
    "{\"prompt\":\"\\udc00x\"}",
    "{\"prompt\":\"\\ud800\\ud800\"}",
    "{\"prompt\":\"\\x41\"}",
    "{\"prompt\":\"a\nb\"}",
    "{\"prompt\":\"\xFF\"}",
    "{\"prompt\":\"\xC0\xAF\"}",
    "{\"prompt\":\"\xED\xA0\x80\"}",
    "{\"prompt\":\"a\",\"n\":01}",
    "{\"prompt\":\"a\",\"n\":+1}",
    "{\"prompt\":\"a\",\"n\":.5}",
    "{\"prompt\":\"a\",\"n\":1.}",
    "{\"prompt\":\"a\",\"n\":1e}",
    "{\"prompt\":\"a\",\"n\":0x10}",
    "{\"prompt\":\"a\",\"n\":True}",
    "<prompt>a</prompt>",
    "prompt=a&n=1",
};

template <class Request>
void expect_error(const Result<Request>& request, const std::string& body, const BadField& bad) {
  BOOST_TEST_CONTEXT(body) {
    BOOST_REQUIRE(!request.ok());
    BOOST_TEST(request.error().param == bad.param);
    BOOST_TEST((request.error().code == bad.code), request.error().message);
    BOOST_TEST(!request.error().message.empty());
  }
}

BOOST_AUTO_TEST_CASE(bad_fields_are_refused_by_name_in_both_apis) {
  for (const BadField& bad : kBadFields) {
    const std::string text = std::string(R"({"prompt":"a",)") + bad.fields + "}";
    expect_error(parse_completion_request(text, defaults()), text, bad);
    const std::string talk =
        std::string(R"({"messages":[{"role":"user","content":"a"}],)") + bad.fields + "}";
    expect_error(parse_chat_request(talk, defaults()), talk, bad);
  }
}

BOOST_AUTO_TEST_CASE(bad_prompts_and_conversations_are_refused_by_place) {
  for (const BadField& bad : kBadCompletions) {
    expect_error(parse_completion_request(bad.fields, defaults()), bad.fields, bad);
  }
  for (const BadField& bad : kBadChats) {
    expect_error(parse_chat_request(bad.fields, defaults()), bad.fields, bad);
  }
  for (const BadField& bad : kBadChatFields) {
    const std::string body =
        std::string(R"({"messages":[{"role":"user","content":"a"}],)") + bad.fields + "}";
    expect_error(parse_chat_request(body, defaults()), body, bad);
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_a_json_object_is_refused) {
  for (const char* body : kNotJson) {
    expect_error(parse_completion_request(body, defaults()), body, {"", "body", kForm});
    expect_error(parse_chat_request(body, defaults()), body, {"", "body", kForm});
  }
  static_assert(std::size(kBadFields) + std::size(kBadCompletions) + std::size(kBadChats) +
                    std::size(kBadChatFields) + std::size(kNotJson) >
                200);
}

BOOST_AUTO_TEST_CASE(bombs_are_refused_before_they_go_off) {
  const std::string deep =
      R"({"prompt":)" + std::string(100000, '[') + std::string(100000, ']') + "}";
  const auto nested = parse_completion_request(deep, defaults());
  BOOST_REQUIRE(!nested.ok());
  BOOST_TEST(nested.error().message.find("64 levels") != std::string::npos);

  std::string wide = R"({"prompt":"a")";
  for (int i = 0; i < 2000; ++i) wide += ",\"k" + std::to_string(i) + "\":0";
  BOOST_TEST(!parse_completion_request(wide + "}", defaults()).ok());

  std::string many = R"({"prompt":["a")";
  for (int i = 0; i < 1024; ++i) many += ",\"a\"";
  const auto prompts = parse_completion_request(many + "]}", defaults());
  BOOST_REQUIRE(!prompts.ok());
  BOOST_TEST(prompts.error().message.find("prompt has 1025 strings, at most 1024") !=
             std::string::npos);
}

}  // namespace
}  // namespace troupe
