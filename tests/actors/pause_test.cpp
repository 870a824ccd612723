// Pausing and resuming the engine, with and without overlapping steps.
#include "tests/support/deterministic_engine.hpp"

namespace troupe::testing {
namespace {

/// An engine with two requests of 12 tokens that have a few each, and a third that comes when the
/// engine is paused.
struct PausedEngine {
  explicit PausedEngine(DeterministicEngine& engine) : test(engine) {
    for (std::uint64_t id = 1; id <= 2; ++id) add(id);
    test.run_until([&] { return test.frontend().token_ids[RequestId{2}].size() == 4; });
  }
  void add(std::uint64_t id) {
    test.engine->add(RequestId{id}, test.prompt(20, static_cast<TokenId>(40 * id)), 12);
  }
  void check(std::uint64_t id) const { test.check_tokens(RequestId{id}, 20, 12); }
  std::size_t num_tokens(std::uint64_t id) const {
    return test.frontend().token_ids[RequestId{id}].size();
  }

  /// Asks, and gives the answer once it is there.
  template <class Question>
  void ask_scheduler(const Question& question, std::optional<PauseStatus>& answer) {
    test.system.spawn<caf::hidden>(
        [&answer](caf::event_based_actor* self, const SchedulerActor& to, const Question& what) {
          ask(self, to, what)
              .then([&answer](const PauseStatus& status) { answer = status; },
                    [](const caf::error&) { BOOST_ERROR("the scheduler gave no answer"); });
        },
        test.engine->scheduler, question);
  }
  template <class Question>
  bool answer_now(const Question& question) {
    std::optional<PauseStatus> answer;
    ask_scheduler(question, answer);
    test.coordinator.run();
    BOOST_REQUIRE(answer.has_value());
    return answer->paused;
  }

  DeterministicEngine& test;
};

BOOST_AUTO_TEST_CASE(kept_requests_continue_after_the_pause_with_the_same_tokens) {
  with_and_without_overlap({}, [](DeterministicEngine& engine) {
    PausedEngine test(engine);
    BOOST_TEST(test.answer_now(PauseScheduler{PauseMode::kKeep, true}));
    const std::size_t had = test.num_tokens(1);
    BOOST_TEST(had < 12u);
    test.add(3);
    engine.coordinator.run();
    BOOST_TEST(test.answer_now(AskPaused{}));
    BOOST_TEST(test.num_tokens(1) == had);
    BOOST_TEST(test.num_tokens(3) == 0u);
    BOOST_TEST(!test.answer_now(ResumeScheduler{}));
    BOOST_TEST(!test.answer_now(AskPaused{}));
    for (const std::uint64_t id : {1u, 2u, 3u}) test.check(id);
    BOOST_TEST(engine.frontend().stats.kv_cache_usage == 0);
  });
}

BOOST_AUTO_TEST_CASE(a_pause_that_waits_is_answered_when_the_last_request_has_ended) {
  with_and_without_overlap({}, [](DeterministicEngine& engine) {
    PausedEngine test(engine);
    engine.worker().hold = true;
    std::optional<PauseStatus> answer;
    test.ask_scheduler(PauseScheduler{PauseMode::kWait, false}, answer);
    engine.coordinator.run();
    test.add(3);
    while (!engine.worker().held.empty()) {
      BOOST_TEST(!answer.has_value());
      engine.release();
    }
    BOOST_REQUIRE(answer.has_value());
    BOOST_TEST(answer->paused);
    test.check(1);
    test.check(2);
    BOOST_TEST(test.num_tokens(3) == 0u);
    engine.worker().hold = false;
    BOOST_TEST(!test.answer_now(ResumeScheduler{}));
    test.check(3);
  });
}

BOOST_AUTO_TEST_CASE(a_pause_that_aborts_ends_requests_with_their_output_so_far) {
  for (const bool clear_caches : {false, true}) {
    with_and_without_overlap({}, [&](DeterministicEngine& engine) {
      PausedEngine test(engine);
      BOOST_TEST(test.answer_now(PauseScheduler{PauseMode::kAbort, clear_caches}));
      for (const std::uint64_t id : {1u, 2u}) {
        BOOST_TEST(engine.frontend().num_finished[RequestId{id}] == 1);
        BOOST_TEST(test.num_tokens(id) >= 4u);
        BOOST_TEST(test.num_tokens(id) < 12u);
      }
      BOOST_TEST(engine.frontend().errors.empty());
      engine.engine->add(RequestId{3}, engine.prompt(20, 40), 12);  // request 1 again
      engine.coordinator.run();
      BOOST_TEST(test.num_tokens(3) == 0u);
      BOOST_TEST(!test.answer_now(ResumeScheduler{}));
      test.check(3);
      BOOST_TEST(engine.frontend().num_cached_tokens[RequestId{3}] == (clear_caches ? 0 : 16));
      BOOST_TEST(engine.frontend().stats.kv_cache_usage == 0);
    });
  }
}

BOOST_AUTO_TEST_CASE(a_pause_that_is_resumed_before_it_is_complete_reports_it) {
  with_and_without_overlap({}, [](DeterministicEngine& engine) {
    PausedEngine test(engine);
    engine.worker().keep_quiet = true;
    std::optional<PauseStatus> answer;
    test.ask_scheduler(PauseScheduler{PauseMode::kWait, true}, answer);
    engine.coordinator.run();
    BOOST_TEST(!answer.has_value());
    BOOST_TEST(!test.answer_now(ResumeScheduler{}));
    BOOST_REQUIRE(answer.has_value());
    BOOST_TEST(!answer->paused);
  });
}

BOOST_AUTO_TEST_CASE(an_idle_engine_pauses_at_once) {
  with_and_without_overlap({}, [](DeterministicEngine& engine) {
    PausedEngine test(engine);
    engine.coordinator.run();
    for (const PauseMode mode : {PauseMode::kAbort, PauseMode::kWait, PauseMode::kKeep})
      BOOST_TEST(test.answer_now(PauseScheduler{mode, true}));
    BOOST_TEST(!test.answer_now(ResumeScheduler{}));
    test.add(3);
    engine.coordinator.run();
    test.check(3);
  });
}

}  // namespace
}  // namespace troupe::testing
