#include "runtime/cache/kv_cache_settings.hpp"

#include <algorithm>
#include <numeric>

namespace troupe {

Result<void> check_kind(const KVCacheSpec& spec) {
  if (!spec.is<SinkFullAttentionSpec>()) return {};
  return Error{ErrorCode::kUnsupported,
               "sink_full_attention layers are not supported: the blocks of their sink tokens are "
               "not reserved",
               ""};
}

Result<void> KVCacheSettings::check() const {
  for (const KVCacheGroup& group : groups) RETURN_IF_ERROR(check_kind(group.spec));
  const std::int32_t block = scheduler_block_size();
  if (retention_interval && *retention_interval > 0) {
    const bool of_use = std::any_of(groups.begin(), groups.end(), [](const KVCacheGroup& group) {
      return group.spec.window() != nullptr || group.spec.is<MambaSpec>();
    });
    const std::string text =
        "prefix-cache-retention-interval is " + std::to_string(*retention_interval);
    if (!of_use)
      return invalid_argument(text + ", but the model has no sliding-window layers",
                              "prefix-cache-retention-interval");
    if (*retention_interval % block != 0)
      return invalid_argument(
          text + ", it must be a multiple of the block size, " + std::to_string(block),
          "prefix-cache-retention-interval");
  }
  for (const KVCacheGroup& group : groups) {
    if (!prefix_caching) break;
    if (group.spec.block_size % hash_block_size() != 0 && hash_block_size() != block)
      return invalid_argument("the prefix match unit is " + std::to_string(hash_block_size()) +
                              ", it must divide every block size; one is " +
                              std::to_string(group.spec.block_size));
  }
  return {};
}

std::int32_t KVCacheSettings::scheduler_block_size() const {
  std::int32_t size = 1;
  for (const KVCacheGroup& group : groups) size = std::lcm(size, group.spec.block_size);
  return size;
}

std::int32_t KVCacheSettings::hash_block_size() const {
  if (groups.size() == 1) return groups[0].spec.block_size;
  const bool unaligned_mamba = std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    const auto* mamba = std::get_if<MambaSpec>(&group.spec.kind);
    return mamba != nullptr && mamba->mode == MambaMode::kNone;
  });
  if (!keeps_hashes() || unaligned_mamba) return scheduler_block_size();
  if (prefix_match_unit) return *prefix_match_unit;
  std::int32_t size = 0;
  for (const KVCacheGroup& group : groups) size = std::gcd(size, group.spec.block_size);
  return size;
}

bool KVCacheSettings::is_eagle_group(const KVCacheGroup& group) const {
  if (std::none_of(groups.begin(), groups.end(),
                   [](const KVCacheGroup& other) { return other.eagle; }))
    return eagle_block_drop;
  return std::any_of(groups.begin(), groups.end(), [&](const KVCacheGroup& other) {
    return other.eagle && other.spec == group.spec;
  });
}

bool KVCacheSettings::has_eagle_groups() const {
  return std::any_of(groups.begin(), groups.end(),
                     [&](const KVCacheGroup& group) { return is_eagle_group(group); });
}

StatePositions KVCacheSettings::state_positions() const {
  StatePositions positions{.hash_unit = hash_block_size(),
                           .alignment = hit_alignment(),
                           .partial_hits = partial_hash_hits(),
                           .eagle_block_drop = eagle_block_drop};
  bool keeps_states = false, all_checkpoint = true;
  for (const KVCacheGroup& group : groups) {
    const KVCacheSpec& spec = group.spec;
    positions.block_size = positions.block_size == 0
                               ? spec.block_size
                               : std::min(positions.block_size, spec.block_size);
    const auto* mamba = std::get_if<MambaSpec>(&spec.kind);
    if (mamba == nullptr) continue;
    keeps_states |= mamba->mode == MambaMode::kAlign;
    all_checkpoint &=
        mamba->num_prefill_checkpoint_blocks > 0 && mamba->prefill_checkpoint_alignment > 0;
    positions.checkpoint_alignment =
        std::lcm(std::max(positions.checkpoint_alignment, 1), mamba->prefill_checkpoint_alignment);
  }
  if (!keeps_states) positions.block_size = 0;
  if (!all_checkpoint) positions.checkpoint_alignment = 0;
  positions.keep_junction = mamba_shared_prefix_checkpoint && positions.partial_hits &&
                            has_eagle_groups() && num_prefill_lookahead <= 1;
  return positions;
}

bool KVCacheSettings::partial_hash_hits() const {
  if (!prefix_caching || groups.size() < 2) return false;
  const std::int32_t unit = hash_block_size();
  bool mamba_ends_inside = false;
  for (const KVCacheGroup& group : groups) {
    const KVCacheSpec& spec = group.spec;
    if (const auto* mamba = std::get_if<MambaSpec>(&spec.kind)) {
      mamba_ends_inside |= mamba->mode == MambaMode::kAlign && spec.block_size > unit;
    } else if (!spec.is<FullAttentionSpec>() && !spec.is<MlaSpec>() && spec.block_size != unit) {
      return false;
    }
  }
  return mamba_ends_inside;
}

}  // namespace troupe
