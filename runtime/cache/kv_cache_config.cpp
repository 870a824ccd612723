#include "runtime/cache/kv_cache_config.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <string>
#include <variant>

#include "runtime/cache/group_manager.hpp"

namespace troupe {
namespace {

using Specs = std::vector<KVCacheSpec>;

bool all_equal(const Specs& specs) {
  return std::all_of(specs.begin(), specs.end(),
                     [&](const KVCacheSpec& spec) { return spec == specs.front(); });
}

/// The parameters that determine for which tokens a layer holds blocks, without those of the page
/// size. Layers with equal ones can share a table.
template <class Kind>
Kind held_tokens(const Kind&) {
  return {};
}
FullAttentionSpec held_tokens(const MlaSpec&) { return {}; }
SlidingWindowSpec held_tokens(const SlidingWindowSpec& kind) { return {.window = kind.window}; }
SlidingWindowSpec held_tokens(const SlidingWindowMlaSpec& kind) { return {.window = kind.window}; }
ChunkedLocalAttentionSpec held_tokens(const ChunkedLocalAttentionSpec& kind) {
  return {.chunk_size = kind.chunk_size};
}
MambaSpec held_tokens(MambaSpec kind) {
  kind.state_bytes = 0;
  return kind;
}

/// Whether the layers hold blocks for the same tokens: then one table serves all, whatever their
/// page sizes.
bool hold_the_same_tokens(const Specs& specs) {
  const auto table_of = [](const KVCacheSpec& spec) {
    KVCacheSpec table{.block_size = spec.block_size};
    std::visit([&](const auto& kind) { table.kind = held_tokens(kind); }, spec.kind);
    return table;
  };
  return std::all_of(specs.begin(), specs.end(), [&](const KVCacheSpec& spec) {
    return table_of(spec) == table_of(specs.front());
  });
}

/// Every layer keeps all its tokens.
template <class Kind>
const Kind& keeping_all_tokens(const Kind& kind) {
  return kind;
}
FullAttentionSpec keeping_all_tokens(const SlidingWindowSpec& kind) { return {kind.token}; }
FullAttentionSpec keeping_all_tokens(const ChunkedLocalAttentionSpec& kind) { return {kind.token}; }
MlaSpec keeping_all_tokens(const SlidingWindowMlaSpec& kind) { return {kind.token}; }
void as_full_attention(Specs& specs) {
  for (KVCacheSpec& spec : specs) {
    const auto kind = spec.kind;
    std::visit([&](const auto& of) { spec.kind = keeping_all_tokens(of); }, kind);
  }
}

Result<void> unify_page_sizes(Specs& specs) {
  std::int64_t largest = 0;
  for (const KVCacheSpec& spec : specs) largest = std::max(largest, spec.page_bytes());
  for (KVCacheSpec& spec : specs) {
    const std::int64_t page = spec.page_bytes();
    if (page == largest) continue;
    if (!spec.is<MambaSpec>() && page > 0 && largest % page == 0) {
      spec.block_size *= static_cast<std::int32_t>(largest / page);
    } else if (!spec.is<MlaSpec>() && !spec.is<SlidingWindowMlaSpec>()) {
      spec.padded_page_bytes = largest;
    } else {
      return Error{ErrorCode::kUnsupported,
                   "a layer's KV page of " + std::to_string(page) +
                       " bytes cannot be made equal to another layer's of " +
                       std::to_string(largest) + " bytes"};
    }
  }
  return {};
}

/// Maximum number of tokens, or states, that a request holds in blocks of the kind's layers.
struct HeldBlocks {
  std::int32_t block_size;
  std::int32_t num_tokens;
  const KVCacheLimits& limits;

  std::int32_t of_all_tokens() const { return ceil_div(num_tokens, block_size); }
  std::int32_t of_window(const AttentionWindow& window) const {
    const std::int32_t held =
        window.num_tokens - 1 + window.extra_retained_tokens + limits.max_in_flight_tokens;
    // One more: the window need not start at a block boundary.
    return ceil_div(std::min(held, num_tokens), block_size) + 1;
  }

