// Steps that overlap: the next one is planned and with the worker before the last one's result is
// there. The worker holds its results back, so that two steps are open when something happens.
#include <algorithm>
#include <random>

#include "tests/support/deterministic_engine.hpp"
#include "tests/support/fake_grammar.hpp"

namespace troupe::testing {
namespace {

const HarnessOptions kOverlap{.async_scheduling = true};
const SpeculativeConfig kDraftModel{
    .num_draft_tokens = 3, .num_lookahead_tokens = 3, .draft_slots = 1};

struct TwoOpenSteps : DeterministicEngine {
  explicit TwoOpenSteps(const HarnessOptions& harness_options = kOverlap)
      : DeterministicEngine(harness_options) {
    worker().hold = true;
  }
  void add(std::uint64_t id, std::int32_t max_tokens, SamplingParams params = {}) {
    engine->add(RequestId{id}, prompt(20, static_cast<TokenId>(40 * id)), max_tokens,
                std::move(params));
  }
  void release_all() {
    while (!worker().held.empty()) release();
  }
  /// All answers are in: these requests have ended with so many tokens, and no block is held.
  void finish_with(std::initializer_list<std::pair<std::uint64_t, std::size_t>> num_tokens) {
    release_all();
    for (const auto& [id, count] : num_tokens) check_tokens(RequestId{id}, 20, count);
    BOOST_TEST(frontend().stats.kv_cache_usage == 0);
  }
};

BOOST_FIXTURE_TEST_CASE(the_next_step_is_with_the_worker_before_the_result_of_the_last,
                        TwoOpenSteps) {
  add(1, 6);
  coordinator.run();
  for (std::uint64_t released = 0; released < 5; ++released) {
    // Two are open, not more: coordinator.run() returned, so no actor polls either.
    BOOST_TEST(worker().num_steps == released + 2);
    BOOST_TEST(worker().held.size() == 2u);
    BOOST_TEST(frontend().token_ids[RequestId{1}].size() == released);
    release();
  }
  finish_with({{1, 6}});
}

/// Also if they have drafts: the worker puts its own in the place of the plan's placeholders. Every
/// third is wrong, so that the plan relies on drafts that are rejected.
BOOST_AUTO_TEST_CASE(drafts_do_not_hold_the_next_step_up) {
  TwoOpenSteps test(HarnessOptions{.async_scheduling = true, .speculative = kDraftModel});
  test.add(1, 40);
  test.add(2, 33);
  test.coordinator.run();
  std::size_t num_steps = 0;
  while (test.frontend().num_ended < 2) {
    // With the last results nothing is left to compute.
    if (test.frontend().num_ended == 0) BOOST_TEST(test.worker().held.size() == 2u);
    test.release();
    ++num_steps;
  }
  BOOST_TEST(num_steps <= 24u);  // 40 without drafts
  test.finish_with({{1, 40}, {2, 33}});
}

BOOST_AUTO_TEST_CASE(without_overlap_a_step_waits_for_the_result_of_the_last) {
  TwoOpenSteps test(HarnessOptions{});
  test.add(1, 6);
  test.coordinator.run();
  BOOST_TEST(test.worker().num_steps == 1u);
  test.release();
  BOOST_TEST(test.worker().num_steps == 2u);
  test.finish_with({{1, 6}});
}

BOOST_FIXTURE_TEST_CASE(a_request_that_comes_between_is_in_the_next_step, TwoOpenSteps) {
  add(1, 6);
  coordinator.run();
  add(2, 6);
  coordinator.run();
  release();
  BOOST_TEST(worker().batch_sizes.back() == 2u);
  finish_with({{1, 6}, {2, 6}});
}

BOOST_FIXTURE_TEST_CASE(nothing_is_computed_beyond_the_length_that_is_asked_for, TwoOpenSteps) {
  add(1, 2);
  add(2, 4);
  coordinator.run();
  finish_with({{1, 2}, {2, 4}});
  // Two steps with both (or 1 first, alone), then request 2 alone; the rest reports their ends.
  const auto& sizes = worker().batch_sizes;
  BOOST_TEST(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}) == 6u);
  BOOST_TEST(frontend().stats.kv_cache_usage == 0);
}

