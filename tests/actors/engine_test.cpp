// The engine's loop through the real actors, under CAF's deterministic scheduler: nothing runs
// unless the test says so.
#include <boost/test/unit_test.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <numeric>

#include "actors/system_config.hpp"
#include "tests/support/engine_harness.hpp"

namespace troupe::testing {
namespace {

struct DeterministicConfig : SystemConfig {
  DeterministicConfig() { set("scheduler.policy", caf::atom("testing")); }
};

std::shared_ptr<const Tokenizer> demo_tokenizer() {
  static const auto tokenizer =
      Tokenizer::load(TROUPE_SOURCE_DIR "/tools/demo_model/model").value();
  return tokenizer;
}

struct Fixture {
  DeterministicConfig config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& coordinator =
      dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  std::unique_ptr<EngineHarness> engine;

  void start(const HarnessOptions& options = {}) {
    engine = std::make_unique<EngineHarness>(system, demo_tokenizer(), options);
    coordinator.run();
  }
  ~Fixture() {
    engine.reset();
    coordinator.run();
  }

  static std::vector<TokenId> prompt(std::size_t size, TokenId first = 10) {
    std::vector<TokenId> tokens(size);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  void check_tokens(RequestId id, std::size_t prompt_size, std::size_t count) const {
    const std::vector<TokenId>& tokens = engine->frontend_log->token_ids[id];
    BOOST_REQUIRE_EQUAL(tokens.size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      BOOST_TEST(tokens[i] == fake_token(id, static_cast<std::int32_t>(prompt_size + i)));
    }
    BOOST_TEST(engine->frontend_log->num_finished[id] == 1);
  }
  /// Runs message by message until `done`.
  template <class Condition>
  void run_until(Condition done) {
    while (!done()) BOOST_REQUIRE(coordinator.try_run_once());
  }
};

BOOST_FIXTURE_TEST_CASE(every_request_gets_its_tokens_and_ends_once, Fixture) {
  start();
  for (std::uint64_t id = 1; id <= 20; ++id)
    engine->add(RequestId{id}, prompt(5 + id, static_cast<TokenId>(id)), 30);
  coordinator.run();
  for (std::uint64_t id = 1; id <= 20; ++id) check_tokens(RequestId{id}, 5 + id, 30);
  BOOST_TEST(engine->frontend_log->stats.num_running_reqs == 0);
  BOOST_TEST(engine->frontend_log->stats.kv_cache_usage == 0);
}

BOOST_FIXTURE_TEST_CASE(a_plain_decode_step_asks_the_cache_once_whatever_the_batch, Fixture) {
  start();
  for (std::uint64_t id = 1; id <= 64; ++id)
    engine->add(RequestId{id}, prompt(4, static_cast<TokenId>(id)), 10);
  run_until([&] {
    return !engine->worker_log->batch_sizes.empty() && engine->worker_log->batch_sizes.back() == 64;
  });
  const std::size_t questions = engine->cache_log->num_questions;
  const std::uint64_t steps = engine->worker_log->num_steps;
  run_until([&] { return engine->worker_log->num_steps == steps + 5; });
  BOOST_TEST(engine->cache_log->num_questions == questions + 5);
  BOOST_TEST(engine->cache_log->num_updates == 0u);
}

BOOST_FIXTURE_TEST_CASE(a_failed_step_fails_no_request, Fixture) {
  start();
  for (std::uint64_t id = 1; id <= 3; ++id)
    engine->add(RequestId{id}, prompt(20, static_cast<TokenId>(id)), 12);
  run_until([&] { return engine->worker_log->num_steps == 6; });
  engine->worker_log->num_steps_to_fail = 2;
  coordinator.run();
  for (std::uint64_t id = 1; id <= 3; ++id) check_tokens(RequestId{id}, 20, 12);
  BOOST_TEST(engine->frontend_log->errors.empty());
  BOOST_TEST(engine->frontend_log->stats.kv_cache_usage == 0);
}

BOOST_FIXTURE_TEST_CASE(a_step_that_never_works_ends_its_requests_with_the_error, Fixture) {
  start();
  engine->worker_log->num_steps_to_fail = 3;
  engine->add(RequestId{1}, prompt(20), 12);
  coordinator.run();
  BOOST_TEST(engine->frontend_log->errors[RequestId{1}].message == "made to fail");
  BOOST_TEST(engine->frontend_log->num_finished[RequestId{1}] == 1);
  engine->add(RequestId{2}, prompt(20), 12);
  coordinator.run();
  check_tokens(RequestId{2}, 20, 12);
}

BOOST_FIXTURE_TEST_CASE(an_abort_ends_a_request_within_the_step_in_flight, Fixture) {
  start();
  engine->add(RequestId{1}, prompt(20), 1000);
  engine->add(RequestId{2}, prompt(20, 500), 12);
  run_until([&] { return engine->worker_log->num_steps == 4; });
  post(engine->output_processor, AbortRequests{{RequestId{1}}});
  post(engine->scheduler, AbortRequests{{RequestId{1}}});
  coordinator.run();
  BOOST_TEST(engine->frontend_log->num_finished[RequestId{1}] == 1);
  BOOST_TEST(engine->frontend_log->token_ids[RequestId{1}].size() < 6u);
  check_tokens(RequestId{2}, 20, 12);
  BOOST_TEST(engine->frontend_log->stats.kv_cache_usage == 0);
}

BOOST_FIXTURE_TEST_CASE(a_request_whose_time_is_up_ends_although_the_worker_is_silent, Fixture) {
  start({.max_num_seqs = 1});
  engine->worker_log->keep_quiet = true;
  engine->add(RequestId{1}, prompt(20), 12);
  coordinator.run();
  engine->add(RequestId{2}, prompt(20), 12, {.max_queue_time_s = 1e-9});
  engine->add(RequestId{3}, prompt(20), 12, {.max_queue_time_s = 3600});
  coordinator.run();
  BOOST_TEST(coordinator.trigger_timeouts() >= 1u);  // an hour early: nothing is due
  coordinator.run();
  BOOST_TEST(engine->frontend_log->num_finished[RequestId{2}] == 1);
  BOOST_TEST((engine->frontend_log->errors[RequestId{2}].code == ErrorCode::kOverloaded));
  BOOST_TEST(engine->frontend_log->num_finished[RequestId{3}] == 0);
  BOOST_TEST(engine->frontend_log->num_finished[RequestId{1}] == 0);
}

BOOST_FIXTURE_TEST_CASE(results_of_another_step_are_dropped, Fixture) {
  start();
  engine->worker_log->keep_quiet = true;
  engine->add(RequestId{1}, prompt(20), 2);
  coordinator.run();
  const std::uint64_t steps = engine->worker_log->num_steps;
  post(engine->scheduler,
       ModelRunnerOutput{
           .step = 999, .ids = {RequestId{1}}, .sampled_token_ids = {7}, .num_sampled = {1}});
  post(engine->scheduler, StepFailed{999, {}});
  coordinator.run();
  BOOST_TEST(engine->worker_log->num_steps == steps);
  BOOST_TEST(engine->frontend_log->token_ids[RequestId{1}].empty());
}

BOOST_FIXTURE_TEST_CASE(few_blocks_preempt_but_lose_nothing, Fixture) {
  start({.num_blocks = 12});
  for (std::uint64_t id = 1; id <= 6; ++id)
    engine->add(RequestId{id}, prompt(17, static_cast<TokenId>(id * 50)), 60);
  coordinator.run();
  for (std::uint64_t id = 1; id <= 6; ++id) check_tokens(RequestId{id}, 17, 60);
  BOOST_TEST(engine->frontend_log->stats.kv_cache_usage == 0);
}

}  // namespace
}  // namespace troupe::testing
