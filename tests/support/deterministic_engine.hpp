#pragma once
// An engine of real actors under CAF's deterministic scheduler: nothing runs unless the test says
// so.

#include <boost/test/unit_test.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <memory>
#include <numeric>
#include <vector>

#include "actors/system_config.hpp"
#include "tests/support/engine_harness.hpp"

namespace troupe::testing {

struct DeterministicConfig : SystemConfig {
  DeterministicConfig() { set("scheduler.policy", caf::atom("testing")); }
};

inline std::shared_ptr<const Tokenizer> demo_tokenizer() {
  static const auto tokenizer =
      Tokenizer::load(TROUPE_SOURCE_DIR "/tools/demo_model/model").value();
  return tokenizer;
}

struct DeterministicEngine {
  DeterministicConfig config;
  caf::actor_system system{config};
  caf::scheduler::test_coordinator& coordinator =
      dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
  HarnessOptions options;
  std::unique_ptr<EngineHarness> engine;

  explicit DeterministicEngine(const HarnessOptions& harness_options = {})
      : options(harness_options),
        engine(std::make_unique<EngineHarness>(system, demo_tokenizer(), options)) {
    coordinator.run();
  }
  ~DeterministicEngine() {
    engine.reset();
    coordinator.run();
  }

  [[nodiscard]] bool overlaps() const { return options.async_scheduling; }
  [[nodiscard]] FakeWorkerLog& worker() const { return *engine->worker_log; }
  [[nodiscard]] FrontendLog& frontend() const { return *engine->frontend_log; }

  static std::vector<TokenId> prompt(std::size_t size, TokenId first = 10) {
    std::vector<TokenId> tokens(size);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  /// The request has exactly its first `count` tokens, and has ended once.
  void check_tokens(RequestId id, std::size_t prompt_size, std::size_t count) const {
    const std::vector<TokenId>& tokens = frontend().token_ids[id];
    BOOST_REQUIRE_EQUAL(tokens.size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      BOOST_TEST(tokens[i] == fake_token(id, static_cast<std::int32_t>(prompt_size + i)));
    }
    BOOST_TEST(frontend().num_finished[id] == 1);
  }
  /// Runs message by message until `done`.
  template <class Condition>
  void run_until(Condition done) {
    while (!done()) BOOST_REQUIRE(coordinator.try_run_once());
  }
  /// Hands on the oldest answer that the worker holds back, and runs until nothing is left to do.
  void release() {
    BOOST_REQUIRE(!worker().held.empty());
    release_answer(engine->worker, engine->executor, worker());
    coordinator.run();
  }
};

/// Runs a test with and without overlapping steps.
template <class Test>
void with_and_without_overlap(HarnessOptions options, const Test& test) {
  for (const bool async : {false, true}) {
    BOOST_TEST_CONTEXT((async ? "overlapping steps" : "one step at a time")) {
      options.async_scheduling = async;
      DeterministicEngine engine(options);
      test(engine);
    }
  }
}

}  // namespace troupe::testing
