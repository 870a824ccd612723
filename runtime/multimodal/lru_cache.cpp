// The processor cache "lru": the engine caches items, the front end tracks which ones.

#include <mutex>

#include "runtime/multimodal/byte_lru.hpp"
#include "runtime/multimodal/media_hasher.hpp"
#include "runtime/multimodal/processor_cache.hpp"

namespace troupe {
namespace {

/// Counts the bytes that the engine has: what it drops by their number is dropped here, too.
class LruProcessorCache final : public ProcessorCache {
 public:
  explicit LruProcessorCache(std::size_t max_bytes) : num_parts_(max_bytes) {}

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
      num_parts_.erase(image_of_part(identifier));
  }
  void clear() override {
    const std::lock_guard lock(mutex_);
    num_parts_.clear();
  }

 private:
  std::mutex mutex_;
  ByteLru<std::size_t> num_parts_;  ///< of images
};

class LruItemCache final : public ItemCache {
 public:
  explicit LruItemCache(std::size_t max_bytes) : items_(max_bytes) {}

  std::vector<std::string> complete(std::span<MultiModalFeature> items) override {
    std::vector<std::string> missing;
    // An image may be twice in a request, with data where it comes first.
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

Result<std::shared_ptr<ProcessorCache>> make_lru_processor_cache(
    const ProcessorCacheOptions& options) {
  return std::shared_ptr<ProcessorCache>(std::make_shared<LruProcessorCache>(options.max_bytes));
}

Result<std::shared_ptr<ItemCache>> make_lru_item_cache(const ProcessorCacheOptions& options) {
  return std::shared_ptr<ItemCache>(std::make_shared<LruItemCache>(options.max_bytes));
}

}  // namespace troupe
