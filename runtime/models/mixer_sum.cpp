#include "runtime/models/mixer_sum.hpp"

#include <algorithm>

namespace troupe {

void MixerSum::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  LayerStep inner = step;
  const Matrix scaled = inner.scratch.take(x.num_rows, x.num_cols);
  const Matrix other = inner.scratch.take(step.num_queries(), hidden_size_);
  bool is_first = true;
  for (const Part& part : parts_) {
    ConstMatrix input = x;
    if (part.in_scale != 1) {
      step.device.copy(scaled.data, x.data,
                       static_cast<std::size_t>(x.num_rows * x.num_cols) * sizeof(float));
      step.ops.scale(step.context, {.scale = part.in_scale, .out = scaled});
      input = scaled;
    }
    const Matrix result = is_first ? out : other;
    part.mixer->forward(inner, input, result);
    if (step.num_queries() == 0) continue;
    if (part.out_scale != 1) step.ops.scale(step.context, {.scale = part.out_scale, .out = result});
    if (!is_first) RmsNorm().add_and_apply(step, other, out, first_rows(scaled, out.num_rows));
    is_first = false;
  }
}

MixerMemory MixerSum::memory(Device& device, const MixerLimits& limits) const noexcept {
  MixerMemory most;
  for (const Part& part : parts_) {
    const MixerMemory memory = part.mixer->memory(device, limits);
    most.scratch_bytes = std::max(most.scratch_bytes, memory.scratch_bytes);
    most.workspace_bytes = std::max(most.workspace_bytes, memory.workspace_bytes);
  }
  most.scratch_bytes += 2 * Scratch::padded_bytes(limits.max_num_tokens, hidden_size_);
  return most;
}

void MixerSum::add_cache_specs(std::int32_t block_size, DType dtype,
                               std::vector<LayerCacheSpec>& specs) const {
  for (const Part& part : parts_) part.mixer->add_cache_specs(block_size, dtype, specs);
}

}  // namespace troupe
