#pragma once
// The pieces of prompts of one rank as files.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "messages/worker.hpp"
#include "runtime/kv_transfer/block_store.hpp"
#include "runtime/kv_transfer/kept_piece.hpp"
#include "runtime/worker/transfer_thread.hpp"

namespace troupe {

/// Reads and writes them on a thread of its own, in the order of the calls. A piece's number of
/// tokens stands where the keys of blocks have the group. Used by one thread.
class PieceFiles {
 public:
  struct Load {
    std::uint64_t number = 0;
    StoreKey key;
  };
  /// Null: it is not there, damaged (and has been removed), or late.
  struct Loaded {
    Load load;
    std::shared_ptr<KeptPiece> piece;
  };

  PieceFiles(std::unique_ptr<BlockStore> store, const BlockOrigin& origin, bool is_narrow,
             std::chrono::milliseconds load_timeout);

  void load(const Load& load);
  /// Waits until there is room.
  void save(const StoreKey& key, std::shared_ptr<const KeptPiece> piece);
  void remove(const StoreKey& key);
  void clear();
  /// What is being loaded is not reported.
  void forget_loads() { open_loads_ = {}; }
  /// Since the last call.
  [[nodiscard]] std::vector<Loaded> take_loaded();

 private:
  struct Save {
    StoreKey key;
    std::shared_ptr<const KeptPiece> piece;
  };
  struct Removal {
    StoreKey key;
  };
  struct Clearing {};
  using Job = std::variant<Load, Save, Removal, Clearing>;

  std::chrono::milliseconds load_timeout_;
  OpenLoads<Load> open_loads_;
  TransferThread<Job, Loaded> thread_;
};

/// Where the files of a rank lie.
[[nodiscard]] std::string piece_folder(const std::string& path, const std::string& model_identity,
                                       const KVCacheConfig& cache, const ParallelConfig& parallel);

}  // namespace troupe
