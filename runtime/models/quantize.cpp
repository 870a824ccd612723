#include "runtime/models/quantize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

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

// Four floats that the compiler keeps in one register.
constexpr std::size_t kLanes = 4;
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::int32_t IntLanes __attribute__((vector_size(kLanes * sizeof(float))));

Lanes broadcast(float value) { return Lanes{} + value; }
// The second where either is NaN. GCC 12 does not emit minps if one side is a constant.
#if defined(__SSE__)
Lanes smaller(Lanes a, Lanes b) { return _mm_min_ps(a, b); }
Lanes larger(Lanes a, Lanes b) { return _mm_max_ps(a, b); }
#else
Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }
Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
#endif

/// To integers in [lowest, highest], NaN too. Adding and taking off 1.5 * 2^23 rounds to the
/// nearest.
Lanes round_between(Lanes x, float lowest, float highest) {
  constexpr float kRounder = 0x1.8p23f;
  return (smaller(larger(x, broadcast(lowest)), broadcast(highest)) + kRounder) - kRounder;
}

/// f(lanes) for all weights in turn, filled up with zeros.
template <class F>
void for_all_lanes(std::span<const float> weights, const F& f) {
  std::size_t i = 0;
  Lanes lanes;
  for (; i + kLanes <= weights.size(); i += kLanes) {
    std::memcpy(&lanes, &weights[i], sizeof lanes);
    f(lanes);
  }
  if (i == weights.size()) return;
  lanes = Lanes{};
  std::memcpy(&lanes, &weights[i], (weights.size() - i) * sizeof(float));
  f(lanes);
}

/// values[i] = weights[i] / scale, rounded and kept in [lowest, highest].
void round_all(std::span<const float> weights, float scale, float lowest, float highest,
               std::int8_t* values) {
  constexpr std::size_t kAtOnce = 16;
  const float factor = scale == 0 ? 0 : 1 / scale;
  for (std::size_t i = 0; i < weights.size(); i += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, weights.size() - i);
    std::array<Lanes, kAtOnce / kLanes> lanes{};
    std::memcpy(lanes.data(), &weights[i], count * sizeof(float));
    std::array<std::int32_t, kAtOnce> numbers;
    for (std::size_t k = 0; k < lanes.size(); ++k) {
      const IntLanes rounded =
          __builtin_convertvector(round_between(lanes[k] * factor, lowest, highest), IntLanes);
      std::memcpy(&numbers[k * kLanes], &rounded, sizeof rounded);
    }
    std::array<std::int8_t, kAtOnce> bytes;
    for (std::size_t k = 0; k < kAtOnce; ++k) bytes[k] = static_cast<std::int8_t>(numbers[k]);
    std::memcpy(values + i, bytes.data(), count);
  }
}

/// The weight of the largest magnitude, the first one of several.
float signed_largest(std::span<const float> weights) {
  Lanes most_of_lane{};
  Lanes least_of_lane{};
  for_all_lanes(weights, [&](Lanes lanes) {
    most_of_lane = larger(lanes, most_of_lane);
    least_of_lane = smaller(lanes, least_of_lane);
  });
  float most = 0;
  float least = 0;
  for (std::size_t i = 0; i < kLanes; ++i) {
    most = std::max(most, most_of_lane[i]);
    least = std::min(least, least_of_lane[i]);
  }
  if (most != -least) return most > -least ? most : least;
  const auto first =
      std::ranges::find_if(weights, [&](float w) { return w == most || w == least; });
  return first == weights.end() ? 0 : *first;
}

/// The scale of 4-bit numbers: of several around the one that makes the largest magnitude -8, the
/// one with the least squared error. A smaller one cuts the largest number off and is nearer to all
/// the others.
float choose_int4_scale(std::span<const float> weights) {
  constexpr std::array<float, 2 * kLanes> kDivisors = {-8, -7.5f, -8.5f, -9, -9.5f, -10, 7, 7.5f};
  const float largest = signed_largest(weights);
  // One scale in each lane: every sum is added in the order of the weights.
  std::array<Lanes, 2> scales;
  std::array<Lanes, 2> factors;
  for (std::size_t i = 0; i < kDivisors.size(); ++i) {
    const float scale = round_to_f16(largest / kDivisors[i]);
    scales[i / kLanes][i % kLanes] = scale;
    factors[i / kLanes][i % kLanes] = scale == 0 ? 0 : 1 / scale;
  }
  std::array<Lanes, 2> errors{};
  for (const float w : weights) {
    for (std::size_t half = 0; half < errors.size(); ++half) {
      const Lanes difference = round_between(factors[half] * w, -8, 7) * scales[half] - w;
      errors[half] += difference * difference;
    }
  }
  std::size_t best = 0;
  const auto error = [&](std::size_t i) { return errors[i / kLanes][i % kLanes]; };
  for (std::size_t i = 1; i < kDivisors.size(); ++i)
    if (error(i) < error(best)) best = i;
  return scales[best / kLanes][best % kLanes];
}

