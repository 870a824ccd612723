#pragma once
// The KV cache: what each layer needs, how layers share blocks, and the messages between Scheduler
// and KVCacheManager in a step.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "messages/ids.hpp"
#include "messages/reflect.hpp"
#include "messages/request.hpp"
#include "messages/shared_vector.hpp"

namespace troupe {

enum class DType : std::uint8_t { kF32, kBF16, kF16, kI8, kI32, kU8, kF8E4M3 };

[[nodiscard]] constexpr std::int64_t dtype_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    default:
      return 1;
  }
}

/// How a Mamba group keeps its states: one running state per request, or also states at block
/// boundaries that later requests can start from.
enum class MambaMode : std::uint8_t { kNone, kAlign };

/// The cache entry of a token in attention layers, per KV head.
struct TokenShape {
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  DType dtype = DType::kF32;
  std::int32_t head_dim_v = 0;        ///< of the values; 0: head_dim
  std::int32_t tokens_per_state = 1;  ///< compressed attention: tokens per cache entry
  std::int32_t scale_bytes = 0;       ///< per token and KV head, of the key and of the value

  /// For the keys and values of `block_size` tokens.
  [[nodiscard]] constexpr std::int64_t bytes(std::int32_t block_size) const noexcept {
    return bytes(block_size, head_dim_v != 0 ? head_dim_v : head_dim, 2);
  }
  /// For latent vectors, each of which is both key and value (MLA).
  [[nodiscard]] constexpr std::int64_t latent_bytes(std::int32_t block_size) const noexcept {
    return bytes(block_size, 0, 1);
  }
  bool operator==(const TokenShape&) const = default;

 private:
  [[nodiscard]] constexpr std::int64_t bytes(std::int32_t block_size, std::int64_t value_dim,
                                             std::int64_t num_scales) const noexcept {
    const std::int64_t token_bytes =
        (head_dim + value_dim) * dtype_bytes(dtype) + num_scales * scale_bytes;
    return num_kv_heads * token_bytes * (block_size / tokens_per_state);
  }
};
TROUPE_MESSAGE(TokenShape, num_kv_heads, head_dim, dtype, head_dim_v, tokens_per_state, scale_bytes)

// The kinds of layers, by their cache needs. kName is vLLM's name in events, page_bytes the size of
// a block of one layer.

/// A token attends to all tokens before it.
struct FullAttentionSpec {
  TokenShape token;

  static constexpr const char* kName = "full_attention";
  [[nodiscard]] constexpr std::int64_t page_bytes(std::int32_t block_size) const noexcept {
    return token.bytes(block_size);
  }
  bool operator==(const FullAttentionSpec&) const = default;
};
TROUPE_MESSAGE(FullAttentionSpec, token)

/// Multi-head latent attention (arXiv 2405.04434): one latent vector per token for all heads.
struct MlaSpec {
  TokenShape token;

  static constexpr const char* kName = "mla_attention";
  [[nodiscard]] constexpr std::int64_t page_bytes(std::int32_t block_size) const noexcept {
    return token.latent_bytes(block_size);
  }
  bool operator==(const MlaSpec&) const = default;
};
TROUPE_MESSAGE(MlaSpec, token)

/// Full attention with additional sink tokens that every token attends to.
struct SinkFullAttentionSpec {
  TokenShape token;

  static constexpr const char* kName = "sink_full_attention";
  [[nodiscard]] constexpr std::int64_t page_bytes(std::int32_t block_size) const noexcept {
    return token.bytes(block_size);
  }
  bool operator==(const SinkFullAttentionSpec&) const = default;
};
TROUPE_MESSAGE(SinkFullAttentionSpec, token)

/// The sliding window of an attention layer.
struct AttentionWindow {
  std::int32_t num_tokens = 0;             ///< including itself
  std::int32_t extra_retained_tokens = 0;  ///< kept in front of the window
  bool operator==(const AttentionWindow&) const = default;
};
TROUPE_MESSAGE(AttentionWindow, num_tokens, extra_retained_tokens)

