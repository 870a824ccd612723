// The processor cache "processor_only": the front end keeps what it has made.

#include <mutex>

#include "runtime/multimodal/byte_lru.hpp"
#include "runtime/multimodal/picture_cache.hpp"

namespace troupe {
namespace {

class ProcessorOnlyCache final : public PictureCache {
 public:
  explicit ProcessorOnlyCache(std::size_t max_bytes) : pictures_(max_bytes) {}

  std::vector<ItemData> find(const std::string& identifier, bool) override {
    const std::lock_guard lock(mutex_);
    const std::vector<ItemData>* const found = pictures_.find(identifier);
    return found == nullptr ? std::vector<ItemData>() : *found;
  }
  void keep(const std::string& identifier, const std::vector<ItemData>& data) override {
    std::size_t num_bytes = 0;
    for (const ItemData& part : data) num_bytes += part->size();
    const std::lock_guard lock(mutex_);
    pictures_.insert(identifier, data, num_bytes);
  }
  [[nodiscard]] bool leaves_out_data() const noexcept override { return false; }
  /// It does not depend on the engine.
  void forget(std::span<const std::string>) override {}
  void clear() override {
    const std::lock_guard lock(mutex_);
    pictures_.clear();
  }

 private:
  std::mutex mutex_;
  ByteLru<std::vector<ItemData>> pictures_;
};

}  // namespace

Result<std::shared_ptr<PictureCache>> make_processor_only_cache(
    const PictureCacheOptions& options) {
  return std::shared_ptr<PictureCache>(std::make_shared<ProcessorOnlyCache>(options.max_bytes));
}

}  // namespace troupe
