#pragma once
// Callbacks around each layer of a forward pass.

#include <cstdint>

namespace troupe {

class LayerHook {
 public:
  virtual ~LayerHook() = default;
  /// `layer` is the index over all stages; a rank calls this for its own layers, in ascending
  /// order. The keys and values of the step's tokens are not in the cache yet.
  virtual void before_layer(std::int32_t layer) = 0;
  /// The layer's keys and values are in the cache; on a GPU, in stream order.
  virtual void after_layer(std::int32_t layer) = 0;
};

}  // namespace troupe
