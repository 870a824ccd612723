// The kernels of state space models: convolution, scan, and the gated norm behind them.

#include <math.h>

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/math.hpp"
#include "kernels/cpu/norm_rows.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {
namespace {

/// Vectors, of which the last may be partial: its other lanes are neither read nor written.
struct WholeLanes {
  TROUPE_INLINE Vec get(const float* p) const { return load(p); }
  TROUPE_INLINE void put(float* p, Vec v) const { store(p, v); }
};
struct FirstLanes {
  std::int64_t count;
  TROUPE_INLINE Vec get(const float* p) const { return load_first(p, count); }
  TROUPE_INLINE void put(float* p, Vec v) const { store_first(p, v, count); }
};

float* state_at(const StateSlots& states, std::int32_t block) {
  return reinterpret_cast<float*>(states.data + block * states.page_bytes);
}

/// One vector of channels of one sequence, from token to token.
template <class Lanes>
TROUPE_INLINE void convolve(const CausalConvArgs& args, std::int64_t seq, std::int64_t channel,
                            const Lanes& lanes) {
  const StateSlots& states = args.states;
  const std::int64_t num_channels = args.x.num_cols;
  const std::int64_t num_kept = args.width - 1;
  Vec weights[kMaxConvWidth];
  for (std::int64_t k = 0; k < args.width; ++k)
    weights[k] = lanes.get(args.weight + k * num_channels + channel);
  const Vec bias = args.bias == nullptr ? zero() : lanes.get(args.bias + channel);
  Vec kept[kMaxConvWidth];  // the oldest first
  const std::int32_t before = states.before[seq];
  for (std::int64_t k = 0; k < num_kept; ++k)
    kept[k] =
        before == 0 ? zero() : lanes.get(state_at(states, before) + k * num_channels + channel);
  for (std::int32_t t = states.query_start_loc[seq]; t < states.query_start_loc[seq + 1]; ++t) {
    const Vec x = lanes.get(args.x.row(t) + channel);
    Vec sum = bias;
    for (std::int64_t k = 0; k < num_kept; ++k) {
      sum = fma(weights[k], kept[k], sum);
      if (k > 0) kept[k - 1] = kept[k];
    }
    kept[num_kept - 1] = x;
    lanes.put(args.out.row(t) + channel, silu(fma(weights[num_kept], x, sum)));
    if (states.after[t] == 0) continue;
    float* state = state_at(states, states.after[t]) + channel;
    for (std::int64_t k = 0; k < num_kept; ++k) lanes.put(state + k * num_channels, kept[k]);
  }
}

/// The numbers n in [first, first + kRows) of the states of one head, and kVecs vectors of its
/// channels, which stay in registers from token to token.
template <int kRows, int kVecs, class Lanes>
TROUPE_INLINE void scan_tile(const StateScanArgs& args, std::int64_t seq, std::int64_t head,
                             std::int64_t first, std::int64_t channel, const Lanes& lanes) {
  const StateSlots& states = args.states;
  const std::int64_t num_channels = args.x.head_dim;
  const std::int64_t group = head * args.b.num_heads / args.x.num_heads;
  const std::int64_t place = (head * args.b.head_dim + first) * num_channels + channel;
  const std::int32_t before = states.before[seq];
  Vec state[kRows][kVecs];
  TROUPE_UNROLL
  for (int n = 0; n < kRows; ++n) {
    TROUPE_UNROLL
    for (int v = 0; v < kVecs; ++v)
      state[n][v] =
          before == 0 ? zero()
                      : lanes.get(state_at(states, before) + place + n * num_channels + v * kLanes);
  }
  const Vec skip = broadcast(args.skip[head]);
  for (std::int32_t t = states.query_start_loc[seq]; t < states.query_start_loc[seq + 1]; ++t) {
    const float* x = args.x.row(t, head) + channel;
    const float* b = args.b.row(t, group) + first;
    const float* c = args.c.row(t, group) + first;
    float* out = args.out.row(t, head) + channel;
    const Vec decay = broadcast(args.decay.row(t)[head]);
    const Vec step = broadcast(args.dt.row(t)[head]);
    Vec input[kVecs];
    Vec sum[kVecs];
    TROUPE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const Vec values = lanes.get(x + v * kLanes);
      input[v] = step * values;
      sum[v] = first == 0 ? skip * values : lanes.get(out + v * kLanes);
    }
    TROUPE_UNROLL
    for (int n = 0; n < kRows; ++n) {
      const Vec b_n = broadcast(b[n]);
      const Vec c_n = broadcast(c[n]);
      TROUPE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        state[n][v] = fma(b_n, input[v], state[n][v] * decay);
        sum[v] = fma(c_n, state[n][v], sum[v]);
      }
    }
    TROUPE_UNROLL
    for (int v = 0; v < kVecs; ++v) lanes.put(out + v * kLanes, sum[v]);
    if (states.after[t] == 0) continue;
    float* kept = state_at(states, states.after[t]) + place;
    TROUPE_UNROLL
    for (int n = 0; n < kRows; ++n) {
      TROUPE_UNROLL
      for (int v = 0; v < kVecs; ++v) lanes.put(kept + n * num_channels + v * kLanes, state[n][v]);
    }
  }
}

