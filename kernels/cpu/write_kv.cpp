// New keys and values into their pages.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/ints.hpp"
#include "kernels/cpu/kv_layout.hpp"
#include "kernels/thread_pool.hpp"

#if defined(__AVX512BF16__)
#include "kernels/cpu/bf16.hpp"
#endif

namespace troupe::TROUPE_ISA {
namespace {

/// numbers[d] = x[d].
template <ElementType kType>
TROUPE_INLINE void convert(const float* x, std::int64_t head_dim, std::byte* numbers) {
#if defined(__AVX512BF16__)
  if constexpr (kType == ElementType::kBF16) {
    return round_to_bf16(x, head_dim, head_dim, reinterpret_cast<std::uint16_t*>(numbers));
  }
#endif
  for (std::int64_t d = 0; d < head_dim; ++d) store_element<kType>(numbers, d, x[d]);
}

/// The nearest 1/256 of a number that kF8E4M3 has. Pre: |x| <= 1.75.
TROUPE_INLINE Vec round_to_f8e4m3(Vec x) {
  // 4 significant bits (Dekker, Numerische Mathematik 18, section 5), at least steps of 2^-17.
  const Vec product = x * broadcast(1048577.0f);
  const Vec rounded = product - (product - x);
  const Vec steps = (x + broadcast(96.0f)) - broadcast(96.0f);
  return select(less(abs(x), broadcast(0x1p-14f)), steps, rounded);
}

/// The largest |x[d]|; NaN if any is not finite.
TROUPE_INLINE float largest_size(const float* x, std::int64_t head_dim) {
  Vec largest = zero();
  Vec broken = zero();
  for_each_vector(head_dim, [&](std::int64_t d, auto load_lanes, auto) {
    const Vec numbers = load_lanes(x + d);
    largest = max(largest, abs(numbers));
    broken = broken + numbers * zero();
  });
  return max_of_lanes(largest) + sum_of_lanes(broken);
}

/// Returns the scale: scale * numbers[d] = x[d], as near as it gets; NaN if any x[d] is not finite.
/// Writes whole vectors.
template <ElementType kType>
TROUPE_INLINE float convert_scaled(const float* x, std::int64_t head_dim, std::byte* numbers) {
  constexpr float kLargest = kType == ElementType::kI8 ? 127.0f : 1.75f;  // 448 / 256
  constexpr float kSmallest = 1e-30f;  // less counts as zero: its inverse may be too large
  const float size = largest_size(x, head_dim);
  const Vec inverse = broadcast(size > kSmallest ? kLargest / size : 0.0f);
  const bool is_finite = size == size;
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    const std::int64_t count = min_of(kLanes, head_dim - d);
    Vec lanes = count == kLanes ? load(x + d) : load_first(x + d, count);
    lanes = is_finite ? lanes * inverse : zero();
    auto* codes = reinterpret_cast<std::int8_t*>(numbers + d);
    if constexpr (kType == ElementType::kI8) {
      store_int8(codes, round(lanes));
    } else {
      store_f8e4m3(codes, round_to_f8e4m3(lanes));
    }
  }
  return size / kLargest;
}

/// Copies `count` items of kBytes to places `stride` bytes apart.
template <std::int64_t kBytes>
TROUPE_INLINE void spread(const std::byte* from, std::int64_t count, std::byte* to,
                          std::int64_t stride) {
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * stride, from + i * kBytes, kBytes);
}

/// One head of a token, which is token t of the block.
template <ElementType kType>
TROUPE_INLINE void write_token(const KvCacheView& cache, std::int64_t t, const float* k,
                               const float* v, std::byte* keys, std::byte* values) {
  constexpr std::int64_t kNumberBytes = element_bytes(kType);
  const std::int64_t head_dim = cache.head_dim;
  alignas(64) std::byte k_numbers[kMaxHeadDim * kNumberBytes];
  alignas(64) std::byte v_numbers[kMaxHeadDim * kNumberBytes];
  if constexpr (scale_bytes(kType) != 0) {
    const float k_scale = convert_scaled<kType>(k, head_dim, k_numbers);
    const float v_scale = convert_scaled<kType>(v, head_dim, v_numbers);
    std::memcpy(token_scale(cache, keys, t), &k_scale, sizeof k_scale);
    std::memcpy(token_scale(cache, values, t), &v_scale, sizeof v_scale);
  } else {
    convert<kType>(k, head_dim, k_numbers);
    convert<kType>(v, head_dim, v_numbers);
  }
  std::byte* const first_key = keys + key_number(cache, t, 0) * kNumberBytes;
  std::byte* const first_value = values + value_number(cache, t, 0) * kNumberBytes;
  if (has_tiled_pages(cache)) {
    constexpr std::int64_t kPairBytes = 2 * kNumberBytes;
    spread<kPairBytes>(k_numbers, head_dim / 2, first_key, cache.block_size * kPairBytes);
    spread<kNumberBytes>(v_numbers, head_dim, first_value, kPairBytes);
  } else {
    spread<kNumberBytes>(k_numbers, head_dim, first_key, cache.block_size * kNumberBytes);
    std::memcpy(first_value, v_numbers, static_cast<std::size_t>(head_dim * kNumberBytes));
  }
}

}  // namespace

void write_kv(const OpContext& context, const WriteKvArgs& args) noexcept {
  // Neighbouring tokens lie in the same cache lines: one thread writes many of them, head by head.
  constexpr std::int64_t kTokensAtOnce = 16;
  const KvCacheView& cache = args.cache;
  const std::int64_t num_tokens = args.k.num_tokens;
  with_cache_type(cache.type, [&](auto type) {
    context.pool->parallel_for(ceil_div(num_tokens, kTokensAtOnce), [&](std::int64_t chunk) {
      const std::int64_t first = chunk * kTokensAtOnce;
      const std::int64_t end = min_of(num_tokens, first + kTokensAtOnce);
      for (std::int64_t head = 0; head < cache.num_kv_heads; ++head) {
        for (std::int64_t token = first; token < end; ++token) {
          const std::int64_t slot = args.slots[token];
          if (slot < 0) continue;
          const std::int64_t block = slot / cache.block_size;
          write_token<decltype(type)::value>(
              cache, slot % cache.block_size, args.k.row(token, head), args.v.row(token, head),
              key_block(cache, block, head), value_block(cache, block, head));
        }
      }
    });
  });
}

}  // namespace troupe::TROUPE_ISA
