// New keys and values into their pages.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/ints.hpp"
#include "kernels/cpu/kv_layout.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {
namespace {

/// numbers[number_of(d)] = x[d].
template <ElementType kType, class NumberOf>
TROUPE_INLINE void write_wide(const float* x, std::int64_t head_dim, std::byte* numbers,
                              const NumberOf& number_of) {
  for (std::int64_t d = 0; d < head_dim; ++d) store_element<kType>(numbers, number_of(d), x[d]);
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

/// scale * numbers[number_of(d)] = x[d], as near as it gets; the scale is NaN if any x[d] is not
/// finite.
template <ElementType kType, class NumberOf>
TROUPE_INLINE void write_scaled(const float* x, std::int64_t head_dim, std::byte* numbers,
                                std::byte* scale, const NumberOf& number_of) {
  constexpr float kLargest = kType == ElementType::kI8 ? 127.0f : 1.75f;  // 448 / 256
  constexpr float kSmallest = 1e-30f;  // less counts as zero: its inverse may be too large
  const float size = largest_size(x, head_dim);
  const float factor = size / kLargest;
  std::memcpy(scale, &factor, sizeof factor);
  const Vec inverse = broadcast(size > kSmallest ? kLargest / size : 0.0f);
  const bool is_finite = size == size;
  for (std::int64_t d = 0; d < head_dim; d += kLanes) {
    const std::int64_t count = min_of(kLanes, head_dim - d);
    Vec lanes = count == kLanes ? load(x + d) : load_first(x + d, count);
    lanes = is_finite ? lanes * inverse : zero();
    std::int8_t codes[kLanes];
    if constexpr (kType == ElementType::kI8) {
      store_int8(codes, round(lanes));
    } else {
      store_f8e4m3(codes, round_to_f8e4m3(lanes));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(numbers + number_of(d + i), &codes[i], 1);
    }
  }
}

}  // namespace

void write_kv(const OpContext& context, const WriteKvArgs& args) noexcept {
  const KvCacheView& cache = args.cache;
  with_cache_type(cache.type, [&](auto type) {
    constexpr ElementType kType = decltype(type)::value;
    for_each_row(
        context, args.k.num_tokens, cache.num_kv_heads * cache.head_dim * 4,
        [&](std::int64_t token) {
          const std::int64_t slot = args.slots[token];
          if (slot < 0) return;
          const std::int64_t block = slot / cache.block_size;
          const std::int64_t t = slot % cache.block_size;
          for (std::int64_t head = 0; head < cache.num_kv_heads; ++head) {
            const float* k = args.k.row(token, head);
            const float* v = args.v.row(token, head);
            std::byte* keys = key_block(cache, block, head);
            std::byte* values = value_block(cache, block, head);
            const auto key = [&](std::int64_t d) { return key_number(cache, t, d); };
            const auto value = [&](std::int64_t d) { return value_number(cache, t, d); };
            if constexpr (scale_bytes(kType) != 0) {
              write_scaled<kType>(k, cache.head_dim, keys, token_scale(cache, keys, t), key);
              write_scaled<kType>(v, cache.head_dim, values, token_scale(cache, values, t), value);
            } else {
              write_wide<kType>(k, cache.head_dim, keys, key);
              write_wide<kType>(v, cache.head_dim, values, value);
            }
          }
        });
  });
}

}  // namespace troupe::TROUPE_ISA
