// Weights in the layout of the device, packed in host memory. A wide weight is stored as in a
// checkpoint, [N, K], dense; see quantized_rows.cuh for quantised ones.

#include <bit>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/quantized_rows.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

/// 4-bit number k of a row in this layout.
void put_int4(std::uint8_t* row, std::int64_t k, int value) {
  const int nibble = (value + kInt4Bias) << (k % 8 / 4 * 4);
  std::uint8_t& byte = row[k / 8 * 4 + k % 4];
  byte = static_cast<std::uint8_t>(byte | nibble);
}

/// Packs rows of a matrix of kFp4.
void pack_fp4_rows(const WeightSpec& spec, const QuantizedRows& part, std::int64_t first_row,
                   std::byte* packed) {
  const QuantizedLayout layout = quantized_layout(spec);
  const std::int64_t depth = spec.num_cols / spec.k_shards;
  for (std::int64_t row = 0; row < part.num_rows; ++row) {
    for (std::int64_t col = 0; col < spec.num_cols; ++col) {
      const int value = part.values[row * spec.num_cols + col];
      const float number = 0.5f * static_cast<float>(value);
      unsigned nibble = 0;
      while (fp4_number(nibble) != number) ++nibble;
      const std::int64_t at = col / depth * padded_depth(spec) + col % depth;
      packed[(first_row + row) * layout.row_bytes + at / 2] |=
          static_cast<std::byte>(at % 2 == 0 ? nibble : nibble << 4);
    }
    for (std::int64_t group = 0; group < layout.row_groups; ++group) {
      // Of a number of E2M1: of twice that number it is half as large.
      const float scale = 2.0f * part.scales[row * layout.row_groups + group];
      packed[layout.scales + (first_row + row) * layout.row_groups + group] =
          static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale) >> 23);
    }
  }
}

void pack_floats(const float* from, std::int64_t count, std::byte* to) {
  auto* halves = reinterpret_cast<__half*>(to);
  for (std::int64_t i = 0; i < count; ++i) halves[i] = from_float<__half>(from[i]);
}

}  // namespace

std::int64_t packed_bytes(const WeightSpec& spec) noexcept {
  if (spec.quantized != QuantizedType::kNone) return quantized_layout(spec).num_bytes;
  return round_up_to_64(spec.num_rows * spec.num_cols * element_bytes(spec.type));
}

void pack_rows(const WeightSpec& spec, const StoredMatrix& part, std::int64_t first_row,
               std::byte* packed) noexcept {
  const std::int64_t num_elements = part.num_rows * part.num_cols;
  with_element_type(spec.type, [&](auto packed_zero) {
    using Packed = decltype(packed_zero);
    auto* to = reinterpret_cast<Packed*>(packed) + first_row * spec.num_cols;
    with_element_type(part.type, [&](auto stored_zero) {
      const auto* from = static_cast<const decltype(stored_zero)*>(part.data);
      for (std::int64_t i = 0; i < num_elements; ++i) to[i] = from_float<Packed>(to_float(from[i]));
    });
  });
}

void pack_quantized_rows(const WeightSpec& spec, const QuantizedRows& part, std::int64_t first_row,
                         std::byte* packed) noexcept {
  if (spec.quantized == QuantizedType::kFp4) return pack_fp4_rows(spec, part, first_row, packed);
  const QuantizedLayout layout = quantized_layout(spec);
  const std::int64_t depth = spec.num_cols / spec.k_shards;
  for (std::int64_t row = 0; row < part.num_rows; ++row) {
    auto* to = reinterpret_cast<std::uint8_t*>(packed + (first_row + row) * layout.row_bytes);
    const std::int8_t* from = part.values + row * spec.num_cols;
    for (std::int64_t col = 0; col < spec.num_cols; ++col) {
      const std::int64_t k = col / depth * padded_depth(spec) + col % depth;
      if (spec.quantized == QuantizedType::kInt4)
        put_int4(to, k, from[col]);
      else
        to[k] = static_cast<std::uint8_t>(from[col]);
    }
  }
  const std::int64_t first_group = first_row * layout.row_groups;
  const auto offset = first_group * static_cast<std::int64_t>(sizeof(__half));
  const std::int64_t num_groups = part.num_rows * layout.row_groups;
  pack_floats(part.scales, num_groups, packed + layout.scales + offset);
  if (spec.has_minimums) pack_floats(part.minimums, num_groups, packed + layout.minimums + offset);
}

}  // namespace troupe::TROUPE_DEVICE