struct SlidingWindowSpec {
  TokenShape token;
  AttentionWindow window;

  static constexpr const char* kName = "sliding_window";
  [[nodiscard]] constexpr std::int64_t page_bytes(std::int32_t block_size) const noexcept {
    return token.bytes(block_size);
  }
  bool operator==(const SlidingWindowSpec&) const = default;
};
TROUPE_MESSAGE(SlidingWindowSpec, token, window)

struct SlidingWindowMlaSpec {
  TokenShape token;
  AttentionWindow window;

  static constexpr const char* kName = "sliding_window_mla";
  [[nodiscard]] constexpr std::int64_t page_bytes(std::int32_t block_size) const noexcept {
    return token.latent_bytes(block_size);
  }
  bool operator==(const SlidingWindowMlaSpec&) const = default;
};
TROUPE_MESSAGE(SlidingWindowMlaSpec, token, window)

/// A token attends to its chunk, up to itself.
struct ChunkedLocalAttentionSpec {
  TokenShape token;
  std::int32_t chunk_size = 0;  ///< tokens

  static constexpr const char* kName = "chunked_local_attention";
  [[nodiscard]] constexpr std::int64_t page_bytes(std::int32_t block_size) const noexcept {
    return token.bytes(block_size);
  }
  bool operator==(const ChunkedLocalAttentionSpec&) const = default;
};
TROUPE_MESSAGE(ChunkedLocalAttentionSpec, token, chunk_size)

/// Cross attention: a token attends to the encoder's output.
struct CrossAttentionSpec {
  TokenShape token;

  static constexpr const char* kName = "cross_attention";
  [[nodiscard]] constexpr std::int64_t page_bytes(std::int32_t block_size) const noexcept {
    return token.bytes(block_size);
  }
  bool operator==(const CrossAttentionSpec&) const = default;
};
TROUPE_MESSAGE(CrossAttentionSpec, token)

/// Attends within the current step only: no cache.
struct EncoderOnlyAttentionSpec {
  static constexpr const char* kName = "encoder_only_attention";
  [[nodiscard]] constexpr std::int64_t page_bytes(std::int32_t) const noexcept { return 0; }
  bool operator==(const EncoderOnlyAttentionSpec&) const = default;
};
TROUPE_MESSAGE(EncoderOnlyAttentionSpec)

/// State space models (arXiv 2312.00752): a block holds the recurrent state after some token, which
/// depends on all tokens up to it.
struct MambaSpec {
  std::int64_t state_bytes = 0;
  MambaMode mode = MambaMode::kNone;
  std::int32_t num_speculative_blocks = 0;
  std::int32_t num_prefill_checkpoint_blocks = 0;  ///< 0 or 1
  std::int32_t prefill_checkpoint_alignment = 0;   ///< tokens; 0: no checkpoints

  static constexpr const char* kName = "mamba";
  [[nodiscard]] constexpr std::int64_t page_bytes(std::int32_t) const noexcept {
    return state_bytes;
  }
  bool operator==(const MambaSpec&) const = default;
};
TROUPE_MESSAGE(MambaSpec, state_bytes, mode, num_speculative_blocks, num_prefill_checkpoint_blocks,
               prefill_checkpoint_alignment)

/// What one layer needs of the cache. Two layers with equal specs may share a group.
struct KVCacheSpec {
  std::variant<FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MambaSpec,
               CrossAttentionSpec, MlaSpec, SinkFullAttentionSpec, SlidingWindowMlaSpec,
               EncoderOnlyAttentionSpec>
      kind;
  std::int32_t block_size = 16;        ///< tokens in a block
  std::int64_t padded_page_bytes = 0;  ///< allocated page size; 0: the size of its content

