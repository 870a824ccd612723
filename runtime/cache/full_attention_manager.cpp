// Full attention (MLA and sink attention too): every token looks at all tokens before it.

#include <algorithm>

#include "runtime/cache/group_manager.hpp"

namespace troupe {
namespace {

class FullAttentionManager final : public GroupManager {
 public:
  using GroupManager::GroupManager;

  void find_hit(std::span<const BlockHash> hashes, std::int32_t max_tokens,
                std::span<const std::int32_t> groups, bool drop_last,
                std::vector<std::vector<BlockId>>& hit) const override {
    const std::int32_t max_blocks = max_tokens / block_size();
    for (std::int32_t i = 0; i < max_blocks && append_cached(hashes, i, groups, hit);) ++i;
    if (drop_last && !hit[0].empty())
      for (auto& blocks : hit) blocks.pop_back();
    align(hit);
  }

  void cache(CachedRequest& request, std::int32_t num_tokens) override {
    GroupManager::cache(request, num_tokens);
    if (block_size() > context_.hash_unit) cache_prompt_tail(request, num_tokens);
  }

 private:
  /// The prompt's last hash boundary, if it is inside a block, names that block as well: a later
  /// request with the same prompt could start from there.
  void cache_prompt_tail(const CachedRequest& request, std::int32_t num_tokens) {
    const std::int32_t limit = request.info.num_prompt_tokens - (eagle() ? 0 : 1);
    const std::int32_t boundary = round_down(limit, context_.hash_unit);
    if (boundary % block_size() == 0 || boundary > num_tokens) return;
    const GroupBlocks& own = blocks_of(request);
    const BlockId block = own.blocks[static_cast<std::size_t>(boundary / block_size())];
    if (block == kNullBlock) return;
    const BlockKey key{request.hashes[static_cast<std::size_t>(boundary / context_.hash_unit) - 1],
                       group()};
    const PrefixMap& map = context_.pool.prefix_map();
    if (map.has_entry(block)) {
      if (map.has_key(block, key)) return;
      if (map.num_tokens(block) < boundary) context_.pool.drop_content(block);
    }
    context_.pool.set_content(block, key, boundary);
    record_stored(request, boundary - context_.hash_unit, boundary, context_.hash_unit, {boundary});
  }
};

}  // namespace

std::unique_ptr<GroupManager> make_full_attention_manager(const CacheContext& context,
                                                          const KVCacheSpec& spec, std::int32_t id,
                                                          bool eagle) {
  return std::make_unique<FullAttentionManager>(context, spec, id, eagle);
}

}  // namespace troupe
