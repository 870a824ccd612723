#pragma once
// Where a rank keeps blocks of its KV cache.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/block_blob.hpp"
#include "runtime/kv_transfer/store_key.hpp"

namespace troupe {

/// Used by one thread. It has no limit of its own: the Scheduler's side says what to remove.
class BlockStore {
 public:
  virtual ~BlockStore() = default;
  /// Errors: kNotFound; kIo. Both name the place. What it returns is not checked.
  [[nodiscard]] virtual Result<std::shared_ptr<const Blob>> load(const StoreKey& key) = 0;
  /// Several at once, in the order of the keys.
  [[nodiscard]] virtual std::vector<Result<std::shared_ptr<const Blob>>> load_all(
      std::span<const StoreKey> keys) {
    std::vector<Result<std::shared_ptr<const Blob>>> blobs;
    for (const StoreKey& key : keys) blobs.push_back(load(key));
    return blobs;
  }
  /// Replaces an existing blob atomically: a reader gets either the old or the new one.
  /// Errors: kIo.
  virtual Result<void> save(const StoreKey& key, Blob blob) = 0;
  virtual void remove(const StoreKey& key) = 0;
  virtual void clear() = 0;
  /// Where the blob lies, for messages.
  [[nodiscard]] virtual std::string place_of(const StoreKey& key) const = 0;
};

/// In the memory of this process.
[[nodiscard]] std::unique_ptr<BlockStore> make_memory_block_store();

/// One file per block, <folder>/<three digits of the hash>/<the next two>_g<group>/<hash>.bin, as
/// vLLM's; behind a header that describes it, unlike vLLM's. The folder may be shared with other
/// processes.
[[nodiscard]] std::unique_ptr<BlockStore> make_file_block_store(std::string folder);
/// Makes a folder that a connector's configuration names, and those above it. Errors: kIo.
[[nodiscard]] Result<void> make_store_folder(const std::string& folder);
/// The blocks in such a folder, the most recently used last. Blocks that are being written, and
/// other files, are not listed.
[[nodiscard]] std::vector<StoreKey> list_block_files(const std::string& folder);

}  // namespace troupe
