// Matrix times weights (pack.cu); a gated weight has its gates first. Every element of the product
// is a sum over k in order, one fused multiply-add after the other, or over the groups of quantised
// weights; tiles only affect which thread computes it. So results do not depend on the tile's
// shape, which may be chosen by the number of rows, nor on which rows are computed together.
//
// Not cuBLASLt, whose documentation promises equal bits for equal calls only. A row's bits would
// have to be equal for any number of rows (the batch) and any number of columns (the shard of a
// tensor-parallel worker), but which algorithms support a shape depends on both: one that is pinned
// for a shape may be rejected for another, and what replaces it there adds in another order.

#include <algorithm>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/quantized_rows.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

constexpr int kSide = 16;  ///< a block is kSide x kSide threads; also the depth of a tile
constexpr int kThreadCols = 4;
constexpr int kTileCols = kSide * kThreadCols;

/// The sums of a thread: rows threadIdx.y + i * kSide of the tile, columns threadIdx.x + j * kSide.
template <int kThreadRows>
using Sums = float[kThreadRows][kThreadCols];

/// The row of the weight for a column of this block's tile, num_rows or more if there is none. For
/// a gated weight, a tile has gates in its first half, then the matching `up` rows.
__device__ std::int64_t weight_row(const WeightSpec& spec, int col) {
  if (!spec.is_gated) return blockIdx.x * std::int64_t{kTileCols} + col;
  constexpr int kHalf = kTileCols / 2;
  const std::int64_t gate = blockIdx.x * std::int64_t{kHalf} + col % kHalf;
  if (gate >= spec.num_rows / 2) return spec.num_rows;
  return col < kHalf ? gate : spec.num_rows / 2 + gate;
}

/// The matrices of a grouped product, such as those of experts; the default is one matrix for all
/// rows.
struct Groups {
  const std::byte* const* weights = nullptr;  ///< [num_groups]: of matrices in one format; null:
                                              ///< its rows stay as they are
  const std::int32_t* first_row = nullptr;    ///< [num_groups + 1]: rows of the result of each
  std::int64_t num_groups = 0;
  const std::int32_t* x_rows = nullptr;  ///< row of x for each row of the result; null: the same
  const float* const* biases = nullptr;  ///< [num_groups]: MatmulArgs::bias of each, or none
};

/// What a block computes: rows [first_row, end_row) of the result with one matrix.
struct Tile {
  const std::byte* weight;
  const float* bias;
  std::int64_t first_row;
  std::int64_t end_row;
};

/// False: there are fewer tiles than blocks.
__device__ bool find_tile(const MatmulArgs& args, const Groups& groups, std::int64_t tile_rows,
                          Tile& tile) {
  std::int64_t number = blockIdx.y;
  if (groups.weights == nullptr) {
    tile = {args.weight.data, args.bias, number * tile_rows, args.out.num_rows};
    return true;
  }
  for (std::int64_t group = 0; group < groups.num_groups; ++group) {
    const std::int64_t first = groups.first_row[group];
    const std::int64_t end = groups.first_row[group + 1];
    const std::int64_t num_tiles =
        groups.weights[group] == nullptr ? 0 : ceil_div(end - first, tile_rows);
    if (number < num_tiles) {
      const float* bias = groups.biases == nullptr ? nullptr : groups.biases[group];
      tile = {groups.weights[group], bias, first + number * tile_rows, end};
      return true;
    }
    number -= num_tiles;
  }
  return false;
}

__device__ std::int64_t x_row(const Groups& groups, std::int64_t row) {
  return groups.x_rows == nullptr ? row : groups.x_rows[row];
}

template <int kThreadRows>
__device__ void clear_sums(Sums<kThreadRows>& sums) {
  for (int i = 0; i < kThreadRows; ++i) {
    for (int j = 0; j < kThreadCols; ++j) sums[i][j] = 0.0f;
  }
}

/// A wide weight.
template <class T>
struct WideNumbers {
  const T* weight;
  std::int64_t num_cols;
  __device__ WideNumbers(const WeightSpec& spec, const std::byte* data)
      : weight(reinterpret_cast<const T*>(data)), num_cols(spec.num_cols) {}
  /// Element k of shard `shard` of a row.
  __device__ float at(std::int64_t row, std::int64_t shard, std::int64_t depth,
                      std::int64_t k) const {
    return to_float(weight[row * num_cols + shard * depth + k]);
  }
};