float scaled(float scale, int factor) { return scale * static_cast<float>(factor); }

/// 16 bytes: the lower halves are elements 0 to 15, the upper ones 16 to 31.
int nibble(const std::byte* bytes, int i) {
  return i < 16 ? byte_at(bytes, i) & 15 : byte_at(bytes, i - 16) >> 4;
}

/// values[i] = number(i) for a whole group.
template <class F>
void fill(int size, std::int8_t* values, const F& number) {
  for (int i = 0; i < size; ++i) values[i] = static_cast<std::int8_t>(number(i));
}

GroupScale unpack_q4_0(const std::byte* block, std::int8_t* values) {
  fill(32, values, [&](int i) { return nibble(block + 2, i) - 8; });
  return {f16_at(block), 0};
}

/// Scale and minimum (f16), 32 numbers of 4 bits.
GroupScale unpack_q4_1(const std::byte* block, std::int8_t* values) {
  fill(32, values, [&](int i) { return nibble(block + 4, i) - 8; });
  return {f16_at(block), f16_at(block + 2) + 8 * f16_at(block)};
}

/// 32 fifth bits, then 32 numbers of 4 bits.
int five_bits(const std::byte* bytes, int i) {
  return nibble(bytes + 4, i) | (byte_at(bytes, i / 8) >> i % 8 & 1) << 4;
}

GroupScale unpack_q5_0(const std::byte* block, std::int8_t* values) {
  fill(32, values, [&](int i) { return five_bits(block + 2, i) - 16; });
  return {f16_at(block), 0};
}

GroupScale unpack_q5_1(const std::byte* block, std::int8_t* values) {
  fill(32, values, [&](int i) { return five_bits(block + 4, i); });
  return {f16_at(block), f16_at(block + 2)};
}

GroupScale unpack_q8_0(const std::byte* block, std::int8_t* values) {
  std::memcpy(values, block + 2, 32);
  return {f16_at(block), 0};
}

/// Number i of a group of 16 where a byte holds 2 bits of four elements that are 32 apart.
int two_bits(const std::byte* bytes, std::int64_t group, int i) {
  return byte_at(bytes, group / 8 * 32 + group % 2 * 16 + i) >> (group % 8 / 2 * 2) & 3;
}

/// Sixteen bytes with a scale and a minimum of 4 bits each, 256 numbers of 2 bits, d, dmin (f16).
GroupScale unpack_q2_k(const std::byte* block, std::int64_t group, std::int8_t* values) {
  fill(16, values, [&](int i) { return two_bits(block + 16, group, i); });
  const std::uint8_t both = byte_at(block, group);
  return {scaled(f16_at(block + 80), both & 15), -scaled(f16_at(block + 82), both >> 4)};
}

/// 256 third bits, 256 numbers of 2 bits, 12 bytes with sixteen scales of 6 bits, d (f16).
GroupScale unpack_q3_k(const std::byte* block, std::int64_t group, std::int8_t* values) {
  fill(16, values, [&](int i) {
    const int high = byte_at(block, group % 2 * 16 + i) >> (group / 2) & 1;
    return two_bits(block + 32, group, i) + 4 * high - 4;
  });
  const std::byte* packed = block + 96;
  const int low = byte_at(packed, group % 8) >> (group < 8 ? 0 : 4) & 15;
  const int high = byte_at(packed, 8 + group % 4) >> (group / 4 * 2) & 3;
  return {scaled(f16_at(block + 108), (low | high << 4) - 32), 0};
}

/// A scale and a minimum of 6 bits each: number `group` of the eight pairs in 12 bytes.
struct ScaleAndMinimum {
  int scale;
  int minimum;
};
ScaleAndMinimum six_bit_pair(const std::byte* packed, std::int64_t group) {
  if (group < 4) return {byte_at(packed, group) & 63, byte_at(packed, group + 4) & 63};
  return {(byte_at(packed, group + 4) & 15) | (byte_at(packed, group - 4) >> 6) << 4,
          (byte_at(packed, group + 4) >> 4) | (byte_at(packed, group) >> 6) << 4};
}

/// d, dmin (f16), eight pairs of scale and minimum, 256 numbers of 4 bits.
GroupScale unpack_q4_k(const std::byte* block, std::int64_t group, std::int8_t* values) {
  const auto [scale, minimum] = six_bit_pair(block + 4, group);
  const std::byte* numbers = block + 16 + group / 2 * 32;
  const int shift = group % 2 == 0 ? 0 : 4;
  fill(32, values, [&](int i) { return (byte_at(numbers, i) >> shift & 15) - 8; });
  const float group_scale = scaled(f16_at(block), scale);
  return {group_scale, 8 * group_scale - scaled(f16_at(block + 2), minimum)};
}

