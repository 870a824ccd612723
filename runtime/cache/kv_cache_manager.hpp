#pragma once
// The KVCacheManager: block tables of the requests, and the prefix cache.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "messages/cache.hpp"
#include "messages/scheduler_output.hpp"
#include "runtime/cache/block_hash.hpp"
#include "runtime/cache/block_pool.hpp"
#include "runtime/cache/cache_coordinator.hpp"
#include "runtime/cache/kv_cache_settings.hpp"

namespace troupe {

/// Owns the block pool, the prefix cache, and the block tables and hashes of all requests.
///
/// Two layers. The messages: apply(), allocate(), lookup(), admit(), get_block_ops(), reset() and
/// so on are called by the actor (or a test's port), one per message. They use the operations on
/// one request, which are named as in vLLM.
class KVCacheManager {
 public:
  explicit KVCacheManager(const KVCacheSettings& settings);

  // ---- messages ----
  void apply(const KVCacheUpdates& updates);
  [[nodiscard]] SlotsAllocated allocate(const AllocateSlots& question);
  [[nodiscard]] PrefixHit lookup(const LookupPrefix& question);
  [[nodiscard]] RequestAdmitted admit(const AdmitRequest& question);
  [[nodiscard]] BlockOps get_block_ops(const GetBlockOps& question);
  [[nodiscard]] BlockTableRead read_block_table(const ReadBlockTable& question);
  [[nodiscard]] InvalidBlocksFound find_invalid_blocks(const FindInvalidBlocks& question);
  [[nodiscard]] PrefixCacheReset reset(const ResetPrefixCache& question);
  [[nodiscard]] std::vector<KVCacheEvent> take_events();
  /// The block metrics, whose time must be set before each message. Null: disabled.
  [[nodiscard]] BlockMetrics* metrics() noexcept { return metrics_ ? &*metrics_ : nullptr; }

  // ---- operations on one request ----
  struct Slots {
    std::int32_t num_computed_tokens = 0;
    std::int32_t num_in_flight_tokens = 0;
    std::int32_t num_new_tokens = 0;
    std::int32_t num_hit_tokens = 0;  ///< of `hit`
    const CacheHit* hit = nullptr;    ///< to adopt; null: none
    std::int32_t num_external_tokens = 0;
    std::int32_t num_lookahead_tokens = 0;
    std::int32_t num_encoder_tokens = 0;  ///< for cross attention
    bool delay_caching = false;
    bool full_sequence_must_fit = false;
    std::int32_t num_watermark_blocks = 0;
    std::int32_t num_reserved_blocks = 0;
  };
  CachedRequest& add_request(KVCacheRequest request);
  /// Pre: the request is known.
  [[nodiscard]] CachedRequest& request(RequestId id);
  [[nodiscard]] const std::unordered_map<RequestId, std::unique_ptr<CachedRequest>>& requests()
      const noexcept {
    return requests_;
  }
  void append_tokens(CachedRequest& request, std::span<const TokenId> token_ids);
  /// The longest cached prefix, at most all tokens but the last.
  [[nodiscard]] CacheHit get_computed_blocks(const CachedRequest& request);
  /// False: not enough free blocks, and none was allocated (blocks outside of the window have been
  /// released nevertheless). Otherwise `new_blocks` receives, per group, the blocks allocated for
  /// tokens to be computed (null: not needed).
  [[nodiscard]] bool allocate_slots(CachedRequest& request, const Slots& slots,
                                    BlockTable* new_blocks);
  void cache_blocks(CachedRequest& request, std::int32_t num_tokens);
  void remove_skipped_blocks(CachedRequest& request, std::int32_t num_processed_tokens);
  void free(CachedRequest& request);
  void forget(RequestId id);
  [[nodiscard]] std::vector<BlockId> pop_blocks_for_free(RequestId id);
  /// Detaches the request's blocks; they stay in use until release_deferred().
  void defer_free(CachedRequest& request);
  /// Frees the blocks of the `count` oldest defer_free(). Pre: there are as many.
  void release_deferred(std::size_t count);
  /// Oldest first; a request's groups are concatenated.
  [[nodiscard]] const std::deque<std::vector<BlockId>>& deferred_frees() const noexcept {
    return deferred_frees_;
  }
  /// Pins the first num_tokens as soon as they are cached.
  void pin_when_cached(CachedRequest& request, std::int32_t num_tokens);
  /// Keeps the cached blocks of the first num_tokens until release_prefix with the same arguments.
  /// `tag` distinguishes prefixes of one request. Bounded: within max_pinned_blocks, for which
  /// older ones are released; if that is not enough, nothing is kept.
  void keep_prefix(CachedRequest& request, std::int32_t num_tokens, std::int32_t tag, bool bounded);
  void release_prefix(RequestId id, std::int32_t tag);
  /// The blocks of bounded prefixes, each counted once.
  [[nodiscard]] std::int32_t num_pinned_blocks() const noexcept {
    return static_cast<std::int32_t>(num_pins_.size());
  }
  bool reset_prefix_cache();
  [[nodiscard]] std::int32_t estimate_cached_tokens(const CachedRequest& request) const;

  void new_step_starts() { coordinator_.new_step_starts(); }
  /// Drops the references that sources and destinations have had until now.
  [[nodiscard]] BlockCopies take_block_copies();
  /// The blocks of the first num_tokens tokens.
  [[nodiscard]] BlockTable clipped_block_table(const CachedRequest& request,
                                               std::int32_t num_tokens) const;

  [[nodiscard]] BlockPool& pool() noexcept { return pool_; }
  [[nodiscard]] const BlockPool& pool() const noexcept { return pool_; }
  [[nodiscard]] CacheCoordinator& coordinator() noexcept { return coordinator_; }
  [[nodiscard]] std::int32_t watermark_blocks() const noexcept { return watermark_blocks_; }
  /// 0..1.
  [[nodiscard]] double usage() const noexcept { return pool_.usage(); }

 private:
  struct KeptPrefix {
    RequestId id{};
    std::int32_t tag = 0;
    bool bounded = false;
    std::vector<BlockId> blocks;
  };
  void settle_pins(CachedRequest& request, std::int32_t num_cached);
  void release(std::deque<KeptPrefix>::iterator kept);
  [[nodiscard]] CacheHit clipped_hit(CacheHit hit, std::int32_t num_tokens) const;
  [[nodiscard]] std::int32_t num_reserved_blocks(const AdmitRequest& question);
  [[nodiscard]] std::vector<BlockResidency> take_evicted();

  KVCacheSettings settings_;
  BlockHasher hasher_;
  std::optional<BlockMetrics> metrics_;
  BlockPool pool_;
  CacheCoordinator coordinator_;
  std::unordered_map<RequestId, std::unique_ptr<CachedRequest>> requests_;
  std::deque<std::vector<BlockId>> deferred_frees_;
  std::deque<KeptPrefix> kept_;                         ///< oldest first
  std::unordered_map<BlockId, std::int32_t> num_pins_;  ///< of blocks that bounded ones keep
  std::int32_t watermark_blocks_ = 0;
  RequestId hit_owner_{};
  CacheHit hit_;  ///< of the last lookup()
};

}  // namespace troupe
