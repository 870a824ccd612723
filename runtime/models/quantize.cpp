#include "runtime/models/quantize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "runtime/models/half_floats.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kMaxBlockGroup = 32;

std::uint8_t byte_at(const std::byte* p, std::int64_t i) {
  return std::to_integer<std::uint8_t>(p[i]);
}

float f16_at(const std::byte* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return widen_f16(bits);
}

/// values[i] = weights[i] / scale, rounded and kept in [lowest, highest]; the squared error.
float round_all(std::span<const float> weights, float scale, float lowest, float highest,
                float* numbers) {
  const float factor = scale == 0 ? 0 : 1 / scale;
  float error = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    // Adding and taking off 1.5 * 2^23 rounds to the nearest whole number, and vectorises.
    constexpr float kRounder = 0x1.8p23f;
    const float clamped = std::min(std::max(weights[i] * factor, lowest), highest);
    numbers[i] = (clamped + kRounder) - kRounder;
    const float difference = numbers[i] * scale - weights[i];
    error += difference * difference;
  }
  return error;
}

float signed_largest(std::span<const float> weights) {
  float largest = 0;
  for (const float w : weights)
    if (std::fabs(w) > std::fabs(largest)) largest = w;
  return largest;
}

GroupScale unpack_q4_0(const std::byte* block, std::int8_t* values) {
  for (int i = 0; i < 16; ++i) {
    const std::uint8_t both = byte_at(block, 2 + i);
    values[i] = static_cast<std::int8_t>((both & 15) - 8);
    values[i + 16] = static_cast<std::int8_t>((both >> 4) - 8);
  }
  return {f16_at(block), 0};
}

GroupScale unpack_q8_0(const std::byte* block, std::int8_t* values) {
  std::memcpy(values, block + 2, 32);
  return {f16_at(block), 0};
}

/// d, dmin (f16), 12 bytes with eight scales and minimums of 6 bits, 256 numbers of 4 bits.
GroupScale unpack_q4_k(const std::byte* block, std::int64_t group, std::int8_t* values) {
  const std::byte* packed = block + 4;
  int scale = 0;
  int minimum = 0;
  if (group < 4) {
    scale = byte_at(packed, group) & 63;
    minimum = byte_at(packed, group + 4) & 63;
  } else {
    scale = (byte_at(packed, group + 4) & 15) | (byte_at(packed, group - 4) >> 6) << 4;
    minimum = (byte_at(packed, group + 4) >> 4) | (byte_at(packed, group) >> 6) << 4;
  }
  const std::byte* numbers = block + 16 + group / 2 * 32;
  const int shift = group % 2 == 0 ? 0 : 4;
  for (int i = 0; i < 32; ++i)
    values[i] = static_cast<std::int8_t>(((byte_at(numbers, i) >> shift) & 15) - 8);
  const float group_scale = f16_at(block) * static_cast<float>(scale);
  return {group_scale, 8 * group_scale - f16_at(block + 2) * static_cast<float>(minimum)};
}

/// 256 lower halves of 4 bits, 256 upper ones of 2, sixteen scales (i8), d (f16).
GroupScale unpack_q6_k(const std::byte* block, std::int64_t group, std::int8_t* values) {
  for (int i = 0; i < 16; ++i) {
    const std::int64_t element = group * 16 + i;
    const std::int64_t half = element / 128;
    const std::int64_t quarter = element % 128 / 32;
    const std::int64_t lane = element % 32;
    const int low = byte_at(block, half * 64 + lane + quarter % 2 * 32) >> (quarter < 2 ? 0 : 4);
    const int high = byte_at(block, 128 + half * 32 + lane) >> (2 * quarter);
    values[i] = static_cast<std::int8_t>(((low & 15) | (high & 3) << 4) - 32);
  }
  const auto scale = static_cast<std::int8_t>(byte_at(block, 192 + group));
  return {f16_at(block + 208) * static_cast<float>(scale), 0};
}

}  // namespace

