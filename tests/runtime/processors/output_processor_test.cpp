#include "runtime/processors/output_processor.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <string>

#include "tests/runtime/processors/byte_tokenizer.hpp"

namespace troupe {
namespace {

EngineCoreOutput tokens_of(RequestId id, std::vector<TokenId> tokens,
                           std::optional<FinishReason> reason = std::nullopt) {
  EngineCoreOutput output;
  output.id = id;
  output.new_token_ids = std::move(tokens);
  output.finish_reason = reason;
  return output;
}

EngineCoreOutputs step_of(std::vector<EngineCoreOutput> outputs, double time = 0) {
  EngineCoreOutputs step;
  step.outputs = std::move(outputs);
  step.time = time;
  return step;
}

/// An OutputProcessor with one request, id 10.
struct Fixture {
  OutputProcessor processor{byte_tokenizer()};
  OutputRequest request;

  Fixture() {
    request.id = RequestId{10};
    request.prompt_token_ids = byte_tokens("Q:");
    request.params.output_kind = OutputKind::kDelta;
  }
  SamplingParams& params() { return request.params; }
  void add() { processor.add(request); }
  ProcessedOutputs step(std::vector<TokenId> tokens,
                        std::optional<FinishReason> reason = std::nullopt) {
    return processor.process(step_of({tokens_of(RequestId{10}, std::move(tokens), reason)}));
  }
  ProcessedOutputs text_step(std::string_view text) { return step(byte_tokens(text)); }
};

const CompletionOutput& completion(const ProcessedOutputs& processed) {
  BOOST_REQUIRE(processed.to_frontend.outputs.size() == 1u);
  BOOST_REQUIRE(processed.to_frontend.outputs[0].outputs.size() == 1u);
  return processed.to_frontend.outputs[0].outputs[0];
}

bool finished(const ProcessedOutputs& processed) {
  return processed.to_frontend.outputs.at(0).finished;
}

BOOST_FIXTURE_TEST_SUITE(output_processor, Fixture)

BOOST_AUTO_TEST_CASE(a_delta_has_what_is_new_and_the_prompt_comes_with_the_first_one) {
  request.prompt_text = "Q:";
  add();
  const auto first = step({kHello});
  BOOST_TEST(completion(first).text == "hello");
  BOOST_TEST(first.to_frontend.outputs[0].prompt_text == "Q:");
  BOOST_TEST(first.to_frontend.outputs[0].prompt_token_ids.size() == 2u);
  const auto second = step({kSpaceWorld, '!'}, FinishReason::kLength);
  BOOST_TEST(completion(second).text == " world!");
  BOOST_TEST(completion(second).token_ids.size() == 2u);
  BOOST_TEST((completion(second).finish_reason == FinishReason::kLength));
  BOOST_TEST(second.to_frontend.outputs[0].prompt_token_ids.empty());
  BOOST_TEST(finished(second));
  BOOST_TEST(second.to_abort.empty());
  BOOST_TEST(processor.num_requests() == 0u);
  BOOST_TEST(text_step("more").to_frontend.outputs.empty());
}

BOOST_AUTO_TEST_CASE(an_embedding_is_cut_and_normalised_as_the_request_says) {
  const auto embedding = [&](const PoolingParams& pooling) {
    request.pooling = pooling;
    add();
    EngineCoreOutput output = tokens_of(RequestId{10}, {}, FinishReason::kStop);
    output.pooling_output = std::vector<float>{3, 4, 12};
    const auto processed = processor.process(step_of({std::move(output)}));
    BOOST_TEST(finished(processed));
    BOOST_TEST(processed.to_frontend.stats.num_prompt_tokens == 2);
    return completion(processed).embedding;
  };
  BOOST_TEST((embedding({.normalize = false}) == std::vector<float>{3, 4, 12}));
  BOOST_TEST((embedding({.dimensions = 2}) == std::vector<float>{0.6f, 0.8f}));
  BOOST_TEST((embedding({.dimensions = 2, .normalize = false}) == std::vector<float>{3, 4}));
  BOOST_TEST((embedding({.dimensions = 9, .normalize = false}) == std::vector<float>{3, 4, 12}));
}

BOOST_AUTO_TEST_CASE(cumulative_outputs_have_everything_since_the_start) {
  params().output_kind = OutputKind::kCumulative;
  add();
  (void)step({kHello});
  const auto second = step({kSpaceWorld});
  BOOST_TEST(completion(second).text == "hello world");
  BOOST_TEST(completion(second).token_ids.size() == 2u);
}

BOOST_AUTO_TEST_CASE(final_only_returns_nothing_before_the_end) {
  params().output_kind = OutputKind::kFinalOnly;
  add();
  BOOST_TEST(step({kHello}).to_frontend.outputs.empty());
  BOOST_TEST(completion(step({kSpaceWorld}, FinishReason::kStop)).text == "hello");
}

BOOST_AUTO_TEST_CASE(the_token_that_stops_a_request_has_no_text_unless_it_is_asked_for) {
  add();
  const auto last = step({kHello, '.'}, FinishReason::kStop);
  BOOST_TEST(completion(last).text == "hello");
  BOOST_TEST(completion(last).token_ids.size() == 2u);
  request.id = RequestId{10};
  params().include_stop_str_in_output = true;
  add();
  BOOST_TEST(completion(step({kHello, '.'}, FinishReason::kStop)).text == "hello.");
}

BOOST_AUTO_TEST_CASE(a_stop_string_is_found_across_tokens_and_never_handed_out_in_part) {
  params().stop = {"END"};
  add();
  BOOST_TEST(completion(text_step("abcE")).text == "ab");
  BOOST_TEST(completion(text_step("N")).text == "c");
  const auto last = text_step("Dxyz");
  BOOST_TEST(completion(last).text == "");
  BOOST_TEST(completion(last).token_ids == byte_tokens("D"), boost::test_tools::per_element());
  BOOST_TEST((completion(last).finish_reason == FinishReason::kStop));
  BOOST_TEST(std::get<std::string>(completion(last).stop_reason) == "END");
  BOOST_TEST(finished(last));
  BOOST_TEST(last.to_abort == std::vector<RequestId>{RequestId{10}});
  BOOST_TEST(processor.num_requests() == 0u);
}

BOOST_AUTO_TEST_CASE(an_included_stop_string_ends_the_text_and_nothing_is_held_back) {
  params().stop = {"END"};
  params().include_stop_str_in_output = true;
  add();
  BOOST_TEST(completion(text_step("abE")).text == "abE");
  BOOST_TEST(completion(text_step("NDxyz")).text == "ND");
}

BOOST_AUTO_TEST_CASE(of_several_stop_strings_the_one_that_ends_first_counts) {
  params().stop = {"long tail", "ng", "g t"};
  add();
  const auto last = text_step("a long tail");
  BOOST_TEST(completion(last).text == "a lo");
  BOOST_TEST(std::get<std::string>(completion(last).stop_reason) == "ng");
}

BOOST_AUTO_TEST_CASE(of_stop_strings_that_end_together_the_earlier_in_the_list_counts) {
  params().stop = {"b", "ab"};
  add();
  BOOST_TEST(completion(text_step("xab")).text == "xa");
}

BOOST_AUTO_TEST_CASE(characters_are_held_back_as_code_points) {
  params().stop = {"ééé"};
  add();
  BOOST_TEST(completion(text_step("aéxé")).text == "aé");
  BOOST_TEST(completion(text_step("éé")).text == "x");
}

BOOST_AUTO_TEST_CASE(stop_strings_wait_for_the_minimum_of_tokens) {
  params().stop = {"a"};
  params().min_tokens = 3;
  add();
  BOOST_TEST(completion(text_step("aab")).text == "aab");
  BOOST_TEST(completion(text_step("ba")).text == "b");
}

BOOST_AUTO_TEST_CASE(a_stop_string_in_the_last_step_needs_no_abort) {
  params().stop = {"b"};
  add();
  const auto last = step(byte_tokens("ab"), FinishReason::kLength);
  BOOST_TEST(completion(last).text == "a");
  BOOST_TEST((completion(last).finish_reason == FinishReason::kStop));
  BOOST_TEST(last.to_abort.empty());
}

BOOST_AUTO_TEST_CASE(held_back_text_comes_with_the_end) {
  params().stop = {"STOP"};
  add();
  BOOST_TEST(completion(text_step("abcd")).text == "a");
  BOOST_TEST(completion(step({'e'}, FinishReason::kLength)).text == "bcde");
}

BOOST_AUTO_TEST_CASE(without_detokenisation_there_are_tokens_only) {
  params().detokenize = false;
  add();
  const auto output = step({kHello});
  BOOST_TEST(completion(output).text == "");
  BOOST_TEST(completion(output).token_ids.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_character_comes_when_its_last_byte_does) {
  add();
  const auto bytes = byte_tokens("🙂");
  BOOST_TEST(completion(step({bytes[0]})).text == "");
  BOOST_TEST(completion(step({bytes[1], bytes[2]})).text == "");
  BOOST_TEST(completion(step({bytes[3]})).text == "🙂");
}

BOOST_AUTO_TEST_CASE(a_prompt_that_ends_within_a_character_does_not_leak_into_the_output) {
  const auto bytes = byte_tokens("é");
  request.prompt_token_ids = byte_tokens("a secret prompt, longer than what primes the decoder");
  request.prompt_token_ids.edit().push_back(bytes[0]);
  add();
  BOOST_TEST(completion(step({bytes[1]})).text == "é");
  BOOST_TEST(completion(step({kHello})).text == "hello");
}

BOOST_AUTO_TEST_CASE(the_stream_interval_joins_steps_after_the_first_token) {
  params().stream_interval = 3;
  add();
  BOOST_TEST(completion(text_step("a")).text == "a");
  BOOST_TEST(text_step("b").to_frontend.outputs.empty());
  BOOST_TEST(text_step("c").to_frontend.outputs.empty());
  const auto joined = text_step("d");
  BOOST_TEST(completion(joined).text == "bcd");
  BOOST_TEST(completion(joined).token_ids.size() == 3u);
  BOOST_TEST(completion(step({'e'}, FinishReason::kLength)).text == "e");
}

BOOST_AUTO_TEST_CASE(an_abort_ends_a_request_with_all_its_text) {
  params().stop = {"END"};
  add();
  (void)text_step("abc");
  const RequestId ids[] = {RequestId{10}, RequestId{77}};
  const auto aborted = processor.abort(ids);
  BOOST_TEST(completion(aborted).text == "bc");
  BOOST_TEST((completion(aborted).finish_reason == FinishReason::kAbort));
  BOOST_TEST(finished(aborted));
  BOOST_TEST(aborted.to_abort == std::vector<RequestId>{RequestId{10}});
  BOOST_TEST(processor.abort(ids).to_frontend.outputs.empty());
}

BOOST_AUTO_TEST_CASE(a_resubmitted_request_continues_at_the_position_of_its_client) {
  params().stop = {"END"};
  request.emitted = {{.token_ids = byte_tokens("abcE")}};
  add();
  const auto first = text_step("N");  // "ab" was handed out before
  BOOST_TEST(completion(first).text == "c");
  BOOST_TEST(completion(first).token_ids.size() == 1u);
  BOOST_TEST(completion(text_step("D")).text == "");
}

BOOST_AUTO_TEST_CASE(the_prompt_data_of_a_resubmitted_request_is_not_repeated) {
  request.prompt_text = "Q:";
  request.emitted = {{.token_ids = byte_tokens("ab")}};
  add();
  EngineCoreOutput output = tokens_of(RequestId{10}, {'c'});
  output.new_prompt_logprobs.emplace();
  const auto processed = processor.process(step_of({output}, 5));
  const RequestOutput& first = processed.to_frontend.outputs.at(0);
  BOOST_TEST(first.prompt_text == "");
  BOOST_TEST(first.prompt_token_ids.empty());
  BOOST_TEST(first.prompt_logprobs.empty());
  BOOST_TEST(processed.to_frontend.stats.num_prompt_tokens == 0);
  BOOST_TEST(processed.to_frontend.stats.num_generation_tokens == 1);
  BOOST_TEST(processed.to_frontend.stats.inter_token_latencies.empty());
  const auto last = step({'d'}, FinishReason::kLength);
  const RequestTimes& times = last.to_frontend.outputs.at(0).finished_times.at(0);
  BOOST_TEST(times.num_generation_tokens == 4);
  BOOST_TEST(times.num_earlier_tokens == 2);
}

BOOST_AUTO_TEST_CASE(unfinished_samples_of_a_resubmitted_request_continue) {
  params().n = 3;
  params().logprobs = 0;
  request.emitted = {{.token_ids = byte_tokens("ab"), .cumulative_logprob = -2},
                     {.token_ids = byte_tokens("c"), .finished = true},
                     {}};
  add();
  EngineCoreOutput scored = tokens_of(RequestId{10}, {'x'});
  scored.new_logprobs = {.row_sizes = {1}, .token_ids = {'x'}, .logprobs = {-0.5F}, .ranks = {1}};
  const auto processed = processor.process(
      step_of({scored, tokens_of(RequestId{11}, {'y'}), tokens_of(RequestId{12}, {'z'})}));
  BOOST_REQUIRE_EQUAL(processed.to_frontend.outputs.size(), 2u);  // nothing of the second
  const CompletionOutput& first = processed.to_frontend.outputs[0].outputs.at(0);
  BOOST_TEST(first.index == 0);
  BOOST_TEST(first.text == "x");
  BOOST_TEST(first.cumulative_logprob == -2.5);
  BOOST_TEST(processed.to_frontend.outputs[1].outputs.at(0).text == "z");
  BOOST_TEST(!finished(
      processor.process(step_of({tokens_of(RequestId{10}, {'.'}, FinishReason::kLength)}))));
  BOOST_TEST(finished(
      processor.process(step_of({tokens_of(RequestId{12}, {'.'}, FinishReason::kLength)}))));
  BOOST_TEST(processor.num_requests() == 0u);
}

BOOST_AUTO_TEST_CASE(an_abort_of_a_resubmitted_request_ends_the_samples_that_run) {
  params().n = 2;
  request.emitted = {{.token_ids = byte_tokens("c"), .finished = true}, {}};
  add();
  const std::vector<RequestId> ids = {RequestId{10}};
  const auto aborted = processor.abort(ids);
  BOOST_TEST(aborted.to_abort == std::vector<RequestId>{RequestId{11}});
  BOOST_TEST(completion(aborted).index == 1);
  BOOST_TEST(finished(aborted));
}

BOOST_AUTO_TEST_CASE(a_resubmitted_cumulative_request_repeats_its_text) {
  params().output_kind = OutputKind::kCumulative;
  request.emitted = {{.token_ids = byte_tokens("ab")}};
  add();
  const auto output = text_step("c");
  BOOST_TEST(completion(output).text == "abc");
  BOOST_TEST(completion(output).token_ids.size() == 3u);
}

BOOST_AUTO_TEST_CASE(samples_that_stream_end_one_by_one_and_the_last_one_ends_the_request) {
  params().n = 2;
  add();
  const auto both = processor.process(
      step_of({tokens_of(RequestId{10}, {'a'}), tokens_of(RequestId{11}, {'b'})}));
  BOOST_REQUIRE(both.to_frontend.outputs.size() == 2u);
  BOOST_TEST(both.to_frontend.outputs[0].prompt_token_ids.size() == 2u);
  BOOST_TEST(both.to_frontend.outputs[1].prompt_token_ids.empty());
  BOOST_TEST((both.to_frontend.outputs[1].id == RequestId{10}));
  BOOST_TEST(both.to_frontend.outputs[1].outputs[0].index == 1);
  BOOST_TEST(both.to_frontend.outputs[1].outputs[0].text == "b");
  const auto one =
      processor.process(step_of({tokens_of(RequestId{11}, {'d'}, FinishReason::kLength)}));
  BOOST_TEST(!finished(one));
  BOOST_TEST(one.to_frontend.outputs[0].finished_times.size() == 1u);
  const auto other =
      processor.process(step_of({tokens_of(RequestId{11}, {'x'}),  // it has ended: ignored
                                 tokens_of(RequestId{10}, {'c'}, FinishReason::kLength)}));
  BOOST_TEST(completion(other).index == 0);
  BOOST_TEST(finished(other));
}

BOOST_AUTO_TEST_CASE(samples_of_a_final_only_request_come_together_by_index) {
  params().n = 2;
  params().output_kind = OutputKind::kFinalOnly;
  add();
  auto early = tokens_of(RequestId{11}, {'b'}, FinishReason::kLength);
  early.prefill_stats = PrefillStats{.num_prompt_tokens = 2, .num_cached_tokens = 1};
  BOOST_TEST(processor.process(step_of({early})).to_frontend.outputs.empty());
  auto late = tokens_of(RequestId{10}, {'a'}, FinishReason::kLength);
  late.prefill_stats = PrefillStats{.num_prompt_tokens = 2};
  const auto last = processor.process(step_of({late}));
  BOOST_REQUIRE(last.to_frontend.outputs.size() == 1u);
  const RequestOutput& output = last.to_frontend.outputs[0];
  BOOST_REQUIRE(output.outputs.size() == 2u);
  BOOST_TEST(output.outputs[0].text == "a");
  BOOST_TEST(output.outputs[1].text == "b");
  BOOST_TEST(output.finished);
  BOOST_TEST(output.finished_times.size() == 2u);
  BOOST_TEST(output.prefill_stats->num_prompt_tokens == 2);
  BOOST_TEST(output.prefill_stats->num_cached_tokens == 1);
}

BOOST_AUTO_TEST_CASE(cumulative_samples_repeat_their_own_text_only) {
  params().n = 2;
  params().output_kind = OutputKind::kCumulative;
  add();
  (void)processor.process(
      step_of({tokens_of(RequestId{10}, {'a'}), tokens_of(RequestId{11}, {'b'})}));
  BOOST_TEST(completion(processor.process(step_of({tokens_of(RequestId{11}, {'c'})}))).text ==
             "bc");
}

BOOST_AUTO_TEST_CASE(an_error_of_one_sample_ends_the_whole_request) {
  params().n = 3;
  add();
  (void)processor.process(step_of({tokens_of(RequestId{10}, {'a'}, FinishReason::kLength)}));
  auto failed = tokens_of(RequestId{11}, {}, FinishReason::kError);
  failed.error = Error{ErrorCode::kInternal, "NaN", {}};
  const auto processed = processor.process(step_of({failed}));
  BOOST_REQUIRE(processed.to_frontend.outputs.size() == 1u);
  BOOST_TEST(finished(processed));
  BOOST_TEST(processed.to_frontend.outputs[0].error->message == "NaN");
  BOOST_TEST(processed.to_abort == std::vector<RequestId>{RequestId{12}});
  BOOST_TEST(processor.num_requests() == 0u);
}

EngineCoreOutput timeout_of(RequestId id) {
  EngineCoreOutput output = tokens_of(id, {}, FinishReason::kTimeout);
  output.error = Error{ErrorCode::kTimeout, "too late", ""};
  return output;
}

BOOST_AUTO_TEST_CASE(a_timeout_keeps_the_generated_tokens) {
  for (const OutputKind kind : {OutputKind::kDelta, OutputKind::kFinalOnly}) {
    params().output_kind = kind;
    add();
    (void)step({kHello});
    const auto end = processor.process(step_of({timeout_of(RequestId{10})}));
    BOOST_TEST(finished(end));
    BOOST_TEST(!end.to_frontend.outputs[0].error.has_value());
    BOOST_TEST((completion(end).finish_reason == FinishReason::kTimeout));
    BOOST_TEST(completion(end).text == (kind == OutputKind::kDelta ? "" : "hello"));
    BOOST_TEST(end.to_abort.empty());
  }
}

BOOST_AUTO_TEST_CASE(time_that_is_up_before_the_first_token_is_an_error) {
  add();
  const auto end = processor.process(step_of({timeout_of(RequestId{10})}));
  BOOST_TEST(finished(end));
  BOOST_TEST(end.to_frontend.outputs[0].error->message == "too late");
  BOOST_TEST(end.to_abort.empty());
  BOOST_TEST(processor.num_requests() == 0u);
}

BOOST_AUTO_TEST_CASE(after_a_timeout_one_sample_with_tokens_is_enough_for_a_response) {
  for (const bool has_tokens : {true, false}) {
    params().output_kind = OutputKind::kFinalOnly;
    params().n = 2;
    add();
    if (has_tokens) (void)step({kHello});
    const auto end =
        processor.process(step_of({timeout_of(RequestId{10}), timeout_of(RequestId{11})}));
    BOOST_REQUIRE(end.to_frontend.outputs.size() == 1u);
    const RequestOutput& output = end.to_frontend.outputs[0];
    BOOST_TEST(output.finished);
    BOOST_TEST(output.error.has_value() == !has_tokens);
    BOOST_REQUIRE(output.outputs.size() == 2u);
    BOOST_TEST(output.outputs[0].text == (has_tokens ? "hello" : ""));
    BOOST_TEST((output.outputs[1].finish_reason == FinishReason::kTimeout));
    BOOST_TEST(end.to_abort.empty());
  }
}

BOOST_AUTO_TEST_CASE(an_error_without_a_text_is_an_internal_one) {
  add();
  const auto processed = step({}, FinishReason::kError);
  BOOST_TEST((processed.to_frontend.outputs.at(0).error->code == ErrorCode::kInternal));
}

LogprobRows logprob_row(std::vector<TokenId> ids) {
  LogprobRows rows;
  rows.row_sizes = {static_cast<std::int32_t>(ids.size())};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    rows.logprobs.push_back(-0.5f - static_cast<float>(i));
    rows.ranks.push_back(static_cast<std::int32_t>(i));
  }
  rows.token_ids = std::move(ids);
  return rows;
}

BOOST_AUTO_TEST_CASE(a_split_character_belongs_to_the_token_that_completes_it) {
  params().logprobs = 1;
  add();
  const auto bytes = byte_tokens("🙂");
  std::vector<std::string> strings;
  for (const TokenId byte : bytes) {
    auto output = tokens_of(RequestId{10}, {byte});
    output.new_logprobs = logprob_row({byte, 'x'});
    const auto processed = processor.process(step_of({output}));
    const PositionLogprobs& position = completion(processed).logprobs.at(0);
    strings.push_back(position.at(0).token);
    BOOST_TEST(position.at(1).token == "x");
  }
  BOOST_TEST(strings == (std::vector<std::string>{"", "", "", "🙂"}),
             boost::test_tools::per_element());
  auto output = tokens_of(RequestId{10}, {kHello}, FinishReason::kLength);
  output.new_logprobs = logprob_row({kHello});
  const auto last = processor.process(step_of({output}));
  BOOST_TEST(completion(last).logprobs.at(0).at(0).token == "hello");
  BOOST_TEST(completion(last).cumulative_logprob == -2.5);
}

BOOST_AUTO_TEST_CASE(logprobs_end_with_the_token_that_completes_a_stop_string) {
  params().logprobs = 0;
  params().stop = {"b"};
  add();
  auto output = tokens_of(RequestId{10}, byte_tokens("abc"));
  for (const TokenId token : output.new_token_ids) {
    const LogprobRows row = logprob_row({token});
    output.new_logprobs.row_sizes.push_back(1);
    output.new_logprobs.token_ids.push_back(token);
    output.new_logprobs.logprobs.push_back(row.logprobs[0]);
    output.new_logprobs.ranks.push_back(1);
  }
  const auto last = processor.process(step_of({output}));
  BOOST_TEST(completion(last).logprobs.size() == 2u);
  BOOST_TEST(completion(last).cumulative_logprob == -1.0);
}

BOOST_AUTO_TEST_CASE(prompt_logprobs_come_with_the_first_output_and_have_none_for_position_0) {
  params().prompt_logprobs = 0;
  request.prompt_token_ids = byte_tokens("ab");
  add();
  auto output = tokens_of(RequestId{10}, {'c'});
  output.new_prompt_logprobs =
      PromptLogprobs{.id = RequestId{10}, .first_position = 1, .rows = logprob_row({'b'})};
  const auto first = processor.process(step_of({output}));
  const auto& positions = first.to_frontend.outputs.at(0).prompt_logprobs;
  BOOST_REQUIRE(positions.size() == 2u);
  BOOST_TEST(positions[0].empty());
  BOOST_TEST(positions[1].at(0).token == "b");
  BOOST_TEST(first.to_frontend.outputs.at(0).first_token_text == "a");
  BOOST_TEST(text_step("d").to_frontend.outputs.at(0).prompt_logprobs.empty());
}

BOOST_AUTO_TEST_CASE(prompt_logprobs_that_are_sent_again_after_a_preemption_replace_the_first) {
  params().prompt_logprobs = 0;
  params().output_kind = OutputKind::kFinalOnly;
  request.prompt_token_ids = byte_tokens("abc");
  add();
  LogprobRows rows = logprob_row({'b'});
  const LogprobRows next = logprob_row({'c'});
  rows.row_sizes.push_back(1);
  rows.token_ids.push_back(next.token_ids[0]);
  rows.logprobs.push_back(next.logprobs[0]);
  rows.ranks.push_back(next.ranks[0]);
  for (const char token : {'d', 'e'}) {
    auto output = tokens_of(RequestId{10}, {token});
    output.new_prompt_logprobs =
        PromptLogprobs{.id = RequestId{10}, .first_position = 1, .rows = rows};
    BOOST_TEST(processor.process(step_of({output})).to_frontend.outputs.empty());
  }
  const auto last = step({'f'}, FinishReason::kLength);
  const auto& positions = last.to_frontend.outputs.at(0).prompt_logprobs;
  BOOST_REQUIRE(positions.size() == 3u);
  BOOST_TEST(positions[0].empty());
  BOOST_TEST(positions[1].size() == 1u);
  BOOST_TEST(positions[1].at(0).token == "b");
  BOOST_TEST(positions[2].size() == 1u);
  BOOST_TEST(positions[2].at(0).token == "c");
}

BOOST_AUTO_TEST_CASE(times_and_counts_follow_the_engine_clock) {
  add();
  auto first = tokens_of(RequestId{10}, {'a'});
  first.events = {{EngineEventKind::kQueued, 1.0}, {EngineEventKind::kScheduled, 2.0}};
  const auto step1 = processor.process(step_of({first}, 3.0));
  BOOST_TEST(step1.to_frontend.stats.num_prompt_tokens == 2);
  BOOST_TEST(step1.to_frontend.stats.inter_token_latencies.empty());
  auto second = tokens_of(RequestId{10}, {'b', 'c'}, FinishReason::kLength);
  second.events = {{EngineEventKind::kPreempted, 3.5}, {EngineEventKind::kScheduled, 3.75}};
  const auto step2 = processor.process(step_of({second}, 4.5));
  const IterationStats& stats = step2.to_frontend.stats;
  BOOST_TEST(stats.num_generation_tokens == 2);
  BOOST_TEST(stats.num_prompt_tokens == 0);
  BOOST_TEST(stats.num_preemptions == 1);
  BOOST_TEST(stats.inter_token_latencies == std::vector<double>{1.5},
             boost::test_tools::per_element());
  const RequestTimes& times = step2.to_frontend.outputs.at(0).finished_times.at(0);
  BOOST_TEST(times.queued == 1.0);
  BOOST_TEST(times.scheduled == 2.0);
  BOOST_TEST(times.first_token == 3.0);
  BOOST_TEST(times.last_token == 4.5);
  BOOST_TEST(times.num_generation_tokens == 3);
  BOOST_TEST(times.num_preemptions == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
