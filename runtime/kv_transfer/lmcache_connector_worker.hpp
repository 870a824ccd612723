#pragma once
// A worker's side of LMCacheConnectorV1.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "runtime/kv_transfer/block_blob.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/kv_connector_worker.hpp"
#include "runtime/kv_transfer/layer_copier.hpp"
#include "runtime/kv_transfer/lmcache/lmcache_config.hpp"
#include "runtime/kv_transfer/lmcache/remote_threads.hpp"
#include "runtime/kv_transfer/lmcache/tier_index.hpp"
#include "runtime/kv_transfer/lmcache_ops.hpp"
#include "runtime/worker/transfer_thread.hpp"

namespace troupe {

/// The tiers of one rank, worked on by a thread of its own in the order of the calls
/// (TransferThread); what goes to the remote store waits on another one. Used by one thread.
class ChunkTransfers {
 public:
  /// What keys and files of the rank are named by.
  struct Names {
    std::string model;
    std::int32_t world_size = 1;
    std::int32_t rank = 0;
    std::string dtype;
  };

  /// Errors: of the remote store and of the folder.
  [[nodiscard]] static Result<std::unique_ptr<ChunkTransfers>> open(
      const lmcache::LMCacheConfig& config, Names names, const BlockOrigin& origin);

  /// `num_bytes` of each chunk's content.
  void load(ChunkLoad load, std::vector<std::size_t> num_bytes);
  /// Calls copy(index of the layer, the chunks' blobs) for each of the layers; what it copies is
  /// checked before. `copy` owns what it uses.
  using CopyLayer =
      std::function<void(std::size_t, std::span<const std::shared_ptr<const Blob>> blobs)>;
  void load_layers(ChunkLoad load, std::vector<std::size_t> num_bytes,
                   std::shared_ptr<LayeredLoad> state, std::size_t num_layers, CopyLayer copy);
  /// Waits until there is room.
  void save(const ChunkBlocks& chunk, Blob blob);
  void remove(const ChunkBlocks& chunk);
  void clear();

  /// A load that is done: the chunks' blobs, checked; or what is wrong with one of them.
  struct Loaded {
    ChunkLoad load;
    Result<std::vector<std::shared_ptr<const Blob>>> blobs;
  };
  /// Since the last call. A load that takes longer than the calls to a remote store may fails, with
  /// kTimeout.
  [[nodiscard]] std::vector<Loaded> take_loaded();

 private:
  struct Load {
    ChunkLoad load;
    std::vector<std::size_t> num_bytes;
    std::shared_ptr<LayeredLoad> state = nullptr;  // of one whose layers are awaited
    std::size_t num_layers = 0;
    CopyLayer copy = nullptr;
  };
  struct Save {
    ChunkBlocks chunk;
    Blob blob;
  };
  struct Removal {
    ChunkBlocks chunk;
  };
  struct Clearing {};
  using Job = std::variant<Load, Save, Removal, Clearing>;

  class Store;

  ChunkTransfers() = default;

  std::chrono::milliseconds load_timeout_{};
  OpenLoads<ChunkLoad> open_loads_;
  std::optional<TransferThread<Job, Loaded>> thread_;
};

class LMCacheConnectorWorker final : public KVConnectorWorker {
 public:
  LMCacheConnectorWorker(KVConnectorWorkerContext context, lmcache::LMCacheConfig config);
  ~LMCacheConnectorWorker() override { start_step(); }

  Result<void> register_kv_caches(const KVCacheMemory& memory) override;
  void start_step() override;
  void start_load_kv(const std::string& metadata) override;
  [[nodiscard]] bool has_layer_hooks() const noexcept override { return copier_ != nullptr; }
  void wait_for_layer_load(std::int32_t layer) override;
  void save_kv_layer(std::int32_t layer) override;
  void wait_for_save() override;
  [[nodiscard]] KVConnectorOutput get_finished() override;

 private:
  /// A page of a chunk, in the order of its content.
  struct Page {
    std::byte* data = nullptr;  ///< null: of a block that is not needed
    std::size_t num_bytes = 0;
    std::size_t group = 0;
    std::size_t index = 0;  ///< of the layer, in its group
  };
  template <class Visit>
  static void for_each_page(const KVCacheMemory& memory, const ChunkBlocks& chunk, Visit&& visit);
  [[nodiscard]] std::size_t num_bytes(const ChunkBlocks& chunk) const;
  [[nodiscard]] Blob read_chunk(const ChunkBlocks& chunk);
  void write_chunk(const ChunkBlocks& chunk, const Blob& blob);
  void start_layered(ChunkLoad load, std::vector<std::size_t> sizes);
  void begin_saves();
  void copy_layer(std::size_t group, std::size_t index);

  KVConnectorWorkerContext context_;
  lmcache::LMCacheConfig config_;
  KVCacheMemory memory_;
  BlockOrigin origin_{};
  std::unique_ptr<ChunkTransfers> transfers_;  // null: there is no cache yet
  std::vector<ChunkOp> ops_;                   // of the step
  std::unordered_set<std::uint64_t> loads_;    // numbers of those that came and may come again
  StepLoads step_loads_;
  std::vector<Blob> saves_;              // use_layerwise: of the step's kSave, in their order
  std::unique_ptr<LayerCopier> copier_;  // last: it uses the others; null: not use_layerwise
};

/// What lies on the disk of a rank, what was used last in the end: the chunk and its bytes.
[[nodiscard]] std::vector<std::pair<lmcache::ChunkId, std::int64_t>> list_chunk_files(
    const lmcache::LMCacheConfig& config, const ChunkTransfers::Names& names);

}  // namespace troupe
