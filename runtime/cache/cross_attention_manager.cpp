// Cross attention: decoder tokens attend to the encoder's output, whose keys and values are written
// once.

#include "runtime/base/check.hpp"
#include "runtime/cache/group_manager.hpp"

namespace troupe {
namespace {

/// A request gets all its blocks with the step that encodes its input, and keeps them. They are not
/// in the prefix cache: their content does not depend on the decoder's tokens.
class CrossAttentionManager final : public GroupManager {
 public:
  explicit CrossAttentionManager(const Group& group) : GroupManager(group) {
    CHECK(!group.context.settings.prefix_caching, group.id);
  }

  std::int32_t num_blocks_needed(CachedRequest& request, const BlockDemand& demand) const override {
    if (!blocks_of(request).blocks.empty()) return 0;
    return ceil_div(demand.room.num_encoder_tokens, block_size());
  }

  void adopt(CachedRequest& request, std::span<const BlockId> hit, std::int32_t /*num_hit_tokens*/,
             std::int32_t /*num_computed*/) override {
    CHECK(hit.empty(), value(request.info.id));
  }

  void extend(CachedRequest& request, const Room& room, std::vector<BlockId>* taken) override {
    std::vector<BlockId>& blocks = blocks_of(request).blocks;
    if (!blocks.empty()) return;
    take(ceil_div(room.num_encoder_tokens, block_size()), blocks);
    if (taken != nullptr) taken->insert(taken->end(), blocks.begin(), blocks.end());
  }

  void cache(CachedRequest& request, std::int32_t /*num_tokens*/) override {
    CHECK(false, "cross attention is not cached", value(request.info.id));
  }

  std::int32_t find_hit(std::span<const BlockHash>, std::int32_t, std::span<const std::int32_t>,
                        bool, std::vector<std::vector<BlockId>>&) const override {
    CHECK(false, "cross attention is not cached");
    return 0;
  }
};

}  // namespace

std::unique_ptr<GroupManager> make_manager(const CrossAttentionSpec&,
                                           const GroupManager::Group& group) {
  return std::make_unique<CrossAttentionManager>(group);
}

}  // namespace troupe
