// The processor cache "shm": front ends and engines of a host share the items.

#include <unistd.h>

#include "runtime/base/hash.hpp"
#include "runtime/multimodal/shared_items.hpp"

namespace troupe {
namespace {

Result<std::shared_ptr<SharedItems>> open_items(const PictureCacheOptions& options) {
  const std::string name =
      "troupe-mm-" + std::to_string(::geteuid()) + "-" + to_hex(xxh3_128(options.key));
  return SharedItems::open({.file = options.directory / name,
                            .max_bytes = options.max_bytes,
                            .max_object_bytes = options.max_object_bytes});
}

class SharedPictureCache final : public PictureCache {
 public:
  explicit SharedPictureCache(std::shared_ptr<SharedItems> items) : items_(std::move(items)) {}

  std::vector<ItemData> find(const std::string& identifier, bool with_data) override {
    std::vector<ItemData> data(items_->num_parts(identifier));
    if (!with_data) return data;
    for (std::size_t part = 0; part < data.size(); ++part) {
      data[part] = items_->find(part_identifier(identifier, part));
      if (data[part] == nullptr) return {};  // it has just been dropped
    }
    return data;
  }
  void keep(const std::string& identifier, const std::vector<ItemData>& data) override {
    items_->keep(identifier, data);
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
  explicit SharedItemCache(std::shared_ptr<SharedItems> items) : items_(std::move(items)) {}

  std::vector<std::string> complete(std::span<MultiModalFeature> items) override {
    std::vector<std::string> missing;
    for (MultiModalFeature& item : items) {
      if (item.data != nullptr) continue;
      item.data = items_->find(item.identifier);
      if (item.data == nullptr) missing.push_back(item.identifier);
    }
    return missing;
  }
  void clear() override { items_->clear(); }

 private:
  std::shared_ptr<SharedItems> items_;
};

}  // namespace

Result<std::shared_ptr<PictureCache>> make_shared_picture_cache(
    const PictureCacheOptions& options) {
  ASSIGN_OR_RETURN(auto items, open_items(options));
  return std::shared_ptr<PictureCache>(std::make_shared<SharedPictureCache>(std::move(items)));
}

Result<std::shared_ptr<ItemCache>> make_shared_item_cache(const PictureCacheOptions& options) {
  ASSIGN_OR_RETURN(auto items, open_items(options));
  return std::shared_ptr<ItemCache>(std::make_shared<SharedItemCache>(std::move(items)));
}

}  // namespace troupe
