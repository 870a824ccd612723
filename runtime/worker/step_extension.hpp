#pragma once
// Extension points around a worker's forward pass, for KV connectors, encoder caches and adapters.

#include "messages/model_runner_output.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/kv_blend.hpp"
#include "runtime/models/layer_hook.hpp"
#include "runtime/worker/kv_cache_memory.hpp"

namespace troupe {

/// An extension of a ModelRunner. Every rank has its own and calls it on its own thread:
///
///   before_forward, (before_layer, after_layer) of each of the rank's layers, after_forward,
///   report
///
/// The extensions are called in the order in which they were added. The layers are the model's, not
/// a draft model's.
class StepExtension : public LayerHook {
 public:
  /// There is a new cache: what was done for an earlier one does not count. Called for extensions
  /// that are added before, prior to any step.
  virtual Result<void> register_kv_caches(const KVCacheMemory&) { return {}; }
  /// Called in every step, also without tokens, after the batch and the blocks are updated.
  /// Errors fail the step.
  virtual Result<void> before_forward(const SchedulerOutput& step) = 0;
  /// Called after the last layer; not in a step without tokens. Errors fail the step.
  virtual Result<void> after_forward() = 0;
  /// Called in every step that has not failed: adds the extension's results for the Scheduler. Of
  /// all ranks count kv_connector, which is aggregated (KVReports), and request_errors; of the
  /// output rank all.
  virtual void report(ModelRunnerOutput& output) = 0;
  /// What exchanges keys and values with the layers in a step; null: nothing. Constant. At most one
  /// extension of a runner has it.
  [[nodiscard]] virtual KvBlend* kv_blend() noexcept { return nullptr; }
  /// Whether before_layer and after_layer are called. Constant.
  [[nodiscard]] virtual bool has_layer_hooks() const noexcept { return true; }
};

}  // namespace troupe
