#pragma once
// A worker's side of a KV connector whose blocks lie in a store of each rank.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/kv_transfer/block_store.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/kv_connector_worker.hpp"
#include "runtime/kv_transfer/layer_copier.hpp"
#include "runtime/kv_transfer/store_ops.hpp"
#include "runtime/worker/transfer_thread.hpp"

namespace troupe {

/// Works on a store, on a thread of its own, in the order of the calls (TransferThread). Used by
/// one thread.
class BlockTransfers {
 public:
  /// The tiers of the store: what is loaded is looked for in this order. A load that takes longer
  /// than the timeout fails.
  BlockTransfers(std::vector<std::unique_ptr<BlockStore>> tiers, const BlockOrigin& origin,
                 std::vector<std::size_t> block_bytes, std::chrono::milliseconds load_timeout);

  void load(BlockLoad load);
  /// Calls copy(index of the layer, the blobs of the blocks) for each of the layers; what it copies
  /// is checked in the end. `copy` owns what it uses.
  using CopyLayer =
      std::function<void(std::size_t, std::span<const std::shared_ptr<const Blob>> blobs)>;
  void load_layers(BlockLoad load, std::shared_ptr<LayeredLoad> state, std::size_t num_layers,
                   CopyLayer copy);
  /// Waits until there is room.
  void save(const StoreKey& key, Blob blob, std::uint8_t tier);
  void remove(const StoreKey& key, std::uint8_t tier);
  /// From the first later tier that has it.
  void copy(const StoreKey& key, std::uint8_t tier);
  void clear();
  /// Copies a block of the store to `folder`, or one of the folder to the tier. Of what cannot be
  /// copied, the next load without blocks has the error.
  void export_block(const StoreKey& key, std::shared_ptr<BlockStore> folder);
  void import_block(const StoreKey& key, std::shared_ptr<BlockStore> folder, std::uint8_t tier);

  /// A finished load: the blobs of its blocks, checked; or the error of one of them, which has then
  /// been removed from the store, or kTimeout.
  struct Loaded {
    BlockLoad load;
    Result<std::vector<std::shared_ptr<const Blob>>> blobs;
  };
  /// Since the last call.
  [[nodiscard]] std::vector<Loaded> take_loaded();

 private:
  struct Save {
    StoreKey key;
    Blob blob;
    std::uint8_t tier = 0;
  };
  struct Removal {
    StoreKey key;
    std::uint8_t tier = 0;
  };
  struct Copy {
    StoreKey key;
    std::uint8_t tier = 0;
  };
  struct Clearing {};
  struct Move {
    StoreKey key;
    bool is_import = false;
    std::uint8_t tier = 0;
    std::shared_ptr<BlockStore> folder;
  };
  struct Layers {
    BlockLoad load;
    std::shared_ptr<LayeredLoad> state;
    std::size_t num_layers = 0;
    CopyLayer copy;
  };
  using Job = std::variant<BlockLoad, Layers, Save, Removal, Copy, Clearing, Move>;
  class Store;

  std::chrono::milliseconds load_timeout_;
  OpenLoads<BlockLoad> open_loads_;
  TransferThread<Job, Loaded> thread_;
};

/// Opens the tiers of a rank's store. Errors: of the stores.
using OpenBlockStores =
    std::function<Result<std::vector<std::unique_ptr<BlockStore>>>(const KVCacheConfig& cache)>;

class StoreKVConnectorWorker final : public KVConnectorWorker {
 public:
  /// `load_timeout`: of a load. `layered`: blocks are copied layer by layer, beside the
  /// computation, where the cache is in the host's memory.
  StoreKVConnectorWorker(KVConnectorWorkerContext context, OpenBlockStores open,
                         std::chrono::milliseconds load_timeout, bool layered = false);
  ~StoreKVConnectorWorker() override { start_step(); }

  Result<void> register_kv_caches(const KVCacheMemory& memory) override;
  void start_step() override;
  void start_load_kv(const std::string& metadata) override;
  [[nodiscard]] bool has_layer_hooks() const noexcept override { return layered_; }
  void wait_for_layer_load(std::int32_t layer) override;
  void save_kv_layer(std::int32_t layer) override;
  void wait_for_save() override;
  [[nodiscard]] KVConnectorOutput get_finished() override;

 private:
  [[nodiscard]] Blob read_block(const KeyedBlock& block);
  void start_layered(BlockLoad load);
  void begin_saves();
  void copy_layer(std::size_t group, std::size_t index);
  void write_block(const KeyedBlock& block, const Blob& blob);

  KVConnectorWorkerContext context_;
  OpenBlockStores open_;
  std::chrono::milliseconds load_timeout_;
  KVCacheMemory memory_;
  BlockOrigin origin_{};
  std::unique_ptr<BlockTransfers> transfers_;  // null: there is no cache yet
  std::vector<StoreOp> ops_;                   // of the step
  std::shared_ptr<BlockStore> folder_;         // of exports and imports
  std::unordered_set<std::uint64_t> loads_;    // numbers of those that came and may come again
  bool layered_;
  StepLoads step_loads_;
  std::vector<Blob> saves_;              // layered_: of the step's kSave, in their order
  std::unique_ptr<LayerCopier> copier_;  // last: it uses the others; null: not layered_
};

}  // namespace troupe
