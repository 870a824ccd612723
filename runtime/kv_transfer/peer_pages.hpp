#pragma once
// How a rank's KV cache is cut into the units that engines load from each other.

#include <optional>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/peer_messages.hpp"
#include "runtime/worker/kv_cache_memory.hpp"

namespace troupe {

/// The pages of a rank's layers, by unit. Blocks of other sizes, and ranks with other heads, have
/// the same units, or parts of them.
class PeerPages {
 public:
  /// Errors: kUnsupported, the cache is to go from device to device and is not in a GPU's memory.
  [[nodiscard]] static Result<PeerPages> of(const KVCacheMemory& memory, bool uses_devices);

  struct Layer {
    PeerLayer shape;
    std::size_t group = 0;
    std::int32_t units_per_block = 1;
    std::byte* data = nullptr;
    std::int64_t page_bytes = 0;

    [[nodiscard]] std::int64_t unit_bytes() const noexcept {
      return shape.num_parts * shape.num_heads * shape.head_bytes;
    }
  };
  [[nodiscard]] const std::vector<Layer>& layers() const noexcept { return layers_; }
  /// In whose memory they lie. Pre: they are not empty.
  [[nodiscard]] const Device& device() const noexcept { return *device_; }
  [[nodiscard]] const Layer* find(std::int32_t layer) const;
  [[nodiscard]] std::vector<PeerLayer> shapes() const;

  /// Where part `part` of the heads from `head` on of a unit lies; null: the request has no such
  /// block. `blocks`: of the layer's group.
  [[nodiscard]] static std::byte* at(const Layer& layer, const std::vector<BlockId>& blocks,
                                     std::int32_t unit, std::int32_t part, std::int32_t head);

 private:
  const Device* device_ = nullptr;
  std::vector<Layer> layers_;
};

/// Bytes that a piece of this layer takes.
[[nodiscard]] std::int64_t piece_bytes(const PeerLayer& layer, const PeerPiece& piece);

/// Of model and cache: equal for engines that can load from each other, whatever their blocks and
/// ranks are. `tensor_parallel_size` of the engine.
[[nodiscard]] PeerOrigin peer_origin(const std::string& model_identity, const KVCacheConfig& cache,
                                     std::int32_t tensor_parallel_size);

}  // namespace troupe
