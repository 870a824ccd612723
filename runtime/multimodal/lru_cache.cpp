// The processor cache "lru": the engine caches items, the front end tracks which ones.

#include <mutex>

#include "runtime/multimodal/byte_lru.hpp"
#include "runtime/multimodal/media_hasher.hpp"
#include "runtime/multimodal/picture_cache.hpp"

namespace troupe {
namespace {

/// Counts the bytes that the engine has: what it drops by their number is dropped here, too.
class LruPictureCache final : public PictureCache {
 public:
  explicit LruPictureCache(std::size_t max_bytes) : num_parts_(max_bytes) {}

  std::vector<ItemData> find(const std::string& identifier, bool with_data) override {
    if (with_data) return {};
    const std::lock_guard lock(mutex_);
    const std::size_t* const found = num_parts_.find(identifier);
    return std::vector<ItemData>(found == nullptr ? 0 : *found);
  }
  void keep(const std::string& identifier, const std::vector<ItemData>& data) override {
    std::size_t num_bytes = 0;
    for (const ItemData& part : data) num_bytes += part->size();
    const std::lock_guard lock(mutex_);
    num_parts_.insert(identifier, data.size(), num_bytes);
  }
  [[nodiscard]] bool leaves_out_data() const noexcept override { return true; }
  void forget(std::span<const std::string> item_identifiers) override {
    const std::lock_guard lock(mutex_);
    for (const std::string& identifier : item_identifiers)
      num_parts_.erase(picture_of_part(identifier));
  }
  void clear() override {
    const std::lock_guard lock(mutex_);
    num_parts_.clear();
  }

 private:
  std::mutex mutex_;
  ByteLru<std::size_t> num_parts_;  ///< of pictures
};

class LruItemCache final : public ItemCache {
 public:
  explicit LruItemCache(std::size_t max_bytes) : items_(max_bytes) {}

  std::vector<std::string> complete(std::span<MultiModalFeature> items) override {
    std::vector<std::string> missing;
    // A picture may be twice in a request, with data where it comes first.
    for (const MultiModalFeature& item : items)
      if (item.data != nullptr) items_.insert(item.identifier, item.data, item.data->size());
    for (MultiModalFeature& item : items) {
      if (item.data != nullptr) continue;
      const ItemData* const found = items_.find(item.identifier);
      if (found == nullptr)
        missing.push_back(item.identifier);
      else
        item.data = *found;
    }
    return missing;
  }
  void clear() override { items_.clear(); }

 private:
  ByteLru<ItemData> items_;
};

}  // namespace

Result<std::shared_ptr<PictureCache>> make_lru_picture_cache(const PictureCacheOptions& options) {
  return std::shared_ptr<PictureCache>(std::make_shared<LruPictureCache>(options.max_bytes));
}

Result<std::shared_ptr<ItemCache>> make_lru_item_cache(const PictureCacheOptions& options) {
  return std::shared_ptr<ItemCache>(std::make_shared<LruItemCache>(options.max_bytes));
}

}  // namespace troupe
