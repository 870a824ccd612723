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

constexpr int kSide = 16;  ///< kSide x kSide threads of a block compute a shard's sums
constexpr int kRun = 4;    ///< consecutive numbers of a row that a thread loads at once

/// What a block computes: a tile of kSide x kSide threads' sums, over kDepth columns of the
/// operands after the other.
template <int rows, int cols, int depth, int groups>
struct TileShape {
  static constexpr int kThreadRows = rows;  ///< sums of a thread
  static constexpr int kThreadCols = cols;
  static constexpr int kDepth = depth;
  /// So many shards are computed at once, each by kSide x kSide threads (threadIdx.z); 1: one after
  /// the other.
  static constexpr int kGroups = groups;
  static constexpr int kTileRows = kSide * kThreadRows;
  static constexpr int kTileCols = kSide * kThreadCols;
  /// Rows threadIdx.y + i * kSide of the tile, columns threadIdx.x + j * kSide.
  using Sums = float[kThreadRows][kThreadCols];
};
/// Where loads take the time: narrow tiles, of which there are many.
using FewRows = TileShape<1, 1, 64, 4>;
/// Where products do: sums enough for the operands that a thread reads.
using ManyRows = TileShape<4, 4, 32, 1>;

/// The row of the weight for a column of this block's tile, num_rows or more if there is none. For
/// a gated weight, a tile has gates in its first half, then the matching `up` rows.
template <class Shape>
__device__ std::int64_t weight_row(const WeightSpec& spec, int col) {
  if (!spec.is_gated) return blockIdx.x * std::int64_t{Shape::kTileCols} + col;
  constexpr int kHalf = Shape::kTileCols / 2;
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

template <class Shape>
__device__ void clear_sums(typename Shape::Sums& sums) {
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    for (int j = 0; j < Shape::kThreadCols; ++j) sums[i][j] = 0.0f;
  }
}

/// kRun numbers of a row, 0 behind the first `count`.
template <class T>
struct alignas(kRun * sizeof(T)) Run {
  T values[kRun];
};
template <class T>
__device__ Run<T> load_run(const T* from, std::int64_t count) {
  if (count >= kRun && reinterpret_cast<std::uintptr_t>(from) % alignof(Run<T>) == 0)
    return *reinterpret_cast<const Run<T>*>(from);
  Run<T> run;
  for (int e = 0; e < kRun; ++e) run.values[e] = e < count ? from[e] : from_float<T>(0.0f);
  return run;
}

/// A wide weight.
template <class T>
struct WideNumbers {
  using Number = T;
  const T* weight;
  std::int64_t num_cols;
  __device__ WideNumbers(const WeightSpec& spec, const std::byte* data)
      : weight(reinterpret_cast<const T*>(data)), num_cols(spec.num_cols) {}
  /// Elements k and on of shard `shard` of a row.
  __device__ Run<T> run(std::int64_t row, std::int64_t shard, std::int64_t depth,
                        std::int64_t k) const {
    return load_run(weight + row * num_cols + shard * depth + k, depth - k);
  }
};

/// A weight of kFp4.
struct Fp4Numbers {
  using Number = float;
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
  __device__ float at(std::int64_t row, std::int64_t shard, std::int64_t k) const {
    const std::int64_t number = shard * shard_depth + k;
    const std::int64_t group = row * layout.row_groups + shard * shard_groups + k / group_size;
    const auto both = static_cast<unsigned>(weight[row * layout.row_bytes + number / 2]);
    const auto exponent = static_cast<unsigned>(weight[layout.scales + group]);
    return fp4_number(number % 2 == 0 ? both & 15u : both >> 4) * __uint_as_float(exponent << 23);
  }
  __device__ Run<float> run(std::int64_t row, std::int64_t shard, std::int64_t depth,
                            std::int64_t k) const {
    Run<float> run;
    for (int e = 0; e < kRun; ++e) run.values[e] = k + e < depth ? at(row, shard, k + e) : 0.0f;
    return run;
  }
};

