#pragma once
// The memory of a pool as the layers of a model see it.

#include <cstddef>
#include <cstdint>

#include "messages/cache.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/model.hpp"

namespace troupe {

/// How the KV cache keeps numbers of that type. Pre: a type that a cache can have.
[[nodiscard]] ElementType cache_element_type(DType dtype) noexcept;

/// The blocks, in tokens, that the attention kernels see of the layer's: those of 16 tokens, a
/// vector of scores, are read as they are stored. Blocks of another length, and states, are not
/// divided.
[[nodiscard]] std::int32_t kernel_block_size(const KVCacheSpec& spec) noexcept;

/// What a layer with that need sees of num_blocks pages of page_bytes each, the first at `data`.
/// Errors: kUnsupported, pages of another size than the layer's (those of states may be larger).
[[nodiscard]] Result<LayerKvCache> layer_cache(const KVCacheSpec& spec, std::size_t group,
                                               std::byte* data, std::int64_t num_blocks,
                                               std::int64_t page_bytes);

}  // namespace troupe
