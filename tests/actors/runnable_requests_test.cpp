// The Scheduler never sleeps on a request that could run, in whatever order requests, aborts,
// results, failures, pauses and resets arrive.
#include <algorithm>
#include <random>
#include <string_view>

#include "tests/support/deterministic_engine.hpp"

namespace troupe::testing {
namespace {

struct Mode {
  std::string_view name;
  bool async_scheduling = false;
  std::int32_t pipeline_parallel_size = 1;
  SpeculativeConfig speculative = {};
};

constexpr std::int32_t kDrafts = 2;

const std::vector<Mode>& modes() {
  static const SpeculativeConfig ngram{.num_draft_tokens = kDrafts};
  static const SpeculativeConfig draft_model{
      .num_draft_tokens = kDrafts, .num_lookahead_tokens = kDrafts, .draft_slots = 1};
  static const std::vector<Mode> all{
      {.name = "one step at a time"},
      {.name = "overlapping steps", .async_scheduling = true},
      {.name = "ngram drafts", .speculative = ngram},
      {.name = "drafts of a model", .speculative = draft_model},
      {.name = "drafts of a model, overlapping",
       .async_scheduling = true,
       .speculative = draft_model},
      {.name = "two stages", .pipeline_parallel_size = 2},
      {.name = "two stages, ngram drafts", .pipeline_parallel_size = 2, .speculative = ngram},
      {.name = "two stages, overlapping", .async_scheduling = true, .pipeline_parallel_size = 2},
      {.name = "four stages, overlapping", .async_scheduling = true, .pipeline_parallel_size = 4},
  };
  return all;
}

HarnessOptions options_of(const Mode& mode) {
  return {.num_blocks = 20,
          .async_scheduling = mode.async_scheduling,
          .pipeline_parallel_size = mode.pipeline_parallel_size,
          .speculative = mode.speculative};
}

template <class Test>
void in_every_mode(const Test& test) {
  for (const Mode& mode : modes()) {
    BOOST_TEST_CONTEXT(mode.name) { test(mode); }
  }
}

/// An engine whose worker gives its results one by one, when the test says so.
struct SteppedEngine : DeterministicEngine {
  explicit SteppedEngine(const Mode& mode) : DeterministicEngine(options_of(mode)) {
    worker().hold = true;
  }
  [[nodiscard]] bool has_ended(std::uint64_t id) const {
    const auto found = frontend().num_finished.find(RequestId{id});
    return found != frontend().num_finished.end() && found->second == 1;
  }
};

/// The way of a client that asks one thing after the other: its next request meets the step that
/// reports the end of the last one to the workers.
BOOST_AUTO_TEST_CASE(a_request_between_the_empty_step_and_its_result_runs) {
  in_every_mode([](const Mode& mode) {
    SteppedEngine test(mode);
    test.engine->add(RequestId{1}, test.prompt(20), 2);
    test.coordinator.run();
    while (!test.has_ended(1)) test.release();
    BOOST_REQUIRE(!test.worker().held.empty());
    BOOST_REQUIRE(std::get<ModelRunnerOutput>(test.worker().held.back()).ids.empty());
    test.engine->add(RequestId{2}, test.prompt(20, 80), 2);
    test.coordinator.run();
    while (!test.worker().held.empty()) test.release();
    test.check_tokens(RequestId{2}, 20, 2);
  });
}

enum class Event : char {
  kAdd = '+',     ///< the next request
  kAbort = '-',   ///< of the one added last
  kFail = '!',    ///< the next answer of the worker is a failure
  kKeep = 'k',    ///< pause; what runs stays
  kWait = 'w',    ///< pause; what runs ends
  kResume = 'r',  ///< from a pause
  kReset = 'x',   ///< of the prefix cache, with preemption
  kResult = '.',  ///< the worker's oldest answer
};

/// One script, its events in their order, with results between them as `choices` says; beyond its
/// end results come only when there is nothing else.
class Run {
 public:
  Run(SteppedEngine& engine, std::uint64_t first_id) : engine_(engine), next_id_(first_id) {}

  /// False: a request could run, and nothing is under way that would make it.
  bool play(std::string_view script, const std::vector<bool>& choices) {
    std::size_t next = 0;
    for (std::size_t i = 0; next < script.size() || !engine_.worker().held.empty(); ++i) {
      const bool may_choose = next < script.size() && !engine_.worker().held.empty();
      bool takes_result = next == script.size();
      if (may_choose) {
        takes_result = num_choices_ < choices.size() && choices[num_choices_];
        ++num_choices_;
      }
      apply(takes_result ? Event::kResult : static_cast<Event>(script[next++]));
      if (engine_.worker().held.empty() && !paused_ && !all_ended()) return false;
    }
    return all_ended();
  }
  /// So many times both a result and an event could have come next.
  [[nodiscard]] std::size_t num_choices() const noexcept { return num_choices_; }
  [[nodiscard]] std::uint64_t next_id() const noexcept { return next_id_; }

