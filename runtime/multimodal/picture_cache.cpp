#include "runtime/multimodal/picture_cache.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

struct PictureCacheKind {
  std::string_view name;
  Result<std::shared_ptr<PictureCache>> (*make_picture_cache)(const PictureCacheOptions&);
  Result<std::shared_ptr<ItemCache>> (*make_item_cache)(const PictureCacheOptions&);
};
constexpr PictureCacheKind kKinds[] = {
    {"lru", make_lru_picture_cache, make_lru_item_cache},
    {"shm", make_shared_picture_cache, make_shared_item_cache},
    {"processor_only", make_processor_only_cache, nullptr},
};

const PictureCacheKind& kind_of(const PictureCacheOptions& options) {
  const auto kind = std::ranges::find(kKinds, options.kind, &PictureCacheKind::name);
  CHECK(kind != std::end(kKinds), options.kind);
  return *kind;
}

}  // namespace

std::vector<std::string> picture_cache_kinds() {
  std::vector<std::string> names;
  for (const PictureCacheKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

Result<std::shared_ptr<PictureCache>> make_picture_cache(const PictureCacheOptions& options) {
  if (options.max_bytes == 0) return std::shared_ptr<PictureCache>();
  return kind_of(options).make_picture_cache(options);
}

Result<std::shared_ptr<ItemCache>> make_item_cache(const PictureCacheOptions& options) {
  if (options.max_bytes == 0 || kind_of(options).make_item_cache == nullptr)
    return std::shared_ptr<ItemCache>();
  return kind_of(options).make_item_cache(options);
}

}  // namespace troupe
