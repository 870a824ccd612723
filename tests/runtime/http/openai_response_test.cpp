#include "runtime/http/openai_response.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>

#include "runtime/base/result.hpp"

namespace troupe {
namespace {

const AnswerHead kHead{.id = "x-1", .created = 7, .model = "m"};

CompletionOutput sample(std::string text) {
  CompletionOutput output;
  output.text = std::move(text);
  output.token_ids = {5, 6};
  output.logprobs = {{{5, -0.5f, 1, "é"}, {9, -1.5f, 2, "b"}},
                     {{6, -2.0f, 3, "!"}, {7, -0.25f, 1, "b"}, {8, -1.0f, 2, "b"}}};
  output.finish_reason = FinishReason::kStop;
  return output;
}

BOOST_AUTO_TEST_CASE(a_completion_has_every_key_in_order) {
  CompletionAnswer answer{.head = kHead, .choices = {{.output = sample("é!")}}, .usage = {3, 2}};
  answer.choices[0].output.stop_reason = TokenId{42};
  BOOST_TEST(
      completion_json(answer, {}) ==
      R"({"id":"x-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,)"
      R"("text":"é!","logprobs":null,"finish_reason":"stop","stop_reason":42,"token_ids":null,)"
      R"("prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],)"
      R"("service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":3,)"
      R"("total_tokens":5,"completion_tokens":2,"prompt_tokens_details":null,)"
      R"("completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,)"
      R"("metrics":null})");
}

BOOST_AUTO_TEST_CASE(completion_logprobs_count_code_points_and_collapse_equal_texts) {
  CompletionAnswer answer{.head = kHead, .choices = {{.output = sample("é!")}}, .usage = {}};
  const std::string json = completion_json(answer, {.num_logprobs = 2});
  BOOST_TEST(json.find(R"("logprobs":{"text_offset":[0,1],"token_logprobs":[-0.5,-2.0],)"
                       R"("tokens":["é","!"],"top_logprobs":[{"é":-0.5,"b":-1.5},)"
                       R"({"!":-2.0,"b":-1.0}]})") != std::string::npos,
             json);
  const std::string one = completion_json(answer, {.num_logprobs = 0, .tokens_as_ids = true});
  BOOST_TEST(one.find(R"("tokens":["token_id:5","token_id:6"],"top_logprobs":[{"token_id:5":-0.5},)"
                      R"({"token_id:6":-2.0}])") != std::string::npos,
             one);
}

BOOST_AUTO_TEST_CASE(an_echoed_first_token_has_null_logprobs_and_infinity_is_a_number) {
  CompletionChoice choice{.output = sample("a"), .first_token_text = "ab"};
  choice.output.logprobs = {{}, {{6, -std::numeric_limits<float>::infinity(), 3, "!"}}};
  const std::vector<PositionLogprobs> prompt = choice.output.logprobs;
  const std::vector<TokenId> prompt_ids = {1, 2};
  choice.prompt_logprobs = &prompt;
  choice.prompt_token_ids = &prompt_ids;
  const std::string json = completion_json({.head = kHead, .choices = {choice}, .usage = {}},
                                           {.num_logprobs = 1, .show_token_ids = true});
  BOOST_TEST(
      json.find(R"("logprobs":{"text_offset":[0,2],"token_logprobs":[null,-9999.0],)"
                R"("tokens":["ab","!"],"top_logprobs":[null,{"!":-9999.0}]})") != std::string::npos,
      json);
  BOOST_TEST(
      json.find(R"("token_ids":[5,6],"prompt_logprobs":[null,{"6":{"logprob":-9999.0,)"
                R"("rank":3,"decoded_token":"!"}}],"prompt_token_ids":[1,2])") != std::string::npos,
      json);
}

