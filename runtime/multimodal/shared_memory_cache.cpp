// The processor cache "shm": front ends and engines of a host share the items.

#include <unistd.h>

#include "runtime/base/hash.hpp"
#include "runtime/multimodal/media_hasher.hpp"
#include "runtime/multimodal/processor_cache.hpp"
#include "runtime/transport/shared_items.hpp"

namespace troupe {
namespace {

Result<std::shared_ptr<SharedItems>> open_items(const ProcessorCacheOptions& options) {
  const std::string name =
      "troupe-mm-" + std::to_string(::geteuid()) + "-" + to_hex(xxh3_128(options.key));
  return SharedItems::open({.file = options.directory / name,
                            .max_bytes = options.max_bytes,
                            .max_object_bytes = options.max_object_bytes});
}

class SharedProcessorCache final : public ProcessorCache {
 public:
  explicit SharedProcessorCache(std::shared_ptr<SharedItems> items) : items_(std::move(items)) {}

  std::vector<ItemData> find(const std::string& identifier, bool with_data) override {
    std::vector<ItemData> data(items_->num_parts(identifier));
    for (std::size_t part = 0; part < data.size(); ++part) {
      const std::string name = part_identifier(identifier, part);
      if (with_data) data[part] = items_->find(name);
      if (with_data ? data[part] == nullptr : !items_->has(name)) return {};
    }
    return data;
  }
  void keep(const std::string& identifier, const std::vector<ItemData>& data) override {
    std::vector<std::string> names;
    for (std::size_t part = 0; part < data.size(); ++part)
      names.push_back(part_identifier(identifier, part));
    items_->keep(names, data);
  }
  [[nodiscard]] bool leaves_out_data() const noexcept override { return true; }
  /// What is missing there is missing here.
  void forget(std::span<const std::string>) override {}
  void clear() override { items_->clear(); }

 private:
  std::shared_ptr<SharedItems> items_;
};

class SharedItemCache final : public ItemCache {
 public:
  SharedItemCache(std::shared_ptr<SharedItems> items, bool workers_share)
      : items_(std::move(items)), workers_share_(workers_share) {}

  std::vector<std::string> complete(std::span<MultiModalFeature> items) override {
    std::vector<std::string> missing;
    for (MultiModalFeature& item : items) {
      if (item.data != nullptr) continue;
      if (workers_share_) item.data = pinned(item.identifier);
      if (item.data == nullptr) item.data = items_->find(item.identifier);
      if (item.data == nullptr) missing.push_back(item.identifier);
    }
    return missing;
  }
  void clear() override { items_->clear(); }

 private:
  /// Where it lies, and will as long as the result or a copy of it is there. Null: it is not there,
  /// or too much is pinned.
  ItemData pinned(const std::string& identifier) {
    auto item = items_->pin(identifier);
    if (!item) return nullptr;
    struct Kept {
      std::vector<char> address;
      std::shared_ptr<const void> pin;
    };
    const auto kept =
        std::make_shared<const Kept>(Kept{pack_shared_item(item->address), std::move(item->pin)});
    return {kept, &kept->address};
  }

  std::shared_ptr<SharedItems> items_;
  bool workers_share_;
};

}  // namespace

Result<std::shared_ptr<ProcessorCache>> make_shared_processor_cache(
    const ProcessorCacheOptions& options) {
  ASSIGN_OR_RETURN(auto items, open_items(options));
  return std::shared_ptr<ProcessorCache>(std::make_shared<SharedProcessorCache>(std::move(items)));
}

Result<std::shared_ptr<ItemCache>> make_shared_item_cache(const ProcessorCacheOptions& options) {
  ASSIGN_OR_RETURN(auto items, open_items(options));
  return std::shared_ptr<ItemCache>(
      std::make_shared<SharedItemCache>(std::move(items), options.workers_share));
}

}  // namespace troupe