/// sums = the product of shard x_shard of x and weight_shard of the weight, of `depth` columns
/// each.
template <class Numbers, class Shape>
__device__ void multiply_shard(const MatmulArgs& args, const Groups& groups, const Tile& tile,
                               std::int64_t x_shard, std::int64_t weight_shard, std::int64_t depth,
                               typename Shape::Sums& sums) {
  constexpr int kDepth = Shape::kDepth;
  constexpr int kRowRuns = kDepth / kRun;
  // A run more, so that rows start in other banks.
  TROUPE_SHARED(x_tile, Run<float>[Shape::kGroups][Shape::kTileRows][kRowRuns + 1]);
  TROUPE_SHARED(weight_tile, Run<float>[Shape::kGroups][Shape::kTileCols][kRowRuns + 1]);
  const Numbers weight(args.weight.spec, tile.weight);
  const int tx = static_cast<int>(threadIdx.x);
  const int ty = static_cast<int>(threadIdx.y);
  const int tz = static_cast<int>(threadIdx.z);

  // The runs that this thread loads: `run` of rows run_row + i * kRowStep of both tiles.
  using Number = typename Numbers::Number;
  constexpr int kRowStep = kSide * kSide / kRowRuns;
  constexpr int kXRuns = Shape::kTileRows / kRowStep;
  constexpr int kWeightRuns = Shape::kTileCols / kRowStep;
  const int run_row = (ty * kSide + tx) / kRowRuns;
  const int run = (ty * kSide + tx) % kRowRuns;
  const float* x_rows[kXRuns];
  std::int64_t weight_rows[kWeightRuns];
  for (int i = 0; i < kXRuns; ++i) {
    const std::int64_t row = tile.first_row + run_row + i * kRowStep;
    x_rows[i] = row < tile.end_row ? args.x.row(x_row(groups, row)) + x_shard * depth : nullptr;
  }
  for (int i = 0; i < kWeightRuns; ++i)
    weight_rows[i] = weight_row<Shape>(args.weight.spec, run_row + i * kRowStep);
  Run<float> x_runs[kXRuns];
  Run<Number> weight_runs[kWeightRuns];
  const auto load = [&](std::int64_t k) {
    // Elements outside of the matrices are 0.
    for (int i = 0; i < kXRuns; ++i) {
      const bool inside = x_rows[i] != nullptr && k < depth;
      x_runs[i] = inside ? load_run(x_rows[i] + k, depth - k) : Run<float>{};
    }
    for (int i = 0; i < kWeightRuns; ++i) {
      const bool inside = weight_rows[i] < args.weight.spec.num_rows && k < depth;
      weight_runs[i] = inside ? weight.run(weight_rows[i], weight_shard, depth, k) : Run<Number>{};
    }
  };
  const bool has_rows = tile.first_row + ty < tile.end_row;

  clear_sums<Shape>(sums);
  load(run * kRun);
  for (std::int64_t k = 0; k < depth; k += kDepth) {
    for (int i = 0; i < kXRuns; ++i) x_tile[tz][run_row + i * kRowStep][run] = x_runs[i];
    for (int i = 0; i < kWeightRuns; ++i) {
      Run<float> numbers;
      for (int e = 0; e < kRun; ++e) numbers.values[e] = to_float(weight_runs[i].values[e]);
      weight_tile[tz][run_row + i * kRowStep][run] = numbers;
    }
    __syncthreads();
    load(k + kDepth + run * kRun);  // while the products are computed
    if (has_rows) {
      for (int d = 0; d < kRowRuns; ++d) {
        Run<float> x_values[Shape::kThreadRows];
        for (int i = 0; i < Shape::kThreadRows; ++i) x_values[i] = x_tile[tz][ty + i * kSide][d];
        for (int j = 0; j < Shape::kThreadCols; ++j) {
          const Run<float> weights = weight_tile[tz][tx + j * kSide][d];
          for (int e = 0; e < kRun; ++e) {
            for (int i = 0; i < Shape::kThreadRows; ++i)
              sums[i][j] = __fmaf_rn(x_values[i].values[e], weights.values[e], sums[i][j]);
          }
        }
      }
    }
    __syncthreads();
  }
}