  template <class Kind>
  [[nodiscard]] constexpr bool is() const noexcept {
    return std::holds_alternative<Kind>(kind);
  }
  /// The cache entry of a token; null: there is none.
  [[nodiscard]] const TokenShape* token() const noexcept {
    return std::visit([](const auto& spec) { return token_of(spec); }, kind);
  }
  [[nodiscard]] TokenShape* token() noexcept {
    return std::visit([](auto& spec) { return token_of(spec); }, kind);
  }
  /// The attention window; null: none.
  [[nodiscard]] const AttentionWindow* window() const noexcept {
    return std::visit(
        [](const auto& spec) -> const AttentionWindow* {
          if constexpr (requires { spec.window; }) return &spec.window;
          return nullptr;
        },
        kind);
  }
  /// vLLM's name of the kind.
  [[nodiscard]] const char* kind_name() const noexcept {
    return std::visit([](const auto& spec) { return spec.kName; }, kind);
  }
  /// Bytes of one block of one layer, keys and values (or the latent, or the state) together.
  [[nodiscard]] std::int64_t page_bytes() const noexcept {
    if (padded_page_bytes != 0) return padded_page_bytes;
    return std::visit([&](const auto& spec) { return spec.page_bytes(block_size); }, kind);
  }
  bool operator==(const KVCacheSpec&) const = default;

 private:
  template <class Spec>
  [[nodiscard]] static auto token_of(Spec& spec) noexcept
      -> std::conditional_t<std::is_const_v<Spec>, const TokenShape*, TokenShape*> {
    if constexpr (requires { spec.token; }) return &spec.token;
    return nullptr;
  }
};
TROUPE_MESSAGE(KVCacheSpec, kind, block_size, padded_page_bytes)

/// The cache spec of a layer of the model. Layers with a cache are numbered over all stages.
struct LayerCacheSpec {
  std::int32_t layer = 0;
  KVCacheSpec spec;
  bool operator==(const LayerCacheSpec&) const = default;
};
TROUPE_MESSAGE(LayerCacheSpec, layer, spec)

/// Layers that share one block table. Layer `layers[i]` keeps its pages in tensor i of the pool.
struct KVCacheGroup {
  KVCacheSpec spec;
  std::vector<std::int32_t> layers;  ///< LayerCacheSpec::layer
  bool eagle = false;                ///< holds layers of an EAGLE-like drafter
  /// Parallel to `layers` where their page layouts differ; all attend to the same tokens, as `spec`
  /// says. Empty: `spec` holds for each.
  std::vector<KVCacheSpec> layer_specs;

  [[nodiscard]] const KVCacheSpec& layer_spec(std::size_t i) const {
    return layer_specs.empty() ? spec : layer_specs[i];
  }
  bool operator==(const KVCacheGroup&) const = default;
};
TROUPE_MESSAGE(KVCacheGroup, spec, layers, eagle, layer_specs)

/// One pool of `num_blocks` blocks for all groups: a block id belongs to one group at a time. The
/// worker keeps as many tensors of `num_blocks` pages as the largest group has layers; in every
/// group layer i uses tensor i.
struct KVCacheConfig {
  std::int32_t num_blocks = 0;           ///< the null block included
  std::vector<std::int64_t> page_bytes;  ///< per tensor: of one block
  std::vector<KVCacheGroup> groups;
  bool operator==(const KVCacheConfig&) const = default;
};
TROUPE_MESSAGE(KVCacheConfig, num_blocks, page_bytes, groups)

/// The lifetime of one content in a block, seconds: from its allocation to its next allocation.
struct BlockResidency {
  double lifetime_s = 0;
  double idle_s = 0;                 ///< since the last hit; without one, all of it
  std::vector<double> reuse_gaps_s;  ///< between its last hits
  bool operator==(const BlockResidency&) const = default;
};
TROUPE_MESSAGE(BlockResidency, lifetime_s, idle_s, reuse_gaps_s)

// ---- Scheduler -> KVCacheManager, one-way ----