 private:
  void apply(Event event) {
    switch (event) {
      case Event::kAdd:
        alive_.push_back(next_id_);
        engine_.engine->add(RequestId{next_id_++}, engine_.prompt(20), 2);
        break;
      case Event::kAbort:
        engine_.engine->abort(RequestId{alive_.back()});
        break;
      case Event::kFail:
        fails_next_ = true;
        return;
      case Event::kKeep:
      case Event::kWait:
        post(engine_.engine->scheduler,
             PauseScheduler{event == Event::kKeep ? PauseMode::kKeep : PauseMode::kWait});
        paused_ = true;
        break;
      case Event::kResume:
        post(engine_.engine->scheduler, ResumeScheduler{});
        paused_ = false;
        break;
      case Event::kReset:
        post(engine_.engine->scheduler, ResetCaches{.prefix_cache = true, .preempt_running = true});
        break;
      case Event::kResult: {
        StepAnswer& answer = engine_.worker().held.front();
        const auto* const result = std::get_if<ModelRunnerOutput>(&answer);
        if (std::exchange(fails_next_, false) && result != nullptr)
          answer = StepFailed{result->step, {ErrorCode::kInternal, "made to fail"}};
        engine_.release();
        return;
      }
    }
    engine_.coordinator.run();
  }
  [[nodiscard]] bool all_ended() const {
    return std::all_of(alive_.begin(), alive_.end(),
                       [&](std::uint64_t id) { return engine_.has_ended(id); });
  }

  SteppedEngine& engine_;
  std::vector<std::uint64_t> alive_;
  std::uint64_t next_id_;
  std::size_t num_choices_ = 0;
  bool paused_ = false;
  bool fails_next_ = false;
};

std::string written(std::string_view script, const std::vector<bool>& choices) {
  std::string text(script);
  text += " with results taken at ";
  for (const bool choice : choices) text += choice ? '1' : '0';
  return text;
}

/// Depth first through all choices; an engine serves one script, and is idle between two orders.
void play_all_orders(const Mode& mode, std::string_view script) {
  SteppedEngine engine(mode);
  std::vector<bool> choices;
  std::uint64_t next_id = 1;
  for (int num_orders = 0;; ++num_orders) {
    BOOST_REQUIRE(num_orders < 20000);
    Run run(engine, next_id);
    const bool ran = run.play(script, choices);
    BOOST_REQUIRE_MESSAGE(ran, mode.name << ": asleep after " << written(script, choices));
    next_id = run.next_id();
    choices.resize(run.num_choices(), false);
    while (!choices.empty() && choices.back()) choices.pop_back();
    if (choices.empty()) return;
    choices.back() = true;
  }
}

BOOST_AUTO_TEST_CASE(no_order_of_arrivals_leaves_a_request_that_could_run_asleep) {
  in_every_mode([](const Mode& mode) {
    for (const std::string_view script :
         {"+++", "+-+", "++-+", "+!+", "+k+r", "+w+r", "+x+", "+-x+", "+-!+"})
      play_all_orders(mode, script);
  });
}

/// As above, with every message of the engine's own actors in any order too: at each moment at
/// which nothing is under way, all requests so far have ended.
BOOST_AUTO_TEST_CASE(no_order_of_the_actors_leaves_a_request_that_could_run_asleep) {
  in_every_mode([](const Mode& mode) {
    for (std::uint32_t seed = 1; seed <= 4; ++seed) {
      std::mt19937 random(seed);
      const auto pick = [&](std::size_t count) { return random() % count; };
      DeterministicEngine test(options_of(mode));
      auto& jobs = test.coordinator.jobs;
      constexpr std::uint64_t kRequests = 40;
      std::uint64_t num_added = 0;
      const auto all_ended = [&] {
        return test.frontend().num_ended.load() == static_cast<std::size_t>(num_added);
      };
      while (num_added < kRequests || !jobs.empty()) {
        if (jobs.empty())
          BOOST_REQUIRE_MESSAGE(all_ended(), mode.name << ", seed " << seed << ": asleep with "
                                                       << num_added << " requests");
        if (num_added < kRequests && (all_ended() || pick(200) == 0)) {
          ++num_added;
          test.engine->add(RequestId{num_added}, test.prompt(5 + pick(20)),
                           static_cast<std::int32_t>(1 + pick(3)));
        }
        if (pick(300) == 0) test.engine->abort(RequestId{num_added});
        if (!jobs.empty()) std::swap(jobs.front(), jobs[pick(jobs.size())]);
        test.coordinator.try_run_once();
      }
      BOOST_TEST(all_ended());
    }
  });
}

}  // namespace
}  // namespace troupe::testing
