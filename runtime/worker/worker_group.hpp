#pragma once
// The workers of one engine as one: do they fit together, and what did a step give?

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "messages/model_runner_output.hpp"
#include "messages/worker.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// What the group has loaded: the layers of all, weights in sum, memory of the rank that has least.
/// Pre: not empty, in the order of ranks, without errors. Errors: kInvalidArgument naming what two
/// ranks differ in, or a layer that none of them has.
Result<ModelLoaded> join_loaded(std::span<const ModelLoaded> loaded);

/// Joins the answers of several ranks to one per step. The Executor owns it: every step is begun,
/// then the answers come, those of different steps in any order. Nothing that is not open counts.
class StepAnswers {
 public:
  explicit StepAnswers(const ParallelConfig& parallel)
      : num_ranks_(parallel.world_size()), output_rank_(parallel.output_rank()) {}

  void begin(std::uint64_t step) { open_.emplace(step, Open{}); }
  /// The output rank's result, once every rank has answered.
  std::optional<ModelRunnerOutput> add(ModelRunnerOutput answer);
  /// True if the step was open. The steps with the workers build on each other, so that none of
  /// them is open afterwards.
  bool fail(std::uint64_t step);

 private:
  struct Open {
    std::int32_t num_answers = 0;
    ModelRunnerOutput result;
  };
  std::int32_t num_ranks_;
  std::int32_t output_rank_;
  std::map<std::uint64_t, Open> open_;
};

}  // namespace troupe
