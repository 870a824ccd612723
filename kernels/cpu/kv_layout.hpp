#pragma once
// Layout of a KV page: keys [num_kv_heads, head_dim, block_size], then values [num_kv_heads,
// block_size, head_dim]. Keys are transposed so that a vector holds the same element of
// neighbouring tokens and scores need no horizontal sums.
//
// With a bf16 unit for attention, the pairs that it adds are adjacent: keys [num_kv_heads, head_dim
// / 2, block_size, 2], values [num_kv_heads, block_size / 2, head_dim, 2].
//
// 8-bit types: each head's keys, and its values, are followed by a scale per token ([block_size]
// f32). Quantization is symmetric: a token's largest number maps to the largest of the type. int8
// has 7 bits of it; fp8 has less precision, but equally for all numbers above 1/30000 of the
// largest. Per-token scales need no calibration, and depend on nothing else.
//
// A page of latent vectors has the keys alone, always in the first layout.

#include <cstddef>

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

/// A bf16 unit does attention to heads of a multiple of so many elements; 0: to none of the type.
TROUPE_INLINE std::int64_t bf16_unit_head_dim([[maybe_unused]] ElementType type) {
#if defined(TROUPE_BF16_TILES)
  return type == ElementType::kBF16 || scale_bytes(type) != 0 ? 32 : 0;
#elif defined(TROUPE_BF16_DOT)
  return type == ElementType::kBF16 ? 8 : scale_bytes(type) != 0 ? 32 : 0;
#else
  return 0;
#endif
}

/// Whether a bf16 unit does the attention to this cache.
TROUPE_INLINE bool attends_in_bf16(const KvCacheView& cache) {
  const std::int64_t unit = bf16_unit_head_dim(cache.type);
  return unit != 0 && cache.latent_dim == 0 && cache.head_dim % unit == 0;
}

/// Whether its pages have the paired layout; blocks that do not consist of whole groups of 16
/// tokens do not.
TROUPE_INLINE bool has_paired_pages(const KvCacheView& cache) {
  return attends_in_bf16(cache) && cache.block_size % 16 == 0;
}

/// The keys of one head in one block.
TROUPE_INLINE std::byte* key_block(const KvCacheView& cache, std::int64_t block,
                                   std::int64_t head) {
  return static_cast<std::byte*>(cache.data) + block * cache.page_stride() +
         head * cache.head_bytes();
}

/// The values of one head in one block.
TROUPE_INLINE std::byte* value_block(const KvCacheView& cache, std::int64_t block,
                                     std::int64_t head) {
  return key_block(cache, block, cache.num_kv_heads + head);
}

/// The scale of token t of a key_block or value_block: a single f32.
TROUPE_INLINE std::byte* token_scale(const KvCacheView& cache, std::byte* block, std::int64_t t) {
  return block + cache.block_size * cache.head_dim * element_bytes(cache.type) +
         t * scale_bytes(cache.type);
}

/// The index in key_block of element d of token t.
TROUPE_INLINE std::int64_t key_number(const KvCacheView& cache, std::int64_t t, std::int64_t d) {
  if (has_paired_pages(cache)) return (d / 2 * cache.block_size + t) * 2 + d % 2;
  return d * cache.block_size + t;
}

/// The index in value_block of element d of token t.
TROUPE_INLINE std::int64_t value_number(const KvCacheView& cache, std::int64_t t, std::int64_t d) {
  if (has_paired_pages(cache)) return (t / 2 * cache.head_dim + d) * 2 + t % 2;
  return t * cache.head_dim + d;
}

}  // namespace troupe::TROUPE_ISA
