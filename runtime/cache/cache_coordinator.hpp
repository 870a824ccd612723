#pragma once
// Combines a model's groups: a request's blocks are allocated, cached and freed in all of them, and
// a hit must be valid in all of them.

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/cache/group_manager.hpp"

namespace troupe {

/// Owns the group managers.
class CacheCoordinator {
 public:
  CacheCoordinator(const KVCacheSettings& settings, BlockPool& pool);

  [[nodiscard]] std::size_t num_groups() const noexcept { return managers_.size(); }
  [[nodiscard]] GroupManager& group(std::size_t id) { return *managers_[id]; }
  [[nodiscard]] const std::vector<std::unique_ptr<GroupManager>>& groups() const noexcept {
    return managers_;
  }

  /// The longest prefix of at most max_tokens that all groups have.
  [[nodiscard]] CacheHit find_longest_hit(const CachedRequest& request,
                                          std::int32_t max_tokens) const;

  /// Records the hit's blocks as stored again, for consumers that may not know them.
  void report_hit(const CachedRequest& request, const CacheHit& hit) const;

  struct BlockDemand {
    GroupManager::Room room;
    const CacheHit* hit = nullptr;  ///< null: none
    std::int32_t num_computed_tokens = 0;
    bool whole_sequence = false;  ///< as in GroupManager::BlockDemand
  };
  [[nodiscard]] std::int32_t num_blocks_needed(CachedRequest& request,
                                               const BlockDemand& demand) const;
  /// Blocks for external tokens are allocated here. Nothing is done for a request that has adopted
  /// or cached blocks already.
  void adopt(CachedRequest& request, const CacheHit* hit, std::int32_t num_computed,
             std::int32_t num_external);
  void extend(CachedRequest& request, const GroupManager::Room& room, BlockTable* taken);
  void new_step_starts();
  void cache(CachedRequest& request, std::int32_t num_tokens);
  /// The longest hit of at most num_tokens, which are cached as far as they are worth it; what it
  /// lacks of the request's own blocks is cached now.
  [[nodiscard]] CacheHit cache_hit_of(CachedRequest& request, std::int32_t num_tokens);
  void remove_skipped(CachedRequest& request, std::int32_t num_processed);
  void free(CachedRequest& request);
  [[nodiscard]] std::int32_t estimate_cached_tokens(const CachedRequest& request) const;
  /// Blocks allocated since the last call that must be zeroed: group after group.
  [[nodiscard]] std::vector<BlockId> take_new_blocks();
  /// Copies planned since the last call: group after group.
  [[nodiscard]] BlockCopies take_copies();

 private:
  /// Groups with equal specs, looked up together.
  struct SpecGroups {
    GroupManager* manager = nullptr;
    std::vector<std::int32_t> ids;
  };
  [[nodiscard]] CacheHit find_common_hit(const CachedRequest& request,
                                         std::int32_t max_tokens) const;

  const KVCacheSettings& settings_;
  CacheContext context_;
  std::vector<std::unique_ptr<GroupManager>> managers_;  ///< by group id
  std::vector<SpecGroups> lookup_order_;                 ///< full attention first
};

}  // namespace troupe