/// A weight of kFp4.
struct Fp4Numbers {
  const std::byte* weight;
  QuantizedLayout layout;
  std::int64_t shard_depth;  ///< with its padding
  std::int64_t shard_groups;
  std::int64_t group_size;
  __device__ Fp4Numbers(const WeightSpec& spec, const std::byte* data)
      : weight(data),
        layout(quantized_layout(spec)),
        shard_depth(padded_depth(spec)),
        shard_groups(spec.groups_per_shard()),
        group_size(spec.group_size) {}
  __device__ float at(std::int64_t row, std::int64_t shard, std::int64_t, std::int64_t k) const {
    const std::int64_t number = shard * shard_depth + k;
    const std::int64_t group = row * layout.row_groups + shard * shard_groups + k / group_size;
    const auto both = static_cast<unsigned>(weight[row * layout.row_bytes + number / 2]);
    const auto exponent = static_cast<unsigned>(weight[layout.scales + group]);
    return fp4_number(number % 2 == 0 ? both & 15u : both >> 4) * __uint_as_float(exponent << 23);
  }
};

/// sums = the product of shard x_shard of x and weight_shard of the weight, of `depth` columns
/// each.
template <class Numbers, int kThreadRows>
__device__ void multiply_shard(const MatmulArgs& args, const Groups& groups, const Tile& tile,
                               std::int64_t x_shard, std::int64_t weight_shard, std::int64_t depth,
                               Sums<kThreadRows>& sums) {
  constexpr int kTileRows = kSide * kThreadRows;
  // One extra column, to avoid bank conflicts.
  TROUPE_SHARED(x_tile, float[kTileRows][kSide + 1]);
  TROUPE_SHARED(weight_tile, float[kTileCols][kSide + 1]);
  const Numbers weight(args.weight.spec, tile.weight);
  const std::int64_t first_k = x_shard * depth;
  const int tx = static_cast<int>(threadIdx.x);
  const int ty = static_cast<int>(threadIdx.y);

  clear_sums<kThreadRows>(sums);
  for (std::int64_t k = 0; k < depth; k += kSide) {
    // Elements outside of the matrices are 0.
    const bool in_depth = k + tx < depth;
    for (int i = 0; i < kThreadRows; ++i) {
      const std::int64_t row = tile.first_row + ty + i * kSide;
      const bool inside = in_depth && row < tile.end_row;
      x_tile[ty + i * kSide][tx] = inside ? args.x.row(x_row(groups, row))[first_k + k + tx] : 0.0f;
    }
    for (int j = 0; j < kThreadCols; ++j) {
      const std::int64_t row = weight_row(args.weight.spec, ty + j * kSide);
      const bool inside = in_depth && row < args.weight.spec.num_rows;
      weight_tile[ty + j * kSide][tx] = inside ? weight.at(row, weight_shard, depth, k + tx) : 0.0f;
    }
    __syncthreads();
    for (int d = 0; d < kSide; ++d) {
      for (int i = 0; i < kThreadRows; ++i) {
        for (int j = 0; j < kThreadCols; ++j) {
          sums[i][j] =
              __fmaf_rn(x_tile[ty + i * kSide][d], weight_tile[tx + j * kSide][d], sums[i][j]);
        }
      }
    }
    __syncthreads();
  }
}

/// to = a + b
template <int kThreadRows>
__device__ void add_sums(const Sums<kThreadRows>& a, const Sums<kThreadRows>& b,
                         Sums<kThreadRows>& to) {
  for (int i = 0; i < kThreadRows; ++i) {
    for (int j = 0; j < kThreadCols; ++j) to[i][j] = a[i][j] + b[i][j];
  }
}

/// The words of a quantised weight's row: four numbers each, those of 4 bits with their bias.
template <QuantizedType kType>
__device__ std::int32_t weight_word(const std::byte* row, std::int64_t word) {
  const auto* words = reinterpret_cast<const std::int32_t*>(row);
  if constexpr (kType == QuantizedType::kInt8) return words[word];
  const auto both = static_cast<std::uint32_t>(words[word / 2]);
  return static_cast<std::int32_t>(both >> (word % 2 * 4) & 0x0f0f0f0fu);
}

