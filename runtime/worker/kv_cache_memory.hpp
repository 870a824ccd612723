#pragma once
// The memory of the KV cache, for code that copies blocks out of it and into it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "messages/cache.hpp"
#include "runtime/models/device.hpp"

namespace troupe {

/// Of one rank. The device and the memory outlive the users of this struct, until they get another.
struct KVCacheMemory {
  /// The pages of a layer: block b lies at data + b * page_bytes.
  struct Layer {
    std::int32_t layer = 0;  ///< LayerCacheSpec::layer
    std::byte* data = nullptr;
    std::int64_t page_bytes = 0;
  };
  Device* device = nullptr;
  KVCacheConfig config;
  std::vector<std::vector<Layer>> groups;  ///< of each KV-cache group, the rank's own layers

  /// Bytes of a block of that group, on this rank.
  [[nodiscard]] std::int64_t block_bytes(std::size_t group) const noexcept {
    std::int64_t bytes = 0;
    for (const Layer& layer : groups[group]) bytes += layer.page_bytes;
    return bytes;
  }
};

}  // namespace troupe
