// Norm and rotary embedding of queries in place; of keys when they are written to their pages; and
// writing of values.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/ints.hpp"
#include "kernels/cpu/kv_layout.hpp"
#include "kernels/cpu/norm_rows.hpp"
#include "kernels/thread_pool.hpp"

#if defined(__AVX512BF16__)
#include "kernels/cpu/bf16.hpp"
#endif

namespace troupe::TROUPE_ISA {
namespace {

/// out = a rotated head of the token; normed(d, load_lanes) returns its elements from d on.
template <class Normed>
TROUPE_INLINE void rotate(const RopeAndWriteKvArgs& args, std::int64_t token, const Normed& normed,
                          float* out) {
  const std::int64_t half = args.rotary_dim / 2;
  const std::int64_t first_angle = half == 0 ? 0 : args.positions[token] * half;
  const float* cos = args.cos + first_angle;
  const float* sin = args.sin + first_angle;
  const bool neox = args.style == RopeStyle::kNeox;
  if (neox) {
    for_each_vector(half, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      const Vec a = normed(i, load_lanes);
      const Vec b = normed(half + i, load_lanes);
      const Vec c = load_lanes(cos + i);
      const Vec s = load_lanes(sin + i);
      store_lanes(out + i, a * c - b * s);
      store_lanes(out + half + i, b * c + a * s);
    });
  }
  const std::int64_t done = neox ? 2 * half : 0;
  for_each_vector(args.q.head_dim - done, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
    store_lanes(out + done + i, normed(done + i, load_lanes));
  });
  if (neox) return;
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = out[2 * i];
    const float b = out[2 * i + 1];
    out[2 * i] = a * cos[i] - b * sin[i];
    out[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

/// out = a head x of the token, normed and rotated; in place allowed.
void norm_weighted_and_rotate(const RopeAndWriteKvArgs& args, std::int64_t token, const float* x,
                              const float* norm_weight, float* out) {
  if (norm_weight == nullptr) {
    return rotate(
        args, token, [x](std::int64_t d, auto load_lanes) { return load_lanes(x + d); }, out);
  }
  const Vec factor = broadcast(rms_norm_factor(x, args.q.head_dim, args.norm_eps));
  const Vec offset = broadcast(args.norm_weight_offset);
  rotate(
      args, token,
      [=](std::int64_t d, auto load_lanes) {
        return load_lanes(x + d) * factor * (load_lanes(norm_weight + d) + offset);
      },
      out);
}

/// The same, with what comes behind the rotation; scale: of the head.
void norm_and_rotate(const RopeAndWriteKvArgs& args, std::int64_t token, const float* x,
                     const float* norm_weight, float scale, float* out) {
  norm_weighted_and_rotate(args, token, x, norm_weight, out);
  if (args.norms_rotated) scale *= rms_norm_factor(out, args.q.head_dim, args.norm_eps);
  if (scale == 1.0f) return;
  const Vec factor = broadcast(scale);
  for_each_vector(args.q.head_dim, [&](std::int64_t d, auto load_lanes, auto store_lanes) {
    store_lanes(out + d, load_lanes(out + d) * factor);
  });
}

/// numbers[d] = x[d].
template <ElementType kType>
TROUPE_INLINE void convert(const float* x, std::int64_t head_dim, std::byte* numbers) {
#if defined(__AVX512BF16__)
  if constexpr (kType == ElementType::kBF16) {
    return round_to_bf16(x, head_dim, head_dim, reinterpret_cast<std::uint16_t*>(numbers));
  }
#endif
  // All of x is initialised: the analyser does not see that both loops of for_each_key have the
  // same keys.
  for (std::int64_t d = 0; d < head_dim; ++d)
    store_element<kType>(numbers, d, x[d]);  // NOLINT(clang-analyzer-core.CallAndMessage)
}

/// Rounds to 1/256 of a number of kF8E4M3. Pre: |x| <= 1.75.
TROUPE_INLINE Vec round_to_f8e4m3(Vec x) {
  // 4 significant bits (Dekker, Numerische Mathematik 18, section 5), with a minimum step of 2^-17.
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

/// Returns the scale: scale * numbers[d] approximates x[d]; NaN if any x[d] is not finite. Writes
/// whole vectors.
template <ElementType kType>
TROUPE_INLINE float convert_scaled(const float* x, std::int64_t head_dim, std::byte* numbers) {
  constexpr float kLargest = kType == ElementType::kI8 ? 127.0f : 1.75f;  // 448 / 256
  constexpr float kSmallest = 1e-30f;  // smaller ones count as zero: the inverse could overflow
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

/// Copies `count` items of kBytes with a destination stride of `stride` bytes.
template <std::int64_t kBytes>
TROUPE_INLINE void spread(const std::byte* from, std::int64_t count, std::byte* to,
                          std::int64_t stride) {
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(to + i * stride, from + i * kBytes, kBytes);
}

/// Writes a value of 8 n numbers, of 32 n in 8 bits, to every second position of a page of pairs.
template <std::int64_t kBytes>
TROUPE_INLINE void spread_values([[maybe_unused]] const std::byte* from,
                                 [[maybe_unused]] std::int64_t count,
                                 [[maybe_unused]] std::byte* to) {
#if defined(TROUPE_BF16_UNIT)
  std::int64_t i = 0;
  for (; i + 32 <= count * kBytes; i += 32) {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    if constexpr (kBytes == 2) {
      _mm512_mask_storeu_epi16(to + 2 * i, 0x55555555, _mm512_cvtepu16_epi32(numbers));
    } else {
      _mm512_mask_storeu_epi8(to + 2 * i, 0x5555555555555555, _mm512_cvtepu8_epi16(numbers));
    }
  }
  if constexpr (kBytes == 2) {
    if (i == count * kBytes) return;
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_mask_storeu_epi16(to + 2 * i, 0x5555, _mm256_cvtepu16_epi32(numbers));
  }
#endif
}

/// Writes one head of a token, which is token t of the block.
template <ElementType kType>
TROUPE_INLINE void write_token(const KvCacheView& cache, std::int64_t t, const float* k,
                               const float* v, std::byte* keys, std::byte* values) {
  constexpr std::int64_t kNumberBytes = element_bytes(kType);
  const std::int64_t head_dim = cache.head_dim;
  alignas(64) std::byte k_numbers[kMaxLatentKeyDim * kNumberBytes];
  alignas(64) std::byte v_numbers[kMaxHeadDim * kNumberBytes];
  if constexpr (scale_bytes(kType) != 0) {
    const float k_scale = convert_scaled<kType>(k, head_dim, k_numbers);
    std::memcpy(token_scale(cache, keys, t), &k_scale, sizeof k_scale);
  } else {
    convert<kType>(k, head_dim, k_numbers);
  }
  if (cache.latent_dim != 0) {
    return spread<kNumberBytes>(k_numbers, head_dim, keys + key_number(cache, t, 0) * kNumberBytes,
                                cache.block_size * kNumberBytes);
  }
  if constexpr (scale_bytes(kType) != 0) {
    const float v_scale = convert_scaled<kType>(v, head_dim, v_numbers);
    std::memcpy(token_scale(cache, values, t), &v_scale, sizeof v_scale);
  } else {
    convert<kType>(v, head_dim, v_numbers);
  }
  std::byte* const first_key = keys + key_number(cache, t, 0) * kNumberBytes;
  std::byte* const first_value = values + value_number(cache, t, 0) * kNumberBytes;
  if (has_paired_pages(cache)) {
    constexpr std::int64_t kPairBytes = 2 * kNumberBytes;
    spread<kPairBytes>(k_numbers, head_dim / 2, first_key, cache.block_size * kPairBytes);
    spread_values<kNumberBytes>(v_numbers, head_dim, first_value);
  } else {
    spread<kNumberBytes>(k_numbers, head_dim, first_key, cache.block_size * kNumberBytes);
    std::memcpy(first_value, v_numbers, static_cast<std::size_t>(head_dim * kNumberBytes));
  }
}

/// Writes heads [first_head, end_head) of keys and values of tokens [first_token, end_token), head
/// by head.
template <ElementType kType>
TROUPE_INLINE void write_heads(const RopeAndWriteKvArgs& args, std::int64_t first_token,
                               std::int64_t end_token, std::int64_t first_head,
                               std::int64_t end_head) {
  // Keys have a long latency: several are computed together before the first is written.
  constexpr std::int64_t kKeysAtOnce = 8;
  alignas(64) float keys[kKeysAtOnce * kMaxLatentKeyDim];
  const KvCacheView& cache = args.cache;
  const std::int64_t num_tokens = end_token - first_token;
  const std::int64_t num_keys = num_tokens * (end_head - first_head);
  for (std::int64_t begin = 0; begin < num_keys; begin += kKeysAtOnce) {
    const auto for_each_key = [&](const auto& f) {
      for (std::int64_t i = begin; i < min_of(num_keys, begin + kKeysAtOnce); ++i) {
        const std::int64_t token = first_token + i % num_tokens;
        if (args.slots[token] < 0) continue;
        f(token, first_head + i / num_tokens, keys + (i - begin) * cache.head_dim);
      }
    };
    for_each_key([&](std::int64_t token, std::int64_t head, float* key) {
      norm_and_rotate(args, token, args.k.row(token, head), args.k_norm_weight, 1.0f, key);
    });
    for_each_key([&](std::int64_t token, std::int64_t head, const float* key) {
      const std::int64_t block = args.slots[token] / cache.block_size;
      const bool is_latent = cache.latent_dim != 0;
      write_token<kType>(cache, args.slots[token] % cache.block_size, key,
                         is_latent ? nullptr : args.v.row(token, head),
                         key_block(cache, block, head),
                         is_latent ? nullptr : value_block(cache, block, head));
    });
  }
}

}  // namespace

void rope_and_write_kv(const OpContext& context, const RopeAndWriteKvArgs& args) noexcept {
  // Neighbouring tokens share cache lines: one thread writes many of them, head by head.
  constexpr std::int64_t kTokensAtOnce = 16;
  const std::int64_t num_tokens = args.q.num_tokens;
  const std::int64_t num_heads = args.q.num_heads;
  const std::int64_t num_kv_heads = args.cache.num_kv_heads;
  const std::int64_t num_slices = ceil_div(num_tokens, kTokensAtOnce);
  // With few tokens the heads are distributed over threads, in parts that are large enough.
  constexpr std::int64_t kPartElements = 8192;
  const std::int64_t num_elements =
      min_of(num_tokens, kTokensAtOnce) * (num_heads + 2 * num_kv_heads) * args.cache.head_dim;
  const std::int64_t max_parts = max_of(1, min_of(num_kv_heads, num_elements / kPartElements));
  const std::int64_t num_parts =
      max_of(1, min_of(max_parts, context.pool->num_threads() / max_of(1, num_slices)));
  with_cache_type(args.cache.type, [&](auto type) {
    context.pool->parallel_for(num_slices * num_parts, [&](std::int64_t chunk) {
      const std::int64_t first = chunk / num_parts * kTokensAtOnce;
      const std::int64_t end = min_of(num_tokens, first + kTokensAtOnce);
      const std::int64_t part = chunk % num_parts;
      for (std::int64_t token = first; token < end; ++token) {
        for (std::int64_t head = num_heads * part / num_parts;
             head < num_heads * (part + 1) / num_parts; ++head) {
          float* q = args.q.row(token, head);
          const float scale =
              args.q_scales == nullptr ? 1.0f : args.q_scales[args.positions[token]];
          norm_and_rotate(args, token, q, args.q_norm_weight, scale, q);
        }
      }
      write_heads<decltype(type)::value>(args, first, end, num_kv_heads * part / num_parts,
                                         num_kv_heads * (part + 1) / num_parts);
    });
  });
}

}  // namespace troupe::TROUPE_ISA