/// What the KVCacheManager needs to know of a request to hash its blocks.
struct KVCacheRequest {
  RequestId id{};
  SharedVector<TokenId> token_ids;  ///< the prompt, and outputs generated before
  std::int32_t num_prompt_tokens = 0;
  std::vector<MultiModalFeature> mm_features;  ///< without data
  std::optional<LoraRequest> lora;
  std::string cache_salt;
  bool skip_reading_prefix_cache = false;
  bool report_all_hits = false;  ///< a hit is reported as stored blocks again
  std::string session_id;        ///< only copied into KV events
  /// A prompt given as embeddings: its rows, little-endian, one per token; null: none.
  std::shared_ptr<const std::vector<char>> prompt_embeds;
  std::int32_t prompt_embed_row_bytes = 0;
  bool operator==(const KVCacheRequest&) const = default;
};
TROUPE_MESSAGE(KVCacheRequest, id, token_ids, num_prompt_tokens, mm_features, lora, cache_salt,
               skip_reading_prefix_cache, report_all_hits, session_id, prompt_embeds,
               prompt_embed_row_bytes)

enum class KVCacheCommandKind : std::uint8_t {
  kAppendTokens,     ///< `count` tokens, the next ones of KVCacheUpdates::token_ids
  kCacheBlocks,      ///< add the full blocks of the first `count` tokens to the prefix cache
  kFreeBlocks,       ///< free all blocks; the request stays known
  kForgetRequest,    ///< free all blocks and forget the request
  kTruncate,         ///< keep `count` tokens, which become the prompt
  kExtendPrompt,     ///< as kAppendTokens, but they belong to the prompt
  kNewStep,          ///< a step begins (no request): needed only by Mamba groups with cached states
  kDeferFree,        ///< detach all blocks, to be freed by kReleaseDeferred
  kReleaseDeferred,  ///< free the blocks of the `count` oldest kDeferFree (no request)
  kPinPrefix,        ///< pin the first `count` tokens once they are cached, within the limit
  kKeepPrefix,       ///< pin what is cached of the first `count` tokens
  kReleasePrefix,    ///< unpin all that was pinned for this request, which may have ended
};

struct KVCacheCommand {
  KVCacheCommandKind kind{};
  RequestId id{};
  std::int32_t count = 0;
  bool operator==(const KVCacheCommand&) const = default;
};
TROUPE_MESSAGE(KVCacheCommand, kind, id, count)

/// What happened since the previous message: first the new requests, then the commands in order.
/// Sent with the next query of a step, so that a plain decode step is one round trip.
struct KVCacheUpdates {
  std::vector<KVCacheRequest> new_requests;
  std::vector<KVCacheCommand> commands;
  std::vector<TokenId> token_ids;  ///< of all kAppendTokens and kExtendPrompt, in order
  std::vector<std::pair<RequestId, MultiModalFeature>> new_mm_features;  ///< of kExtendPrompt
  [[nodiscard]] bool empty() const noexcept {
    return new_requests.empty() && commands.empty() && new_mm_features.empty();
  }
  void clear() noexcept {
    new_requests.clear(), commands.clear(), token_ids.clear(), new_mm_features.clear();
  }
  bool operator==(const KVCacheUpdates&) const = default;
};
TROUPE_MESSAGE(KVCacheUpdates, new_requests, commands, token_ids, new_mm_features)

// ---- Scheduler -> KVCacheManager, request and reply ----

/// One running request that wants to compute num_new_tokens more.
struct SlotDemand {
  RequestId id{};
  std::int32_t num_new_tokens = 0;  ///< 0: no slots, only num_cached_tokens is wanted
  std::int32_t num_computed_tokens = 0;
  std::int32_t num_in_flight_tokens = 0;  ///< scheduled, result not yet processed
  bool operator==(const SlotDemand&) const = default;
};
TROUPE_MESSAGE(SlotDemand, id, num_new_tokens, num_computed_tokens, num_in_flight_tokens)

