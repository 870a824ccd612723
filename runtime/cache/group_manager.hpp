#pragma once
// The logic of one KV-cache group. Shared parts are here; each attention kind has a file for its
// own.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
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

/// Source and destination of the copies to be made before the step. Until the workers take them,
/// both blocks have an additional reference.
using BlockCopies = std::vector<std::pair<BlockId, BlockId>>;

/// The cache as a whole, shared by all groups.
struct CacheContext {
  BlockPool& pool;
  const KVCacheSettings& settings;
  StatePositions positions;    ///< of the whole engine
  std::int32_t hash_unit = 0;  ///< tokens per hash
  std::int32_t alignment = 0;  ///< hits end at multiples of it
  /// At its multiples: the least common multiple of the block sizes.
  std::int32_t all_blocks_end = 0;
  bool partial_hits = false;  ///< and may end inside a block
  bool has_eagle_groups = false;
  bool zero_new_blocks = false;
};

/// Stateless with regard to requests: a request's state in the group is request.groups[group()].
class GroupManager {
 public:
  /// Common data of all kinds of groups.
  struct Group {
    const CacheContext& context;
    const KVCacheSpec& spec;
    std::int32_t id = 0;
    bool eagle = false;
  };
  explicit GroupManager(const Group& group)
      : context_(group.context), spec_(group.spec), group_(group.id), eagle_(group.eagle) {}
  virtual ~GroupManager() = default;
  GroupManager(const GroupManager&) = delete;
  GroupManager& operator=(const GroupManager&) = delete;

  [[nodiscard]] std::int32_t group() const noexcept { return group_; }
  [[nodiscard]] bool eagle() const noexcept { return eagle_; }
  [[nodiscard]] const KVCacheSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::int32_t block_size() const noexcept { return spec_.block_size; }

  /// Whether a token attends to all tokens before it, so that a prefix of a hit is a hit.
  [[nodiscard]] virtual bool sees_all_tokens() const { return false; }
  /// Whether blocks hold states, each of which summarises all tokens before it.
  [[nodiscard]] virtual bool holds_states() const { return false; }
  /// How many of num_computed tokens the next one no longer attends to.
  [[nodiscard]] virtual std::int32_t num_skipped_tokens(std::int32_t num_computed) const;
  /// The maximum number of blocks that a request holds here.
  [[nodiscard]] virtual std::int32_t max_admission_blocks() const;

  /// Tokens for which there must be blocks.
  struct Room {
    std::int32_t num_tokens = 0;          ///< including those that a drafter runs ahead
    std::int32_t num_main_tokens = 0;     ///< without these
    std::int32_t num_encoder_tokens = 0;  ///< used by cross attention only
  };
  struct BlockDemand {
    Room room;
    std::span<const BlockId> hit;
    std::int32_t num_hit_tokens = 0;
    std::int32_t num_computed_tokens = 0;  ///< including hit and external ones
    /// For the whole sequence, which must fit before the request is admitted: at most
    /// max_admission_blocks(), and without side effects.
    bool whole_sequence = false;
  };
  /// The number of free blocks that this needs.
  [[nodiscard]] virtual std::int32_t num_blocks_needed(CachedRequest& request,
                                                       const BlockDemand& demand) const;
  /// The request starts from `hit`, which covers num_hit_tokens; num_computed tokens (including
  /// external ones) will be available.
  virtual void adopt(CachedRequest& request, std::span<const BlockId> hit,
                     std::int32_t num_hit_tokens, std::int32_t num_computed);
  /// Allocates blocks for computed tokens that are loaded from elsewhere. Pre: adopt().
  void extend_external(CachedRequest& request, std::int32_t num_computed);
  /// Allocates blocks for `room`; appends them to `taken` unless it is null.
  virtual void extend(CachedRequest& request, const Room& room, std::vector<BlockId>* taken);
  /// Adds the full blocks of the first num_tokens to the prefix cache, as far as they are worth
  /// caching.
  virtual void cache(CachedRequest& request, std::int32_t num_tokens);
  /// Also adds the blocks that a hit of num_tokens needs. Pre: those worth caching are cached up to
  /// num_tokens.
  void cache_end(CachedRequest& request, std::int32_t num_tokens);
  /// Frees blocks that no token after num_processed attends to.
  virtual void remove_skipped(CachedRequest& request, std::int32_t num_processed);
  virtual void free(CachedRequest& request);
  /// A step begins.
  virtual void new_step_starts() {}
  [[nodiscard]] virtual std::int32_t estimate_cached_tokens(const CachedRequest& request) const;

  /// Appends the blocks allocated since the last call, if they must be zeroed.
  void take_new_blocks(std::vector<BlockId>& blocks);
  /// Appends the copies planned since the last call, in the order of planning.
  void take_copies(BlockCopies& copies);

  /// Records a stored event for the first num_tokens, with every block's hash, cached or not.
  void report_hit(const CachedRequest& request, std::int32_t num_tokens) const;

