#include "runtime/multimodal/processor_cache.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

struct ProcessorCacheKind {
  std::string_view name;
  Result<std::shared_ptr<ProcessorCache>> (*make_processor_cache)(const ProcessorCacheOptions&);
  Result<std::shared_ptr<ItemCache>> (*make_item_cache)(const ProcessorCacheOptions&);
};
constexpr ProcessorCacheKind kKinds[] = {
    {"lru", make_lru_processor_cache, make_lru_item_cache},
    {"shm", make_shared_processor_cache, make_shared_item_cache},
    {"processor_only", make_processor_only_cache, nullptr},
};

const ProcessorCacheKind& kind_of(const ProcessorCacheOptions& options) {
  const auto kind = std::ranges::find(kKinds, options.kind, &ProcessorCacheKind::name);
  CHECK(kind != std::end(kKinds), options.kind);
  return *kind;
}

}  // namespace

std::vector<std::string> processor_cache_kinds() {
  std::vector<std::string> names;
  for (const ProcessorCacheKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

Result<std::shared_ptr<ProcessorCache>> make_processor_cache(const ProcessorCacheOptions& options) {
  if (options.max_bytes == 0) return std::shared_ptr<ProcessorCache>();
  return kind_of(options).make_processor_cache(options);
}

Result<std::shared_ptr<ItemCache>> make_item_cache(const ProcessorCacheOptions& options) {
  if (options.max_bytes == 0 || kind_of(options).make_item_cache == nullptr)
    return std::shared_ptr<ItemCache>();
  return kind_of(options).make_item_cache(options);
}

}  // namespace troupe
