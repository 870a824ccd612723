// The low-rank updates of adapters. Rows of one adapter are computed together, so that its weights
// are read once for several of them; which rows these are changes no bit of any.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/thread_pool.hpp"

namespace troupe::TROUPE_ISA {
namespace {

constexpr std::int64_t kRanks = AdapterWeight::kRankStep;
constexpr int kBlockRows = 4;              ///< that share what is read of a weight
constexpr std::int64_t kChunkRows = 64;    ///< of one adapter
constexpr std::int64_t kChunkCols = 1024;  ///< of the product
#if defined(__AVX512F__)
constexpr std::int64_t kVectors = 4;  ///< of columns, so that the sums fit in the registers
#else
constexpr std::int64_t kVectors = 2;
#endif

/// Some rows of one adapter, [first, end) of AdapterRows::rows.
struct AdapterChunk {
  const AdapterWeight* weight;
  std::int64_t first;
  std::int64_t end;
};

/// Calls f(chunk, part) for each of num_parts parts of the work on each chunk of the rows.
template <class F>
void for_each_chunk(const OpContext& context, const AdapterRows& rows, std::int32_t target,
                    std::int64_t num_parts, const F& f) {
  // Of each adapter the last chunk may have fewer rows.
  const std::int64_t most_chunks = rows.num_rows / kChunkRows + rows.num_adapters;
  context.pool->parallel_for(most_chunks * num_parts, [&](std::int64_t index) {
    std::int64_t number = index / num_parts;
    for (std::int64_t adapter = 0; adapter < rows.num_adapters; ++adapter) {
      const std::int64_t first = rows.first_row[adapter];
      const std::int64_t end = rows.first_row[adapter + 1];
      const std::int64_t num_chunks = ceil_div(end - first, kChunkRows);
      if (number >= num_chunks) {
        number -= num_chunks;
        continue;
      }
      const AdapterWeight& weight = rows.adapters[adapter][target];
      if (weight.a == nullptr) return;
      const std::int64_t begin = first + number * kChunkRows;
      return f(AdapterChunk{&weight, begin, min_of(end, begin + kChunkRows)}, index % num_parts);
    }
  });
}

/// sums[r][i] = the products of kRows rows, each from column `first` on, with kRanks rows of A.
template <ElementType kType, int kRows>
void dot_rows(const float* const* x, const void* a, std::int64_t a_stride, std::int64_t first,
              std::int64_t depth, float (&sums)[kRows][kRanks]) {
  Vec acc[kRows][kRanks];
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int i = 0; i < kRanks; ++i) acc[r][i] = zero();
  }
  std::int64_t k = first;
  const std::int64_t end = first + depth;
  for (; k + kLanes <= end; k += kLanes) {
    Vec weights[kRanks];
    TROUPE_UNROLL
    for (int i = 0; i < kRanks; ++i) weights[i] = load_as<kType>(a, i * a_stride + k);
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec values = load(x[r] + k);
      TROUPE_UNROLL
      for (int i = 0; i < kRanks; ++i) acc[r][i] = fma(values, weights[i], acc[r][i]);
    }
  }
  if (k < end) {
    TROUPE_UNROLL
    for (int i = 0; i < kRanks; ++i) {
      const Vec weights = load_first_as<kType>(a, i * a_stride + k, end - k);
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r)
        acc[r][i] = fma(load_first(x[r] + k, end - k), weights, acc[r][i]);
    }
  }
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int i = 0; i < kRanks; ++i) sums[r][i] = sum_of_lanes(acc[r][i]);
  }
}

/// Rows [row, row + kRows) of a chunk, ranks [rank, rank + kRanks).
template <ElementType kType, int kRows>
void shrink_block(const AdapterShrinkArgs& args, const AdapterWeight& weight, std::int64_t row,
                  std::int64_t rank) {
  const std::int64_t num_cols = args.x.num_cols;
  const std::int64_t depth = num_cols / args.k_shards;
  const void* const a = static_cast<const char*>(weight.a) + rank * num_cols * element_bytes(kType);
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = args.x.row(args.rows.rows[row + r]);
  float sums[4][kRows][kRanks];
  for (std::int32_t shard = 0; shard < args.k_shards; ++shard)
    dot_rows<kType, kRows>(x, a, num_cols, shard * depth, depth, sums[shard]);
  for (int r = 0; r < kRows; ++r) {
    float* const out = args.out.row(row + r) + rank;
    for (std::int64_t i = 0; i < kRanks; ++i) {
      float sum = sums[0][r][i];
      if (args.k_shards >= 2) sum += sums[1][r][i];
      if (args.k_shards == 4) sum += sums[2][r][i] + sums[3][r][i];
      out[i] = sum;
    }
  }
}

