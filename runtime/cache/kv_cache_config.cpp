#include "runtime/cache/kv_cache_config.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <string>

#include "runtime/cache/group_manager.hpp"

namespace troupe {
namespace {

using Specs = std::vector<KVCacheSpec>;

bool all_equal(const Specs& specs) {
  return std::all_of(specs.begin(), specs.end(),
                     [&](const KVCacheSpec& spec) { return spec == specs.front(); });
}

/// Kinds whose layers hold blocks for the same tokens if their parameters agree.
KVCacheKind family(KVCacheKind kind) {
  switch (kind) {
    case KVCacheKind::kMla:
      return KVCacheKind::kFullAttention;
    case KVCacheKind::kSlidingWindowMla:
      return KVCacheKind::kSlidingWindow;
    default:
      return kind;
  }
}

/// The layers hold blocks for the same tokens: one table serves all, whatever a token takes in
/// each.
bool hold_the_same_tokens(const Specs& specs) {
  return std::all_of(specs.begin(), specs.end(), [&](KVCacheSpec spec) {
    // What decides the size of a page, but not which tokens it is for.
    const KVCacheSpec& first = specs.front();
    if (family(spec.kind) != family(first.kind)) return false;
    spec.kind = first.kind;
    spec.num_kv_heads = first.num_kv_heads;
    spec.head_dim = first.head_dim;
    spec.head_dim_v = first.head_dim_v;
    spec.dtype = first.dtype;
    spec.scale_bytes = first.scale_bytes;
    spec.state_bytes = first.state_bytes;
    spec.padded_page_bytes = first.padded_page_bytes;
    spec.tokens_per_state = first.tokens_per_state;
    return spec == first;
  });
}

/// Every layer keeps all its tokens.
void as_full_attention(Specs& specs) {
  for (KVCacheSpec& spec : specs) {
    if (spec.kind == KVCacheKind::kSlidingWindowMla)
      spec.kind = KVCacheKind::kMla;
    else if (spec.kind == KVCacheKind::kSlidingWindow || spec.kind == KVCacheKind::kChunkedLocal)
      spec.kind = KVCacheKind::kFullAttention;
    else
      continue;
    spec.sliding_window = spec.attention_chunk_size = spec.extra_retained_tokens = 0;
  }
}

Result<void> unify_page_sizes(Specs& specs) {
  std::int64_t largest = 0;
  for (const KVCacheSpec& spec : specs) largest = std::max(largest, spec.page_bytes());
  for (KVCacheSpec& spec : specs) {
    const std::int64_t page = spec.page_bytes();
    if (page == largest) continue;
    if (spec.kind != KVCacheKind::kMamba && page > 0 && largest % page == 0) {
      spec.block_size *= static_cast<std::int32_t>(largest / page);
    } else if (!spec.is_mla()) {
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

std::int32_t max_blocks_of_group(const KVCacheSpec& spec, std::int32_t num_tokens,
                                 const KVCacheLimits& limits) {
  const std::int32_t in_flight = limits.max_in_flight_tokens;
  switch (spec.kind) {
    case KVCacheKind::kSlidingWindow:
    case KVCacheKind::kSlidingWindowMla: {
      const std::int32_t held = spec.sliding_window - 1 + spec.extra_retained_tokens + in_flight;
      return ceil_div(std::min(held, num_tokens), spec.block_size) + 1;
    }
    case KVCacheKind::kChunkedLocal:
      return ceil_div(std::min(spec.attention_chunk_size + in_flight, num_tokens), spec.block_size);
    case KVCacheKind::kMamba:
      return spec.mamba_mode == MambaMode::kAlign
                 ? 2 + spec.num_speculative_blocks + spec.num_prefill_checkpoint_blocks
                 : 1 + spec.num_speculative_blocks;
    case KVCacheKind::kCrossAttention:
      return ceil_div(limits.max_encoder_tokens, spec.block_size);
    case KVCacheKind::kEncoderOnlyAttention:
      return 0;
    default:
      return ceil_div(num_tokens, spec.block_size);
  }
}

/// Of one block, over the tensors that the group uses.
std::int64_t bytes_of_group(const KVCacheGroup& group) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < group.layers.size(); ++i) bytes += group.layer_spec(i).page_bytes();
  return bytes;
}

/// In the largest unit of which there is at least one, with two decimals: "1.50 GiB", "300 bytes".
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

Result<std::vector<KVCacheGroup>> group_layers(std::span<const KVCacheSpec> layers,
                                               bool hybrid_groups) {
  // Without the layers that need no cache; `ids` are the others' numbers.
  Specs specs;
  std::vector<std::int32_t> ids;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer].kind == KVCacheKind::kEncoderOnlyAttention) continue;
    RETURN_IF_ERROR(check_kind(layers[layer]));
    const KVCacheSpec& spec = layers[layer];
    if (spec.block_size < 1 || spec.tokens_per_state < 1 || spec.page_bytes() < 1) {
      return invalid_argument("layer " + std::to_string(layer) + " has no KV cache: blocks of " +
                              std::to_string(spec.block_size) + " tokens, a state for " +
                              std::to_string(spec.tokens_per_state));
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
    // Latent layers beside sliding windows: the windows are not used to save memory then.
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
  // Buckets of about the same size: a little padding is better than many groups.
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
