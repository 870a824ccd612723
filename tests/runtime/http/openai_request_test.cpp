#include "runtime/http/openai_request.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/reasoning/reasoning_format.hpp"
#include "tests/runtime/http/request_defaults.hpp"

namespace troupe {
namespace {

CompletionRequest completion(const std::string& fields) {
  const auto request = parse_completion_request(R"({"prompt":"hi")" + fields + "}", defaults());
  BOOST_REQUIRE_MESSAGE(request.ok(),
                        fields << ": " << (request.ok() ? "" : request.error().message));
  return *request;
}
ChatRequest chat(const std::string& fields) {
  const auto request = parse_chat_request(
      R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}", defaults());
  BOOST_REQUIRE_MESSAGE(request.ok(),
                        fields << ": " << (request.ok() ? "" : request.error().message));
  return *request;
}

BOOST_AUTO_TEST_CASE(a_bare_completion_has_the_api_defaults) {
  const CompletionRequest request = completion("");
  SamplingParams expected;
  expected.output_kind = OutputKind::kFinalOnly;
  BOOST_TEST((request.params == expected));
  BOOST_TEST((request.prompts == std::vector<Prompt>{TextPrompt{"hi", true}}));
  BOOST_TEST(!request.stream);
  BOOST_TEST(
      (completion(R"(,"max_tokens":null,"temperature":null,"stop":null,"seed":null)").params ==
       expected));
}

BOOST_AUTO_TEST_CASE(priority_is_refused_where_nothing_is_scheduled_by_it) {
  ServerDefaults server = defaults();
  server.by_priority = false;
  BOOST_TEST(parse_completion_request(R"({"prompt":"a","priority":0})", server).ok());
  const auto refused = parse_completion_request(R"({"prompt":"a","priority":3})", server);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().param == "priority");
  BOOST_TEST(refused.error().message.starts_with("priority is 3, this server does not schedule"));
}

BOOST_AUTO_TEST_CASE(a_thinking_budget_has_the_markers_of_the_model) {
  ServerDefaults server = defaults();
  server.answers.reasoning = *find_reasoning_format("qwen3");
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],)";
  const auto budget = [&](const std::string& fields) {
    return parse_chat_request(chat + fields + "}", server).value().params.thinking_budget;
  };
  const auto made = budget(R"("thinking_token_budget":5)");
  BOOST_REQUIRE(made.has_value());
  BOOST_TEST(made->num_tokens == 5);
  BOOST_TEST(made->starts_inside);
  BOOST_TEST(made->begin == "<think>");
  BOOST_TEST(made->ends.get() == (std::vector<std::string>{"</think>", "<tool_call>"}),
             boost::test_tools::per_element());
  BOOST_TEST(made->forced_end == "</think>");
  BOOST_TEST(!budget(R"("thinking_token_budget":-1)").has_value());
  // Where reasoning is off there is nothing to limit.
  BOOST_TEST(!budget(R"("thinking_token_budget":5,"reasoning_effort":"none")").has_value());
  server.answers.budget_end = "Enough.</think>";
  BOOST_TEST(budget(R"("thinking_token_budget":0)")->forced_end == "Enough.</think>");
  // A completion's prompt tells whether reasoning has begun.
  const auto completion =
      parse_completion_request(R"({"prompt":"a","thinking_token_budget":5})", server);
  BOOST_TEST(!completion.value().params.thinking_budget->starts_inside);
}