  /// The longest hit of at most max_tokens for all of `groups`, which have equal specs; returns its
  /// number of tokens. `hit` gets one list of blocks for each of `groups`. `drop_last`: the last
  /// block (with partial hits, the last hash unit) must be cached, but is not used.
  virtual std::int32_t find_hit(std::span<const BlockHash> hashes, std::int32_t max_tokens,
                                std::span<const std::int32_t> groups, bool drop_last,
                                std::vector<std::vector<BlockId>>& hit) const = 0;

 protected:
  [[nodiscard]] GroupBlocks& blocks_of(CachedRequest& request) const {
    return request.groups[static_cast<std::size_t>(group_)];
  }
  [[nodiscard]] const GroupBlocks& blocks_of(const CachedRequest& request) const {
    return request.groups[static_cast<std::size_t>(group_)];
  }
  /// The hash of block `index`, which is that of its last hash unit.
  [[nodiscard]] const BlockHash& block_hash(std::span<const BlockHash> hashes,
                                            std::int32_t index) const;
  /// Appends the cached block `index` of each of `groups`; false, and nothing appended, if one of
  /// them has none.
  [[nodiscard]] bool append_cached(std::span<const BlockHash> hashes, std::int32_t index,
                                   std::span<const std::int32_t> groups,
                                   std::vector<std::vector<BlockId>>& hit) const;
  /// As above for a prefix of num_tokens, a multiple of the hash unit.
  [[nodiscard]] bool append_prefix(std::span<const BlockHash> hashes, std::int32_t num_tokens,
                                   std::span<const std::int32_t> groups,
                                   std::vector<std::vector<BlockId>>& hit) const;
  /// Where a request with the same prompt, or with one that extends it, can start; the same for all
  /// groups, as a hit is the shortest of theirs. Drafters' groups drop the last block of a hit.
  [[nodiscard]] std::pair<std::int32_t, std::int32_t> replay_boundaries(
      std::int32_t num_prompt_tokens) const;
  /// Truncates the hit to a multiple of the alignment.
  void align(std::vector<std::vector<BlockId>>& hit) const;
  /// The first of the blocks that a hit of num_blocks full blocks needs that may not be worth
  /// caching.
  [[nodiscard]] virtual std::int32_t first_uncached_of_hit(std::int32_t num_blocks) const {
    return num_blocks;
  }
  /// Whether block `index` of the request is worth caching.
  [[nodiscard]] virtual bool worth_caching(const CachedRequest& request, std::int32_t index) const;
  /// Adds a key to the block: it holds the request's first num_tokens tokens, which end inside it
  /// or with it. Its keys for shorter prefixes are removed.
  void add_prefix_key(const CachedRequest& request, BlockId block, std::int32_t num_tokens);
  /// Whether the hit ends inside its last block.
  [[nodiscard]] bool ends_inside(std::span<const BlockId> hit, std::int32_t num_hit_tokens) const {
    return num_hit_tokens % block_size() != 0 &&
           static_cast<std::int32_t>(hit.size()) == ceil_div(num_hit_tokens, block_size());
  }
  [[nodiscard]] std::int32_t num_unreferenced(std::span<const BlockId> hit) const;
  /// Replaces a shared tail by a copy; appends the copy to `taken` unless it is null.
  void replace_shared_tail(CachedRequest& request, std::vector<BlockId>* taken);
  void take(std::int32_t n, std::vector<BlockId>& blocks);
  void record_stored(const CachedRequest& request, std::int32_t begin_token, std::int32_t end_token,
                     std::int32_t block_size, const std::vector<std::int32_t>& stored_ends,
                     bool again = false) const;

  CacheContext context_;
  std::vector<BlockId> new_blocks_;  ///< only if the workers must zero them
  BlockCopies copies_;
  KVCacheSpec spec_;
  std::int32_t group_;
  bool eagle_;
};

// One file per manager, for the kinds of layers that it handles.
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const FullAttentionSpec&,
                                                         const GroupManager::Group&);
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const MlaSpec&,
                                                         const GroupManager::Group&);
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const SinkFullAttentionSpec&,
                                                         const GroupManager::Group&);
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const SlidingWindowSpec&,
                                                         const GroupManager::Group&);
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const SlidingWindowMlaSpec&,
                                                         const GroupManager::Group&);
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const ChunkedLocalAttentionSpec&,
                                                         const GroupManager::Group&);
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const CrossAttentionSpec&,
                                                         const GroupManager::Group&);
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const MambaSpec&,
                                                         const GroupManager::Group&);
/// Must not be called: layers without a cache are in no group.
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const EncoderOnlyAttentionSpec&,
                                                         const GroupManager::Group&);

[[nodiscard]] inline std::unique_ptr<GroupManager> make_group_manager(
    const GroupManager::Group& group) {
  return std::visit([&](const auto& kind) { return make_manager(kind, group); }, group.spec.kind);
}

}  // namespace troupe
