#pragma once
// Mixers side by side in one place of a layer.

#include <memory>
#include <optional>
#include <vector>

#include "runtime/models/layers.hpp"

namespace troupe {

/// out = the sum over the parts of out_scale mixer(in_scale x), in their order.
class MixerSum final : public Mixer {
 public:
  struct Part {
    std::unique_ptr<const Mixer> mixer;
    float in_scale = 1;
    float out_scale = 1;
  };
  /// Pre: not empty.
  explicit MixerSum(std::int64_t hidden_size, std::vector<Part> parts)
      : hidden_size_(hidden_size), parts_(std::move(parts)) {}
  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override;
  [[nodiscard]] MixerMemory memory(Device& device,
                                   const MixerLimits& limits) const noexcept override;
  void add_cache_specs(std::int32_t block_size, DType dtype,
                       std::vector<LayerCacheSpec>& specs) const override;

 private:
  std::int64_t hidden_size_;
  std::vector<Part> parts_;
};

}  // namespace troupe
