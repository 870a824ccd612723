#pragma once
// Inside a KV page: keys [num_kv_heads, head_dim, block_size], then values [num_kv_heads,
// block_size, head_dim]. Keys lie transposed so that a vector holds the same element of
// neighbouring tokens and their scores need no sum over lanes.

#include <cstddef>

#include "kernels/cpu/simd.hpp"

namespace troupe::TROUPE_ISA {

/// The keys of one head in one block; token t's element d is number d * block_size + t.
TROUPE_INLINE std::byte* key_block(const KvCacheView& cache, std::int64_t block,
                                   std::int64_t head) {
  return static_cast<std::byte*>(cache.data) + block * cache.block_bytes() +
         head * cache.head_dim * cache.block_size * element_bytes(cache.type);
}

/// The values of one head in one block; token t's element d is number t * head_dim + d.
TROUPE_INLINE std::byte* value_block(const KvCacheView& cache, std::int64_t block,
                                     std::int64_t head) {
  return key_block(cache, block, cache.num_kv_heads + head);
}

}  // namespace troupe::TROUPE_ISA
