#pragma once
// Integer-quantised weights with a scale per group: made here from wide ones, or unpacked from the
// blocks in which GGUF files keep them (ggml-quants.h of llama.cpp).

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ops.hpp"
#include "runtime/models/safetensors.hpp"

namespace troupe {

/// w[i] = scale * values[i] + minimum.
struct GroupScale {
  float scale = 0;
  float minimum = 0;
};

/// The numbers nearest to `weights`, symmetric, with a scale that f16 holds. kInt8: the largest
/// magnitude becomes 127. kInt4: of several scales around the one that makes the largest magnitude
/// -8, the one with the least squared error. Pre: `values` has the size of `weights`.
GroupScale quantize_group(QuantizedType type, std::span<const float> weights, std::int8_t* values);

/// How a block type looks as quantised groups.
struct BlockGroups {
  QuantizedType type = QuantizedType::kInt8;
  std::int32_t group_size = 32;
  bool has_minimums = false;
};
/// Pre: is_block_type(type).
[[nodiscard]] BlockGroups block_groups(TensorType type);
/// Group `group` of a row of blocks, exactly but for the rounding of scale and minimum to f32.
/// Pre: is_block_type(type); the group is in the row.
GroupScale unpack_group(TensorType type, const std::byte* row, std::int64_t group,
                        std::int8_t* values);

/// out[i] = element first_col + i of row `row` of a matrix (or of a vector: row 0), widened, for
/// i < num_cols. Pre: the type is f32, bf16, f16 or a block type.
void widen_row(const TensorView& tensor, std::int64_t row, std::int64_t first_col,
               std::int64_t num_cols, float* out);

}  // namespace troupe