BOOST_AUTO_TEST_CASE(a_completion_event_is_one_line_of_json) {
  std::string out;
  CompletionOutput output;
  output.index = 2;
  output.text = "t";
  append_completion_event(out, kHead, {.output = output}, {}, nullptr);
  BOOST_TEST(out == R"(data: {"id":"x-1","object":"text_completion","created":7,"model":"m",)"
                    R"("choices":[{"index":2,"text":"t","logprobs":null,"finish_reason":null,)"
                    R"("stop_reason":null,"prompt_token_ids":null,"token_ids":null}]})"
                    "\n\n");
  out.clear();
  const Usage usage{.num_prompt_tokens = 3, .num_completion_tokens = 1};
  output.finish_reason = FinishReason::kLength;
  output.stop_reason = std::string("END");
  append_completion_event(out, kHead, {.output = output}, {}, &usage);
  BOOST_TEST(out.find(R"("finish_reason":"length","stop_reason":"END","prompt_token_ids":null,)"
                      R"("token_ids":null}],"usage":{"prompt_tokens":3,"total_tokens":4,)"
                      R"("completion_tokens":1}})") != std::string::npos,
             out);
}

ChatChoice chat_choice(const std::string& text) {
  return {.output = sample(text), .message = {.reasoning = {}, .content = text, .tool_calls = {}}};
}

BOOST_AUTO_TEST_CASE(a_chat_answer_has_every_key_in_order) {
  const ChatAnswer answer{.head = kHead,
                          .role = "assistant",
                          .choices = {chat_choice("hi")},
                          .usage = {.num_prompt_tokens = 3,
                                    .num_completion_tokens = 2,
                                    .show_details = true,
                                    .num_cached_tokens = 1,
                                    .num_cache_creation_tokens = 2}};
  BOOST_TEST(
      chat_json(answer, {}) ==
      R"({"id":"x-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,)"
      R"("message":{"role":"assistant","content":"hi","refusal":null,"annotations":null,)"
      R"("audio":null,"function_call":null,"reasoning":null},"logprobs":null,)"
      R"("finish_reason":"stop","stop_reason":null,"token_ids":null,"routed_experts":null}],)"
      R"("service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":3,)"
      R"("total_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1,)"
      R"("created_cache_tokens":2,"multimodal_tokens":null},"completion_tokens_details":null},)"
      R"("prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,)"
      R"("kv_transfer_params":null,"ec_transfer_params":null,"metrics":null})");
}

BOOST_AUTO_TEST_CASE(tool_calls_and_reasoning_stand_beside_the_content) {
  ChatChoice choice = chat_choice("");
  choice.message.reasoning = "hm";
  choice.message.tool_calls = {{.index = 0, .id = "call-1", .name = "f", .arguments = "{}"}};
  choice.ends_with_calls = true;
  const std::string json =
      chat_json({.head = kHead, .role = "assistant", .choices = {choice}, .usage = {}}, {});
  BOOST_TEST(
      json.find(R"("content":null,"refusal":null,"annotations":null,"audio":null,)"
                R"("function_call":null,"tool_calls":[{"id":"call-1","type":"function",)"
                R"("function":{"name":"f","arguments":"{}"}}],"reasoning":"hm",)"
                R"("reasoning_content":"hm"},"logprobs":null,"finish_reason":"tool_calls")") !=
          std::string::npos,
      json);
  std::string out;
  choice.message.tool_calls.push_back({.index = 1, .id = {}, .name = {}, .arguments = "{\"a"});
  append_chat_event(out, kHead, choice, {}, nullptr);
  BOOST_TEST(out.find(R"("delta":{"reasoning":"hm","reasoning_content":"hm","tool_calls":[)"
                      R"({"id":"call-1","type":"function","index":0,"function":{"name":"f",)"
                      R"("arguments":"{}"}},{"index":1,"function":{"arguments":"{\"a"}}]},)") !=
                 std::string::npos,
             out);
}

