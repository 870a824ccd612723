// Requests that wait for something from outside: nobody asks again and again whether it has come.
#include "tests/support/deterministic_engine.hpp"
#include "tests/support/fake_grammar.hpp"

namespace troupe::testing {
namespace {

/// Has the first 16 tokens of request 1, and loads them in the background.
class LoadingConnector final : public KVConnector {
 public:
  std::optional<Match> get_num_new_matched_tokens(const RequestState& request,
                                                  std::int32_t num_local_tokens) override {
    if (request.id != RequestId{1} || num_local_tokens > 0) return Match{};
    return Match{.num_tokens = 16, .async = true};
  }
  void update_state_after_alloc(const RequestState&, const BlockTable&, std::int32_t) override {}
  Finished request_finished(const RequestState&, const BlockTable&) override { return {}; }
};

BOOST_AUTO_TEST_CASE(while_all_requests_wait_for_their_grammars_no_step_runs) {
  const auto compiler = std::make_shared<FakeGrammarCompiler>();
  compiler->hold = true;
  with_and_without_overlap({.grammar_compiler = compiler}, [](DeterministicEngine& test) {
    test.engine->add(RequestId{1}, test.prompt(20), 12, structured(RequestId{1}, 20));
    test.coordinator.run();  // it comes back: nobody keeps asking
    BOOST_TEST(test.worker().num_steps <= 1u);
    BOOST_TEST(test.frontend().stats.num_deferred_reqs == 1);
    test.engine->add(RequestId{2}, test.prompt(20), 12);
    test.coordinator.run();
    test.check_tokens(RequestId{2}, 20, 12);
    BOOST_TEST(test.worker().num_steps <= 1u + 12u + 2u);
    test.engine->abort(RequestId{1});
    test.coordinator.run();
    BOOST_TEST(test.frontend().num_finished[RequestId{1}] == 1);
    BOOST_TEST(test.frontend().stats.num_deferred_reqs == 0);
  });
}

BOOST_AUTO_TEST_CASE(workers_are_polled_while_all_requests_wait_for_their_kv) {
  with_and_without_overlap(
      {.kv_connector = std::make_shared<LoadingConnector>()}, [](DeterministicEngine& test) {
        test.engine->add(RequestId{1}, test.prompt(20), 12);
        test.coordinator.run();
        const std::uint64_t steps = test.worker().num_steps;
        BOOST_TEST(steps <= 2u);
        BOOST_TEST(test.frontend().token_ids[RequestId{1}].empty());
        for (std::uint64_t polls = 1; polls <= 3; ++polls) {
          BOOST_TEST(test.coordinator.trigger_timeout());
          test.coordinator.run();
          BOOST_TEST(test.worker().num_steps == steps + polls);
        }
        test.worker().kv_report.finished_recving = {RequestId{1}};
        BOOST_TEST(test.coordinator.trigger_timeout());
        test.coordinator.run();
        test.check_tokens(RequestId{1}, 20, 12);
        BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
        BOOST_TEST(test.coordinator.trigger_timeouts() == 0u);  // no more polls
      });
}

}  // namespace
}  // namespace troupe::testing