BOOST_AUTO_TEST_CASE(allowed_tools_are_the_only_ones_that_are_called) {
  ServerDefaults server = defaults();
  server.answers.tools = find_tool_format("hermes");
  const std::string body =
      R"({"messages":[{"role":"user","content":"a"}],"tools":[)"
      R"({"type":"function","function":{"name":"find"}},)"
      R"({"type":"function","function":{"name":"stop"}}],)"
      R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"MODE","tools":)"
      R"([{"type":"function","function":{"name":"stop"}}]}}})";
  const auto parse = [&](const std::string& mode) {
    std::string with_mode = body;
    with_mode.replace(with_mode.find("MODE"), 4, mode);
    return parse_chat_request(with_mode, server).value();
  };
  for (const char* mode : {"auto", "required"}) {
    const ChatRequest request = parse(mode);
    // The prompt shows all of them; the grammar has those that are allowed.
    BOOST_TEST(request.prompt.tools_json.find("find") != std::string::npos);
    BOOST_REQUIRE(request.params.structured_outputs.has_value());
    const std::string& tag = request.params.structured_outputs->texts.front();
    BOOST_TEST(tag.find("stop") != std::string::npos);
    BOOST_TEST(tag.find("find") == std::string::npos);
    BOOST_TEST(request.answer.declarations->has("stop"));
    BOOST_TEST(!request.answer.declarations->has("find"));
  }
  // Where a grammar cannot hold the model to them, the prompt shows no others.
  server.answers.tools = find_tool_format("functiongemma");
  BOOST_TEST(parse("auto").prompt.tools_json.find("find") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_answer_held_to_a_structure_may_be_calls) {
  ServerDefaults server = defaults();
  const auto parse = [&](const char* format, const char* strict) {
    server.answers.tools = find_tool_format(format);
    return parse_chat_request(
        R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",)"
        R"("json_schema":{"name":"s","schema":{"const":5}}},)"
        R"("tools":[{"type":"function","function":{"name":"find","strict":)" +
            std::string(strict) + "}}]}",
        server);
  };
  for (const char* strict : {"true", "false"}) {
    const auto held = parse("hermes", strict);
    BOOST_REQUIRE(held.ok());
    const StructuredOutputsParams& structure = *held.value().params.structured_outputs;
    BOOST_TEST((structure.kind == StructuredOutputKind::kStructuralTag));
    BOOST_TEST(structure.field == "response_format");
    BOOST_TEST(structure.texts.front().find("<tool_call>") != std::string::npos);
    BOOST_TEST(structure.texts.front().find("\"const\":5") != std::string::npos);
  }
  // There is no place for calls that cannot be held.
  BOOST_TEST((parse("functiongemma", "false").value().params.structured_outputs->kind ==
              StructuredOutputKind::kJsonSchema));
  BOOST_TEST(parse("functiongemma", "true").error().param == "tools");
}

