// Matrix times weights. A weight is stored as in a checkpoint, [N, K], dense; a gated one has its
// gates first. Every element of the product is a sum over k in order, one fused multiply-add after
// the other; tiles only affect which thread computes it. So results do not depend on the tile's
// shape, which may be chosen by the number of rows.

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"

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

/// sums = the product over the columns [first_k, first_k + depth) of x and [weight_k, weight_k +
/// depth) of the weight.
template <class T, int kThreadRows>
__device__ void multiply_shard(const MatmulArgs& args, std::int64_t first_k, std::int64_t weight_k,
                               std::int64_t depth, Sums<kThreadRows>& sums) {
  constexpr int kTileRows = kSide * kThreadRows;
  // One extra column, to avoid bank conflicts.
  TROUPE_SHARED(x_tile, float[kTileRows][kSide + 1]);
  TROUPE_SHARED(weight_tile, float[kTileCols][kSide + 1]);
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTileRows;
  const std::int64_t num_cols = args.weight.spec.num_cols;
  const auto* weight = reinterpret_cast<const T*>(args.weight.data);
  const int tx = static_cast<int>(threadIdx.x);
  const int ty = static_cast<int>(threadIdx.y);

  for (int i = 0; i < kThreadRows; ++i) {
    for (int j = 0; j < kThreadCols; ++j) sums[i][j] = 0.0f;
  }
  for (std::int64_t k = 0; k < depth; k += kSide) {
    // Elements outside of the matrices are 0.
    const bool in_depth = k + tx < depth;
    for (int i = 0; i < kThreadRows; ++i) {
      const std::int64_t row = first_row + ty + i * kSide;
      const bool inside = in_depth && row < args.x.num_rows;
      x_tile[ty + i * kSide][tx] = inside ? args.x.row(row)[first_k + k + tx] : 0.0f;
    }
    for (int j = 0; j < kThreadCols; ++j) {
      const std::int64_t row = weight_row(args.weight.spec, ty + j * kSide);
      const bool inside = in_depth && row < args.weight.spec.num_rows;
      weight_tile[ty + j * kSide][tx] =
          inside ? to_float(weight[row * num_cols + weight_k + k + tx]) : 0.0f;
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

/// A block computes one tile of the product. For a gated weight it stores act(gate) * up.
template <class T, int kThreadRows>
__global__ void __launch_bounds__(kSide* kSide)
    matmul_kernel(MatmulArgs args, int num_shards, Activation activation) {
  const std::int64_t depth = args.weight.spec.num_cols / args.weight.spec.k_shards;
  const auto multiply = [&](int shard, Sums<kThreadRows>& to) {
    multiply_shard<T, kThreadRows>(args, shard * depth, (args.first_shard + shard) * depth, depth,
                                   to);
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
    return args.bias == nullptr ? sum : sum + args.bias[col];
  };
  for (int i = 0; i < kThreadRows; ++i) {
    const std::int64_t row =
        blockIdx.y * std::int64_t{kSide * kThreadRows} + threadIdx.y + i * kSide;
    if (row >= args.out.num_rows) return;
    constexpr int kHalf = kThreadCols / 2;
    for (int j = 0; j < (spec.is_gated ? kHalf : kThreadCols); ++j) {
      const std::int64_t col = weight_row(spec, static_cast<int>(threadIdx.x) + j * kSide);
      if (col >= args.out.num_cols) break;
      float value = with_bias(total[i][j], col);
      if (spec.is_gated) {
        value = activation == Activation::kSilu ? math::silu(value) : math::gelu_tanh(value);
        value *= with_bias(total[i][j + kHalf], args.out.num_cols + col);
      }
      args.out.row(row)[col] = value;
    }
  }
}

template <class T, int kThreadRows>
void launch_matmul(const OpContext& context, const MatmulArgs& args, Activation activation) {
  const dim3 threads(kSide, kSide);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.weight.spec.num_rows, kTileCols)),
                  static_cast<unsigned>(ceil_div(args.x.num_rows, kSide * kThreadRows)));
  const int num_shards = args.num_shards == 0 ? args.weight.spec.k_shards : args.num_shards;
  launch(context, grid, threads, matmul_kernel<T, kThreadRows>, args, num_shards, activation);
}

/// activation: for a gated weight.
void multiply(const OpContext& context, const MatmulArgs& args, Activation activation) {
  if (args.x.num_rows == 0) return;
  with_element_type(args.weight.spec.type, [&](auto zero) {
    using T = decltype(zero);
    if (args.x.num_rows <= kSide) {
      launch_matmul<T, 1>(context, args, activation);
    } else {
      launch_matmul<T, 4>(context, args, activation);
    }
  });
}

}  // namespace

std::int64_t packed_bytes(const WeightSpec& spec) noexcept {
  return ceil_div(spec.num_rows * spec.num_cols * element_bytes(spec.type), 64) * 64;
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

std::int64_t matmul_workspace_bytes(const WeightSpec&, std::int64_t) noexcept { return 0; }

void matmul(const OpContext& context, const MatmulArgs& args) noexcept {
  multiply(context, args, {});
}

std::int64_t gated_mlp_workspace_bytes(const WeightSpec&, const WeightSpec& down,
                                       std::int64_t max_rows) noexcept {
  return max_rows * down.num_cols * static_cast<std::int64_t>(sizeof(float));
}

void gated_mlp(const OpContext& context, const GatedMlpArgs& args) noexcept {
  const Matrix hidden(reinterpret_cast<float*>(context.workspace.data()), args.x.num_rows,
                      args.down.spec.num_cols);
  multiply(context, {.x = args.x, .weight = args.gate_up, .bias = args.gate_up_bias, .out = hidden},
           args.activation);
  multiply(context, {.x = hidden, .weight = args.down, .bias = args.down_bias, .out = args.out},
           {});
}

}  // namespace troupe::TROUPE_DEVICE
