#pragma once
// Layout of a KV page, as on the CPU: keys [num_kv_heads, head_dim, block_size], then values
// [num_kv_heads, block_size, head_dim]. Neighbouring threads score neighbouring tokens and sum
// neighbouring elements of the values, so both accesses are coalesced. With 8-bit types, the keys
// of each head, and its values, are followed by a scale for each token, [block_size] of f32. A page
// of latent vectors has the keys alone.

#include <cstddef>

#include "kernels/tensor.hpp"

namespace troupe::TROUPE_DEVICE {

/// The keys of one head in one block; token t's element d is number d * block_size + t.
template <class T>
__device__ T* key_block(const KvCacheView& cache, std::int64_t block, std::int64_t head) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(cache.data) + block * cache.page_stride() +
                              head * cache.head_bytes());
}

/// The values of one head in one block; token t's element d is number t * head_dim + d.
template <class T>
__device__ T* value_block(const KvCacheView& cache, std::int64_t block, std::int64_t head) {
  return key_block<T>(cache, block, cache.num_kv_heads + head);
}

/// The scales of the tokens of a key_block or value_block. Pre: kHasScale<T>, and 4 divides
/// block_size * head_dim, so that scales are aligned.
template <class T>
__device__ float* token_scales(const KvCacheView& cache, T* block) {
  return reinterpret_cast<float*>(block + cache.block_size * cache.head_dim);
}

}  // namespace troupe::TROUPE_DEVICE