BOOST_FIXTURE_TEST_CASE(a_token_computed_after_a_stop_token_is_dropped, TwoOpenSteps) {
  SamplingParams params;
  params.eos_token_id = fake_token(RequestId{1}, 23);
  add(1, 100, params);
  add(2, 12);
  coordinator.run();
  finish_with({{1, 4}, {2, 12}});
}

BOOST_FIXTURE_TEST_CASE(tokens_computed_after_a_stop_string_are_dropped, TwoOpenSteps) {
  add(1, 40);
  coordinator.run();
  release_all();
  const std::string text = frontend().text[RequestId{1}];
  const std::string stop = text.substr(text.size() / 2, 4);
  SamplingParams params;
  params.stop = {stop};
  engine->add(RequestId{1}, prompt(20), 40, params);
  coordinator.run();
  release_all();
  BOOST_TEST(frontend().num_finished[RequestId{1}] == 2);
  BOOST_TEST(frontend().text[RequestId{1}] == text + text.substr(0, text.find(stop)));
  BOOST_TEST(frontend().stats.kv_cache_usage == 0);
}

BOOST_FIXTURE_TEST_CASE(an_abort_with_two_open_steps_ends_only_its_request, TwoOpenSteps) {
  add(1, 1000);
  add(2, 12);
  coordinator.run();
  release();
  release();
  BOOST_REQUIRE_EQUAL(worker().held.size(), 2u);
  const std::size_t had = frontend().token_ids[RequestId{1}].size();
  engine->abort(RequestId{1});
  coordinator.run();
  BOOST_TEST(frontend().num_finished[RequestId{1}] == 1);
  release_all();
  BOOST_TEST(frontend().token_ids[RequestId{1}].size() == had);
  BOOST_TEST(frontend().num_finished[RequestId{1}] == 1);
  check_tokens(RequestId{2}, 20, 12);
  BOOST_TEST(frontend().stats.kv_cache_usage == 0);
}

BOOST_FIXTURE_TEST_CASE(the_failure_of_the_older_of_two_open_steps_takes_both_back, TwoOpenSteps) {
  add(1, 12);
  add(2, 12);
  coordinator.run();
  release();
  release();
  BOOST_REQUIRE_EQUAL(worker().held.size(), 2u);
  const std::uint64_t older = std::get<ModelRunnerOutput>(worker().held[0]).step;
  worker().held[0] = StepFailed{older, {ErrorCode::kInternal, "made to fail"}};
  release();
  // The result of the later one is dropped, although it succeeded.
  BOOST_TEST(std::holds_alternative<ModelRunnerOutput>(worker().held[0]));
  finish_with({{1, 12}, {2, 12}});
  BOOST_TEST(frontend().errors.empty());
}

BOOST_FIXTURE_TEST_CASE(the_failure_of_the_younger_of_two_open_steps_keeps_the_older_ones_tokens,
                        TwoOpenSteps) {
  add(1, 12);
  coordinator.run();
  const std::uint64_t younger = std::get<ModelRunnerOutput>(worker().held[1]).step;
  worker().held[1] = StepFailed{younger, {ErrorCode::kInternal, "made to fail"}};
  release();
  BOOST_TEST(frontend().token_ids[RequestId{1}].size() == 1u);
  finish_with({{1, 12}});
}

BOOST_FIXTURE_TEST_CASE(two_open_steps_that_fail_together_are_one_failure, TwoOpenSteps) {
  add(1, 12);
  coordinator.run();
  for (int failure = 0; failure < 2; ++failure) {
    BOOST_REQUIRE_EQUAL(worker().held.size(), 2u);
    for (StepAnswer& answer : worker().held)
      answer = StepFailed{std::get<ModelRunnerOutput>(answer).step, {}};
    release();
    release();
  }
  BOOST_TEST(frontend().errors.empty());
  finish_with({{1, 12}});
}

