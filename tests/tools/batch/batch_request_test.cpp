#include "tools/batch/batch_request.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/base/json.hpp"

namespace troupe::tools {
namespace {

using Json = nlohmann::json;

ServerDefaults defaults() {
  ServerDefaults result;
  result.max_model_len = 1024;
  result.vocab_size = 1000;
  result.sampling.temperature = 0.5f;
  return result;
}

RequestOutput output_of(std::vector<TokenId> prompt, std::vector<std::string> texts) {
  RequestOutput output;
  output.prompt_token_ids = std::move(prompt);
  output.finished = true;
  for (std::size_t i = texts.size(); i-- > 0;) {  // the last sample ended first
    CompletionOutput sample;
    sample.index = static_cast<std::int32_t>(i);
    sample.text = texts[i];
    sample.token_ids = {1, 2};
    sample.finish_reason = FinishReason::kLength;
    output.outputs.push_back(std::move(sample));
  }
  return output;
}

BOOST_AUTO_TEST_CASE(a_line_with_messages_is_a_chat_and_any_other_a_completion) {
  auto chat =
      BatchRequest::parse(R"({"messages": [{"role": "user", "content": "hi"}]})", defaults());
  BOOST_REQUIRE(chat.ok());
  const auto chat_parts = chat->take_requests();
  BOOST_REQUIRE(chat_parts.size() == 1u);
  BOOST_TEST(std::holds_alternative<ChatPrompt>(chat_parts[0].prompt));

  auto completion =
      BatchRequest::parse(R"({"prompt": ["a", "b"], "max_tokens": 3, "stream": true})", defaults());
  BOOST_REQUIRE(completion.ok());
  const auto parts = completion->take_requests();
  BOOST_REQUIRE(parts.size() == 2u);
  BOOST_TEST(std::get<TextPrompt>(parts[1].prompt).text == "b");
  BOOST_TEST(parts[1].params.max_tokens.value() == 3);
  BOOST_TEST(parts[1].params.temperature == 0.5f);
  BOOST_TEST((parts[1].params.output_kind == OutputKind::kFinalOnly));
}

BOOST_AUTO_TEST_CASE(a_line_says_with_what_and_where_it_runs) {
  auto request = BatchRequest::parse(
      R"({"messages": [{"role": "user", "content": "a", "cache_control": {"type": "ephemeral"}}],
          "model": "m", "session_id": "s", "kv_transfer_params": {"a": 1}})",
      defaults());
  BOOST_REQUIRE(request.ok());
  BOOST_TEST(request->model() == "m");
  BOOST_TEST(request->placement().session_id == "s");
  BOOST_TEST(request->placement().kv_transfer_params == R"({"a":1})");
  request->set_adapter(LoraRequest{.name = "m"});
  const auto parts = request->take_requests();
  BOOST_REQUIRE(parts.size() == 1u);
  BOOST_TEST(parts[0].lora->name == "m");
  BOOST_TEST(parts[0].cache_breakpoints.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_line_that_cannot_be_read_says_why) {
  for (const char* line : {"", "{", "[]", "{}", R"({"prompt": 3})", R"({"messages": "hi"})",
                           R"({"prompt": "a", "temperature": -1})"}) {
    const auto request = BatchRequest::parse(line, defaults());
    BOOST_REQUIRE_MESSAGE(!request.ok(), line);
    const Json answer = Json::parse(batch_error_json(4, request.error()));
    BOOST_TEST(answer["index"] == 4);
    BOOST_TEST(answer["error"]["code"] == 400);
    BOOST_TEST(!answer["error"]["message"].get<std::string>().empty());
  }
}

BOOST_AUTO_TEST_CASE(an_answer_numbers_the_samples_of_all_prompts) {
  auto request = BatchRequest::parse(R"({"prompt": [[1], [2, 3]], "n": 2})", defaults());
  BOOST_REQUIRE(request.ok());
  BOOST_TEST(request->take_requests().size() == 2u);
  request->add(1, output_of({2, 3}, {"c", "d"}));
  BOOST_TEST(!request->done());
  request->add(0, output_of({1}, {"a", "b"}));
  BOOST_REQUIRE(request->done());
  BOOST_TEST(!request->failed());
  const Json answer = Json::parse(request->answer_json(7));
  BOOST_TEST(answer["index"] == 7);
  std::string texts;
  for (std::size_t i = 0; i < 4; ++i) {
    BOOST_TEST(answer["choices"][i]["index"] == i);
    texts += answer["choices"][i]["text"].get<std::string>();
  }
  BOOST_TEST(texts == "abcd");
  BOOST_TEST((answer["prompt_token_ids"] == Json::parse("[[1],[2,3]]")));
  BOOST_TEST((answer["usage"] == Json::parse(R"({"prompt_tokens": 3, "completion_tokens": 8,
                                                 "total_tokens": 11, "cached_tokens": 0})")));
}

BOOST_AUTO_TEST_CASE(a_choice_says_how_it_ended_and_has_logprobs_only_if_asked_for) {
  RequestOutput output = output_of({1}, {"half \xC3"});
  output.outputs[0].finish_reason = FinishReason::kStop;
  output.outputs[0].stop_reason = std::string("END");
  output.outputs[0].logprobs = {{{.token_id = 5, .logprob = -0.5f, .rank = 1, .token = "x"}}, {}};
  auto with = BatchRequest::parse(R"({"prompt": [1], "logprobs": 1})", defaults());
  auto without = BatchRequest::parse(R"({"prompt": [1]})", defaults());
  with->add(0, output);
  without->add(0, output);
  const Json choice = Json::parse(with->answer_json(0))["choices"][0];
  BOOST_TEST(choice["text"] == "half \uFFFD");
  BOOST_TEST(choice["finish_reason"] == "stop");
  BOOST_TEST(choice["stop_reason"] == "END");
  BOOST_TEST(
      (choice["logprobs"] ==
       Json::parse(R"([[{"token_id": 5, "token": "x", "logprob": -0.5, "rank": 1}], null])")));
  const Json plain = Json::parse(without->answer_json(0));
  BOOST_TEST(!plain["choices"][0].contains("logprobs"));
  BOOST_TEST((plain["prompt_token_ids"] == Json::parse("[1]")));
}

BOOST_AUTO_TEST_CASE(an_echo_begins_with_the_prompt) {
  RequestOutput output = output_of({1}, {" world"});
  output.prompt_text = "hello";
  auto echo = BatchRequest::parse(R"({"prompt": "hello", "echo": true})", defaults());
  BOOST_TEST(echo->take_requests()[0].return_prompt_text);
  echo->add(0, output);
  BOOST_TEST(Json::parse(echo->answer_json(0))["choices"][0]["text"] == "hello world");
  auto only =
      BatchRequest::parse(R"({"prompt": "hello", "echo": true, "max_tokens": 0})", defaults());
  only->add(0, output);
  const Json choice = Json::parse(only->answer_json(0))["choices"][0];
  BOOST_TEST(choice["text"] == "hello");
  BOOST_TEST(choice["token_ids"].empty());
}

BOOST_AUTO_TEST_CASE(one_failed_prompt_fails_the_line_at_once) {
  auto request = BatchRequest::parse(R"({"prompt": ["a", "b"]})", defaults());
  RequestOutput refused;
  refused.finished = true;
  refused.error = invalid_argument("prompt has 2000 tokens, max_model_len is 1024", "prompt");
  request->add(1, refused);
  BOOST_TEST(request->done());
  BOOST_TEST(request->failed());
  const Json answer = Json::parse(request->answer_json(3));
  BOOST_TEST(answer["index"] == 3);
  BOOST_TEST(answer["error"]["param"] == "prompt");
  BOOST_TEST(!answer.contains("choices"));

  auto broken = BatchRequest::parse(R"({"prompt": "a"})", defaults());
  RequestOutput output = output_of({1}, {"x"});
  output.outputs[0].finish_reason = FinishReason::kError;
  broken->add(0, output);
  BOOST_TEST(Json::parse(broken->answer_json(0))["error"]["code"] == 500);
}

}  // namespace
}  // namespace troupe::tools
