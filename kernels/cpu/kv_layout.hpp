#pragma once
// Inside a KV page: keys [num_kv_heads, head_dim, block_size], then values [num_kv_heads,
// block_size, head_dim]. Keys lie transposed so that a vector holds the same element of
// neighbouring tokens and their scores need no sum over lanes.
//
// Where a bf16 unit does the attention, the pairs that it adds lie side by side: keys
// [num_kv_heads, head_dim / 2, block_size, 2], values [num_kv_heads, block_size / 2, head_dim, 2].
//
// Numbers of 8 bits: behind each head's keys, and behind its values, a scale for each token
// ([block_size] f32) that its numbers are to be multiplied by. They are symmetric, the largest of a
// token's is the largest of the type: int8 keeps 7 bits of it; fp8 less, but the same of all that
// are larger than 1/30000 of it. Scales of tokens need no calibration, and depend on nothing else.

#include <cstddef>

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

/// Whether a bf16 unit does the attention to this cache.
TROUPE_INLINE bool attends_in_bf16([[maybe_unused]] const KvCacheView& cache) {
#if defined(TROUPE_BF16_UNIT)
  return (cache.type == ElementType::kBF16 || scale_bytes(cache.type) != 0) &&
         cache.head_dim % 32 == 0;
#else
  return false;
#endif
}

/// Whether its pages are laid out for that; blocks that do not hold whole groups of 16 tokens are
/// not.
TROUPE_INLINE bool has_paired_pages(const KvCacheView& cache) {
  return attends_in_bf16(cache) && cache.block_size % 16 == 0;
}

/// The keys of one head in one block.
TROUPE_INLINE std::byte* key_block(const KvCacheView& cache, std::int64_t block,
                                   std::int64_t head) {
  return static_cast<std::byte*>(cache.data) + block * cache.block_bytes() +
         head * cache.head_bytes();
}

/// The values of one head in one block.
TROUPE_INLINE std::byte* value_block(const KvCacheView& cache, std::int64_t block,
                                     std::int64_t head) {
  return key_block(cache, block, cache.num_kv_heads + head);
}

/// The scale of token t of a key_block or value_block: the one f32 here.
TROUPE_INLINE std::byte* token_scale(const KvCacheView& cache, std::byte* block, std::int64_t t) {
  return block + cache.block_size * cache.head_dim * element_bytes(cache.type) +
         t * scale_bytes(cache.type);
}

/// Which number of key_block is element d of token t.
TROUPE_INLINE std::int64_t key_number(const KvCacheView& cache, std::int64_t t, std::int64_t d) {
  if (has_paired_pages(cache)) return (d / 2 * cache.block_size + t) * 2 + d % 2;
  return d * cache.block_size + t;
}

/// Which number of value_block is element d of token t.
TROUPE_INLINE std::int64_t value_number(const KvCacheView& cache, std::int64_t t, std::int64_t d) {
  if (has_paired_pages(cache)) return (t / 2 * cache.head_dim + d) * 2 + t % 2;
  return t * cache.head_dim + d;
}

}  // namespace troupe::TROUPE_ISA