/// As Q4_K, with 256 fifth bits before the numbers: bit g of a byte belongs to group g.
GroupScale unpack_q5_k(const std::byte* block, std::int64_t group, std::int8_t* values) {
  const auto [scale, minimum] = six_bit_pair(block + 4, group);
  const std::byte* numbers = block + 48 + group / 2 * 32;
  const int shift = group % 2 == 0 ? 0 : 4;
  fill(32, values, [&](int i) {
    return (byte_at(numbers, i) >> shift & 15) | (byte_at(block, 16 + i) >> group & 1) << 4;
  });
  return {scaled(f16_at(block), scale), -scaled(f16_at(block + 2), minimum)};
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
  return {scaled(f16_at(block + 208), scale), 0};
}

/// What the 4 bits of IQ4_NL and IQ4_XS stand for.
constexpr std::array<std::int8_t, 16> kUnevenSteps = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};

GroupScale unpack_iq4_nl(const std::byte* block, std::int8_t* values) {
  fill(32, values,
       [&](int i) { return kUnevenSteps[static_cast<std::size_t>(nibble(block + 2, i))]; });
  return {f16_at(block), 0};
}

/// d (f16), two upper bits (u16) and four lower ones (4 bytes) of eight scales, 256 numbers.
GroupScale unpack_iq4_xs(const std::byte* block, std::int64_t group, std::int8_t* values) {
  const std::byte* numbers = block + 8 + group * 16;
  fill(32, values,
       [&](int i) { return kUnevenSteps[static_cast<std::size_t>(nibble(numbers, i))]; });
  const int low = byte_at(block, 4 + group / 2) >> (group % 2 * 4) & 15;
  const int high = byte_at(block, 2 + group / 4) >> (group % 4 * 2) & 3;
  return {scaled(f16_at(block), (low | high << 4) - 32), 0};
}

/// The exponent of a power of 2 (E8M0), 32 numbers of 4 bits (E2M1; OCP microscaling formats). As
/// twice the numbers, so that they are whole. Exponents that would be subnormal make 0.
GroupScale unpack_mxfp4(const std::byte* block, std::int8_t* values) {
  constexpr std::array<std::int8_t, 16> kTwice = {0, 1,  2,  3,  4,  6,  8,  12,
                                                  0, -1, -2, -3, -4, -6, -8, -12};
  fill(32, values, [&](int i) { return kTwice[static_cast<std::size_t>(nibble(block + 1, i))]; });
  constexpr int kBiasAndHalf = 128;
  const int exponent = byte_at(block, 0);
  return {exponent < 2 ? 0 : std::ldexp(1.0f, exponent - kBiasAndHalf), 0};
}

}  // namespace

GroupScale quantize_group(QuantizedType type, std::span<const float> weights, std::int8_t* values) {
  if (type == QuantizedType::kInt8) {
    const float scale = round_to_f16(std::fabs(signed_largest(weights)) / 127);
    round_all(weights, scale, -127, 127, values);
    return {scale, 0};
  }
  const float scale = choose_int4_scale(weights);
  round_all(weights, scale, -8, 7, values);
  return {scale, 0};
}

BlockGroups block_groups(TensorType type) {
  switch (type) {
    case TensorType::kQ4_0:
      return {QuantizedType::kInt4, 32, false};
    case TensorType::kQ4_1:
    case TensorType::kQ4_K:
      return {QuantizedType::kInt4, 32, true};
    case TensorType::kQ5_1:
    case TensorType::kQ5_K:
      return {QuantizedType::kInt8, 32, true};
    case TensorType::kQ2_K:
      return {QuantizedType::kInt8, 16, true};
    case TensorType::kQ3_K:
    case TensorType::kQ6_K:
      return {QuantizedType::kInt8, 16, false};
    case TensorType::kMXFP4:
      return {QuantizedType::kFp4, 32, false};
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
    case TensorType::kQ4_1:
      return unpack_q4_1(block, values);
    case TensorType::kQ5_0:
      return unpack_q5_0(block, values);
    case TensorType::kQ5_1:
      return unpack_q5_1(block, values);
    case TensorType::kQ8_0:
      return unpack_q8_0(block, values);
    case TensorType::kQ2_K:
      return unpack_q2_k(block, index, values);
    case TensorType::kQ3_K:
      return unpack_q3_k(block, index, values);
    case TensorType::kQ4_K:
      return unpack_q4_k(block, index, values);
    case TensorType::kQ5_K:
      return unpack_q5_k(block, index, values);
    case TensorType::kQ6_K:
      return unpack_q6_k(block, index, values);
    case TensorType::kIQ4_NL:
      return unpack_iq4_nl(block, values);
    case TensorType::kIQ4_XS:
      return unpack_iq4_xs(block, index, values);
    case TensorType::kMXFP4:
      return unpack_mxfp4(block, values);
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