/// Adds columns [col, col + kNumVectors vectors) of a piece to kRows rows of the product. Partial:
/// there are only `num_lanes` columns.
template <ElementType kType, int kRows, int kNumVectors, bool kPartial>
TROUPE_INLINE void expand_block(const AdapterPiece& piece, const float* const* shrunk,
                                float* const* out, std::int64_t col, std::int64_t num_lanes) {
  Vec acc[kRows][kNumVectors];
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kNumVectors; ++v) acc[r][v] = zero();
  }
  for (std::int64_t rank = 0; rank < piece.rank; ++rank) {
    const std::int64_t first = rank * piece.num_cols + col;
    Vec weights[kNumVectors];
    TROUPE_UNROLL
    for (int v = 0; v < kNumVectors; ++v) {
      if constexpr (kPartial)
        weights[v] = load_first_as<kType>(piece.b, first, num_lanes);
      else
        weights[v] = load_as<kType>(piece.b, first + v * kLanes);
    }
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec value = broadcast(shrunk[r][piece.first_rank + rank] * piece.scaling);
      TROUPE_UNROLL
      for (int v = 0; v < kNumVectors; ++v) acc[r][v] = fma(value, weights[v], acc[r][v]);
    }
  }
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    float* const to = out[r] + piece.first_col + col;
    if constexpr (kPartial) {
      store_first(to, load_first(to, num_lanes) + acc[r][0], num_lanes);
    } else {
      TROUPE_UNROLL
      for (int v = 0; v < kNumVectors; ++v) {
        float* const p = to + v * kLanes;
        store(p, load(p) + acc[r][v]);
      }
    }
  }
}

/// Columns [begin, end) of a piece, for rows [row, row + kRows) of a chunk.
template <ElementType kType, int kRows>
void expand_rows(const AdapterExpandArgs& args, const AdapterPiece& piece, std::int64_t row,
                 std::int64_t begin, std::int64_t end) {
  const float* shrunk[kRows];
  float* out[kRows];
  for (int r = 0; r < kRows; ++r) {
    shrunk[r] = args.x.row(row + r);
    out[r] = args.out.row(args.rows.rows[row + r]);
  }
  std::int64_t col = begin;
  for (; col + kVectors * kLanes <= end; col += kVectors * kLanes)
    expand_block<kType, kRows, kVectors, false>(piece, shrunk, out, col, 0);
  for (; col + kLanes <= end; col += kLanes)
    expand_block<kType, kRows, 1, false>(piece, shrunk, out, col, 0);
  if (col < end) expand_block<kType, kRows, 1, true>(piece, shrunk, out, col, end - col);
}

/// Calls f(first row, number of rows as a constant) for the rows of a chunk.
template <class F>
TROUPE_INLINE void for_each_block_of_rows(const AdapterChunk& chunk, const F& f) {
  std::int64_t row = chunk.first;
  for (; row + kBlockRows <= chunk.end; row += kBlockRows) f(row, RowCount<kBlockRows>{});
  for (; row < chunk.end; ++row) f(row, RowCount<1>{});
}

}  // namespace

void adapter_shrink(const OpContext& context, const AdapterShrinkArgs& args) noexcept {
  with_element_type(args.type, [&](auto type) {
    constexpr ElementType kType = decltype(type)::value;
    for_each_chunk(context, args.rows, args.target, args.out.num_cols / kRanks,
                   [&](const AdapterChunk& chunk, std::int64_t part) {
                     const std::int64_t rank = part * kRanks;
                     if (rank >= chunk.weight->num_ranks) return;
                     for_each_block_of_rows(chunk, [&](std::int64_t row, auto num_rows) {
                       shrink_block<kType, decltype(num_rows)::value>(args, *chunk.weight, row,
                                                                      rank);
                     });
                   });
  });
}

void adapter_expand(const OpContext& context, const AdapterExpandArgs& args) noexcept {
  with_element_type(args.type, [&](auto type) {
    constexpr ElementType kType = decltype(type)::value;
    for_each_chunk(context, args.rows, args.target, ceil_div(args.out.num_cols, kChunkCols),
                   [&](const AdapterChunk& chunk, std::int64_t part) {
                     for (std::int32_t p = 0; p < chunk.weight->num_pieces; ++p) {
                       const AdapterPiece& piece = chunk.weight->pieces[p];
                       const std::int64_t begin = max_of(0, part * kChunkCols - piece.first_col);
                       const std::int64_t end =
                           min_of(piece.num_cols, (part + 1) * kChunkCols - piece.first_col);
                       if (begin >= end) continue;
                       for_each_block_of_rows(chunk, [&](std::int64_t row, auto num_rows) {
                         expand_rows<kType, decltype(num_rows)::value>(args, piece, row, begin,
                                                                       end);
                       });
                     }
                   });
  });
}

}  // namespace troupe::TROUPE_ISA
