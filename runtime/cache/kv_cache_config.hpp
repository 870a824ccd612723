#pragma once
// From the needs of the model's layers to the layout of the KV cache: which layers share a block
// table, and how many blocks fit.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "messages/cache.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

struct KVCacheLimits {
  std::int64_t available_bytes = 0;
  std::int32_t max_model_len = 0;         ///< tokens
  std::int32_t max_in_flight_tokens = 0;  ///< as in KVCacheSettings
  std::int32_t max_encoder_tokens = 0;    ///< of one request, for cross attention
  std::optional<std::int32_t> num_blocks_override;
  bool shorten = false;  ///< allow less than max_model_len: longest_request() returns the maximum
  /// Off: sliding-window and chunked layers of a mixed model get blocks like full attention; the
  /// results are the same.
  bool hybrid_groups = true;
};

/// How states of layers are kept (MambaSpec).
struct StatePlan {
  bool prefix_caching = false;
  std::int32_t num_draft_tokens = 0;  ///< a state is kept after each
  std::int32_t max_model_len = 0;     ///< tokens
};
/// Completes the specs of layers with states. A state's page is as large as a block of the model's
/// attention layers, whose number of tokens is chosen for that (as in vLLM); with prefix caching,
/// a state can be kept after each such block. Does nothing for models without
/// states.
void plan_states(std::span<KVCacheSpec> layers, const StatePlan& plan);

/// Layers that hold blocks for the same tokens form one group, even if their page sizes differ.
/// Otherwise layers with equal specs are divided into groups of equal size, so that all groups can
/// use the same memory; page sizes are made equal by larger blocks, or else by padding. If this is
/// not possible (latent layers are not padded), sliding-window layers keep all their tokens, if
/// that makes all of them one group. `layers[i]` is the spec of attention layer i; encoder-only
/// layers need nothing and are in no group. Error: page sizes that cannot be made equal.
[[nodiscard]] Result<std::vector<KVCacheGroup>> group_layers(std::span<const KVCacheSpec> layers,
                                                             bool hybrid_groups);

/// Bytes of one block over all tensors of the pool.
[[nodiscard]] std::int64_t bytes_per_block(std::span<const KVCacheGroup> groups);

/// Maximum number of blocks of one request of num_tokens, over all groups.
[[nodiscard]] std::int64_t max_request_blocks(std::span<const KVCacheGroup> groups,
                                              std::int32_t num_tokens, const KVCacheLimits& limits);
/// As above, in bytes.
[[nodiscard]] std::int64_t max_request_bytes(std::span<const KVCacheGroup> groups,
                                             std::int32_t num_tokens, const KVCacheLimits& limits);

/// How many requests of max_model_len tokens fit in the pool at once.
[[nodiscard]] double max_concurrency(const KVCacheConfig& config, const KVCacheLimits& limits);

/// The longest request of at most max_model_len tokens that fits besides the null block.
[[nodiscard]] std::int32_t longest_request(const KVCacheConfig& config,
                                           const KVCacheLimits& limits);

/// Error: a request of max_model_len tokens (or with `shorten`, of a single token) does not fit;
/// the text names the longest one that would.
[[nodiscard]] Result<KVCacheConfig> make_kv_cache_config(std::span<const KVCacheSpec> layers,
                                                         const KVCacheLimits& limits);

}  // namespace troupe