BOOST_FIXTURE_TEST_CASE(a_reset_of_the_caches_with_two_open_steps_costs_no_token, TwoOpenSteps) {
  add(1, 12);
  add(2, 12);
  coordinator.run();
  release();
  release();
  BOOST_REQUIRE_EQUAL(worker().held.size(), 2u);
  post(engine->scheduler, ResetCaches{.prefix_cache = true, .preempt_running = true});
  coordinator.run();
  finish_with({{1, 12}, {2, 12}});
}

BOOST_FIXTURE_TEST_CASE(requests_that_finished_in_a_failed_step_are_reported_to_the_workers_again,
                        TwoOpenSteps) {
  add(1, 12);
  coordinator.run();
  engine->abort(RequestId{1});
  coordinator.run();
  release();  // the next plan reports the end to the worker
  BOOST_REQUIRE_EQUAL(worker().held.size(), 2u);
  worker().finished_ids.clear();
  for (StepAnswer& answer : worker().held)
    answer = StepFailed{std::get<ModelRunnerOutput>(answer).step, {}};
  release_all();
  BOOST_TEST((worker().finished_ids == std::vector{RequestId{1}}));
}

/// Whatever the order in which actors run, with requests that come, go and fail meanwhile.
BOOST_AUTO_TEST_CASE(no_order_of_events_changes_a_token) {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      std::mt19937 random(seed);
      const auto pick = [&](std::size_t count) { return random() % count; };
      DeterministicEngine test({.num_blocks = seed % 2 == 0 ? 14 : 100,
                                .max_num_batched_tokens = seed % 3 == 0 ? 16 : 2048,
                                .max_num_seqs = 8,
                                .async_scheduling = seed % 5 != 0,
                                .speculative = seed % 4 < 2 ? kDraftModel : SpeculativeConfig{},
                                .grammar_compiler = std::make_shared<FakeGrammarCompiler>()});
      const auto is_structured = [](std::uint64_t id) { return id % 3 == 0; };
      auto& jobs = test.coordinator.jobs;
      std::vector<bool> aborted(13);
      std::uint64_t next_id = 1;
      std::uint64_t last_failure = 0;
      for (std::uint64_t i = 0; next_id <= 12 || !jobs.empty(); ++i) {
        BOOST_REQUIRE(i < 200000u);
        if (next_id <= 12 && (jobs.empty() || pick(40) == 0)) {
          const auto prompt_size = static_cast<std::int32_t>(5 + 3 * next_id);
          test.engine->add(RequestId{next_id}, test.prompt(5 + 3 * next_id), 40,
                           is_structured(next_id) ? structured(RequestId{next_id}, prompt_size)
                                                  : SamplingParams{});
          ++next_id;
        }
        // Three in a row would end requests.
        if (pick(100) == 0 && test.worker().num_steps > last_failure + 4) {
          test.worker().num_steps_to_fail = 1;
          last_failure = test.worker().num_steps;
        }
        if (next_id > 1 && pick(300) == 0) {
          const std::uint64_t id = 1 + pick(next_id - 1);
          test.engine->abort(RequestId{id});
          aborted[id] = true;
        }
        if (!jobs.empty()) std::swap(jobs.front(), jobs[pick(jobs.size())]);
        test.coordinator.try_run_once();
      }
      for (std::uint64_t id = 1; id <= 12; ++id) {
        const RequestId request{id};
        BOOST_TEST(test.frontend().num_finished[request] == 1);
        const auto& tokens = test.frontend().token_ids[request];
        if (!aborted[id]) BOOST_TEST(tokens.size() == 40u);
        for (std::size_t n = 0; n < tokens.size(); ++n) {
          const auto position = static_cast<std::int32_t>(5 + 3 * id + n);
          BOOST_TEST(tokens[n] == (is_structured(id) ? grammar_token(request, position)
                                                     : fake_token(request, position)));
        }
      }
      BOOST_TEST(test.frontend().errors.empty());
      BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
    }
  }
}

}  // namespace
}  // namespace troupe::testing