GroupScale quantize_group(QuantizedType type, std::span<const float> weights, std::int8_t* values) {
  constexpr std::size_t kMaxGroup = 256;
  CHECK(weights.size() <= kMaxGroup, weights.size());
  std::array<float, kMaxGroup> numbers{};
  const float largest = signed_largest(weights);
  float scale = 0;
  if (type == QuantizedType::kInt8) {
    scale = round_to_f16(std::fabs(largest) / 127);
    round_all(weights, scale, -127, 127, numbers.data());
  } else {
    // A smaller scale cuts the largest number off and is nearer to all the others.
    float least = -1;
    for (const float divisor : {-8.0f, -7.5f, -8.5f, -9.0f, -9.5f, -10.0f, 7.0f, 7.5f}) {
      const float candidate = round_to_f16(largest / divisor);
      const float error = round_all(weights, candidate, -8, 7, numbers.data());
      if (least >= 0 && !(error < least)) continue;
      least = error;
      scale = candidate;
    }
    round_all(weights, scale, -8, 7, numbers.data());
  }
  for (std::size_t i = 0; i < weights.size(); ++i) values[i] = static_cast<std::int8_t>(numbers[i]);
  return {scale, 0};
}

BlockGroups block_groups(TensorType type) {
  switch (type) {
    case TensorType::kQ4_0:
      return {QuantizedType::kInt4, 32, false};
    case TensorType::kQ4_K:
      return {QuantizedType::kInt4, 32, true};
    case TensorType::kQ6_K:
      return {QuantizedType::kInt8, 16, false};
    default:
      return {QuantizedType::kInt8, 32, false};
  }
}

GroupScale unpack_group(TensorType type, const std::byte* row, std::int64_t group,
                        std::int8_t* values) {
  const std::int64_t groups_per_block =
      type_block(type).num_elements / block_groups(type).group_size;
  const std::byte* block = row + group / groups_per_block * type_block(type).num_bytes;
  const std::int64_t index = group % groups_per_block;
  switch (type) {
    case TensorType::kQ4_0:
      return unpack_q4_0(block, values);
    case TensorType::kQ8_0:
      return unpack_q8_0(block, values);
    case TensorType::kQ4_K:
      return unpack_q4_k(block, index, values);
    case TensorType::kQ6_K:
      return unpack_q6_k(block, index, values);
    default:
      break;
  }
  CHECK(false, to_string(type));
  return {};
}

void widen_row(const TensorView& tensor, std::int64_t row, std::int64_t first_col,
               std::int64_t num_cols, float* out) {
  const std::int64_t row_size = tensor.shape.empty() ? 1 : tensor.shape.back();
  const TypeBlock block = type_block(tensor.type);
  const std::byte* data =
      tensor.bytes.data() + row * (row_size / block.num_elements) * block.num_bytes;
  if (is_block_type(tensor.type)) {
    const std::int64_t size = block_groups(tensor.type).group_size;
    std::array<std::int8_t, kMaxBlockGroup> values{};
    for (std::int64_t col = first_col; col < first_col + num_cols;) {
      const auto [scale, minimum] = unpack_group(tensor.type, data, col / size, values.data());
      for (; col < first_col + num_cols; ++col) {
        const auto at = static_cast<std::size_t>(col % size);
        *out++ = scale * static_cast<float>(values[at]) + minimum;
        if (col % size == size - 1) {
          ++col;
          break;
        }
      }
    }
    return;
  }
  data += first_col * block.num_bytes;
  if (tensor.type == TensorType::kF32) {
    std::memcpy(out, data, static_cast<std::size_t>(num_cols) * sizeof(float));
    return;
  }
  const bool is_bf16 = tensor.type == TensorType::kBF16;
  for (std::int64_t i = 0; i < num_cols; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof bits);
    out[i] = is_bf16 ? widen_bf16(bits) : widen_f16(bits);
  }
}

}  // namespace troupe
