#pragma once
// How a model is cut for the workers that share it, and how these are reached.

#include <cstdint>

#include "messages/worker.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

/// Items [begin, begin + count) of some whole.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  [[nodiscard]] std::int64_t end() const noexcept { return begin + count; }
};

/// Part `index` of `total` items in `num_parts` parts, as equal as they can be.
[[nodiscard]] constexpr Slice part_of(std::int64_t total, std::int64_t index,
                                      std::int64_t num_parts) noexcept {
  const std::int64_t begin = total * index / num_parts;
  return {begin, total * (index + 1) / num_parts - begin};
}

/// The layers of a rank's stage.
[[nodiscard]] inline Slice stage_layers(std::int64_t num_layers,
                                        const ParallelConfig& parallel) noexcept {
  return part_of(num_layers, parallel.stage(), parallel.pipeline_parallel_size);
}

/// KV heads of a rank. Where there are fewer than ranks, several ranks hold the same one.
[[nodiscard]] inline Slice kv_heads_of_rank(std::int64_t num_kv_heads,
                                            const ParallelConfig& parallel) noexcept {
  const std::int64_t size = parallel.tensor_parallel_size;
  if (num_kv_heads < size) return {parallel.tensor_rank() * num_kv_heads / size, 1};
  return part_of(num_kv_heads, parallel.tensor_rank(), size);
}

/// Whether the model can be shared so. Errors: kInvalidArgument naming the option, its value, and
/// what cannot be divided.
Result<void> check_parallel(const ModelConfig& config, const ParallelConfig& parallel);

}  // namespace troupe