/// Allocate in this order, stop at the first that does not fit.
struct AllocateSlots {
  KVCacheUpdates updates;
  std::int32_t num_lookahead_tokens = 0;
  std::vector<SlotDemand> demands;
  bool operator==(const AllocateSlots&) const = default;
};
TROUPE_MESSAGE(AllocateSlots, updates, num_lookahead_tokens, demands)

struct SlotsAllocated {
  std::int32_t num_allocated = 0;  ///< demands that fit; if not all, the next one does not fit
  /// New blocks, flat: demand i, group g got block_counts[i * num_groups + g] of them.
  std::vector<BlockId> block_ids;
  std::vector<std::int32_t> block_counts;  ///< empty if no demand got a block
  /// Per demand: length of the request's longest prefix in the prefix cache; -1 if the result of
  /// the step that ends its prompt is known. Empty if all are -1.
  std::vector<std::int32_t> num_cached_tokens;
  std::int32_t num_free_blocks = 0;
  std::int32_t num_pinned_blocks = 0;
  std::vector<BlockResidency> evicted;  ///< since the last reply, sampled
  bool operator==(const SlotsAllocated&) const = default;
};
TROUPE_MESSAGE(SlotsAllocated, num_allocated, block_ids, block_counts, num_cached_tokens,
               num_free_blocks, num_pinned_blocks, evicted)

/// Finds the cached prefix of a request. The hit is kept until the next lookup.
struct LookupPrefix {
  KVCacheUpdates updates;
  RequestId id{};
  bool operator==(const LookupPrefix&) const = default;
};
TROUPE_MESSAGE(LookupPrefix, updates, id)

struct PrefixHit {
  std::int32_t num_tokens = 0;
  /// Where the request diverges from what others have computed, if some attention kinds no longer
  /// hold it.
  std::int32_t shared_prefix_boundary = 0;
  std::int32_t num_free_blocks = 0;
  bool operator==(const PrefixHit&) const = default;
};
TROUPE_MESSAGE(PrefixHit, num_tokens, shared_prefix_boundary, num_free_blocks)

/// A request that is certain to need more blocks: its prefill, or the load of its KV, is under way.
struct UnfinishedPrefill {
  RequestId id{};
  std::int32_t num_computed_tokens = 0;
  bool operator==(const UnfinishedPrefill&) const = default;
};
TROUPE_MESSAGE(UnfinishedPrefill, id, num_computed_tokens)

/// Admits a waiting request: takes the hit of the last LookupPrefix and allocates the rest.
struct AdmitRequest {
  KVCacheUpdates updates;
  RequestId id{};
  std::int32_t num_computed_tokens = 0;  ///< before the hit
  std::int32_t num_in_flight_tokens = 0;
  std::int32_t num_hit_tokens = 0;  ///< tokens of the hit to use, all or without its last blocks
  bool use_hit = false;
  std::int32_t num_external_tokens = 0;
  std::int32_t num_new_tokens = 0;
  std::int32_t num_lookahead_tokens = 0;
  std::int32_t num_encoder_tokens = 0;  ///< for cross attention: of the encoder inputs
  bool delay_caching = false;           ///< the external tokens arrive later
  bool full_sequence_must_fit = false;
  bool keep_watermark = false;  ///< leave the watermark's blocks free
  /// Reserve the blocks that these still need for all their tokens and num_reserved_tokens more,
  /// plus num_reserved_tokens of one further request.
  std::vector<UnfinishedPrefill> reserve_for;
  std::int32_t num_reserved_tokens = 0;
  bool operator==(const AdmitRequest&) const = default;
};
TROUPE_MESSAGE(AdmitRequest, updates, id, num_computed_tokens, num_in_flight_tokens, num_hit_tokens,
               use_hit, num_external_tokens, num_new_tokens, num_lookahead_tokens,
               num_encoder_tokens, delay_caching, full_sequence_must_fit, keep_watermark,
               reserve_for, num_reserved_tokens)

