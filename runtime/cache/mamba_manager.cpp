// Mamba layers with one running state per request (mode `none`): a block holds the state, further
// ones those of speculative tokens. States are not cached, so there are no hits.

#include "runtime/base/check.hpp"
#include "runtime/cache/group_manager.hpp"

namespace troupe {
namespace {

class MambaManager final : public GroupManager {
 public:
  MambaManager(const CacheContext& context, const KVCacheSpec& spec, std::int32_t group, bool eagle)
      : GroupManager(context, spec, group, eagle) {
    CHECK(spec.mamba_mode == MambaMode::kNone, group);
  }

  /// The state stands for all tokens before it.
  std::int32_t num_skipped_tokens(std::int32_t num_computed) const override {
    return num_computed - 1;
  }

  std::int32_t num_blocks_needed(const CachedRequest& request, const Need& need) const override {
    Need with_drafts = need;
    with_drafts.num_tokens = with_speculative_blocks(need.num_tokens);
    return GroupManager::num_blocks_needed(request, with_drafts);
  }

  void extend(CachedRequest& request, std::int32_t num_tokens,
              std::vector<BlockId>* taken) override {
    GroupManager::extend(request, with_speculative_blocks(num_tokens), taken);
  }

  void find_hit(std::span<const BlockHash>, std::int32_t, std::span<const std::int32_t>, bool,
                std::vector<std::vector<BlockId>>&) const override {}

 private:
  std::int32_t with_speculative_blocks(std::int32_t num_tokens) const {
    return num_tokens + spec_.num_speculative_blocks * block_size();
  }
};

}  // namespace

std::unique_ptr<GroupManager> make_mamba_manager(const CacheContext& context,
                                                 const KVCacheSpec& spec, std::int32_t id,
                                                 bool eagle) {
  return std::make_unique<MambaManager>(context, spec, id, eagle);
}

}  // namespace troupe
