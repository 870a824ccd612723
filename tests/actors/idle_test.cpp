// Requests that wait for an external event: no actor polls for it in a busy loop.
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

/// Finds out what it has in its own time; request 2 is kept after its end.
class LateConnector final : public ECConnector {
 public:
  std::optional<bool> has_cache_item(const MultiModalFeature&, double) override { return has; }
  void update_state_after_alloc(const RequestState&, const MultiModalFeature& item) override {
    loads.push_back(item.identifier);
  }
  std::string build_connector_meta(const SchedulerOutput&) override { return {}; }
  void update_connector_output(const ECConnectorOutput& output) override {
    num_reports += output.empty() ? 0 : 1;
  }
  bool request_finished(const RequestState& request) override { return request.id == RequestId{2}; }
  void release(const std::string& identifier) override { released.push_back(identifier); }

  std::optional<bool> has;
  std::vector<std::string> loads, released;
  int num_reports = 0;
};

BOOST_AUTO_TEST_CASE(while_all_requests_wait_for_their_grammars_no_step_runs) {
  const auto compiler = std::make_shared<FakeGrammarCompiler>();
  compiler->hold = true;
  with_and_without_overlap({.grammar_compiler = compiler}, [](DeterministicEngine& test) {
    test.engine->add(RequestId{1}, test.prompt(20), 12, structured(RequestId{1}, 20));
    test.coordinator.run();  // returns: no actor polls
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

BOOST_AUTO_TEST_CASE(a_connector_is_asked_again_while_it_does_not_know_whether_it_has_an_image) {
  for (const bool async : {false, true}) {
    const auto connector = std::make_shared<LateConnector>();
    DeterministicEngine test({.async_scheduling = async, .ec_connector = connector});
    const auto add = [&](RequestId id) {
      test.engine->add(id, test.prompt(20), 12, {}, {},
                       {{.modality = "image", .identifier = "a", .offset = 0, .length = 4}});
      test.coordinator.run();
    };
    add(RequestId{1});
    const std::uint64_t steps = test.worker().num_steps;
    BOOST_TEST(steps <= 2u);
    for (std::uint64_t polls = 1; polls <= 3; ++polls) {
      BOOST_TEST(test.coordinator.trigger_timeout());
      test.coordinator.run();
      BOOST_TEST(test.worker().num_steps == steps + polls);
    }
    BOOST_TEST(test.frontend().token_ids[RequestId{1}].empty());
    connector->has = true;
    BOOST_TEST(test.coordinator.trigger_timeout());
    test.coordinator.run();
    test.check_tokens(RequestId{1}, 20, 12);
    BOOST_TEST((connector->loads == std::vector<std::string>{"a"}));
    BOOST_TEST((connector->released == std::vector<std::string>{"a"}));
    BOOST_TEST(test.coordinator.trigger_timeouts() == 0u);  // no more polls
    // It keeps what a request had until the workers have sent it.
    add(RequestId{2});
    test.check_tokens(RequestId{2}, 20, 12);
    BOOST_TEST(test.coordinator.trigger_timeout());
    test.coordinator.run();
    BOOST_TEST(connector->released.size() == 1u);
    test.worker().ec_report.finished_sending = {RequestId{2}};
    BOOST_TEST(test.coordinator.trigger_timeout());
    test.coordinator.run();
    BOOST_TEST(connector->num_reports == 1);
    BOOST_TEST(connector->released.size() == 2u);
    BOOST_TEST(test.coordinator.trigger_timeouts() == 0u);
  }
}

}  // namespace
}  // namespace troupe::testing
