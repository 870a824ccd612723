#pragma once
// Copies between the layers of a KV cache and blobs, overlapped with the computation.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "messages/cache.hpp"
#include "messages/model_runner_output.hpp"
#include "runtime/worker/kv_cache_memory.hpp"

namespace troupe {

/// A layer of a rank's KV cache: its number, and where KVCacheMemory has it.
struct PlacedLayer {
  std::int32_t layer = 0;
  std::size_t group = 0;
  std::size_t index = 0;
};
/// In the order in which they are computed.
[[nodiscard]] std::vector<PlacedLayer> layers_in_order(const KVCacheMemory& memory);

/// Copies the layers of what a step saves, each as soon as it is computed, on a thread of its own.
/// Used by one thread.
class LayerCopier {
 public:
  /// Of a layer of a group: its index there.
  using CopyLayer = std::function<void(std::size_t group, std::size_t index)>;

  LayerCopier() : thread_([this] { run(); }) {}
  ~LayerCopier();
  LayerCopier(const LayerCopier&) = delete;
  LayerCopier& operator=(const LayerCopier&) = delete;

  /// A step begins; `copy` is called once for each layer until finish() or drop() ends.
  void begin(const KVCacheMemory& memory, CopyLayer copy);
  /// The layer of that number is complete. In a step that has not begun: does nothing.
  void add(std::int32_t layer);
  /// All layers are complete: those that were not added (a draft model's) are copied here.
  void finish();
  /// What is not copied yet need not be.
  void drop();

 private:
  using Layer = std::pair<std::size_t, std::size_t>;
  void run();
  void wait();

  CopyLayer copy_;                                 // null: no step
  std::vector<std::vector<std::int32_t>> layers_;  // numbers
  std::vector<std::vector<bool>> added_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Layer> waiting_;
  bool is_busy_ = false;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the others
};

/// What is known of a load whose layers come one after the other, in the order of
/// layers_in_order(): between the thread that loads and the one that computes.
class LayeredLoad {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// False: it has been given up. copy() is not called then, and otherwise before give_up() ends.
  bool put_layer(std::size_t index, const std::function<void()>& copy);
  void end(bool is_valid);

  /// False: it will not come, or has not until the deadline.
  [[nodiscard]] bool wait_for_layer(std::size_t index, Deadline deadline);
  /// Whether all of it is there and right.
  [[nodiscard]] bool wait_for_end(Deadline deadline);
  void give_up();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t num_layers_ = 0;
  std::optional<bool> is_valid_;  // none: it goes on
  bool is_given_up_ = false;
};

/// The loads that a step waits for. One that fails or is late leaves its blocks invalid: the step
/// goes on without them, and what it computes for their requests does not count.
class StepLoads {
 public:
  void add(RequestId id, std::vector<BlockId> blocks, std::shared_ptr<LayeredLoad> load,
           std::chrono::milliseconds timeout);
  /// The layers of that number, in all groups; if there is none: does nothing.
  void wait_for_layer(const KVCacheMemory& memory, std::int32_t layer);
  /// To be called at the end of the step.
  void report(KVConnectorOutput& output);
  /// The step has failed: none of them writes any more.
  void drop();

 private:
  struct Load {
    RequestId id{};
    std::vector<BlockId> blocks;
    std::shared_ptr<LayeredLoad> state;
    LayeredLoad::Deadline deadline;
  };
  std::vector<Load> loads_;
};

}  // namespace troupe