/// to = a + b
template <class Shape>
__device__ void add_sums(const typename Shape::Sums& a, const typename Shape::Sums& b,
                         typename Shape::Sums& to) {
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    for (int j = 0; j < Shape::kThreadCols; ++j) to[i][j] = a[i][j] + b[i][j];
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
template <QuantizedType kType, class Shape>
__device__ void multiply_quantized_shard(const MatmulArgs& args, const Groups& groups,
                                         const Tile& tile, const QuantizedX& x,
                                         std::int64_t x_shard, std::int64_t weight_shard,
                                         typename Shape::Sums& sums) {
  constexpr int kThreadRows = Shape::kThreadRows;
  constexpr int kThreadCols = Shape::kThreadCols;
  // One extra column, to avoid bank conflicts.
  TROUPE_SHARED(x_words, std::int32_t[Shape::kGroups][Shape::kTileRows][kSide + 1]);
  TROUPE_SHARED(weight_words, std::int32_t[Shape::kGroups][Shape::kTileCols][kSide + 1]);
  const WeightSpec& spec = args.weight.spec;
  const QuantizedLayout layout = quantized_layout(spec);
  const auto* scales = reinterpret_cast<const __half*>(tile.weight + layout.scales);
  const auto* minimums = reinterpret_cast<const __half*>(tile.weight + layout.minimums);
  const std::int64_t num_groups = spec.groups_per_shard();
  const std::int64_t depth = padded_depth(spec);
  const int tx = static_cast<int>(threadIdx.x);
  const int ty = static_cast<int>(threadIdx.y);
  const int tz = static_cast<int>(threadIdx.z);

  clear_sums<Shape>(sums);
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
    float group_scales[kThreadCols] = {};  // loaded while the products are computed
    float group_minimums[kThreadCols] = {};
    for (int j = 0; j < kThreadCols; ++j) {
      const std::int64_t row = weight_row<Shape>(spec, tx + j * kSide);
      if (row >= spec.num_rows) continue;
      const std::int64_t at = row * layout.row_groups + weight_shard * num_groups + group;
      group_scales[j] = to_float(scales[at]);
      if (spec.has_minimums) group_minimums[j] = to_float(minimums[at]);
    }
    for (std::int64_t k = 0; k < spec.group_size; k += 4 * kSide) {
      const int num_words = static_cast<int>(min(std::int64_t{kSide}, (spec.group_size - k) / 4));
      const std::int64_t first = group * spec.group_size + k;
      if (tx < num_words) {
        // Words outside of the matrices are 0.
        for (int i = 0; i < kThreadRows; ++i) {
          const std::int64_t row = tile.first_row + ty + i * kSide;
          const std::int8_t* values = x.values + x_shard * depth + first;
          x_words[tz][ty + i * kSide][tx] =
              row < tile.end_row ? reinterpret_cast<const std::int32_t*>(
                                       values + x_row(groups, row) * x.value_stride)[tx]
                                 : 0;
        }
        for (int j = 0; j < kThreadCols; ++j) {
          const std::int64_t row = weight_row<Shape>(spec, ty + j * kSide);
          weight_words[tz][ty + j * kSide][tx] =
              row < spec.num_rows ? weight_word<kType>(tile.weight + row * layout.row_bytes,
                                                       (weight_shard * depth + first) / 4 + tx)
                                  : 0;
        }
      }
      __syncthreads();
      for (int word = 0; word < num_words; ++word) {
        for (int i = 0; i < kThreadRows; ++i) {
          for (int j = 0; j < kThreadCols; ++j) {
            dots[i][j] = __dp4a(weight_words[tz][tx + j * kSide][word],
                                x_words[tz][ty + i * kSide][word], dots[i][j]);
          }
        }
      }
      __syncthreads();  // The next step writes the words again.
    }
    for (int j = 0; j < kThreadCols; ++j) {
      for (int i = 0; i < kThreadRows; ++i) {
        const float product = __fmul_rn(static_cast<float>(dots[i][j]),
                                        __fmul_rn(group_scales[j], x_groups[i].scale));
        sums[i][j] = __fadd_rn(sums[i][j], product);
        if (spec.has_minimums)
          sums[i][j] = __fadd_rn(sums[i][j], __fmul_rn(group_minimums[j], x_groups[i].scaled_sum));
      }
    }
  }
}

