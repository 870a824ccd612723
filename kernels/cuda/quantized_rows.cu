// Activations, quantised for products with quantised weights.

#include "kernels/cuda/quantized_rows.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

/// Threads that quantise a group together.
constexpr int kGroupLanes = 16;

/// The same bits as on the CPU. Infinities and NaN make the scale NaN, and with it every product.
__device__ void quantize_group(const float* x, std::int64_t n, std::int64_t group_size, int lane,
                               std::int8_t* values, QuantizedGroup* group) {
  // As an integer, the size of a number that is not finite is the largest.
  constexpr unsigned kInfinityBits = 0x7f800000u;
  constexpr unsigned kNanBits = 0x7fc00000u;
  constexpr float kTooSmall = 0x1p-100f;  // 127 / size stays finite above
  unsigned size_bits = 0;
  for (std::int64_t i = lane; i < n; i += kGroupLanes)
    size_bits = max(size_bits, __float_as_uint(x[i]) & 0x7fffffffu);
  for (int distance = kGroupLanes / 2; distance > 0; distance /= 2)
    size_bits = max(size_bits, __shfl_xor_sync(0xffffffffu, size_bits, distance));
  const bool is_finite = size_bits < kInfinityBits;
  const float size = is_finite ? __uint_as_float(size_bits) : 0.0f;
  const bool is_zero = !(size > kTooSmall);
  const float factor = is_zero ? 0.0f : __fdiv_rn(127.0f, size);
  int sum = 0;
  if (group != nullptr) {
    for (std::int64_t i = lane; i < group_size; i += kGroupLanes) {
      const float number = i < n && is_finite ? rintf(__fmul_rn(x[i], factor)) : 0.0f;
      const int value = static_cast<int>(fminf(fmaxf(number, -127.0f), 127.0f));
      values[i] = static_cast<std::int8_t>(value);
      sum += value;
    }
  }
  for (int distance = kGroupLanes / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (group == nullptr || lane != 0) return;
  float scale = is_zero ? 0.0f : __fdiv_rn(size, 127.0f);
  if (!is_finite) scale = __uint_as_float(kNanBits);
  *group = {scale, __fmul_rn(scale, static_cast<float>(sum)), sum};
}

__global__ void __launch_bounds__(kBlockThreads)
    quantize_kernel(WeightSpec spec, ConstMatrix x, QuantizedX to) {
  const int lane = static_cast<int>(threadIdx.x % kGroupLanes);
  const std::int64_t number =
      static_cast<std::int64_t>(blockIdx.x) * (kBlockThreads / kGroupLanes) +
      threadIdx.x / kGroupLanes;
  // All threads shuffle, also those without a group.
  if (number >= x.num_rows * to.row_groups)
    return quantize_group(nullptr, 0, 0, lane, nullptr, nullptr);
  const std::int64_t row = number / to.row_groups;
  const std::int64_t shard = number % to.row_groups / spec.groups_per_shard();
  const std::int64_t begin = number % spec.groups_per_shard() * spec.group_size;
  const std::int64_t depth = spec.num_cols / spec.k_shards;
  quantize_group(x.row(row) + shard * depth + begin,
                 min(static_cast<std::int64_t>(spec.group_size), depth - begin), spec.group_size,
                 lane, to.values + row * to.value_stride + shard * padded_depth(spec) + begin,
                 to.groups + number);
}

}  // namespace

QuantizedX quantize_rows(const OpContext& context, const WeightSpec& spec, std::int64_t num_shards,
                         ConstMatrix x, std::byte* space) {
  QuantizedX to;
  to.values = reinterpret_cast<std::int8_t*>(space);
  to.groups = reinterpret_cast<QuantizedGroup*>(
      space + quantized_value_bytes(spec, num_shards, x.num_rows));
  to.value_stride = num_shards * padded_depth(spec);
  to.row_groups = num_shards * spec.groups_per_shard();
  const std::int64_t num_blocks = ceil_div(x.num_rows * to.row_groups, kBlockThreads / kGroupLanes);
  launch(context, static_cast<unsigned>(num_blocks), kBlockThreads, quantize_kernel, spec, x, to);
  return to;
}

}  // namespace troupe::TROUPE_DEVICE
