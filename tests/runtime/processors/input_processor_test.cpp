#include "runtime/processors/input_processor.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <string>

#include "runtime/processors/sampling_params_check.hpp"
#include "runtime/scheduler/work_queue.hpp"
#include "runtime/structured_output/grammar_cache.hpp"
#include "tests/runtime/processors/byte_tokenizer.hpp"

namespace troupe {
namespace {

const InputContext kContext{.clock = {}, .limits = {}};

struct Fixture {
  InputProcessorOptions options{.max_model_len = 64, .vocab_size = kVocabSize};
  GenerateRequest request;

  Fixture() {
    request.id = RequestId{5};
    request.external_id = "cmpl-1";
    request.prompt = TextPrompt{"hi there"};
  }
  SamplingParams& params() { return request.params; }

  [[nodiscard]] Result<ProcessedRequest> process(const InputContext& context = kContext) const {
    return InputProcessor(byte_tokenizer(), nullptr, options).process(request, context);
  }
  [[nodiscard]] SamplingParams processed_params() const {
    return process().value().samples.at(0).params;
  }
  /// The error's text; its field must be `param`.
  [[nodiscard]] std::string error(const std::string& param) const {
    const auto result = process();
    BOOST_REQUIRE(!result.ok());
    BOOST_TEST((result.error().code == ErrorCode::kInvalidArgument));
    BOOST_TEST(result.error().param == param);
    return result.error().message;
  }
};

BOOST_FIXTURE_TEST_SUITE(input_processor, Fixture)

BOOST_AUTO_TEST_CASE(a_text_prompt_becomes_one_request_for_engine_and_output) {
  request.cache_salt = "salt";
  request.priority = 3;
  request.arrival_time = 1.5;
  request.return_prompt_text = true;
  const auto processed = process().value();
  BOOST_TEST(processed.output.prompt_text == "hi there");
  BOOST_TEST(processed.output.prompt_token_ids == byte_tokens("hi there"),
             boost::test_tools::per_element());
  BOOST_REQUIRE(processed.samples.size() == 1u);
  const EngineCoreRequest& sample = processed.samples[0];
  BOOST_TEST((sample.id == RequestId{5}));
  BOOST_TEST(sample.external_id == "cmpl-1");
  BOOST_TEST(sample.prompt_token_ids == byte_tokens("hi there"), boost::test_tools::per_element());
  BOOST_TEST(sample.cache_salt == "salt");
  BOOST_TEST(sample.priority == 3);
  BOOST_TEST(sample.arrival_time == 1.5);
  BOOST_TEST((sample.params == processed.output.params));
}

BOOST_AUTO_TEST_CASE(samples_share_what_they_have_in_common) {
  params().n = 3;
  params().stop = {std::string(1000, 's')};
  params().stop_token_ids = {5};
  params().allowed_token_ids = {9, 7, 7};
  params().logit_bias = {{2, 1.0f}, {1, 1.0f}, {2, 3.0f}};
  params().bad_words = {"world"};
  const auto processed = process().value();
  const EngineCoreRequest& first = processed.samples.at(0);
  for (const EngineCoreRequest& sample : processed.samples) {
    BOOST_TEST(sample.prompt_token_ids.data() == processed.output.prompt_token_ids.data());
    BOOST_TEST(sample.params.stop_token_ids.data() == first.params.stop_token_ids.data());
    BOOST_TEST(sample.params.allowed_token_ids.data() == first.params.allowed_token_ids.data());
    BOOST_TEST(sample.params.logit_bias.data() == first.params.logit_bias.data());
    BOOST_TEST(sample.params.bad_words_token_ids.data() == first.params.bad_words_token_ids.data());
    BOOST_TEST(sample.params.stop.empty());  // the OutputProcessor's
  }
  BOOST_TEST((first.params.allowed_token_ids == std::vector<TokenId>{7, 9}));
  BOOST_TEST(
      (first.params.logit_bias == std::vector<std::pair<TokenId, float>>{{1, 1.0f}, {2, 3.0f}}));
}

BOOST_AUTO_TEST_CASE(a_text_that_cannot_fit_is_refused_before_it_is_encoded) {
  request.prompt = TextPrompt{std::string(1'000'000, 'x')};
  BOOST_TEST(error("prompt").starts_with("prompt has 1000000 bytes, max_model_len is 64 tokens"));
  request.truncate_prompt_tokens = 5;
  BOOST_TEST(process().ok());
}

BOOST_AUTO_TEST_CASE(a_pooling_model_takes_prompts_of_its_whole_length_and_no_other_requests) {
  request.prompt = TokensPrompt{std::vector<TokenId>(64, 'a')};
  BOOST_TEST(error("prompt").find("leaves no room") != std::string::npos);
  options.is_pooling = true;
  BOOST_TEST(process().error().message == "the model gives embeddings, it generates no text");
  request.pooling.emplace();
  const auto processed = process().value();
  BOOST_TEST(processed.samples.at(0).pooling);
  BOOST_TEST((processed.output.pooling == PoolingParams()));
  request.prompt = TokensPrompt{std::vector<TokenId>(90, 'a')};
  request.truncate_prompt_tokens = -1;
  BOOST_TEST(process()->output.prompt_token_ids.size() == 64u);
  options.is_pooling = false;
  BOOST_TEST(process().error().message == "the model generates text, it gives no embeddings");
}

BOOST_AUTO_TEST_CASE(the_tokens_of_all_samples_are_limited) {
  options.max_request_tokens = 100;
  params().n = 4;
  params().max_tokens = 17;  // and 8 of the prompt
  BOOST_TEST(process().ok());
  params().max_tokens = 18;
  BOOST_TEST(error("n").find("max_request_tokens") != std::string::npos);
  params().n = 1;
  params().max_tokens = 1000;
  BOOST_TEST(process().ok());
}

BOOST_AUTO_TEST_CASE(the_text_of_token_ids_is_there_if_asked_for_with_its_special_tokens) {
  request.prompt = TokensPrompt{{kHello, kEndOfText, 'a'}};
  BOOST_TEST(process()->output.prompt_text.empty());
  request.return_prompt_text = true;
  BOOST_TEST(process()->output.prompt_text == "hello<|end|>a");
  request.truncate_prompt_tokens = 2;
  BOOST_TEST(process()->output.prompt_text == "<|end|>a");
}

BOOST_AUTO_TEST_CASE(a_prompt_that_is_empty_too_long_or_full_is_refused_with_the_numbers) {
  request.prompt = TokensPrompt{};
  BOOST_TEST(error("prompt") == "prompt is empty");
  request.prompt = TokensPrompt{std::vector<TokenId>(65, 1)};
  BOOST_TEST(error("prompt") == "prompt has 65 tokens, max_model_len is 64");
  request.prompt = TokensPrompt{std::vector<TokenId>(64, 1)};
  BOOST_TEST(error("prompt") ==
             "prompt has 64 tokens, max_model_len is 64, which leaves no room to generate one");
  request.prompt = TokensPrompt{std::vector<TokenId>(63, 1)};
  BOOST_TEST(process().ok());
}

BOOST_AUTO_TEST_CASE(token_ids_outside_the_vocabulary_are_refused) {
  request.prompt = TokensPrompt{{1, kVocabSize}};
  BOOST_TEST(error("prompt") == "prompt has token id 259, the vocabulary has 259 tokens");
  request.prompt = TokensPrompt{{-1}};
  BOOST_TEST(error("prompt") == "prompt has token id -1, the vocabulary has 259 tokens");
}

BOOST_AUTO_TEST_CASE(without_max_tokens_a_request_gets_what_fits) {
  params().max_tokens.reset();
  BOOST_TEST(processed_params().max_tokens.value() == 64 - 8);
}

BOOST_AUTO_TEST_CASE(truncation_keeps_the_end_of_the_prompt) {
  request.truncate_prompt_tokens = 5;
  BOOST_TEST(process()->samples[0].prompt_token_ids == byte_tokens("there"),
             boost::test_tools::per_element());
  request.prompt = TokensPrompt{std::vector<TokenId>(100, 1)};
  params().max_tokens = 10;
  request.truncate_prompt_tokens = -1;
  BOOST_TEST(process()->samples[0].prompt_token_ids.size() == 54u);
  request.truncate_prompt_tokens = 65;
  BOOST_TEST(error("truncate_prompt_tokens").find("is 65") != std::string::npos);
  request.truncate_prompt_tokens = -2;
  (void)error("truncate_prompt_tokens");
}

BOOST_AUTO_TEST_CASE(every_eos_id_stops_a_request_and_is_masked_by_min_tokens) {
  options.eos_token_ids = {kEndOfText, 7};
  params().stop_token_ids = {9, 9, 7};
  const SamplingParams done = processed_params();
  BOOST_TEST(done.eos_token_id.value() == kEndOfText);
  BOOST_TEST(done.stop_token_ids == (std::vector<TokenId>{9, 7}), boost::test_tools::per_element());
  BOOST_TEST(done.all_stop_token_ids == (std::vector<TokenId>{9, 7, kEndOfText}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(ignore_eos_leaves_the_requests_own_stop_ids_only) {
  options.eos_token_ids = {kEndOfText, 7};
  params().stop_token_ids = {9};
  params().ignore_eos = true;
  const SamplingParams done = processed_params();
  BOOST_TEST(!done.eos_token_id.has_value());
  BOOST_TEST(done.stop_token_ids == std::vector<TokenId>{9}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(bad_words_are_forbidden_with_and_without_a_space_in_front) {
  params().bad_words = {"world", " hello"};
  // " world" is one token and "world" five; "hello" is one and " hello" is not.
  const std::vector<std::vector<TokenId>> expected = {byte_tokens("world"), {kHello}};
  BOOST_TEST((processed_params().bad_words_token_ids == expected));
  BOOST_TEST((tokenize_bad_words(*byte_tokenizer(), {" "}).value() ==
              std::vector<std::vector<TokenId>>{{' '}}));
  params().bad_words.edit().assign(129, "world");
  BOOST_TEST(error("bad_words") == "bad_words make 129 token sequences, the limit is 128");
}

BOOST_AUTO_TEST_CASE(samples_have_consecutive_ids_and_seeds) {
  params().n = 3;
  params().seed = 41;
  const auto processed = process().value();
  BOOST_TEST(processed.output.params.n == 3);
  BOOST_REQUIRE(processed.samples.size() == 3u);
  for (std::uint64_t i = 0; i < 3; ++i) {
    const EngineCoreRequest& sample = processed.samples[i];
    BOOST_TEST((sample.id == RequestId{5 + i}));
    BOOST_TEST(sample.params.n == 1);
    BOOST_TEST(sample.params.philox_key == 41 + i);
    BOOST_TEST(sample.params.seed.value() == static_cast<std::int64_t>(41 + i));
    BOOST_TEST((sample.prompt_token_ids == processed.output.prompt_token_ids));
  }
}

BOOST_AUTO_TEST_CASE(the_seed_of_a_request_comes_before_the_key_that_was_drawn_for_it) {
  params().philox_key = 7;
  BOOST_TEST(processed_params().philox_key == 7u);
  params().seed = -1;  // none
  BOOST_TEST(processed_params().philox_key == 7u);
  params().seed = 0;
  BOOST_TEST(processed_params().philox_key == 0u);
  params().seed = 5;
  BOOST_TEST(processed_params().philox_key == 5u);
}

BOOST_AUTO_TEST_CASE(the_largest_seed_wraps_around) {
  params().n = 2;
  params().seed = std::numeric_limits<std::int64_t>::max();
  BOOST_TEST(process()->samples[1].params.seed.value() == std::numeric_limits<std::int64_t>::min());
}

BOOST_AUTO_TEST_CASE(emitted_tokens_are_continued_as_outputs) {
  request.emitted = {{.token_ids = {1, 2}}};
  params().prompt_logprobs = 1;
  const auto processed = process().value();
  BOOST_TEST(processed.samples[0].output_token_ids.size() == 2u);
  BOOST_TEST((processed.output.emitted == request.emitted));
  // The prompt has been scored.
  BOOST_TEST(!processed.samples[0].params.prompt_logprobs.has_value());
  BOOST_TEST(!processed.samples[0].params.skip_reading_prefix_cache);
  params().n = 2;
  (void)error("n");
}

BOOST_AUTO_TEST_CASE(of_a_resubmitted_request_only_the_samples_that_have_not_ended_run) {
  params().n = 3;
  params().seed = 40;
  request.emitted = {
      {.token_ids = {1, 2}}, {.token_ids = {3}, .finished = true}, {.token_ids = {}}};
  const auto processed = process().value();
  BOOST_REQUIRE_EQUAL(processed.samples.size(), 2u);
  BOOST_TEST(value(processed.samples[0].id) == value(request.id));
  BOOST_TEST((processed.samples[0].output_token_ids == std::vector<TokenId>{1, 2}));
  BOOST_TEST(value(processed.samples[1].id) == value(request.id) + 2);
  BOOST_TEST(processed.samples[1].output_token_ids.empty());
  BOOST_TEST(processed.samples[1].params.philox_key == 42u);
}

BOOST_AUTO_TEST_CASE(limits_travel_with_the_age_that_the_frontend_measured) {
  request.limits = {.max_queue_time_s = 5, .max_request_time_s = 60};
  request.tenant = 3;
  request.arrival_time = 100;
  request.age_s = 1.5;
  // Another host's clock says nothing about it.
  const InputContext an_hour_ahead{.clock = {.unix_us = 3'700'000'000}};
  const EngineCoreRequest sample = process(an_hour_ahead).value().samples.at(0);
  BOOST_TEST((sample.limits == request.limits));
  BOOST_TEST(sample.tenant == 3u);
  BOOST_TEST(sample.age_s == 1.5);
  request.emitted = {{.token_ids = {5}}};
  const EngineCoreRequest again = process(an_hour_ahead).value().samples.at(0);
  BOOST_TEST(again.limits.max_queue_time_s == 0);
  BOOST_TEST(again.limits.max_request_time_s == 60);
}

BOOST_AUTO_TEST_CASE(prompt_logprobs_keep_away_from_the_prefix_cache) {
  BOOST_TEST(!processed_params().skip_reading_prefix_cache);
  params().prompt_logprobs = 1;
  BOOST_TEST(processed_params().skip_reading_prefix_cache);
}

BOOST_AUTO_TEST_CASE(a_greedy_request_drops_parameters_of_random_sampling) {
  params().temperature = 1e-6f;
  params().top_p = 0.5f;
  params().top_k = 3;
  params().min_p = 0.1f;
  const SamplingParams done = processed_params();
  BOOST_TEST(done.top_p == 1);
  BOOST_TEST(done.top_k == 0);
  BOOST_TEST(done.min_p == 0);
  params().n = 2;
  BOOST_TEST(error("n") == "n is 2, it must be 1 when temperature is 0 (greedy)");
}

BOOST_AUTO_TEST_CASE(a_temperature_near_zero_is_raised_and_biases_are_clamped) {
  params().temperature = 0.001f;
  params().logit_bias = {{1, 1e9f}, {2, -std::numeric_limits<float>::infinity()}};
  const SamplingParams done = processed_params();
  BOOST_TEST(done.temperature == kMinTemperature);
  BOOST_TEST(done.logit_bias[0].second == 100);
  BOOST_TEST(done.logit_bias[1].second == -100);
}

BOOST_AUTO_TEST_CASE(each_parameter_outside_its_range_is_an_error_that_names_it) {
  const SamplingParams good = params();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto refused = [&](const std::string& field, auto change) {
    params() = good;
    change(params());
    BOOST_TEST_CONTEXT(field) { BOOST_TEST(error(field).find(field) != std::string::npos); }
  };
  refused("n", [](SamplingParams& p) { p.n = 0; });
  refused("n", [](SamplingParams& p) { p.n = 1025; });
  refused("presence_penalty", [](SamplingParams& p) { p.presence_penalty = 2.1f; });
  refused("frequency_penalty", [](SamplingParams& p) { p.frequency_penalty = -2.1f; });
  refused("repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = 0; });
  refused("repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = 1e-40f; });
  refused("repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = 1e30f; });
  refused("temperature", [](SamplingParams& p) { p.temperature = -0.1f; });
  refused("temperature", [](SamplingParams& p) { p.temperature = 2.5f; });
  refused("temperature", [&](SamplingParams& p) { p.temperature = nan; });
  refused("top_p", [](SamplingParams& p) { p.top_p = 0; });
  refused("top_p", [&](SamplingParams& p) { p.top_p = nan; });
  refused("top_k", [](SamplingParams& p) { p.top_k = -2; });
  refused("min_p", [](SamplingParams& p) { p.min_p = 1.5f; });
  refused("max_tokens", [](SamplingParams& p) { p.max_tokens = 0; });
  refused("min_tokens", [](SamplingParams& p) { p.min_tokens = -1; });
  refused("min_tokens", [](SamplingParams& p) { p.min_tokens = 17; });
  refused("stream_interval", [](SamplingParams& p) { p.stream_interval = 0; });
  refused("logprobs", [](SamplingParams& p) { p.logprobs = 21; });
  refused("logprobs", [](SamplingParams& p) { p.logprobs = -1; });
  refused("prompt_logprobs", [](SamplingParams& p) { p.prompt_logprobs = -2; });
  refused("stop", [](SamplingParams& p) { p.stop = {""}; });
  refused("stop", [](SamplingParams& p) {
    p.stop = {"a"};
    p.detokenize = false;
  });
  refused("stop_token_ids", [](SamplingParams& p) { p.stop_token_ids = {kVocabSize}; });
  refused("allowed_token_ids", [](SamplingParams& p) { p.allowed_token_ids = {-1}; });
  refused("logit_bias", [](SamplingParams& p) { p.logit_bias = {{kVocabSize, 1.0f}}; });
  refused("logit_bias", [&](SamplingParams& p) { p.logit_bias = {{1, nan}}; });
  refused("bad_words", [](SamplingParams& p) { p.bad_words = {""}; });
  refused("repetition_detection", [](SamplingParams& p) {
    p.repetition_detection = RepetitionDetection{2, 3, 2};
  });
}

BOOST_AUTO_TEST_CASE(what_the_scheduler_could_not_compile_is_refused) {
  auto& what = params().structured_outputs.emplace();
  what.kind = StructuredOutputKind::kRegex;
  what.texts = {"a+"};
  what.field = "guided_regex";
  // No grammars at all.
  const auto none = process();
  BOOST_REQUIRE(!none.ok());
  BOOST_TEST((none.error().code == ErrorCode::kUnsupported));
  BOOST_TEST(none.error().param == "guided_regex");
  options.grammars = std::make_shared<GrammarCache>(byte_tokenizer(), kVocabSize);
  BOOST_TEST((processed_params().structured_outputs == params().structured_outputs));
  BOOST_TEST(options.grammars->size() == 1u);
  what.texts = {"a++"};
  BOOST_TEST(error("guided_regex").starts_with("regex"));
  const std::size_t bytes = input_bytes(request);
  what.texts = {std::string(1000, 'a')};
  BOOST_TEST(input_bytes(request) > bytes + 10000);
}

BOOST_AUTO_TEST_CASE(the_whole_vocabulary_of_logprobs_needs_a_server_without_limit) {
  options.max_logprobs = kAllLogprobs;
  params().logprobs = kAllLogprobs;
  BOOST_TEST(processed_params().logprobs.value() == kAllLogprobs);
  params().logprobs = -2;
  (void)error("logprobs");
}

BOOST_AUTO_TEST_CASE(rendering_shows_tokens_and_text_both_ways) {
  const InputProcessor processor(byte_tokenizer(), nullptr, options);
  const RenderReply there = processor.render({TextPrompt{"hello!"}, true}, kContext);
  BOOST_TEST(there.token_strings == (std::vector<std::string>{"hello", "!"}),
             boost::test_tools::per_element());
  BOOST_TEST(there.text == "hello!");
  const RenderReply back = processor.render({TokensPrompt{{kHello, kEndOfText}}, false}, kContext);
  BOOST_TEST(back.text == "hello<|end|>");
  BOOST_TEST(back.token_strings.empty());
  const RenderReply wrong = processor.render({TokensPrompt{{9999}}, false}, kContext);
  BOOST_TEST(wrong.error->message == "prompt has token id 9999, the vocabulary has 259 tokens");
}

BOOST_AUTO_TEST_CASE(a_chat_without_a_template_is_refused) {
  request.prompt = ChatPrompt{.messages_json = R"([{"role": "user", "content": "hi"}])"};
  BOOST_TEST(error("messages") == "this model has no chat template");
}

BOOST_AUTO_TEST_CASE(a_chat_is_rendered_by_the_template_and_then_tokenised) {
  ChatFiles files;
  files.templates["default"] =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<|end|>{% endif %}";
  const InputProcessor processor(byte_tokenizer(), ChatRenderer::create(files, {}).value(),
                                 options);
  request.prompt = ChatPrompt{.messages_json = R"([{"role": "user", "content": "hi"}])"};
  request.return_prompt_text = true;
  const auto processed = processor.process(request, kContext);
  BOOST_REQUIRE(processed.ok());
  BOOST_TEST(processed->output.prompt_text == "[user]hi<|end|>");
  std::vector<TokenId> expected = byte_tokens("[user]hi");
  expected.push_back(kEndOfText);
  BOOST_TEST(processed->samples[0].prompt_token_ids == expected, boost::test_tools::per_element());
  BOOST_TEST(processor.render({request.prompt, false}, kContext).token_ids == expected,
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_size_of_a_request_is_that_of_its_texts) {
  GenerateRequest request;
  request.prompt = TextPrompt{"12345"};
  BOOST_TEST(input_bytes(request) == 5u);
  request.prompt = TokensPrompt{{1, 2, 3}};
  BOOST_TEST(input_bytes(request) == 3u);
  ChatPrompt chat{.messages_json = "1",
                  .tools_json = "22",
                  .documents_json = "333",
                  .template_kwargs_json = "4444"};
  BOOST_TEST(input_bytes(RenderRequest{.prompt = chat}) == 10u);
  chat.chat_template = "x";  // which may do anything
  BOOST_TEST(input_bytes(RenderRequest{.prompt = chat}) >= WorkQueue::kLongBytes);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