/// How shards of the weights of each kind are multiplied: operator()(args, groups, tile, shard of
/// x, sums).
template <class Numbers>
struct WideShards {
  template <class Shape>
  __device__ void multiply(const MatmulArgs& args, const Groups& groups, const Tile& tile,
                           int shard, typename Shape::Sums& sums) const {
    const std::int64_t depth = args.weight.spec.num_cols / args.weight.spec.k_shards;
    multiply_shard<Numbers, Shape>(args, groups, tile, shard, args.first_shard + shard, depth,
                                   sums);
  }
};
template <QuantizedType kType>
struct QuantizedShards {
  QuantizedX x;
  template <class Shape>
  __device__ void multiply(const MatmulArgs& args, const Groups& groups, const Tile& tile,
                           int shard, typename Shape::Sums& sums) const {
    multiply_quantized_shard<kType, Shape>(args, groups, tile, x, shard, args.first_shard + shard,
                                           sums);
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

/// total = ((s0 + s1) + (s2 + s3)), the sums of the shards; false: another thread has them.
template <class Shape, class Shards>
__device__ bool add_shards(const MatmulArgs& args, const Groups& groups, const Tile& tile,
                           const Shards& shards, int num_shards, typename Shape::Sums& total) {
  using Sums = typename Shape::Sums;
  const auto multiply = [&](int shard, Sums& to) {
    shards.template multiply<Shape>(args, groups, tile, shard, to);
  };
  if constexpr (Shape::kGroups > 1) {
    const int group = static_cast<int>(threadIdx.z);
    multiply(group, total);
    if (num_shards == 1) return true;
    TROUPE_SHARED(of_group, Sums[Shape::kGroups][kSide][kSide]);
    const auto of = [&](int shard) -> Sums& { return of_group[shard][threadIdx.y][threadIdx.x]; };
    for (int i = 0; i < Shape::kThreadRows; ++i) {
      for (int j = 0; j < Shape::kThreadCols; ++j) of(group)[i][j] = total[i][j];
    }
    __syncthreads();
    if (group != 0) return false;
    add_sums<Shape>(of(0), of(1), total);
    if (num_shards == 4) {
      add_sums<Shape>(of(2), of(3), of(2));
      add_sums<Shape>(total, of(2), total);
    }
  } else {
    Sums next;
    multiply(0, total);
    if (num_shards >= 2) {
      multiply(1, next);
      add_sums<Shape>(total, next, total);
    }
    if (num_shards == 4) {
      Sums last;
      multiply(2, next);
      multiply(3, last);
      add_sums<Shape>(next, last, next);
      add_sums<Shape>(total, next, total);
    }
  }
  return true;
}

/// The sum of `up` that belongs to the gate sums[i][j]. All threads of a warp call this.
template <class Shape>
__device__ float up_sum(const typename Shape::Sums& sums, int i, int j) {
  if constexpr (Shape::kThreadCols > 1)
    return sums[i][j + Shape::kThreadCols / 2];
  else
    return __shfl_down_sync(0xffffffffu, sums[i][j], kSide / 2);
}

/// A block computes one tile of the product. For a gated weight it applies the gating.
template <class Shards, class Shape>
__global__ void __launch_bounds__(kSide* kSide* Shape::kGroups)
    matmul_kernel(MatmulArgs args, Groups groups, Shards shards, int num_shards, Gating gating) {
  Tile tile;
  if (!find_tile(args, groups, Shape::kTileRows, tile)) return;
  typename Shape::Sums total;
  if (!add_shards<Shape>(args, groups, tile, shards, num_shards, total)) return;
  const WeightSpec& spec = args.weight.spec;
  const auto with_bias = [&](float sum, std::int64_t col) {
    return tile.bias == nullptr ? sum : sum + tile.bias[col];
  };
  const auto updated = [&](float sum, std::int64_t row, std::int64_t col) {
    return gating.update.data == nullptr ? sum : sum + gating.update.row(row)[col];
  };
  // Of a tile's first half; in a narrow tile, other threads have the second.
  constexpr int kGateCols = Shape::kThreadCols > 1 ? Shape::kThreadCols / 2 : 1;
  for (int i = 0; i < Shape::kThreadRows; ++i) {
    const std::int64_t row = tile.first_row + threadIdx.y + i * kSide;
    for (int j = 0; j < (spec.is_gated ? kGateCols : Shape::kThreadCols); ++j) {
      const float up = spec.is_gated ? up_sum<Shape>(total, i, j) : 0.0f;
      const int tile_col = static_cast<int>(threadIdx.x) + j * kSide;
      const std::int64_t col = weight_row<Shape>(spec, tile_col);
      if (row >= tile.end_row || col >= args.out.num_cols) continue;
      float value = with_bias(total[i][j], col);
      if (spec.is_gated) {
        const std::int64_t up_col = args.out.num_cols + col;
        value = gating.apply(updated(value, row, col), updated(with_bias(up, up_col), row, up_col));
      }
      args.out.row(row)[col] = value;
    }
  }
}

template <class Shape, class Shards>
void launch_matmul(const OpContext& context, const MatmulArgs& args, const Groups& groups,
                   const Shards& shards, int num_shards, const Gating& gating) {
  const dim3 threads(kSide, kSide, static_cast<unsigned>(Shape::kGroups > 1 ? num_shards : 1));
  const std::int64_t num_rows = args.out.num_rows;
  constexpr std::int64_t kTileRows = Shape::kTileRows;
  // Of each group the last tile may have fewer rows.
  const std::int64_t num_tiles = groups.weights == nullptr
                                     ? ceil_div(num_rows, kTileRows)
                                     : num_rows / kTileRows + std::min(groups.num_groups, num_rows);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.weight.spec.num_rows, Shape::kTileCols)),
                  static_cast<unsigned>(num_tiles));
  launch(context, grid, threads, matmul_kernel<Shards, Shape>, args, groups, shards, num_shards,
         gating);
}

template <class Shards>
void multiply_shards(const OpContext& context, const MatmulArgs& args, const Groups& groups,
                     const Shards& shards, int num_shards, const Gating& gating) {
  // Shards at once gain more than wide tiles, as long as these are fewer than multiprocessors.
  const std::int64_t num_tiles = num_shards > 1 ? 4 : 1;
  if (args.out.num_rows <= kSide * std::max(num_tiles, groups.num_groups)) {
    launch_matmul<FewRows>(context, args, groups, shards, num_shards, gating);
  } else {
    launch_matmul<ManyRows>(context, args, groups, shards, num_shards, gating);
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
