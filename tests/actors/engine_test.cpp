// The engine's loop through the real actors: each test with one step at a time, and with steps that
// overlap.
#include <algorithm>

#include "tests/support/deterministic_engine.hpp"

namespace troupe::testing {
namespace {

std::vector<TokenId> prompt(std::size_t size, TokenId first = 10) {
  return DeterministicEngine::prompt(size, first);
}

BOOST_AUTO_TEST_CASE(every_request_gets_its_tokens_and_ends_once) {
  with_and_without_overlap({}, [](DeterministicEngine& test) {
    for (std::uint64_t id = 1; id <= 20; ++id)
      test.engine->add(RequestId{id}, prompt(5 + id, static_cast<TokenId>(id)), 30);
    test.coordinator.run();
    for (std::uint64_t id = 1; id <= 20; ++id) test.check_tokens(RequestId{id}, 5 + id, 30);
    BOOST_TEST(test.frontend().stats.num_running_reqs == 0);
    BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
  });
}

BOOST_AUTO_TEST_CASE(a_plain_decode_step_is_one_round_trip_to_the_cache_whatever_the_batch) {
  for (const std::uint64_t num_requests : {1u, 64u}) {
    with_and_without_overlap({.num_blocks = 200}, [&](DeterministicEngine& test) {
      for (std::uint64_t id = 1; id <= num_requests; ++id)
        test.engine->add(RequestId{id}, prompt(4, static_cast<TokenId>(id)), 60);
      test.run_until([&] {
        const auto& sizes = test.worker().batch_sizes;
        return sizes.size() >= 3 && sizes.back() == num_requests;
      });
      const CacheLog& cache = *test.engine->cache_log;
      const std::size_t questions = cache.num_questions;
      const std::uint64_t steps = test.worker().num_steps;
      test.run_until([&] { return test.worker().num_steps == steps + 40; });
      BOOST_TEST(cache.num_questions == questions + 40);
      BOOST_TEST(cache.num_updates == 0u);
    });
  }
}

BOOST_AUTO_TEST_CASE(a_failed_step_fails_no_request) {
  for (const std::uint64_t num_failures : {1, 2, 3, 4}) {
    with_and_without_overlap({}, [&](DeterministicEngine& test) {
      // Overlapping steps fail in pairs; without overlap the third is that of one request alone.
      if (num_failures > 2 && !test.overlaps()) return;
      for (std::uint64_t id = 1; id <= 3; ++id)
        test.engine->add(RequestId{id}, prompt(20, static_cast<TokenId>(id)), 12);
      test.run_until([&] { return test.worker().num_steps == 6; });
      test.worker().num_steps_to_fail = num_failures;
      test.coordinator.run();
      for (std::uint64_t id = 1; id <= 3; ++id) test.check_tokens(RequestId{id}, 20, 12);
      BOOST_TEST(test.frontend().errors.empty());
      BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
    });
  }
}

BOOST_AUTO_TEST_CASE(a_step_that_never_works_ends_its_requests_with_the_error) {
  with_and_without_overlap({}, [](DeterministicEngine& test) {
    test.worker().num_steps_to_fail = 1000;
    test.engine->add(RequestId{1}, prompt(20), 12);
    test.run_until([&] { return !test.frontend().errors.empty(); });
    BOOST_TEST(test.frontend().errors[RequestId{1}].message == "made to fail");
    test.worker().num_steps_to_fail = 0;
    test.engine->add(RequestId{2}, prompt(20), 12);
    test.coordinator.run();
    BOOST_TEST(test.frontend().num_finished[RequestId{1}] == 1);
    test.check_tokens(RequestId{2}, 20, 12);
    BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
  });
}

BOOST_AUTO_TEST_CASE(a_request_under_which_every_step_fails_ends_alone) {
  // From its first step on, or with the token behind its first five.
  for (const std::int32_t first_bad_position : {0, 25}) {
    with_and_without_overlap({}, [&](DeterministicEngine& test) {
      constexpr RequestId kBad{2};
      test.worker().fails = [&](const SchedulerOutput& step) {
        for (std::size_t i = 0; i < step.new_requests.size(); ++i) {
          const NewRequestData& request = step.new_requests[i];
          if (request.id == kBad &&
              static_cast<std::int32_t>(request.token_ids.size()) >= first_bad_position)
            return true;
        }
        const CachedRequestData& cached = step.cached_requests;
        for (std::size_t i = 0; i < cached.ids.size(); ++i) {
          if (cached.ids[i] == kBad && cached.num_computed_tokens[i] >= first_bad_position)
            return true;
        }
        return false;
      };
      for (std::uint64_t id = 1; id <= 4; ++id)
        test.engine->add(RequestId{id}, prompt(20, static_cast<TokenId>(id)), 12);
      test.coordinator.run();
      BOOST_TEST(test.frontend().errors.size() == 1u);
      BOOST_TEST(test.frontend().errors[kBad].message == "made to fail");
      BOOST_TEST(test.frontend().num_finished[kBad] == 1);
      for (const std::uint64_t id : {1u, 3u, 4u}) test.check_tokens(RequestId{id}, 20, 12);
      const std::vector<std::size_t>& sizes = test.worker().batch_sizes;
      BOOST_TEST(*std::max_element(sizes.end() - 5, sizes.end()) == 3u);  // together again
      BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
    });
  }
}

BOOST_AUTO_TEST_CASE(an_aborted_suspect_does_not_block_other_requests) {
  with_and_without_overlap({}, [](DeterministicEngine& test) {
    test.worker().num_steps_to_fail = test.overlaps() ? 4 : 2;
    for (std::uint64_t id = 1; id <= 3; ++id)
      test.engine->add(RequestId{id}, prompt(20, static_cast<TokenId>(id)), 12);
    test.run_until([&] { return test.worker().num_steps_to_fail == 0; });
    test.engine->abort(RequestId{1});
    test.engine->abort(RequestId{2});
    test.coordinator.run();
    test.check_tokens(RequestId{3}, 20, 12);
    BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
  });
}

BOOST_AUTO_TEST_CASE(an_abort_ends_a_request_within_the_step_in_flight) {
  with_and_without_overlap({}, [](DeterministicEngine& test) {
    test.engine->add(RequestId{1}, prompt(20), 1000);
    test.engine->add(RequestId{2}, prompt(20, 500), 12);
    test.run_until([&] { return test.worker().num_steps == 4; });
    test.engine->abort(RequestId{1});
    test.coordinator.run();
    BOOST_TEST(test.frontend().num_finished[RequestId{1}] == 1);
    BOOST_TEST(test.frontend().token_ids[RequestId{1}].size() < 6u);
    test.check_tokens(RequestId{2}, 20, 12);
    BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
  });
}

BOOST_AUTO_TEST_CASE(a_request_times_out_even_if_the_worker_does_not_respond) {
  with_and_without_overlap({.max_num_seqs = 1}, [](DeterministicEngine& test) {
    test.worker().keep_quiet = true;
    test.engine->add(RequestId{1}, prompt(20), 12);
    test.coordinator.run();
    test.engine->add(RequestId{2}, prompt(20), 12, {}, {.max_queue_time_s = 1e-9});
    test.engine->add(RequestId{3}, prompt(20), 12, {}, {.max_queue_time_s = 3600});
    test.coordinator.run();
    BOOST_TEST(test.coordinator.trigger_timeouts() >= 1u);  // an hour early: nothing is due
    test.coordinator.run();
    BOOST_TEST(test.frontend().num_finished[RequestId{2}] == 1);
    BOOST_TEST((test.frontend().errors[RequestId{2}].code == ErrorCode::kOverloaded));
    BOOST_TEST(test.frontend().num_finished[RequestId{3}] == 0);
    BOOST_TEST(test.frontend().num_finished[RequestId{1}] == 0);
  });
}

BOOST_AUTO_TEST_CASE(results_of_another_step_are_dropped) {
  with_and_without_overlap({}, [](DeterministicEngine& test) {
    test.worker().keep_quiet = true;
    test.engine->add(RequestId{1}, prompt(20), 2);
    test.coordinator.run();
    const std::uint64_t steps = test.worker().num_steps;
    post(test.engine->scheduler,
         ModelRunnerOutput{
             .step = 999, .ids = {RequestId{1}}, .sampled_token_ids = {7}, .num_sampled = {1}});
    post(test.engine->scheduler, StepFailed{999, {}});
    test.coordinator.run();
    BOOST_TEST(test.worker().num_steps == steps);
    BOOST_TEST(test.frontend().token_ids[RequestId{1}].empty());
  });
}

BOOST_AUTO_TEST_CASE(few_blocks_preempt_but_lose_nothing) {
  with_and_without_overlap({.num_blocks = 12}, [](DeterministicEngine& test) {
    for (std::uint64_t id = 1; id <= 6; ++id)
      test.engine->add(RequestId{id}, prompt(17, static_cast<TokenId>(id * 50)), 60);
    test.coordinator.run();
    for (std::uint64_t id = 1; id <= 6; ++id) test.check_tokens(RequestId{id}, 17, 60);
    BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
  });
}

}  // namespace
}  // namespace troupe::testing
