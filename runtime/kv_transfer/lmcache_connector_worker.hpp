#pragma once
// A worker's side of LMCacheConnectorV1.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "runtime/kv_transfer/block_blob.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/kv_connector_worker.hpp"
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
  /// Waits until there is room.
  void save(const ChunkBlocks& chunk, Blob blob);
  void remove(const ChunkBlocks& chunk);
  void clear();

  /// A load that is done: the chunks' blobs, checked; or what is wrong with one of them.
  struct Loaded {
    ChunkLoad load;
    Result<std::vector<std::shared_ptr<const Blob>>> blobs;
  };
  /// Since the last call.
  [[nodiscard]] std::vector<Loaded> take_loaded() { return thread_->take_done(); }

 private:
  struct Load {
    ChunkLoad load;
    std::vector<std::size_t> num_bytes;
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

  ChunkTransfers(const lmcache::LMCacheConfig& config, Names names, const BlockOrigin& origin);
  void perform(Job& job);
  [[nodiscard]] Result<std::vector<std::shared_ptr<const Blob>>> read(const Load& load);
  [[nodiscard]] Result<std::shared_ptr<const Blob>> read(const ChunkBlocks& chunk,
                                                         std::size_t num_bytes);
  [[nodiscard]] std::string key_of(const ChunkBlocks& chunk) const;
  [[nodiscard]] std::string path_of(const std::string& key) const;

  const Names names_;
  const BlockOrigin origin_;
  const bool signed_hashes_;
  std::string folder_;  // empty: no disk
  // The thread's.
  std::unordered_map<lmcache::ChunkId, std::shared_ptr<const Blob>, lmcache::ChunkIdHash> memory_;
  std::unique_ptr<lmcache::RemoteStore> remote_;          // null: none
  std::unique_ptr<lmcache::RemoteWriter> remote_writer_;  // null: none
  std::optional<TransferThread<Job, Loaded>> thread_;     // last: it uses the others
};

class LMCacheConnectorWorker final : public KVConnectorWorker {
 public:
  LMCacheConnectorWorker(KVConnectorWorkerContext context, lmcache::LMCacheConfig config);

  Result<void> register_kv_caches(const KVCacheMemory& memory) override;
  void start_load_kv(const std::string& metadata) override;
  void wait_for_save() override;
  [[nodiscard]] KVConnectorOutput get_finished() override;

 private:
  /// Calls copy(page, bytes of it) for each page of a chunk in the order of its content; of blocks
  /// that are not needed with null.
  template <class Copy>
  void for_each_page(const ChunkBlocks& chunk, Copy&& copy) const;
  [[nodiscard]] std::size_t num_bytes(const ChunkBlocks& chunk) const;
  [[nodiscard]] Blob read_chunk(const ChunkBlocks& chunk);
  void write_chunk(const ChunkBlocks& chunk, const Blob& blob);

  KVConnectorWorkerContext context_;
  lmcache::LMCacheConfig config_;
  KVCacheMemory memory_;
  BlockOrigin origin_{};
  std::unique_ptr<ChunkTransfers> transfers_;  // null: there is no cache yet
  std::vector<ChunkOp> ops_;                   // of the step
  std::unordered_set<std::uint64_t> loads_;    // numbers of those that came and may come again
};

/// What lies on the disk of a rank, what was used last in the end: the chunk and its bytes.
[[nodiscard]] std::vector<std::pair<lmcache::ChunkId, std::int64_t>> list_chunk_files(
    const lmcache::LMCacheConfig& config, const ChunkTransfers::Names& names);

}  // namespace troupe