BOOST_AUTO_TEST_CASE(chat_logprobs_list_as_many_alternatives_as_were_asked_for) {
  const ChatAnswer answer{
      .head = kHead, .role = "assistant", .choices = {chat_choice("é!")}, .usage = {}};
  const std::string json = chat_json(answer, {.num_logprobs = 1});
  BOOST_TEST(json.find(R"("logprobs":{"content":[{"token":"é","logprob":-0.5,"bytes":[195,169],)"
                       R"("top_logprobs":[{"token":"é","logprob":-0.5,"bytes":[195,169]}]},)"
                       R"({"token":"!","logprob":-2.0,"bytes":[33],"top_logprobs":[{"token":"!",)"
                       R"("logprob":-2.0,"bytes":[33]}]}]})") != std::string::npos,
             json);
  const std::string none = chat_json(answer, {.num_logprobs = 0});
  BOOST_TEST(none.find(R"("bytes":[33],"top_logprobs":[]})") != std::string::npos, none);
}

BOOST_AUTO_TEST_CASE(chat_events_begin_with_the_role_and_end_with_the_reason) {
  std::string out;
  append_chat_role_event(out, kHead, 0, "assistant", nullptr, nullptr, nullptr);
  BOOST_TEST(out == R"(data: {"id":"x-1","object":"chat.completion.chunk","created":7,"model":"m",)"
                    R"("choices":[{"index":0,"delta":{"role":"assistant","content":""},)"
                    R"("logprobs":null,"finish_reason":null}],"prompt_token_ids":null,)"
                    R"("prompt_text":null})"
                    "\n\n");
  out.clear();
  ChatChoice choice;
  choice.message.content = "hi";
  append_chat_event(out, kHead, choice, {}, nullptr);
  BOOST_TEST(out == R"(data: {"id":"x-1","object":"chat.completion.chunk","created":7,"model":"m",)"
                    R"("choices":[{"index":0,"delta":{"content":"hi"},"logprobs":null,)"
                    R"("finish_reason":null,"token_ids":null}]})"
                    "\n\n");
  out.clear();
  choice.output.finish_reason = FinishReason::kStop;
  append_chat_event(out, kHead, choice, {}, nullptr);
  BOOST_TEST(out.find(R"("finish_reason":"stop","stop_reason":null,"token_ids":null}]})") !=
             std::string::npos);
  out.clear();
  append_usage_event(out, kHead, kChatChunkObject, {3, 2});
  BOOST_TEST(out ==
             R"(data: {"id":"x-1","object":"chat.completion.chunk","created":7,"model":"m",)"
             R"("choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}})"
             "\n\n");
}

BOOST_AUTO_TEST_CASE(errors_carry_status_type_and_parameter) {
  BOOST_TEST(error_json(invalid_argument("n must be 1", "n")) ==
             R"({"error":{"message":"n must be 1","type":"BadRequestError","param":"n",)"
             R"("code":400}})");
  BOOST_TEST(error_json({ErrorCode::kInternal, "oh", ""}) ==
             R"({"error":{"message":"oh","type":"InternalServerError","param":null,"code":500}})");
  BOOST_TEST(error_json({ErrorCode::kUnsupported, "no audio", "audio"}) ==
             R"({"error":{"message":"no audio","type":"BadRequestError","param":"audio",)"
             R"("code":"unsupported_parameter"}})");
  const std::pair<ErrorCode, int> kStatuses[] = {
      {ErrorCode::kCorrupt, 400},       {ErrorCode::kUnauthorized, 401},
      {ErrorCode::kNotFound, 404},      {ErrorCode::kTooLarge, 413},
      {ErrorCode::kUnprocessable, 400}, {ErrorCode::kUnsupported, 400},
      {ErrorCode::kOverloaded, 503},    {ErrorCode::kUnavailable, 503},
      {ErrorCode::kTimeout, 504},       {ErrorCode::kIo, 500}};
  for (const auto& [code, status] : kStatuses) BOOST_TEST(http_status(code) == status);
}

}  // namespace
}  // namespace troupe