BOOST_AUTO_TEST_CASE(every_sampling_field_is_read) {
  const CompletionRequest request = completion(
      R"(,"temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.1,"presence_penalty":1,)"
      R"("frequency_penalty":-1,"repetition_penalty":1.5,"n":2,"seed":-9223372036854775808,)"
      R"("stop":["a","b"],"stop_token_ids":[1,2],"ignore_eos":true,"max_tokens":7,"min_tokens":3,)"
      R"("logprobs":4,"prompt_logprobs":2,"skip_special_tokens":false,)"
      R"("spaces_between_special_tokens":false,"include_stop_str_in_output":true,)"
      R"("logit_bias":{"3":500,"4":-0.5},"allowed_token_ids":[3,4],"bad_words":["x"],)"
      R"("repetition_detection":{"max_pattern_size":8,"min_pattern_size":2,"min_count":3},)"
      R"("logprob_token_ids":[9,3],"cache_salt":"s","priority":-3,"request_id":"r","truncate_prompt_tokens":-1,)"
      R"("return_token_ids":true,"return_tokens_as_token_ids":true,"model":"m",)"
      R"("stream_interval":4,"user":"u","unknown":{"x":[1]})");
  const SamplingParams& params = request.params;
  BOOST_TEST(params.temperature == 0.5f);
  BOOST_TEST(params.top_p == 0.9f);
  BOOST_TEST(params.top_k == 5);
  BOOST_TEST(params.min_p == 0.1f);
  BOOST_TEST(params.presence_penalty == 1);
  BOOST_TEST(params.frequency_penalty == -1);
  BOOST_TEST(params.repetition_penalty == 1.5f);
  BOOST_TEST(params.n == 2);
  BOOST_TEST(*params.seed == INT64_MIN);
  BOOST_TEST((params.stop == std::vector<std::string>{"a", "b"}));
  BOOST_TEST((params.stop_token_ids == std::vector<TokenId>{1, 2}));
  BOOST_TEST(params.ignore_eos);
  BOOST_TEST(*params.max_tokens == 7);
  BOOST_TEST(params.min_tokens == 3);
  BOOST_TEST(*params.logprobs == 4);
  BOOST_TEST(*params.prompt_logprobs == 2);
  BOOST_TEST((params.logprob_token_ids == std::vector<TokenId>{9, 3}));
  BOOST_TEST(*request.num_shown_logprobs() == kAllLogprobs);
  BOOST_TEST(params.skip_reading_prefix_cache);
  BOOST_TEST(!params.skip_special_tokens);
  BOOST_TEST(!params.spaces_between_special_tokens);
  BOOST_TEST(params.include_stop_str_in_output);
  BOOST_TEST(
      (params.logit_bias == std::vector<std::pair<TokenId, float>>{{3, 100.0f}, {4, -0.5f}}));
  BOOST_TEST((params.allowed_token_ids == std::vector<TokenId>{3, 4}));
  BOOST_TEST((params.bad_words == std::vector<std::string>{"x"}));
  BOOST_TEST((params.repetition_detection == RepetitionDetection{8, 2, 3}));
  BOOST_TEST(params.stream_interval == 4);
  BOOST_TEST(request.cache_salt == "s");
  BOOST_TEST(request.priority == -3);
  BOOST_TEST(request.request_id == "r");
  BOOST_TEST(*request.truncate_prompt_tokens == -1);
  BOOST_TEST(request.return_token_ids);
  BOOST_TEST(request.return_tokens_as_token_ids);
  BOOST_TEST(request.model == "m");
}

BOOST_AUTO_TEST_CASE(prompts_come_as_text_or_tokens_alone_or_in_lists) {
  const auto prompts = [](const std::string& prompt) {
    const auto request = parse_completion_request(
        R"({"add_special_tokens":false,"prompt":)" + prompt + "}", defaults());
    BOOST_REQUIRE(request.ok());
    return request->prompts;
  };
  BOOST_TEST((prompts(R"(["a","b"])") ==
              std::vector<Prompt>{TextPrompt{"a", false}, TextPrompt{"b", false}}));
  BOOST_TEST((prompts("[1,2.0]") == std::vector<Prompt>{TokensPrompt{{1, 2}}}));
  BOOST_TEST(
      (prompts("[[1],[2,3]]") == std::vector<Prompt>{TokensPrompt{{1}}, TokensPrompt{{2, 3}}}));
}

BOOST_AUTO_TEST_CASE(greedy_requests_switch_the_other_filters_off_and_small_temperatures_rise) {
  const SamplingParams greedy =
      completion(R"(,"temperature":0,"top_p":0.5,"top_k":3,"min_p":0.2)").params;
  BOOST_TEST(greedy.greedy());
  BOOST_TEST(greedy.top_p == 1);
  BOOST_TEST(greedy.top_k == 0);
  BOOST_TEST(greedy.min_p == 0);
  BOOST_TEST(completion(R"(,"temperature":0.001)").params.temperature == kMinTemperature);
}