/// sums = the product over shard x_shard of x and weight_shard of the weight, with the bits of the
/// CPU: sums within a group are exact integers, and what follows is rounded operation by operation.
template <QuantizedType kType, int kThreadRows>
__device__ void multiply_quantized_shard(const MatmulArgs& args, const Groups& groups,
                                         const Tile& tile, const QuantizedX& x,
                                         std::int64_t x_shard, std::int64_t weight_shard,
                                         Sums<kThreadRows>& sums) {
  constexpr int kTileRows = kSide * kThreadRows;
  // One extra column, to avoid bank conflicts.
  TROUPE_SHARED(x_words, std::int32_t[kTileRows][kSide + 1]);
  TROUPE_SHARED(weight_words, std::int32_t[kTileCols][kSide + 1]);
  const WeightSpec& spec = args.weight.spec;
  const QuantizedLayout layout = quantized_layout(spec);
  const auto* scales = reinterpret_cast<const __half*>(tile.weight + layout.scales);
  const auto* minimums = reinterpret_cast<const __half*>(tile.weight + layout.minimums);
  const std::int64_t num_groups = spec.groups_per_shard();
  const std::int64_t depth = padded_depth(spec);
  const int tx = static_cast<int>(threadIdx.x);
  const int ty = static_cast<int>(threadIdx.y);

  clear_sums<kThreadRows>(sums);
  for (std::int64_t group = 0; group < num_groups; ++group) {
    QuantizedGroup x_groups[kThreadRows];
    std::int32_t dots[kThreadRows][kThreadCols];
    for (int i = 0; i < kThreadRows; ++i) {
      const std::int64_t row = tile.first_row + ty + i * kSide;
      x_groups[i] = {0.0f, 0.0f, 0};
      if (row < tile.end_row) {
        x_groups[i] = x.groups[x_row(groups, row) * x.row_groups + x_shard * num_groups + group];
      }
      const int bias = kType == QuantizedType::kInt4 ? kInt4Bias : 0;
      for (int j = 0; j < kThreadCols; ++j) dots[i][j] = -bias * x_groups[i].sum;
    }
    for (std::int64_t k = 0; k < spec.group_size; k += 4 * kSide) {
      const int num_words = static_cast<int>(min(std::int64_t{kSide}, (spec.group_size - k) / 4));
      const std::int64_t first = group * spec.group_size + k;
      if (tx < num_words) {
        // Words outside of the matrices are 0.
        for (int i = 0; i < kThreadRows; ++i) {
          const std::int64_t row = tile.first_row + ty + i * kSide;
          const std::int8_t* values = x.values + x_shard * depth + first;
          x_words[ty + i * kSide][tx] = row < tile.end_row
                                            ? reinterpret_cast<const std::int32_t*>(
                                                  values + x_row(groups, row) * x.value_stride)[tx]
                                            : 0;
        }
        for (int j = 0; j < kThreadCols; ++j) {
          const std::int64_t row = weight_row(spec, ty + j * kSide);
          weight_words[ty + j * kSide][tx] =
              row < spec.num_rows ? weight_word<kType>(tile.weight + row * layout.row_bytes,
                                                       (weight_shard * depth + first) / 4 + tx)
                                  : 0;
        }
      }
      __syncthreads();
      for (int word = 0; word < num_words; ++word) {
        for (int i = 0; i < kThreadRows; ++i) {
          for (int j = 0; j < kThreadCols; ++j) {
            dots[i][j] = __dp4a(weight_words[tx + j * kSide][word], x_words[ty + i * kSide][word],
                                dots[i][j]);
          }
        }
      }
      __syncthreads();  // The next step writes the words again.
    }
    for (int j = 0; j < kThreadCols; ++j) {
      const std::int64_t row = weight_row(spec, tx + j * kSide);
      if (row >= spec.num_rows) continue;  // of a gated weight, others follow
      const std::int64_t at = row * layout.row_groups + weight_shard * num_groups + group;
      const float scale = to_float(scales[at]);
      const float minimum = spec.has_minimums ? to_float(minimums[at]) : 0.0f;
      for (int i = 0; i < kThreadRows; ++i) {
        const float product =
            __fmul_rn(static_cast<float>(dots[i][j]), __fmul_rn(scale, x_groups[i].scale));
        sums[i][j] = __fadd_rn(sums[i][j], product);
        if (spec.has_minimums)
          sums[i][j] = __fadd_rn(sums[i][j], __fmul_rn(minimum, x_groups[i].scaled_sum));
      }
    }
  }
}

/// How shards of the weights of each kind are multiplied: operator()(args, groups, tile, shard of
/// x, sums).
template <class Numbers>
struct WideShards {
  template <int kThreadRows>
  __device__ void multiply(const MatmulArgs& args, const Groups& groups, const Tile& tile,
                           int shard, Sums<kThreadRows>& sums) const {
    const std::int64_t depth = args.weight.spec.num_cols / args.weight.spec.k_shards;
    multiply_shard<Numbers, kThreadRows>(args, groups, tile, shard, args.first_shard + shard, depth,
                                         sums);
  }
};
template <QuantizedType kType>
struct QuantizedShards {
  QuantizedX x;
  template <int kThreadRows>
  __device__ void multiply(const MatmulArgs& args, const Groups& groups, const Tile& tile,
                           int shard, Sums<kThreadRows>& sums) const {
    multiply_quantized_shard<kType, kThreadRows>(args, groups, tile, x, shard,
                                                 args.first_shard + shard, sums);
  }
};

