#include <unordered_map>

#include "runtime/base/hash.hpp"
#include "runtime/kv_transfer/block_store.hpp"

namespace troupe {
namespace {

class MemoryBlockStore final : public BlockStore {
 public:
  Result<std::shared_ptr<const Blob>> load(const StoreKey& key) override {
    const auto found = blobs_.find(key);
    if (found != blobs_.end()) return found->second;
    return Error{ErrorCode::kNotFound, place_of(key) + " is not there", {}};
  }
  Result<void> save(const StoreKey& key, Blob blob) override {
    blobs_.insert_or_assign(key, std::make_shared<const Blob>(std::move(blob)));
    return {};
  }
  void remove(const StoreKey& key) override { blobs_.erase(key); }
  void clear() override { blobs_.clear(); }
  std::string place_of(const StoreKey& key) const override {
    return "block " + to_hex(key.hash.bytes) + " of group " + std::to_string(key.group) +
           " in memory";
  }

 private:
  std::unordered_map<StoreKey, std::shared_ptr<const Blob>, StoreKeyHash> blobs_;
};

}  // namespace

std::unique_ptr<BlockStore> make_memory_block_store() {
  return std::make_unique<MemoryBlockStore>();
}

}  // namespace troupe
