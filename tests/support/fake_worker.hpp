#pragma once
// A Worker without a model: the token at position p of request r is a function of r and p alone, so
// that a test can tell whether a request got exactly the tokens it should. Steps can be made to
// fail, to be held back, or to be counted.

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <variant>

#include "messages/actor_interfaces.hpp"

namespace troupe::testing {

using StepAnswer = std::variant<ModelRunnerOutput, StepFailed>;

/// Shared by a fake worker and its test; both run on the test's thread, or the test reads it at
/// rest, all but num_taken.
struct FakeWorkerLog {
  std::int32_t rank = 0;                    ///< in its replies to methods
  std::optional<Error> rpc_error;           ///< of every method
  std::atomic<std::uint64_t> num_taken{0};  ///< steps; notified
  std::uint64_t num_steps = 0;
  std::uint64_t last_step = 0;                        ///< its number
  std::vector<GrammarOutput> grammars;                ///< in the order of arrival
  std::uint64_t num_steps_to_fail = 0;                ///< the next ones
  std::function<bool(const SchedulerOutput&)> fails;  ///< steps that do; may be empty
  bool keep_quiet = false;                            ///< take steps, give no result
  bool hold = false;                                  ///< keep results for release_answer
  std::int32_t num_drafts = 0;  ///< made for each request that got a token; every third is wrong
  KVConnectorOutput kv_report;  ///< comes with the next result
  ECConnectorOutput ec_report;  ///< the same
  std::deque<StepAnswer> held;
  std::vector<std::size_t> batch_sizes;
  std::vector<RequestId> finished_ids;
};

/// Never a byte token of the demo model: those come first in its vocabulary.
[[nodiscard]] inline TokenId fake_token(RequestId id, std::int32_t position) {
  return static_cast<TokenId>(300 +
                              (value(id) * 31 + static_cast<std::uint64_t>(position) * 7) % 1000);
}

[[nodiscard]] WorkerActor spawn_fake_worker(caf::actor_system& system,
                                            std::shared_ptr<FakeWorkerLog> log);

/// Sends the oldest answer held back, in the worker's name.
void release_answer(const WorkerActor& worker, const ExecutorActor& executor, FakeWorkerLog& log);

}  // namespace troupe::testing