BOOST_AUTO_TEST_CASE(the_generation_config_fills_gaps_and_caps_max_tokens) {
  ServerDefaults server = defaults();
  server.sampling = *parse_sampling_defaults(
      R"({"temperature":0.7,"top_k":20,"max_new_tokens":10,"eos":[1]})", {});
  const auto parse = [&](const std::string& body) {
    return parse_chat_request(body, server)->params;
  };
  const std::string messages = R"({"messages":[{"role":"user"}])";
  BOOST_TEST(parse(messages + "}").temperature == 0.7f);
  BOOST_TEST(parse(messages + "}").top_k == 20);
  BOOST_TEST(*parse(messages + "}").max_tokens == 10);
  BOOST_TEST(*parse(messages + R"(,"max_tokens":50})").max_tokens == 10);
  BOOST_TEST(*parse(messages + R"(,"max_tokens":5,"temperature":1})").max_tokens == 5);
  BOOST_TEST(parse(messages + R"(,"max_tokens":5,"temperature":1})").temperature == 1);
  const SamplingDefaults over = *parse_sampling_defaults(R"({"top_k":-1})", server.sampling);
  BOOST_TEST(*over.top_k == -1);
  BOOST_TEST(*over.temperature == 0.7f);
  BOOST_TEST(!parse_sampling_defaults(R"({"top_p":2})", {}).ok());
}

BOOST_AUTO_TEST_CASE(several_samples_of_a_greedy_model_are_drawn_unless_the_request_is_greedy) {
  ServerDefaults server = defaults();
  server.sampling.do_sample = false;
  server.sampling.temperature = 0;
  const auto parse = [&](const std::string& rest) {
    return parse_completion_request(R"({"prompt":"a")" + rest + "}", server);
  };
  BOOST_TEST(parse("")->params.temperature == 0);
  BOOST_TEST(parse(R"(,"temperature":null)")->params.temperature == 0);
  BOOST_TEST(parse(R"(,"temperature":0.5)")->params.temperature == 0.5f);
  BOOST_TEST(parse(R"(,"n":2)")->params.temperature == 1);
  BOOST_TEST(parse(R"(,"n":2,"temperature":0.5)")->params.temperature == 0.5f);
  BOOST_TEST(!parse(R"(,"n":2,"temperature":0)").ok());
}

BOOST_AUTO_TEST_CASE(echo_with_no_tokens_runs_one_and_returns_the_prompt) {
  const CompletionRequest request = completion(R"(,"echo":true,"max_tokens":0,"logprobs":1)");
  BOOST_TEST(request.echo_only);
  BOOST_TEST(*request.params.max_tokens == 1);
  BOOST_TEST(*request.params.prompt_logprobs == 1);
}

BOOST_AUTO_TEST_CASE(a_chat_keeps_its_messages_as_they_were_sent) {
  const ChatRequest request =
      chat(R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2.0}}}],)"
           R"("tool_choice":"none","documents":[{"t":"d"}],"chat_template_kwargs":{"k":true},)"
           R"("reasoning_effort":"low","max_completion_tokens":9,"max_tokens":5,"logprobs":true,)"
           R"("top_logprobs":3)");
  BOOST_TEST(request.prompt.messages_json == R"([{"role":"user","content":"hi"}])");
  BOOST_TEST(request.prompt.tools_json ==
             R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2.0}}}])");
  BOOST_TEST(request.prompt.documents_json == R"([{"t":"d"}])");
  BOOST_TEST(request.prompt.template_kwargs_json ==
             R"({"reasoning_effort":"low","enable_thinking":true,"k":true})");
  BOOST_TEST(*request.params.max_tokens == 9);
  BOOST_TEST(*request.params.logprobs == 3);
  BOOST_TEST(request.role == "assistant");
  BOOST_TEST(!chat("").params.max_tokens.has_value());
  BOOST_TEST(!chat("").params.logprobs.has_value());
  BOOST_TEST(chat(R"(,"reasoning_effort":"none")").prompt.template_kwargs_json ==
             R"({"reasoning_effort":"none","enable_thinking":false})");
  // What the client says itself holds.
  BOOST_TEST(chat(R"(,"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true})")
                 .prompt.template_kwargs_json ==
             R"({"reasoning_effort":"none","enable_thinking":true})");
}