struct RequestAdmitted {
  bool fits = false;
  std::vector<BlockId> block_ids;          ///< the whole block table, group after group
  std::vector<std::int32_t> block_counts;  ///< per group
  std::int32_t num_cached_tokens = 0;      ///< as in SlotsAllocated
  std::int32_t num_free_blocks = 0;
  std::int32_t num_pinned_blocks = 0;   ///< by kPinPrefix
  std::vector<BlockResidency> evicted;  ///< as in SlotsAllocated
  bool operator==(const RequestAdmitted&) const = default;
};
TROUPE_MESSAGE(RequestAdmitted, fits, block_ids, block_counts, num_cached_tokens, num_free_blocks,
               num_pinned_blocks, evicted)

/// Block operations that the workers must perform before the step; requested once per step, only
/// with Mamba groups.
struct GetBlockOps {
  KVCacheUpdates updates;
  bool operator==(const GetBlockOps&) const = default;
};
TROUPE_MESSAGE(GetBlockOps, updates)

struct BlockOps {
  std::vector<BlockId> blocks_to_zero;
  std::vector<std::pair<BlockId, BlockId>> block_copies;  ///< source, destination
  std::int32_t num_free_blocks = 0;
  bool operator==(const BlockOps&) const = default;
};
TROUPE_MESSAGE(BlockOps, blocks_to_zero, block_copies, num_free_blocks)

/// The blocks of a finished request, for the KV connector. Those outside the window are freed
/// first.
struct ReadBlockTable {
  KVCacheUpdates updates;
  RequestId id{};
  std::int32_t num_computed_tokens = 0;  ///< the table ends with the blocks of these
  std::int32_t num_in_flight_tokens = 0;
  bool operator==(const ReadBlockTable&) const = default;
};
TROUPE_MESSAGE(ReadBlockTable, updates, id, num_computed_tokens, num_in_flight_tokens)

struct BlockTableRead {
  std::vector<std::vector<BlockId>> block_ids;  ///< per KV-cache group
  std::int32_t num_free_blocks = 0;
  bool operator==(const BlockTableRead&) const = default;
};
TROUPE_MESSAGE(BlockTableRead, block_ids, num_free_blocks)

/// The KV connector could not load these blocks. Only with one KV-cache group.
struct FindInvalidBlocks {
  struct Loaded {
    RequestId id{};
    std::int32_t num_tokens = 0;  ///< its blocks up to here may have been loaded
    bool operator==(const Loaded&) const = default;
  };
  KVCacheUpdates updates;
  std::vector<BlockId> block_ids;
  std::vector<Loaded> loading;  ///< in the background
  std::vector<Loaded> running;
  /// Remove the running requests' blocks from the prefix cache, from the first invalid one on.
  bool drop_content = false;
  bool operator==(const FindInvalidBlocks&) const = default;
};
TROUPE_MESSAGE(FindInvalidBlocks::Loaded, id, num_tokens)
TROUPE_MESSAGE(FindInvalidBlocks, updates, block_ids, loading, running, drop_content)

/// Parallel to the requests: tokens before the first invalid block that no earlier request will
/// recompute (num_tokens if there is none); -1: no invalid block at all.
struct InvalidBlocksFound {
  std::vector<std::int32_t> loading;
  std::vector<std::int32_t> running;
  std::int32_t num_free_blocks = 0;
  bool operator==(const InvalidBlocksFound&) const = default;
};
TROUPE_MESSAGE(InvalidBlocksFound, loading, running, num_free_blocks)

struct ResetPrefixCache {
  KVCacheUpdates updates;
  bool operator==(const ResetPrefixCache&) const = default;
};
TROUPE_MESSAGE(ResetPrefixCache, updates)

struct PrefixCacheReset {
  bool ok = false;  ///< false: blocks are in use, nothing was changed
  std::int32_t num_free_blocks = 0;
  bool operator==(const PrefixCacheReset&) const = default;
};
TROUPE_MESSAGE(PrefixCacheReset, ok, num_free_blocks)

}  // namespace troupe
