// The processor cache "processor_only": the front end keeps what it has made.

#include <mutex>

#include "runtime/multimodal/byte_lru.hpp"
#include "runtime/multimodal/processor_cache.hpp"

namespace troupe {
namespace {

class ProcessorOnlyCache final : public ProcessorCache {
 public:
  explicit ProcessorOnlyCache(std::size_t max_bytes) : images_(max_bytes) {}

  std::vector<ItemData> find(const std::string& identifier, bool) override {
    const std::lock_guard lock(mutex_);
    const std::vector<ItemData>* const found = images_.find(identifier);
    return found == nullptr ? std::vector<ItemData>() : *found;
  }
  void keep(const std::string& identifier, const std::vector<ItemData>& data) override {
    std::size_t num_bytes = 0;
    for (const ItemData& part : data) num_bytes += part->size();
    const std::lock_guard lock(mutex_);
    images_.insert(identifier, data, num_bytes);
  }
  [[nodiscard]] bool leaves_out_data() const noexcept override { return false; }
  /// It does not depend on the engine.
  void forget(std::span<const std::string>) override {}
  void clear() override {
    const std::lock_guard lock(mutex_);
    images_.clear();
  }

 private:
  std::mutex mutex_;
  ByteLru<std::vector<ItemData>> images_;
};

}  // namespace

Result<std::shared_ptr<ProcessorCache>> make_processor_only_cache(
    const ProcessorCacheOptions& options) {
  return std::shared_ptr<ProcessorCache>(std::make_shared<ProcessorOnlyCache>(options.max_bytes));
}

}  // namespace troupe
