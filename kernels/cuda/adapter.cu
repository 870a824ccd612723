// The low-rank updates of adapters: a block for each row and rank, then a thread for each element.

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

__device__ const AdapterWeight& weight_of(const AdapterRows& rows, std::int64_t row,
                                          std::int32_t target) {
  return rows.adapters[rows.adapter_of_row[row]][target];
}

template <class T>
void shrink(const OpContext& context, const AdapterShrinkArgs& args) {
  const std::int64_t most_ranks = args.out.num_cols;
  for_each_row(context, args.rows.num_rows * most_ranks, [=] __device__(std::int64_t block) {
    const std::int64_t row = block / most_ranks;
    const std::int64_t rank = block % most_ranks;
    const AdapterWeight& weight = weight_of(args.rows, row, args.target);
    if (weight.a == nullptr || rank >= weight.num_ranks) return;
    const float* x = args.x.row(args.rows.rows[row]);
    const T* a = static_cast<const T*>(weight.a) + rank * args.x.num_cols;
    const std::int64_t depth = args.x.num_cols / args.k_shards;
    float sums[4] = {};
    for (std::int32_t shard = 0; shard < args.k_shards; ++shard) {
      const std::int64_t first = shard * depth;
      sums[shard] = sum_over<float>(
          depth, [=](std::int64_t k) { return x[first + k] * to_float(a[first + k]); });
    }
    if (threadIdx.x == 0) {
      float sum = sums[0];
      if (args.k_shards >= 2) sum += sums[1];
      if (args.k_shards == 4) sum += sums[2] + sums[3];
      args.out.row(row)[rank] = sum;
    }
  });
}

template <class T>
void expand(const OpContext& context, const AdapterExpandArgs& args) {
  const std::int64_t num_cols = args.out.num_cols;
  for_each_element(context, args.rows.num_rows * num_cols, [=] __device__(std::int64_t element) {
    const std::int64_t row = element / num_cols;
    const std::int64_t col = element % num_cols;
    const AdapterWeight& weight = weight_of(args.rows, row, args.target);
    if (weight.a == nullptr) return;
    for (std::int32_t p = 0; p < weight.num_pieces; ++p) {
      const AdapterPiece& piece = weight.pieces[p];
      const std::int64_t own = col - piece.first_col;
      if (own < 0 || own >= piece.num_cols) continue;
      const T* b = static_cast<const T*>(piece.b);
      const float* shrunk = args.x.row(row) + piece.first_rank;
      float sum = 0;
      for (std::int64_t rank = 0; rank < piece.rank; ++rank) {
        sum = __fmaf_rn(__fmul_rn(shrunk[rank], piece.scaling),
                        to_float(b[rank * piece.num_cols + own]), sum);
      }
      args.out.row(args.rows.rows[row])[col] += sum;
    }
  });
}

}  // namespace

void adapter_shrink(const OpContext& context, const AdapterShrinkArgs& args) noexcept {
  with_element_type(args.type, [&](auto zero) { shrink<decltype(zero)>(context, args); });
}

void adapter_expand(const OpContext& context, const AdapterExpandArgs& args) noexcept {
  with_element_type(args.type, [&](auto zero) { expand<decltype(zero)>(context, args); });
}

}  // namespace troupe::TROUPE_DEVICE
