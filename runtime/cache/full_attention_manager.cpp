// Full attention (and MLA): every token attends to all tokens before it.

#include <algorithm>

#include "runtime/cache/group_manager.hpp"

namespace troupe {
namespace {

class FullAttentionManager final : public GroupManager {
 public:
  using GroupManager::GroupManager;

  bool sees_all_tokens() const override { return true; }

  std::int32_t find_hit(std::span<const BlockHash> hashes, std::int32_t max_tokens,
                        std::span<const std::int32_t> groups, bool drop_last,
                        std::vector<std::vector<BlockId>>& hit) const override {
    const std::int32_t max_blocks = max_tokens / block_size();
    std::int32_t num_blocks = 0;
    while (num_blocks < max_blocks && append_cached(hashes, num_blocks, groups, hit)) ++num_blocks;
    std::int32_t length = num_blocks * block_size();
    if (context_.partial_hits) {
      const std::int32_t unit = context_.hash_unit;
      for (std::int32_t end = std::min(length + block_size() - unit, round_down(max_tokens, unit));
           end > length; end -= unit)
        if (append_prefix(hashes, end, groups, hit)) length = end;
      if (drop_last && length > 0) length -= unit;
    } else if (drop_last && length > 0) {
      length -= block_size();
    }
    length = round_down(length, context_.alignment);
    for (auto& blocks : hit)
      blocks.resize(static_cast<std::size_t>(ceil_div(length, block_size())));
    return length;
  }

  void cache(CachedRequest& request, std::int32_t num_tokens) override {
    GroupManager::cache(request, num_tokens);
    if (block_size() > context_.hash_unit) cache_prompt_tail(request, num_tokens);
  }

 private:
  /// If the prompt's last hash boundary is inside a block, that prefix is a further key of the
  /// block: a later request with the same prompt could start from there.
  void cache_prompt_tail(CachedRequest& request, std::int32_t num_tokens) {
    const std::int32_t limit = request.info.num_prompt_tokens - (eagle() ? 0 : 1);
    const std::int32_t boundary = round_down(limit, context_.hash_unit);
    if (boundary % block_size() == 0 || boundary > num_tokens) return;
    const GroupBlocks& own = blocks_of(request);
    const BlockId block = own.blocks[static_cast<std::size_t>(boundary / block_size())];
    if (block != kNullBlock) add_prefix_key(request, block, boundary);
  }
};

}  // namespace

std::unique_ptr<GroupManager> make_manager(const FullAttentionSpec&,
                                           const GroupManager::Group& group) {
  return std::make_unique<FullAttentionManager>(group);
}

std::unique_ptr<GroupManager> make_manager(const MlaSpec&, const GroupManager::Group& group) {
  return std::make_unique<FullAttentionManager>(group);
}

std::unique_ptr<GroupManager> make_manager(const SinkFullAttentionSpec&,
                                           const GroupManager::Group& group) {
  return std::make_unique<FullAttentionManager>(group);
}

}  // namespace troupe