/// All channels of kRows states: in the order of memory.
template <int kRows>
TROUPE_INLINE void scan_rows(const StateScanArgs& args, std::int64_t seq, std::int64_t head,
                             std::int64_t first) {
  const std::int64_t num_channels = args.x.head_dim;
  std::int64_t channel = 0;
  for (; channel + 2 * kLanes <= num_channels; channel += 2 * kLanes)
    scan_tile<kRows, 2>(args, seq, head, first, channel, WholeLanes{});
  for (; channel + kLanes <= num_channels; channel += kLanes)
    scan_tile<kRows, 1>(args, seq, head, first, channel, WholeLanes{});
  if (channel < num_channels)
    scan_tile<kRows, 1>(args, seq, head, first, channel, FirstLanes{num_channels - channel});
}

void scan_head(const StateScanArgs& args, std::int64_t seq, std::int64_t head) {
  constexpr int kTileRows = kLanes == 16 ? 8 : 4;  // of 32 registers, or of 16
  const std::int64_t size = args.b.head_dim;
  std::int64_t n = 0;
  for (; n + kTileRows <= size; n += kTileRows) scan_rows<kTileRows>(args, seq, head, n);
  for (; n < size; ++n) scan_rows<1>(args, seq, head, n);
}

}  // namespace

void causal_conv(const OpContext& context, const CausalConvArgs& args) noexcept {
  constexpr std::int64_t kStripe = 128;  // channels
  const std::int64_t num_channels = args.x.num_cols;
  const std::int64_t num_stripes = ceil_div(num_channels, kStripe);
  context.pool->parallel_for(args.states.num_seqs * num_stripes, [&](std::int64_t item) {
    const std::int64_t seq = item / num_stripes;
    std::int64_t channel = item % num_stripes * kStripe;
    const std::int64_t end = min_of(channel + kStripe, num_channels);
    for (; channel + kLanes <= end; channel += kLanes) convolve(args, seq, channel, WholeLanes{});
    if (channel < end) convolve(args, seq, channel, FirstLanes{end - channel});
  });
}

void state_scan(const OpContext& context, const StateScanArgs& args) noexcept {
  const std::int64_t num_heads = args.x.num_heads;
  for_each_row(context, args.x.num_tokens, 8 * num_heads, [&](std::int64_t t) {
    float* dt = args.dt.row(t);
    float* decay = args.decay.row(t);
    for (std::int64_t head = 0; head < num_heads; ++head) {
      const float x = dt[head] + args.dt_bias[head];
      const float step = x > 20.0f ? x : log1pf(expf(x));  // beyond, 1 is lost in the sum
      dt[head] = step < args.min_dt ? args.min_dt : step > args.max_dt ? args.max_dt : step;
      decay[head] = expf(dt[head] * args.a[head]);
    }
  });
  context.pool->parallel_for(args.states.num_seqs * num_heads, [&](std::int64_t item) {
    scan_head(args, item / num_heads, item % num_heads);
  });
}

void gate(const OpContext& context, const GateArgs& args) noexcept {
  const std::int64_t n = args.x.num_cols;
  for_each_row(context, args.x.num_rows, n, [&](std::int64_t row) {
    float* x = args.x.row(row);
    if (args.gate.data != nullptr) {
      const float* by = args.gate.row(row);
      for_each_vector(n, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
        store_lanes(x + i, load_lanes(x + i) * silu(load_lanes(by + i)));
      });
    }
    if (args.squares.data == nullptr) return;
    const std::int64_t size = n / args.squares.num_cols;
    for (std::int64_t part = 0; part < args.squares.num_cols; ++part)
      args.squares.row(row)[part] = sum_over(x + part * size, size, [](Vec a) { return a * a; });
  });
}

void group_norm(const OpContext& context, const GroupNormArgs& args) noexcept {
  const std::int64_t n = args.x.num_cols;
  const std::int64_t parts_per_group = args.squares.num_cols / args.num_groups;
  for_each_row(context, args.x.num_rows, n, [&](std::int64_t row) {
    float* x = args.x.row(row);
    for (std::int64_t begin = 0; begin < n;) {
      const std::int64_t group = (args.first_col + begin) / args.group_size;
      const std::int64_t end = min_of(n, (group + 1) * args.group_size - args.first_col);
      float sum = 0;
      for (std::int64_t part = 0; part < parts_per_group; ++part)
        sum += args.squares.row(row)[group * parts_per_group + part];
      const Vec factor =
          broadcast(1.0f / __builtin_sqrtf(sum / static_cast<float>(args.group_size) + args.eps));
      for_each_vector(end - begin, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
        const Vec normed = load_lanes(x + begin + i) * factor * load_lanes(args.weight + begin + i);
        store_lanes(x + begin + i, args.gate.data == nullptr
                                       ? normed
                                       : normed * silu(load_lanes(args.gate.row(row) + begin + i)));
      });
      begin = end;
    }
  });
}

}  // namespace troupe::TROUPE_ISA
