#pragma once
// The workers of one engine as one: do they fit together, what did a step give, and what a call?

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "messages/model_runner_output.hpp"
#include "messages/worker.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// What the group has loaded: the layers of all, weights in sum, memory of the rank that has least.
/// Pre: not empty, in the order of ranks, without errors. Errors: kInvalidArgument naming what two
/// ranks differ in, or a layer that none of them has.
Result<ModelLoaded> join_loaded(std::span<const ModelLoaded> loaded);

/// What the step extensions of all ranks report, as one. A transfer has finished when every rank
/// has reported it, however many steps apart; what failed on any of them has failed, and blocks
/// that are invalid on any of them are. As vLLM's KVOutputAggregator.
class KVReports {
 public:
  explicit KVReports(std::int32_t num_ranks) : num_ranks_(num_ranks) {}

  /// Of one rank; it reports each transfer once.
  void add(const KVConnectorOutput& report);
  /// Complete results that have not been taken.
  [[nodiscard]] KVConnectorOutput take() { return std::exchange(complete_, {}); }

 private:
  std::int32_t num_ranks_;
  std::map<RequestId, std::int32_t> sending_, receiving_;  // how many ranks have finished
  std::set<RequestId> failed_;                             // of receiving_
  KVConnectorOutput complete_;
};

/// What the EC connector's worker sides of all ranks report, as one: an output that one of them
/// could not load has failed, and one that was loaded by all has been loaded. A fetch has ended
/// when it has on each of them.
class ECReports {
 public:
  explicit ECReports(std::int32_t num_ranks) : num_ranks_(num_ranks) {}

  void add(const ECConnectorOutput& report);
  /// What has come since the last call.
  [[nodiscard]] ECConnectorOutput take();

 private:
  std::int32_t num_ranks_;
  std::map<std::string, std::int32_t> fetching_;  // how many ranks have finished
  ECConnectorOutput joined_;
};

/// Joins the answers of several ranks to one per step. The Executor owns it: every step is begun,
/// then the answers come, those of different steps in any order. Of those that are of no open step,
/// only the connectors' reports count: they are of no step, and come once.
class StepAnswers {
 public:
  explicit StepAnswers(const ParallelConfig& parallel)
      : num_ranks_(parallel.world_size()),
        output_rank_(parallel.output_rank()),
        kv_reports_(num_ranks_),
        ec_reports_(num_ranks_) {}

  void begin(std::uint64_t step) { open_.emplace(step, Open{}); }
  /// The output rank's result, once every rank has answered, with the reports of the connectors
  /// of all ranks and with the errors of requests that other ranks have found.
  std::optional<ModelRunnerOutput> add(ModelRunnerOutput answer);
  /// True if the step was open. The steps with the workers build on each other, so that none of
  /// them is open afterwards.
  bool fail(std::uint64_t step);

 private:
  struct Open {
    std::int32_t num_answers = 0;
    ModelRunnerOutput result;
    std::vector<std::pair<RequestId, Error>> request_errors;  // of the other ranks
  };
  std::int32_t num_ranks_;
  std::int32_t output_rank_;
  std::map<std::uint64_t, Open> open_;
  KVReports kv_reports_;
  ECReports ec_reports_;
};

/// Joins the replies of all ranks to a method that was called on each of them (CollectiveRpc). The
/// Executor owns it. Replies to no open call do not count.
class CollectiveCalls {
 public:
  explicit CollectiveCalls(std::int32_t num_ranks) : num_ranks_(num_ranks) {}

  /// The number of a new call.
  [[nodiscard]] std::uint64_t begin(std::string method);
  /// The results in the order of ranks, once every rank has replied; or the first failure, with its
  /// rank: the call is over then.
  std::optional<CollectiveRpcReply> add(WorkerRpcReply reply);
  /// The call is over: kTimeout naming the ranks that have not replied. None: it was before.
  std::optional<CollectiveRpcReply> expire(std::uint64_t call, double timeout_s);

 private:
  struct Open {
    std::string method;
    std::vector<std::optional<WorkerResult>> results;  // by rank
    std::int32_t num_replies = 0;
  };
  std::int32_t num_ranks_;
  std::uint64_t last_call_ = 0;
  std::map<std::uint64_t, Open> open_;
};

}  // namespace troupe
