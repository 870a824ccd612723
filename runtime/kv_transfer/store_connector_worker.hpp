#pragma once
// A worker's side of a KV connector whose blocks lie in a store of each rank.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/kv_transfer/block_store.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/kv_connector_worker.hpp"
#include "runtime/kv_transfer/store_ops.hpp"
#include "runtime/worker/transfer_thread.hpp"

namespace troupe {

/// Works on a store, on a thread of its own, in the order of the calls (TransferThread). Used by
/// one thread.
class BlockTransfers {
 public:
  /// The tiers of the store: what is loaded is looked for in this order.
  BlockTransfers(std::vector<std::unique_ptr<BlockStore>> tiers, const BlockOrigin& origin,
                 std::vector<std::size_t> block_bytes);

  void load(BlockLoad load);
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
  /// been removed from the store.
  struct Loaded {
    BlockLoad load;
    Result<std::vector<std::shared_ptr<const Blob>>> blobs;
  };
  /// Since the last call.
  [[nodiscard]] std::vector<Loaded> take_loaded() { return thread_.take_done(); }

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
  using Job = std::variant<BlockLoad, Save, Removal, Copy, Clearing, Move>;

  void perform(Job& job);
  Result<void> move_now(const Move& move);
  void save_now(const StoreKey& key, Blob blob, std::uint8_t tier);
  [[nodiscard]] Result<std::vector<std::shared_ptr<const Blob>>> read(const BlockLoad& load);
  [[nodiscard]] Result<std::shared_ptr<const Blob>> read_block(const StoreKey& key,
                                                               std::size_t first_tier);

  std::vector<std::unique_ptr<BlockStore>> tiers_;  // the thread's
  BlockOrigin origin_;
  std::vector<std::size_t> block_bytes_;  // per group
  std::optional<Error> move_error_;       // the thread's: the first one
  TransferThread<Job, Loaded> thread_;    // last: it uses the others
};

/// Opens the tiers of a rank's store. Errors: of the stores.
using OpenBlockStores =
    std::function<Result<std::vector<std::unique_ptr<BlockStore>>>(const KVCacheConfig& cache)>;

class StoreKVConnectorWorker final : public KVConnectorWorker {
 public:
  StoreKVConnectorWorker(KVConnectorWorkerContext context, OpenBlockStores open);

  Result<void> register_kv_caches(const KVCacheMemory& memory) override;
  void start_load_kv(const std::string& metadata) override;
  void wait_for_save() override;
  [[nodiscard]] KVConnectorOutput get_finished() override;

 private:
  [[nodiscard]] Blob read_block(const KeyedBlock& block);
  void write_block(const KeyedBlock& block, const Blob& blob);

  KVConnectorWorkerContext context_;
  OpenBlockStores open_;
  KVCacheMemory memory_;
  BlockOrigin origin_{};
  std::unique_ptr<BlockTransfers> transfers_;  // null: there is no cache yet
  std::vector<StoreOp> ops_;                   // of the step
  std::shared_ptr<BlockStore> folder_;         // of exports and imports
  std::unordered_set<std::uint64_t> loads_;    // numbers of those that came and may come again
};

}  // namespace troupe
