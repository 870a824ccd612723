#pragma once
// A worker's side of a KV connector (see KVConnector for the Scheduler's).

#include <cstdint>
#include <memory>
#include <string>

#include "messages/model_runner_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/worker/kv_cache_memory.hpp"
#include "runtime/worker/step_extension.hpp"

namespace troupe {

/// Called by one ModelRunner, on its thread, in each step in this order:
///
///   start_step
///   start_load_kv, if there is metadata
///   wait_for_layer_load and save_kv_layer of each of the rank's layers, if has_layer_hooks()
///   wait_for_save, get_finished: when the step has not failed
///
/// With several ranks each has its own, for its own layers and heads.
class KVConnectorWorker {
 public:
  virtual ~KVConnectorWorker() = default;
  /// The memory of the blocks. Called again with a new cache: nothing of an earlier one is loaded,
  /// saved or reported any more.
  virtual Result<void> register_kv_caches(const KVCacheMemory& memory) = 0;
  /// Discards pending work of an earlier step that has failed.
  virtual void start_step() {}
  /// Carries out the metadata of the Scheduler's side. Asynchronous loads may outlast the step.
  virtual void start_load_kv(const std::string& metadata) = 0;
  [[nodiscard]] virtual bool has_layer_hooks() const noexcept { return false; }
  /// Not null: in steps with tokens it exchanges keys and values with the layers, between the two
  /// functions around it.
  [[nodiscard]] virtual KvBlend* kv_blend() noexcept { return nullptr; }
  /// The layer is about to read its keys and values.
  virtual void wait_for_layer_load(std::int32_t) {}
  /// The layer's keys and values of the step's tokens are in the cache.
  virtual void save_kv_layer(std::int32_t) {}
  /// All layers', those of a draft model included. Blocks may be given to others after the call:
  /// what is needed of them is copied.
  virtual void wait_for_save() = 0;
  /// Since the last call; the blocks that could not be loaded among it.
  [[nodiscard]] virtual KVConnectorOutput get_finished() = 0;
};

/// What a ModelRunner is to be given before its cache is initialised.
[[nodiscard]] std::unique_ptr<StepExtension> make_connector_extension(
    std::unique_ptr<KVConnectorWorker> connector);

}  // namespace troupe
