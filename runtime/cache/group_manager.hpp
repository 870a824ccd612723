#pragma once
// The rules of one KV-cache group. What the attention kinds share is here; each kind has a file of
// its own for what differs.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/cache/block_pool.hpp"
#include "runtime/cache/cached_request.hpp"
#include "runtime/cache/kv_cache_settings.hpp"

namespace troupe {

[[nodiscard]] constexpr std::int32_t ceil_div(std::int32_t a, std::int32_t b) noexcept {
  return (a + b - 1) / b;
}
[[nodiscard]] constexpr std::int32_t round_down(std::int32_t a, std::int32_t b) noexcept {
  return a / b * b;
}

/// What all groups know of the cache as a whole.
struct CacheContext {
  BlockPool& pool;
  const KVCacheSettings& settings;
  std::int32_t hash_unit = 0;  ///< tokens per hash
  std::int32_t alignment = 0;  ///< hits end at multiples of it
  bool zero_new_blocks = false;
};

/// Holds no state of requests: what a request has of the group is request.groups[group()].
class GroupManager {
 public:
  GroupManager(const CacheContext& context, const KVCacheSpec& spec, std::int32_t group, bool eagle)
      : context_(context), spec_(spec), group_(group), eagle_(eagle) {}
  virtual ~GroupManager() = default;
  GroupManager(const GroupManager&) = delete;
  GroupManager& operator=(const GroupManager&) = delete;

  [[nodiscard]] std::int32_t group() const noexcept { return group_; }
  [[nodiscard]] bool eagle() const noexcept { return eagle_; }
  [[nodiscard]] const KVCacheSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::int32_t block_size() const noexcept { return spec_.block_size; }

  /// Of num_computed tokens, how many the next one no longer looks at.
  [[nodiscard]] virtual std::int32_t num_skipped_tokens(std::int32_t num_computed) const;
  /// The most blocks a request ever holds here.
  [[nodiscard]] virtual std::int32_t max_admission_blocks() const;

  struct Need {
    std::int32_t num_tokens = 0;  ///< to have room for
    std::span<const BlockId> hit;
    std::int32_t num_computed_tokens = 0;  ///< with hit and external ones
    bool capped = false;                   ///< by max_admission_blocks()
  };
  /// Free blocks that this takes.
  [[nodiscard]] virtual std::int32_t num_blocks_needed(const CachedRequest& request,
                                                       const Need& need) const;
  /// The request starts from `hit`; num_computed tokens (external ones included) will be there.
  virtual void adopt(CachedRequest& request, std::span<const BlockId> hit,
                     std::int32_t num_computed);
  /// Room for num_tokens; the blocks taken are appended to `taken`, if it is wanted.
  virtual void extend(CachedRequest& request, std::int32_t num_tokens, std::vector<BlockId>* taken);
  /// Puts the full blocks of the first num_tokens into the prefix cache, as far as they are worth
  /// keeping.
  virtual void cache(CachedRequest& request, std::int32_t num_tokens);
  /// Gives blocks back that no token behind num_processed looks at.
  virtual void remove_skipped(CachedRequest& request, std::int32_t num_processed);
  virtual void free(CachedRequest& request);
  [[nodiscard]] virtual std::int32_t estimate_cached_tokens(const CachedRequest& request) const;

  /// Appends the blocks taken since the last call, if old content in them would do harm.
  void take_new_blocks(std::vector<BlockId>& blocks);

  /// Records a stored event for the first num_tokens, with every block's hash, held or not.
  void report_hit(const CachedRequest& request, std::int32_t num_tokens) const;

  /// The longest hit of at most max_tokens for all of `groups`, which have equal specs. `hit` gets
  /// one list of blocks for each of `groups`. `drop_last`: the last block is not used, but must be
  /// there.
  virtual void find_hit(std::span<const BlockHash> hashes, std::int32_t max_tokens,
                        std::span<const std::int32_t> groups, bool drop_last,
                        std::vector<std::vector<BlockId>>& hit) const = 0;

 protected:
  [[nodiscard]] GroupBlocks& blocks_of(CachedRequest& request) const {
    return request.groups[static_cast<std::size_t>(group_)];
  }
  [[nodiscard]] const GroupBlocks& blocks_of(const CachedRequest& request) const {
    return request.groups[static_cast<std::size_t>(group_)];
  }
  /// The name of block `index`, which is that of its last hash unit.
  [[nodiscard]] const BlockHash& block_hash(std::span<const BlockHash> hashes,
                                            std::int32_t index) const;
  /// Appends the blocks of all `groups` that hold block `index`; false, and nothing appended, if
  /// one of them has none.
  [[nodiscard]] bool append_cached(std::span<const BlockHash> hashes, std::int32_t index,
                                   std::span<const std::int32_t> groups,
                                   std::vector<std::vector<BlockId>>& hit) const;
  /// Shortens the hit until its length is a multiple of the alignment.
  void align(std::vector<std::vector<BlockId>>& hit) const;
  /// Whether block `index` of the request is worth keeping in the prefix cache.
  [[nodiscard]] virtual bool worth_caching(const CachedRequest& request, std::int32_t index) const;
  void record_stored(const CachedRequest& request, std::int32_t begin_token, std::int32_t end_token,
                     std::int32_t block_size, std::vector<std::int32_t> stored_ends) const;

  CacheContext context_;
  std::vector<BlockId> new_blocks_;  ///< only if the workers must zero them
  KVCacheSpec spec_;
  std::int32_t group_;
  bool eagle_;
};

[[nodiscard]] std::unique_ptr<GroupManager> make_group_manager(const CacheContext& context,
                                                               const KVCacheGroup& group,
                                                               std::int32_t id, bool eagle);

// One file per attention kind.
[[nodiscard]] std::unique_ptr<GroupManager> make_full_attention_manager(const CacheContext&,
                                                                        const KVCacheSpec&,
                                                                        std::int32_t id,
                                                                        bool eagle);
[[nodiscard]] std::unique_ptr<GroupManager> make_sliding_window_manager(const CacheContext&,
                                                                        const KVCacheSpec&,
                                                                        std::int32_t id,
                                                                        bool eagle);
[[nodiscard]] std::unique_ptr<GroupManager> make_chunked_local_manager(const CacheContext&,
                                                                       const KVCacheSpec&,
                                                                       std::int32_t id, bool eagle);

[[nodiscard]] std::unique_ptr<GroupManager> make_mamba_manager(const CacheContext&,
                                                               const KVCacheSpec&, std::int32_t id,
                                                               bool eagle);

}  // namespace troupe