  std::int32_t operator()(const FullAttentionSpec&) const { return of_all_tokens(); }
  std::int32_t operator()(const MlaSpec&) const { return of_all_tokens(); }
  std::int32_t operator()(const SinkFullAttentionSpec&) const { return of_all_tokens(); }
  std::int32_t operator()(const SlidingWindowSpec& kind) const { return of_window(kind.window); }
  std::int32_t operator()(const SlidingWindowMlaSpec& kind) const { return of_window(kind.window); }
  std::int32_t operator()(const ChunkedLocalAttentionSpec& kind) const {
    return ceil_div(std::min(kind.chunk_size + limits.max_in_flight_tokens, num_tokens),
                    block_size);
  }
  std::int32_t operator()(const MambaSpec& kind) const {
    return kind.mode == MambaMode::kAlign
               ? 2 + kind.num_speculative_blocks + kind.num_prefill_checkpoint_blocks
               : 1 + kind.num_speculative_blocks;
  }
  std::int32_t operator()(const CrossAttentionSpec&) const {
    return ceil_div(limits.max_encoder_tokens, block_size);
  }
  std::int32_t operator()(const EncoderOnlyAttentionSpec&) const { return 0; }
};

std::int32_t max_blocks_of_group(const KVCacheSpec& spec, std::int32_t num_tokens,
                                 const KVCacheLimits& limits) {
  return std::visit(HeldBlocks{spec.block_size, num_tokens, limits}, spec.kind);
}

/// Number of tokens that share a state of the layer.
std::int32_t tokens_per_state(const KVCacheSpec& spec) {
  return spec.token() == nullptr ? 1 : spec.token()->tokens_per_state;
}

/// Of one block, over the tensors that the group uses.
std::int64_t bytes_of_group(const KVCacheGroup& group) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < group.layers.size(); ++i) bytes += group.layer_spec(i).page_bytes();
  return bytes;
}

/// In the largest unit with a value of at least one, with two decimals: "1.50 GiB", "300 bytes".
std::string size_text(std::int64_t bytes) {
  constexpr std::array<const char*, 3> kUnits = {" KiB", " MiB", " GiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  std::size_t unit = 0;
  double size = static_cast<double>(bytes) / 1024;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", size);
  return std::string(text.data()) + kUnits[unit];
}

}  // namespace

void plan_states(std::span<KVCacheSpec> layers, const StatePlan& plan) {
  std::int64_t state_bytes = 0;
  std::int64_t token_page = 0;  // the largest of attention
  std::int32_t block_size = 0;
  for (const KVCacheSpec& layer : layers) {
    if (const auto* states = std::get_if<MambaSpec>(&layer.kind)) {
      state_bytes = std::max(state_bytes, states->state_bytes);
      block_size = std::max(block_size, layer.block_size);
    } else {
      token_page = std::max(token_page, layer.page_bytes());
    }
  }
  if (state_bytes == 0) return;
  std::int64_t page = state_bytes;
  if (token_page > 0) {
    const auto factor = static_cast<std::int32_t>((state_bytes + token_page - 1) / token_page);
    page = factor * token_page;
    for (KVCacheSpec& layer : layers)
      if (!layer.is<MambaSpec>()) layer.block_size *= factor;
    block_size *= factor;
  }
  for (KVCacheSpec& layer : layers) {
    auto* const states = std::get_if<MambaSpec>(&layer.kind);
    if (states == nullptr) continue;
    states->mode = plan.prefix_caching ? MambaMode::kAlign : MambaMode::kNone;
    states->num_speculative_blocks = plan.num_draft_tokens;
    layer.block_size = plan.prefix_caching ? block_size : plan.max_model_len;
    layer.padded_page_bytes = states->state_bytes == page ? 0 : page;
  }
}

Result<std::vector<KVCacheGroup>> group_layers(std::span<const KVCacheSpec> layers,
                                               bool hybrid_groups) {
  // Without the layers that need no cache; `ids` are the indices of the others.
  Specs specs;
  std::vector<std::int32_t> ids;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer].is<EncoderOnlyAttentionSpec>()) continue;
    RETURN_IF_ERROR(check_kind(layers[layer]));
    const KVCacheSpec& spec = layers[layer];
    if (spec.block_size < 1 || tokens_per_state(spec) < 1 || spec.page_bytes() < 1) {
      return invalid_argument("layer " + std::to_string(layer) + " has no KV cache: blocks of " +
                              std::to_string(spec.block_size) + " tokens, a state for " +
                              std::to_string(tokens_per_state(spec)));
    }
    specs.push_back(layers[layer]);
    ids.push_back(static_cast<std::int32_t>(layer));
  }
  if (specs.empty()) return std::vector<KVCacheGroup>();
  if (!hybrid_groups && !all_equal(specs)) as_full_attention(specs);
  const auto one_group = [&](Specs layer_specs) {
    KVCacheGroup group{.spec = layer_specs.front(), .layers = ids};
    if (!all_equal(layer_specs)) group.layer_specs = std::move(layer_specs);
    return std::vector<KVCacheGroup>{std::move(group)};
  };
  if (hold_the_same_tokens(specs)) return one_group(std::move(specs));
  Specs unified = specs;
  if (const Result<void> done = unify_page_sizes(unified); !done.ok()) {
    // Latent layers besides sliding windows: the windows are then not used to save memory.
    as_full_attention(specs);
    if (hold_the_same_tokens(specs)) return one_group(std::move(specs));
    return done.error();
  }
  specs = std::move(unified);

  std::vector<KVCacheGroup> buckets;
  for (std::size_t layer = 0; layer < specs.size(); ++layer) {
    auto bucket = std::find_if(buckets.begin(), buckets.end(), [&](const KVCacheGroup& other) {
      return other.spec == specs[layer];
    });
    if (bucket == buckets.end()) bucket = buckets.insert(bucket, {specs[layer], {}});
    bucket->layers.push_back(ids[layer]);
  }

  std::size_t smallest = std::numeric_limits<std::size_t>::max(), largest = 0;
  for (const KVCacheGroup& bucket : buckets) {
    smallest = std::min(smallest, bucket.layers.size());
    largest = std::max(largest, bucket.layers.size());
  }
  // Groups of similar size: a little padding is better than many groups.
  const std::size_t group_size = 2 * largest < 3 * smallest ? largest : smallest;
  std::vector<KVCacheGroup> groups;
  for (const KVCacheGroup& bucket : buckets) {
    const std::size_t num_groups = (bucket.layers.size() + group_size - 1) / group_size;
    for (std::size_t first = 0; first < num_groups; ++first) {
      KVCacheGroup& group = groups.emplace_back(KVCacheGroup{bucket.spec, {}});
      for (std::size_t i = first; i < bucket.layers.size(); i += num_groups)
        group.layers.push_back(bucket.layers[i]);
    }
  }
  return groups;
}