/// What becomes of the sums of a gated weight: act(gate + update) * (up + update).
struct Gating {
  Activation activation = Activation::kSilu;
  SwishClamp clamp = {};
  ConstMatrix update = {};  ///< added before: of the gates, then of `up`; without data: none

  __device__ float apply(float gate, float up) const {
    if (activation == Activation::kSilu) return math::silu(gate) * up;
    if (activation == Activation::kGeluTanh) return math::gelu_tanh(gate) * up;
    // Comparisons that keep NaN.
    gate = gate > clamp.limit ? clamp.limit : gate;
    up = up > clamp.limit ? clamp.limit : up;
    up = up < -clamp.limit ? -clamp.limit : up;
    return math::swish(gate, clamp.alpha) * (up + 1.0f);
  }
};

/// A block computes one tile of the product. For a gated weight it applies the gating.
template <class Shards, int kThreadRows>
__global__ void __launch_bounds__(kSide* kSide)
    matmul_kernel(MatmulArgs args, Groups groups, Shards shards, int num_shards, Gating gating) {
  Tile tile;
  if (!find_tile(args, groups, kSide * kThreadRows, tile)) return;
  const auto multiply = [&](int shard, Sums<kThreadRows>& to) {
    shards.template multiply<kThreadRows>(args, groups, tile, shard, to);
  };
  // ((s0 + s1) + (s2 + s3))
  Sums<kThreadRows> total;
  Sums<kThreadRows> next;
  multiply(0, total);
  if (num_shards >= 2) {
    multiply(1, next);
    add_sums<kThreadRows>(total, next, total);
  }
  if (num_shards == 4) {
    Sums<kThreadRows> last;
    multiply(2, next);
    multiply(3, last);
    add_sums<kThreadRows>(next, last, next);
    add_sums<kThreadRows>(total, next, total);
  }
  const WeightSpec& spec = args.weight.spec;
  const auto with_bias = [&](float sum, std::int64_t col) {
    return tile.bias == nullptr ? sum : sum + tile.bias[col];
  };
  const auto updated = [&](float sum, std::int64_t row, std::int64_t col) {
    return gating.update.data == nullptr ? sum : sum + gating.update.row(row)[col];
  };
  for (int i = 0; i < kThreadRows; ++i) {
    const std::int64_t row = tile.first_row + threadIdx.y + i * kSide;
    if (row >= tile.end_row) return;
    constexpr int kHalf = kThreadCols / 2;
    for (int j = 0; j < (spec.is_gated ? kHalf : kThreadCols); ++j) {
      const std::int64_t col = weight_row(spec, static_cast<int>(threadIdx.x) + j * kSide);
      if (col >= args.out.num_cols) break;
      float value = with_bias(total[i][j], col);
      if (spec.is_gated) {
        const std::int64_t up = args.out.num_cols + col;
        value = gating.apply(updated(value, row, col),
                             updated(with_bias(total[i][j + kHalf], up), row, up));
      }
      args.out.row(row)[col] = value;
    }
  }
}

template <int kThreadRows, class Shards>
void launch_matmul(const OpContext& context, const MatmulArgs& args, const Groups& groups,
                   const Shards& shards, int num_shards, const Gating& gating) {
  const dim3 threads(kSide, kSide);
  const std::int64_t num_rows = args.out.num_rows;
  constexpr std::int64_t kTileRows = kSide * kThreadRows;
  // Of each group the last tile may have fewer rows.
  const std::int64_t num_tiles = groups.weights == nullptr
                                     ? ceil_div(num_rows, kTileRows)
                                     : num_rows / kTileRows + std::min(groups.num_groups, num_rows);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.weight.spec.num_rows, kTileCols)),
                  static_cast<unsigned>(num_tiles));
  launch(context, grid, threads, matmul_kernel<Shards, kThreadRows>, args, groups, shards,
         num_shards, gating);
}

template <class Shards>
void multiply_shards(const OpContext& context, const MatmulArgs& args, const Groups& groups,
                     const Shards& shards, int num_shards, const Gating& gating) {
  if (args.out.num_rows <= kSide * std::max<std::int64_t>(1, groups.num_groups)) {
    launch_matmul<1>(context, args, groups, shards, num_shards, gating);
  } else {
    launch_matmul<4>(context, args, groups, shards, num_shards, gating);
  }
}