BOOST_AUTO_TEST_CASE(reasoning_effort_turns_reasoning_off_and_on) {
  ServerDefaults settings = defaults();
  const auto reasons = [&](const char* format, const std::string& more) {
    settings.answers.reasoning = *find_reasoning_format(format);
    return parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}])" + more + "}",
                              settings)
        .value()
        .answer.reasoning.has_value();
  };
  BOOST_TEST(reasons("qwen3", ""));
  BOOST_TEST(!reasons("qwen3", R"(,"reasoning_effort":"none")"));
  BOOST_TEST(!reasons("deepseek_v3", ""));
  BOOST_TEST(reasons("deepseek_v3", R"(,"reasoning_effort":"low")"));
  BOOST_TEST(!reasons("deepseek_v3",
                      R"(,"reasoning_effort":"low","chat_template_kwargs":{"thinking":false})"));
}

BOOST_AUTO_TEST_CASE(calls_that_may_begin_are_held_as_the_server_or_a_function_says) {
  ServerDefaults settings = defaults();
  settings.answers.tools = find_tool_format("hermes");
  const auto request = [&](const std::string& function, const std::string& more = "") {
    return parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":)"
                              R"("function","function":{"name":"f")" +
                                  function + "}}]" + more + "}",
                              settings)
        .value();
  };
  BOOST_TEST(!request("").params.structured_outputs.has_value());
  BOOST_TEST(request(R"(,"strict":true)").params.structured_outputs.has_value());
  // It is for the server, and not shown to the model; that there are no parameters is.
  BOOST_TEST(request(R"(,"strict":true)").prompt.tools_json ==
             R"([{"type":"function","function":{"name":"f",)"
             R"("parameters":{"type":"object","properties":{}}}}])");
  settings.answers.strict_level = ToolStrictLevel::kFunction;
  BOOST_TEST(request("").params.structured_outputs->field == "tools");
  BOOST_TEST(!request("", R"(,"tool_choice":"none")").params.structured_outputs.has_value());
  const auto text = request("", R"(,"response_format":{"type":"json_object"})");
  BOOST_TEST(text.params.structured_outputs->field == "response_format");
  settings.answers.tools = find_tool_format("openai");
  BOOST_TEST((request("", R"(,"tool_choice":"none")").answer.tools ==
              find_tool_format("openai")->without_tools));
}

BOOST_AUTO_TEST_CASE(a_continued_message_answers_in_its_own_role) {
  const auto request = parse_chat_request(
      R"({"messages":[{"role":"user","content":"q"},{"role":"bot","content":"The"}],)"
      R"("add_generation_prompt":false,"continue_final_message":true,"echo":true})",
      defaults());
  BOOST_REQUIRE(request.ok());
  BOOST_TEST(request->role == "bot");
  BOOST_TEST(request->echo_text == "The");
}

BOOST_AUTO_TEST_CASE(tokenize_takes_a_prompt_or_a_conversation) {
  const auto text =
      parse_tokenize_request(R"({"prompt":"a","return_token_strs":true})", defaults());
  BOOST_REQUIRE(text.ok());
  BOOST_TEST(text->render.return_token_strings);
  BOOST_TEST((text->render.prompt == Prompt{TextPrompt{"a", true}}));
  const auto messages = parse_tokenize_request(R"({"messages":[{"role":"user"}]})", defaults());
  BOOST_REQUIRE(messages.ok());
  BOOST_TEST(std::get<ChatPrompt>(messages->render.prompt).messages_json == R"([{"role":"user"}])");
  const auto tokens = parse_detokenize_request(R"({"tokens":[1,2]})", defaults());
  BOOST_REQUIRE(tokens.ok());
  BOOST_TEST((tokens->render.prompt == Prompt{TokensPrompt{{1, 2}}}));
  BOOST_TEST(!parse_detokenize_request(R"({"tokens":[1,200]})", defaults()).ok());
  BOOST_TEST(!parse_tokenize_request(R"({})", defaults()).ok());
}

}  // namespace
}  // namespace troupe
