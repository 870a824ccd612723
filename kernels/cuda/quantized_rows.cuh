#pragma once
// Integer-quantised weights and activations in device memory.
//
// A weight has the numbers of all rows, [num_rows, k_shards, padded_depth], then their scales and
// their minimums, [num_rows, k_shards * groups] of f16 each; the last group of a shard is padded.
// 4-bit numbers have a bias of 8, and a word of 32 bits has eight of them: k 0 to 3 are the lower
// nibbles of its bytes, k 4 to 7 the upper ones, so that two masks give the operands of __dp4a.
//
// Numbers of kFp4 are nibbles in order, the lower one of a byte first; their scales are exponents
// with the bias of f32, in a byte each.

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {

inline constexpr int kInt4Bias = 8;

__host__ __device__ constexpr std::int64_t round_up_to_64(std::int64_t n) {
  return ceil_div(n, 64) * 64;
}

/// Numbers of a shard of a quantised row, whole groups.
__host__ __device__ inline std::int64_t padded_depth(const WeightSpec& spec) {
  return spec.groups_per_shard() * spec.group_size;
}

/// Offsets in bytes.
struct QuantizedLayout {
  std::int64_t row_bytes;   ///< of the numbers
  std::int64_t row_groups;  ///< of all shards
  std::int64_t scales;
  std::int64_t minimums;
  std::int64_t num_bytes;
};
__host__ __device__ inline QuantizedLayout quantized_layout(const WeightSpec& spec) {
  QuantizedLayout layout;
  const bool is_fp4 = spec.quantized == QuantizedType::kFp4;
  layout.row_bytes = spec.k_shards * padded_depth(spec);
  if (spec.quantized != QuantizedType::kInt8) layout.row_bytes = ceil_div(layout.row_bytes, 2);
  layout.row_groups = spec.k_shards * spec.groups_per_shard();
  const std::int64_t scale_bytes = round_up_to_64(
      spec.num_rows * layout.row_groups * (is_fp4 ? 1 : static_cast<std::int64_t>(sizeof(__half))));
  layout.scales = round_up_to_64(spec.num_rows * layout.row_bytes);
  layout.minimums = layout.scales + scale_bytes;
  layout.num_bytes = layout.minimums + (spec.has_minimums ? scale_bytes : 0);
  return layout;
}

struct QuantizedGroup {
  float scale;       ///< x = scale * number
  float scaled_sum;  ///< scale * sum of the numbers
  std::int32_t sum;
};

/// The number of E2M1 with these 4 bits.
__host__ __device__ inline float fp4_number(unsigned nibble) {
  const unsigned size = nibble & 7u;
  // 0, 1, 2, 3, 4, 6, 8, 12 halves.
  const unsigned halves = size < 4 ? size : (size % 2 + 2) << (size / 2 - 1);
  const float number = 0.5f * static_cast<float>(halves);
  return (nibble & 8u) != 0 ? -number : number;
}

/// Activations quantised for a product with some shards of a weight.
struct QuantizedX {
  std::int8_t* values = nullptr;     ///< [num_rows, value_stride]: [num_shards, padded_depth] each
  QuantizedGroup* groups = nullptr;  ///< [num_rows, row_groups]: [num_shards, groups] each
  std::int64_t value_stride = 0;
  std::int64_t row_groups = 0;
};

inline std::int64_t quantized_value_bytes(const WeightSpec& spec, std::int64_t num_shards,
                                          std::int64_t num_rows) {
  return round_up_to_64(num_rows * num_shards * padded_depth(spec));
}
inline std::int64_t quantized_x_bytes(const WeightSpec& spec, std::int64_t num_shards,
                                      std::int64_t num_rows) {
  const std::int64_t num_groups = num_rows * num_shards * spec.groups_per_shard();
  return quantized_value_bytes(spec, num_shards, num_rows) +
         round_up_to_64(num_groups * static_cast<std::int64_t>(sizeof(QuantizedGroup)));
}

/// x quantised in `space`, quantized_x_bytes long. x has the columns of num_shards shards.
QuantizedX quantize_rows(const OpContext& context, const WeightSpec& spec, std::int64_t num_shards,
                         ConstMatrix x, std::byte* space);

}  // namespace troupe::TROUPE_DEVICE
