#include "runtime/cache/kv_events.hpp"

#include "runtime/cache/block_hash.hpp"

namespace troupe {

std::vector<ExtraKey> extra_keys(const KVCacheRequest& request, std::int32_t begin,
                                 std::int32_t end) {
  std::vector<ExtraKey> keys;
  if (request.lora) keys.emplace_back(request.lora->name);
  for (const MultiModalFeature& item : request.mm_features)
    if (item.offset < end && begin < item.offset + item.length)
      keys.emplace_back(std::pair(item.identifier, item.offset - begin));
  if (begin == 0 && !request.cache_salt.empty()) keys.emplace_back(request.cache_salt);
  if (request.prompt_embeds) keys.emplace_back(embeds_digest(request, begin, end));
  return keys;
}

}  // namespace troupe
