#pragma once
// Layout of a KV page, as on the CPU: keys [num_kv_heads, head_dim, block_size], then values
// [num_kv_heads, block_size, head_dim]. Neighbouring threads score neighbouring tokens and sum
// neighbouring elements of the values, so both accesses are coalesced.

#include <cstddef>

#include "kernels/tensor.hpp"

namespace troupe::TROUPE_DEVICE {

/// The keys of one head in one block; token t's element d is number d * block_size + t.
template <class T>
__device__ T* key_block(const KvCacheView& cache, std::int64_t block, std::int64_t head) {
  const std::int64_t head_size = cache.head_dim * cache.block_size;
  auto* const page = static_cast<std::byte*>(cache.data) + block * cache.page_stride();
  return reinterpret_cast<T*>(page) + head * head_size;
}

/// The values of one head in one block; token t's element d is number t * head_dim + d.
template <class T>
__device__ T* value_block(const KvCacheView& cache, std::int64_t block, std::int64_t head) {
  return key_block<T>(cache, block, cache.num_kv_heads + head);
}

}  // namespace troupe::TROUPE_DEVICE