std::int64_t bytes_per_block(std::span<const KVCacheGroup> groups) {
  std::int64_t bytes = 0;
  for (const KVCacheGroup& group : groups) bytes = std::max(bytes, bytes_of_group(group));
  return bytes;
}

std::int64_t max_request_blocks(std::span<const KVCacheGroup> groups, std::int32_t num_tokens,
                                const KVCacheLimits& limits) {
  std::int64_t num_blocks = 0;
  for (const KVCacheGroup& group : groups)
    num_blocks += max_blocks_of_group(group.spec, num_tokens, limits);
  return num_blocks;
}

std::int64_t max_request_bytes(std::span<const KVCacheGroup> groups, std::int32_t num_tokens,
                               const KVCacheLimits& limits) {
  return max_request_blocks(groups, num_tokens, limits) * bytes_per_block(groups);
}

double max_concurrency(const KVCacheConfig& config, const KVCacheLimits& limits) {
  const std::int64_t each = max_request_blocks(config.groups, limits.max_model_len, limits);
  return each == 0 ? 0 : static_cast<double>(config.num_blocks) / static_cast<double>(each);
}

std::int32_t longest_request(const KVCacheConfig& config, const KVCacheLimits& limits) {
  // The null block holds nothing.
  const std::int64_t usable = std::int64_t{config.num_blocks} - 1;
  const auto fits = [&](std::int32_t num_tokens) {
    return max_request_blocks(config.groups, num_tokens, limits) <= usable;
  };
  if (fits(limits.max_model_len)) return limits.max_model_len;
  std::int32_t longest = 0, too_long = limits.max_model_len;
  while (too_long - longest > 1) {
    const std::int32_t middle = longest + (too_long - longest) / 2;
    (fits(middle) ? longest : too_long) = middle;
  }
  return longest;
}

Result<KVCacheConfig> make_kv_cache_config(std::span<const KVCacheSpec> layers,
                                           const KVCacheLimits& limits) {
  KVCacheConfig config;
  ASSIGN_OR_RETURN(config.groups, group_layers(layers, limits.hybrid_groups));
  if (config.groups.empty()) {
    config.num_blocks = 1;
    return config;
  }
  const std::int64_t block_bytes = bytes_per_block(config.groups);
  const std::int64_t num_blocks = limits.num_blocks_override
                                      ? std::int64_t{*limits.num_blocks_override}
                                      : limits.available_bytes / block_bytes;
  config.num_blocks = static_cast<std::int32_t>(
      std::min<std::int64_t>(num_blocks, std::numeric_limits<std::int32_t>::max() - 1));
  for (const KVCacheGroup& group : config.groups) {
    for (std::size_t i = 0; i < group.layers.size(); ++i) {
      if (i == config.page_bytes.size()) config.page_bytes.push_back(0);
      config.page_bytes[i] = std::max(config.page_bytes[i], group.layer_spec(i).page_bytes());
    }
  }

  const std::int32_t longest = longest_request(config, limits);
  if (longest == limits.max_model_len || (limits.shorten && longest > 0)) return config;
  const std::int64_t usable = (std::int64_t{config.num_blocks} - 1) * block_bytes;
  const std::int64_t needed = max_request_bytes(config.groups, limits.max_model_len, limits);
  return Error{ErrorCode::kInvalidArgument,
               "one request of max_model_len " + std::to_string(limits.max_model_len) +
                   " tokens needs " + size_text(needed) + " of KV cache, but " +
                   size_text(std::max<std::int64_t>(usable, 0)) + " are available (" +
                   std::to_string(config.num_blocks) + " blocks); the estimated maximum is " +
                   std::to_string(longest) +
                   " tokens: lower max_model_len or give the KV cache more memory",
               "max_model_len"};
}

}  // namespace troupe
