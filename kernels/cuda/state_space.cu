// The kernels of state space models: convolution, scan, and the gated norm behind them.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

__device__ float* state_at(const StateSlots& states, std::int32_t block) {
  return reinterpret_cast<float*>(states.data + block * states.page_bytes);
}

/// One channel of one sequence, from token to token.
__device__ void convolve(const CausalConvArgs& args, std::int64_t seq, std::int64_t channel) {
  const StateSlots& states = args.states;
  const std::int64_t num_channels = args.x.num_cols;
  const std::int64_t num_kept = args.width - 1;
  float kept[kMaxConvWidth];  // the oldest first
  const std::int32_t before = states.before[seq];
  for (std::int64_t k = 0; k < num_kept; ++k)
    kept[k] = before == 0 ? 0.0f : state_at(states, before)[k * num_channels + channel];
  for (std::int32_t t = states.query_start_loc[seq]; t < states.query_start_loc[seq + 1]; ++t) {
    const float x = args.x.row(t)[channel];
    float sum = args.bias == nullptr ? 0.0f : args.bias[channel];
    for (std::int64_t k = 0; k < num_kept; ++k) {
      sum += args.weight[k * num_channels + channel] * kept[k];
      if (k > 0) kept[k - 1] = kept[k];
    }
    kept[num_kept - 1] = x;
    args.out.row(t)[channel] = math::silu(sum + args.weight[num_kept * num_channels + channel] * x);
    if (states.after[t] == 0) continue;
    for (std::int64_t k = 0; k < num_kept; ++k)
      state_at(states, states.after[t])[k * num_channels + channel] = kept[k];
  }
}

/// One channel of one head, from token to token, kTileRows numbers of its state at a time.
__device__ void scan_channel(const StateScanArgs& args, std::int64_t seq, std::int64_t head,
                             std::int64_t channel) {
  constexpr int kTileRows = 16;
  const StateSlots& states = args.states;
  const std::int64_t num_channels = args.x.head_dim;
  const std::int64_t size = args.b.head_dim;
  const std::int64_t group = head * args.b.num_heads / args.x.num_heads;
  const std::int64_t place = head * size * num_channels + channel;
  const std::int32_t before = states.before[seq];
  for (std::int64_t first = 0; first < size; first += kTileRows) {
    float state[kTileRows];
    for (int n = 0; n < kTileRows; ++n)
      state[n] = before == 0 || first + n >= size
                     ? 0.0f
                     : state_at(states, before)[place + (first + n) * num_channels];
    for (std::int32_t t = states.query_start_loc[seq]; t < states.query_start_loc[seq + 1]; ++t) {
      const float* b = args.b.row(t, group);
      const float* c = args.c.row(t, group);
      float& out = args.out.row(t, head)[channel];
      const float x = args.x.row(t, head)[channel];
      const float decay = args.decay.row(t)[head];
      const float input = args.dt.row(t)[head] * x;
      float sum = first == 0 ? args.skip[head] * x : out;
      for (int n = 0; n < kTileRows && first + n < size; ++n) {
        state[n] = b[first + n] * input + state[n] * decay;
        sum += c[first + n] * state[n];
      }
      out = sum;
      if (states.after[t] == 0) continue;
      for (int n = 0; n < kTileRows && first + n < size; ++n)
        state_at(states, states.after[t])[place + (first + n) * num_channels] = state[n];
    }
  }
}

}  // namespace

void causal_conv(const OpContext& context, const CausalConvArgs& args) noexcept {
  const std::int64_t num_channels = args.x.num_cols;
  for_each_element(context, args.states.num_seqs * num_channels, [=] __device__(std::int64_t i) {
    convolve(args, i / num_channels, i % num_channels);
  });
}

void state_scan(const OpContext& context, const StateScanArgs& args) noexcept {
  const std::int64_t num_heads = args.x.num_heads;
  for_each_element(context, args.x.num_tokens * num_heads, [=] __device__(std::int64_t i) {
    const std::int64_t head = i % num_heads;
    float& dt = args.dt.row(i / num_heads)[head];
    const float x = dt + args.dt_bias[head];
    const float step = x > 20.0f ? x : log1pf(expf(x));  // beyond, 1 is lost in the sum
    dt = step < args.min_dt ? args.min_dt : step > args.max_dt ? args.max_dt : step;
    args.decay.row(i / num_heads)[head] = expf(dt * args.a[head]);
  });
  const std::int64_t num_channels = args.x.head_dim;
  for_each_element(context, args.states.num_seqs * num_heads * num_channels,
                   [=] __device__(std::int64_t i) {
                     const std::int64_t item = i / num_channels;
                     scan_channel(args, item / num_heads, item % num_heads, i % num_channels);
                   });
}

void gate(const OpContext& context, const GateArgs& args) noexcept {
  for_each_row(context, args.x.num_rows, [=] __device__(std::int64_t row) {
    float* x = args.x.row(row);
    if (args.gate.data != nullptr) {
      const float* by = args.gate.row(row);
      for_each_of_block(args.x.num_cols, [=](std::int64_t i) { x[i] *= math::silu(by[i]); });
    }
    if (args.squares.data == nullptr) return;
    __syncthreads();  // What one thread wrote another one reads.
    const std::int64_t size = args.x.num_cols / args.squares.num_cols;
    for (std::int64_t part = 0; part < args.squares.num_cols; ++part) {
      const float* first = x + part * size;
      const float sum = sum_over<float>(size, [=](std::int64_t i) { return first[i] * first[i]; });
      if (threadIdx.x == 0) args.squares.row(row)[part] = sum;
    }
  });
}

void group_norm(const OpContext& context, const GroupNormArgs& args) noexcept {
  const std::int64_t num_cols = args.x.num_cols;
  const std::int64_t parts_per_group = args.squares.num_cols / args.num_groups;
  for_each_element(context, args.x.num_rows * num_cols, [=] __device__(std::int64_t i) {
    const std::int64_t row = i / num_cols;
    const std::int64_t col = i % num_cols;
    const std::int64_t group = (args.first_col + col) / args.group_size;
    float sum = 0;
    for (std::int64_t part = 0; part < parts_per_group; ++part)
      sum += args.squares.row(row)[group * parts_per_group + part];
    float& x = args.x.row(row)[col];
    x *= 1.0f / sqrtf(sum / static_cast<float>(args.group_size) + args.eps) * args.weight[col];
    if (args.gate.data != nullptr) x *= math::silu(args.gate.row(row)[col]);
  });
}

}  // namespace troupe::TROUPE_DEVICE
