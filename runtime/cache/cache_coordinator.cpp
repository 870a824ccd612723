#include "runtime/cache/cache_coordinator.hpp"

#include <algorithm>
#include <limits>

#include "runtime/base/check.hpp"

namespace troupe {

CacheCoordinator::CacheCoordinator(const KVCacheSettings& settings, BlockPool& pool)
    : settings_(settings),
      context_{.pool = pool,
               .settings = settings,
               .positions = settings.state_positions(),
               .hash_unit = settings.hash_block_size(),
               .alignment = settings.hit_alignment(),
               .all_blocks_end = settings.scheduler_block_size(),
               .partial_hits = settings.partial_hash_hits(),
               .has_eagle_groups = settings.has_eagle_groups()} {
  // Stale content of an attention page could reach a state through the padding tokens of a batch.
  const bool has_states =
      std::any_of(settings.groups.begin(), settings.groups.end(),
                  [](const KVCacheGroup& group) { return group.spec.is<MambaSpec>(); });
  for (std::size_t id = 0; id < settings.groups.size(); ++id) {
    const KVCacheGroup& group = settings.groups[id];
    const bool eagle = settings.is_eagle_group(group);
    context_.zero_new_blocks = has_states && !group.spec.is<MambaSpec>();
    managers_.push_back(make_group_manager({.context = context_,
                                            .spec = group.spec,
                                            .id = static_cast<std::int32_t>(id),
                                            .eagle = eagle}));
    GroupManager* manager = managers_.back().get();
    const auto same =
        std::find_if(lookup_order_.begin(), lookup_order_.end(),
                     [&](const SpecGroups& other) { return other.manager->spec() == group.spec; });
    if (same != lookup_order_.end())
      same->ids.push_back(manager->group());
    else
      lookup_order_.push_back({manager, {manager->group()}});
  }
  std::stable_partition(lookup_order_.begin(), lookup_order_.end(),
                        [](const SpecGroups& groups) { return groups.manager->sees_all_tokens(); });
}

CacheHit CacheCoordinator::find_longest_hit(const CachedRequest& request,
                                            std::int32_t max_tokens) const {
  if (managers_.size() > 1) return find_common_hit(request, max_tokens);
  CacheHit hit;
  hit.blocks.resize(1);
  const SpecGroups& only = lookup_order_[0];
  hit.num_tokens = only.manager->find_hit(request.hashes, max_tokens, only.ids,
                                          only.manager->eagle(), hit.blocks);
  return hit;
}

CacheHit CacheCoordinator::find_common_hit(const CachedRequest& request,
                                           std::int32_t max_tokens) const {
  CacheHit hit;
  hit.blocks.resize(managers_.size());
  std::vector<std::vector<BlockId>> found;
  std::vector<bool> drop_done(lookup_order_.size(), false);
  const bool one_pass = lookup_order_.size() == 2 && lookup_order_[0].manager->sees_all_tokens();
  // The block dropped for a drafter may end with the request.
  const std::int32_t num_hashed =
      static_cast<std::int32_t>(request.hashes.size()) * context_.hash_unit;
  std::int32_t candidate = max_tokens;
  std::int32_t longest = 0;
  bool full_is_known = false;
  while (true) {
    std::int32_t length = candidate;
    for (std::size_t i = 0; i < lookup_order_.size(); ++i) {
      const SpecGroups& groups = lookup_order_[i];
      const std::int32_t unit =
          context_.partial_hits ? context_.hash_unit : groups.manager->block_size();
      const bool full = groups.manager->sees_all_tokens();
      if (full && full_is_known) {
        // A prefix of a full-attention hit is a hit.
        length = round_down(length, unit);
        continue;
      }
      // A drafter needs the last block's hidden states, so the block is recomputed: once for each
      // kind of groups, until a hit becomes shorter for another reason. States cannot be rolled
      // back: of their groups, whose turn this is as well, nothing is dropped.
      const bool drop = groups.manager->eagle() && !drop_done[i];
      const std::int32_t limit =
          drop && !groups.manager->holds_states() ? std::min(length + unit, num_hashed) : length;
      found.assign(groups.ids.size(), {});
      const std::int32_t found_length =
          groups.manager->find_hit(request.hashes, limit, groups.ids, drop, found);
      if (drop)
        drop_done[i] = true;
      else if (found_length < length)
        std::fill(drop_done.begin(), drop_done.end(), false);
      length = found_length;
      longest = std::max(longest, length);
      for (std::size_t g = 0; g < groups.ids.size(); ++g)
        hit.blocks[static_cast<std::size_t>(groups.ids[g])] = std::move(found[g]);
    }
    full_is_known = true;
    const bool settled = length >= candidate;
    candidate = length;
    if (settled || one_pass) break;
  }
  for (const SpecGroups& groups : lookup_order_) {
    if (!groups.manager->sees_all_tokens()) continue;
    const auto size = static_cast<std::size_t>(ceil_div(candidate, groups.manager->block_size()));
    for (const std::int32_t id : groups.ids) hit.blocks[static_cast<std::size_t>(id)].resize(size);
  }
  hit.num_tokens = candidate;
  hit.shared_prefix_boundary = longest > candidate ? longest : 0;
  return hit;
}

void CacheCoordinator::report_hit(const CachedRequest& request, const CacheHit& hit) const {
  for (const auto& manager : managers_) manager->report_hit(request, hit.num_tokens);
}

std::int32_t CacheCoordinator::num_blocks_needed(CachedRequest& request,
                                                 const BlockDemand& demand) const {
  std::int32_t num_needed = 0;
  for (std::size_t id = 0; id < managers_.size(); ++id) {
    GroupManager::BlockDemand of_group{.room = demand.room,
                                       .num_computed_tokens = demand.num_computed_tokens,
                                       .whole_sequence = demand.whole_sequence};
    if (demand.hit != nullptr) {
      of_group.hit = demand.hit->blocks[id];
      of_group.num_hit_tokens = demand.hit->num_tokens;
    }
    num_needed += managers_[id]->num_blocks_needed(request, of_group);
  }
  return num_needed;
}

void CacheCoordinator::adopt(CachedRequest& request, const CacheHit* hit, std::int32_t num_computed,
                             std::int32_t num_external) {
  if (std::any_of(request.groups.begin(), request.groups.end(),
                  [](const GroupBlocks& own) { return own.num_cached_blocks.has_value(); }))
    return;
  for (std::size_t id = 0; id < managers_.size(); ++id)
    managers_[id]->adopt(request,
                         hit == nullptr ? std::span<const BlockId>() : std::span(hit->blocks[id]),
                         hit == nullptr ? 0 : hit->num_tokens, num_computed);
  if (num_external > 0)
    for (const auto& manager : managers_) manager->extend_external(request, num_computed);
}

void CacheCoordinator::extend(CachedRequest& request, const GroupManager::Room& room,
                              BlockTable* taken) {
  for (std::size_t id = 0; id < managers_.size(); ++id)
    managers_[id]->extend(request, room, taken == nullptr ? nullptr : &(*taken)[id]);
}

void CacheCoordinator::new_step_starts() {
  for (const auto& manager : managers_) manager->new_step_starts();
}

void CacheCoordinator::cache(CachedRequest& request, std::int32_t num_tokens) {
  // A drafter with several modules recomputes its last tokens.
  const std::int32_t num_final =
      std::max(0, num_tokens - std::max(0, settings_.num_prefill_lookahead - 1));
  if (managers_.size() == 1) return managers_.front()->cache(request, num_final);
  const auto matchable = [&](std::int32_t n) {
    return context_.partial_hits ? n : round_down(n, context_.alignment);
  };
  for (const auto& manager : managers_) {
    std::int32_t num_cacheable = matchable(num_tokens);
    // The drafter's groups must hold one block beyond a hit.
    if (manager->eagle() && num_cacheable > 0)
      num_cacheable = std::min(num_final, matchable(num_final) + manager->block_size());
    manager->cache(request, num_cacheable);
  }
}

CacheHit CacheCoordinator::cache_hit_of(CachedRequest& request, std::int32_t num_tokens) {
  const std::int32_t num_hashed =
      static_cast<std::int32_t>(request.hashes.size()) * context_.hash_unit;
  const std::int32_t end = round_down(std::min(num_tokens, num_hashed), context_.alignment);
  for (const auto& manager : managers_) manager->cache_end(request, end);
  return find_longest_hit(request, end);
}

void CacheCoordinator::remove_skipped(CachedRequest& request, std::int32_t num_processed) {
  for (const auto& manager : managers_) manager->remove_skipped(request, num_processed);
}

void CacheCoordinator::free(CachedRequest& request) {
  for (const auto& manager : managers_) manager->free(request);
}

std::int32_t CacheCoordinator::estimate_cached_tokens(const CachedRequest& request) const {
  std::int32_t estimate = std::numeric_limits<std::int32_t>::max();
  for (const auto& manager : managers_)
    estimate = std::min(estimate, manager->estimate_cached_tokens(request));
  return estimate;
}

std::vector<BlockId> CacheCoordinator::take_new_blocks() {
  std::vector<BlockId> blocks;
  for (const auto& manager : managers_) manager->take_new_blocks(blocks);
  return blocks;
}

BlockCopies CacheCoordinator::take_copies() {
  BlockCopies copies;
  for (const auto& manager : managers_) manager->take_copies(copies);
  return copies;
}

}  // namespace troupe
