#pragma once
// The rules of one KV-cache group. What the attention kinds share is here; each kind has a file of
// its own for what differs.

#include <cstdint>
#include <memory>
#include <span>
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

/// Source and destination of each copy to be made before the step computes. Until it is taken by
/// the workers, both blocks keep one reference for it.
using BlockCopies = std::vector<std::pair<BlockId, BlockId>>;

/// What all groups know of the cache as a whole.
struct CacheContext {
  BlockPool& pool;
  const KVCacheSettings& settings;
  StatePositions positions;         ///< of the whole engine
  std::int32_t hash_unit = 0;       ///< tokens per hash
  std::int32_t alignment = 0;       ///< hits end at multiples of it
  std::int32_t all_blocks_end = 0;  ///< at its multiples: the least common multiple of the sizes
  bool partial_hits = false;        ///< and may end inside a block
  bool zero_new_blocks = false;
};

/// Holds no state of requests: what a request has of the group is request.groups[group()].
class GroupManager {
 public:
  /// What every group has, whatever its kind.
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

  /// A token looks at all tokens before it, so that a prefix of a hit is a hit.
  [[nodiscard]] virtual bool sees_all_tokens() const { return false; }
  /// Blocks hold states, each of which stands for all tokens before it.
  [[nodiscard]] virtual bool holds_states() const { return false; }
  /// Of num_computed tokens, how many the next one no longer looks at.
  [[nodiscard]] virtual std::int32_t num_skipped_tokens(std::int32_t num_computed) const;
  /// The most blocks a request ever holds here.
  [[nodiscard]] virtual std::int32_t max_admission_blocks() const;

  /// What there must be room for.
  struct Room {
    std::int32_t num_tokens = 0;          ///< those that a drafter runs ahead included
    std::int32_t num_main_tokens = 0;     ///< without these
    std::int32_t num_encoder_tokens = 0;  ///< only cross attention looks at them
  };
  struct BlockDemand {
    Room room;
    std::span<const BlockId> hit;
    std::int32_t num_hit_tokens = 0;
    std::int32_t num_computed_tokens = 0;  ///< with hit and external ones
    /// Of the whole sequence, which must fit before the request is admitted: at most
    /// max_admission_blocks(), and nothing is planned by it.
    bool whole_sequence = false;
  };
  /// Free blocks that this takes.
  [[nodiscard]] virtual std::int32_t num_blocks_needed(CachedRequest& request,
                                                       const BlockDemand& demand) const;
  /// The request starts from `hit`, which covers num_hit_tokens; num_computed tokens (external ones
  /// included) will be there.
  virtual void adopt(CachedRequest& request, std::span<const BlockId> hit,
                     std::int32_t num_hit_tokens, std::int32_t num_computed);
  /// Blocks for computed tokens that come from elsewhere. Pre: adopt().
  void extend_external(CachedRequest& request, std::int32_t num_computed);
  /// Makes room; the blocks taken are appended to `taken`, if it is wanted.
  virtual void extend(CachedRequest& request, const Room& room, std::vector<BlockId>* taken);
  /// Puts the full blocks of the first num_tokens into the prefix cache, as far as they are worth
  /// keeping.
  virtual void cache(CachedRequest& request, std::int32_t num_tokens);
  /// Gives blocks back that no token behind num_processed looks at.
  virtual void remove_skipped(CachedRequest& request, std::int32_t num_processed);
  virtual void free(CachedRequest& request);
  /// A step begins.
  virtual void new_step_starts() {}
  [[nodiscard]] virtual std::int32_t estimate_cached_tokens(const CachedRequest& request) const;

  /// Appends the blocks taken since the last call, if old content in them would do harm.
  void take_new_blocks(std::vector<BlockId>& blocks);
  /// Appends the copies planned since the last call, in the order of planning.
  void take_copies(BlockCopies& copies);

  /// Records a stored event for the first num_tokens, with every block's hash, held or not.
  void report_hit(const CachedRequest& request, std::int32_t num_tokens) const;

  /// The longest hit of at most max_tokens for all of `groups`, which have equal specs; returns its
  /// tokens. `hit` gets one list of blocks for each of `groups`. `drop_last`: the last block (with
  /// partial hits, the last hash unit) is not used, but must be there.
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
  /// The name of block `index`, which is that of its last hash unit.
  [[nodiscard]] const BlockHash& block_hash(std::span<const BlockHash> hashes,
                                            std::int32_t index) const;
  /// Appends the blocks of all `groups` that hold block `index`; false, and nothing appended, if
  /// one of them has none.
  [[nodiscard]] bool append_cached(std::span<const BlockHash> hashes, std::int32_t index,
                                   std::span<const std::int32_t> groups,
                                   std::vector<std::vector<BlockId>>& hit) const;
  /// The same for a prefix of num_tokens, a multiple of the hash unit.
  [[nodiscard]] bool append_prefix(std::span<const BlockHash> hashes, std::int32_t num_tokens,
                                   std::span<const std::int32_t> groups,
                                   std::vector<std::vector<BlockId>>& hit) const;
  /// Shortens the hit until its length is a multiple of the alignment.
  void align(std::vector<std::vector<BlockId>>& hit) const;
  /// Whether block `index` of the request is worth keeping in the prefix cache.
  [[nodiscard]] virtual bool worth_caching(const CachedRequest& request, std::int32_t index) const;
  /// The block also holds the request's first num_tokens tokens, which end inside it or with it. Of
  /// what it was known for until now, shorter prefixes are forgotten.
  void add_prefix_key(const CachedRequest& request, BlockId block, std::int32_t num_tokens);
  /// The hit ends inside its last block.
  [[nodiscard]] bool ends_inside(std::span<const BlockId> hit, std::int32_t num_hit_tokens) const {
    return num_hit_tokens % block_size() != 0 &&
           static_cast<std::int32_t>(hit.size()) == ceil_div(num_hit_tokens, block_size());
  }
  [[nodiscard]] std::int32_t num_unreferenced(std::span<const BlockId> hit) const;
  /// Puts a copy in the place of a shared tail.
  void replace_shared_tail(CachedRequest& request);
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

// One file for each manager, with the kinds of layers that it is for.
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
/// Not to be called: layers without a cache are in no group.
[[nodiscard]] std::unique_ptr<GroupManager> make_manager(const EncoderOnlyAttentionSpec&,
                                                         const GroupManager::Group&);

[[nodiscard]] inline std::unique_ptr<GroupManager> make_group_manager(
    const GroupManager::Group& group) {
  return std::visit([&](const auto& kind) { return make_manager(kind, group); }, group.spec.kind);
}

}  // namespace troupe
