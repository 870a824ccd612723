#pragma once
// Where a rank keeps blocks of its KV cache.

#include <memory>
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
  /// Replaces what is there at once: whoever loads it finds the old blob or the new one whole.
  /// Errors: kIo.
  virtual Result<void> save(const StoreKey& key, Blob blob) = 0;
  virtual void remove(const StoreKey& key) = 0;
  virtual void clear() = 0;
  /// Where the blob lies, for messages.
  [[nodiscard]] virtual std::string place_of(const StoreKey& key) const = 0;
};

/// In the memory of this process.
[[nodiscard]] std::unique_ptr<BlockStore> make_memory_block_store();

/// One file per block, <folder>/<two digits of the hash>/<hash>_g<group>.kv. Who else uses the
/// folder does no harm.
[[nodiscard]] std::unique_ptr<BlockStore> make_file_block_store(std::string folder);
/// What lies in such a folder, the one that was used last in the end. Blocks that go on being
/// written, and what is no block, do not count.
[[nodiscard]] std::vector<StoreKey> list_block_files(const std::string& folder);

}  // namespace troupe