/// gating: for a gated weight. space: matmul_workspace_bytes of the weight.
void multiply(const OpContext& context, const MatmulArgs& args, const Groups& groups,
              const Gating& gating, std::byte* space) {
  if (args.out.num_rows == 0) return;
  const WeightSpec& spec = args.weight.spec;
  const int num_shards = args.num_shards == 0 ? spec.k_shards : args.num_shards;
  if (spec.quantized == QuantizedType::kNone) {
    return with_element_type(spec.type, [&](auto zero) {
      multiply_shards(context, args, groups, WideShards<WideNumbers<decltype(zero)>>{}, num_shards,
                      gating);
    });
  }
  if (spec.quantized == QuantizedType::kFp4)
    return multiply_shards(context, args, groups, WideShards<Fp4Numbers>{}, num_shards, gating);
  const QuantizedX x = quantize_rows(context, spec, num_shards, args.x, space);
  if (spec.quantized == QuantizedType::kInt8) {
    multiply_shards(context, args, groups, QuantizedShards<QuantizedType::kInt8>{x}, num_shards,
                    gating);
  } else {
    multiply_shards(context, args, groups, QuantizedShards<QuantizedType::kInt4>{x}, num_shards,
                    gating);
  }
}

/// Of the inner activations of num_rows rows.
std::int64_t hidden_bytes(const WeightSpec& down, std::int64_t num_rows) {
  return round_up_to_64(num_rows * down.num_cols * static_cast<std::int64_t>(sizeof(float)));
}

}  // namespace

std::int64_t matmul_workspace_bytes(const WeightSpec& spec, std::int64_t max_rows) noexcept {
  if (spec.quantized == QuantizedType::kNone || spec.quantized == QuantizedType::kFp4) return 0;
  return quantized_x_bytes(spec, spec.k_shards, max_rows);
}

void matmul(const OpContext& context, const MatmulArgs& args) noexcept {
  multiply(context, args, {}, {}, context.workspace.data());
}

std::int64_t gated_mlp_workspace_bytes(const WeightSpec& gate_up, const WeightSpec& down,
                                       std::int64_t max_rows) noexcept {
  return hidden_bytes(down, max_rows) + std::max(matmul_workspace_bytes(gate_up, max_rows),
                                                 matmul_workspace_bytes(down, max_rows));
}

void gated_mlp(const OpContext& context, const GatedMlpArgs& args) noexcept {
  const WeightSpec& down = args.down.spec;
  Matrix hidden = args.hidden;
  if (hidden.data == nullptr)
    hidden = {reinterpret_cast<float*>(context.workspace.data()), args.x.num_rows, down.num_cols};
  std::byte* const space = context.workspace.data() + hidden_bytes(down, hidden.num_rows);
  multiply(context, {.x = args.x, .weight = args.gate_up, .bias = args.gate_up_bias, .out = hidden},
           {}, {args.activation, args.clamp, args.gate_up_update}, space);
  multiply(context, {.x = hidden, .weight = args.down, .bias = args.down_bias, .out = args.out}, {},
           {}, space);
}

std::int64_t experts_mlp_workspace_bytes(const WeightSpec& gate_up, const WeightSpec& down,
                                         std::int64_t max_tokens, std::int64_t max_pairs) noexcept {
  return hidden_bytes(down, max_pairs) + std::max(matmul_workspace_bytes(gate_up, max_tokens),
                                                  matmul_workspace_bytes(down, max_pairs));
}

void experts_mlp(const OpContext& context, const ExpertsMlpArgs& args) noexcept {
  const Matrix hidden(reinterpret_cast<float*>(context.workspace.data()), args.out.num_rows,
                      args.down.num_cols);
  std::byte* const space = context.workspace.data() + hidden_bytes(args.down, hidden.num_rows);
  Groups groups{.weights = args.gate_up_data,
                .first_row = args.first_pair,
                .num_groups = args.num_experts,
                .x_rows = args.tokens,
                .biases = args.gate_up_biases};
  multiply(context, {.x = args.x, .weight = {args.gate_up}, .out = hidden}, groups,
           {args.activation, args.clamp}, space);
  groups.weights = args.down_data;
  groups.biases = nullptr;
  groups.x_rows = nullptr;
  multiply(context, {.x = hidden, .weight = {args.down}, .out = args.out}, groups, {}, space);
}

}  // namespace troupe::TROUPE_DEVICE
