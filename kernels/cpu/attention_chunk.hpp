#pragma once
// Attention of a few query rows to one chunk of a sequence's tokens.
//
// The tokens of a sequence are split into chunks of kChunkTokens counted from position 0,
// independent of the block size and of how queries are batched. The result of a chunk is an
// online-softmax state (largest score, sum of exponentials, weighted values); results of chunks are
// merged in order. So the bits of a query's output depend only on its position and its keys.

#include "kernels/cpu/kv_layout.hpp"
#include "kernels/cpu/math.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/ops.hpp"

namespace troupe::TROUPE_ISA {

inline constexpr std::int64_t kChunkTokens = 256;
/// Query rows (tokens x heads of a group) that share a pass.
#if defined(TROUPE_BF16_TILES)
inline constexpr int kQueryTileRows = 32;
#else
inline constexpr int kQueryTileRows = 16;
#endif

/// The rows of a tile: num_rows consecutive (token, head of the group) pairs that use one KV head.
struct QueryTile {
  std::int64_t kv_head = 0;
  const std::int32_t* block_table = nullptr;
  int num_rows = 0;
  const float* q[kQueryTileRows];
  float* out[kQueryTileRows];
  // Positions of the first and the last key that each row attends to.
  std::int64_t first_visible[kQueryTileRows];
  std::int64_t last_visible[kQueryTileRows];
  float sinks[kQueryTileRows];  ///< AttentionArgs::sinks of the rows' heads, where there are any
  bool is_whole = false;        ///< its chunks are processed in order by one thread
};

/// How many tiles of one sequence and KV head are processed together, limited by the scratch
/// memory: they read a chunk's keys and values from the caches.
inline constexpr int kTilesAtOnce = 8;
inline constexpr std::int64_t kMaxDimsAtOnce = 2 * kMaxHeadDim;
TROUPE_INLINE std::int64_t tiles_at_once(const KvCacheView& cache) {
  return max_of(1, min_of(kTilesAtOnce, kMaxDimsAtOnce / round_up(cache.head_dim, 32)));
}

/// Whether the row attends to any token of the chunk.
TROUPE_INLINE bool sees_chunk(const QueryTile& tile, int row, std::int64_t chunk) {
  return tile.first_visible[row] < (chunk + 1) * kChunkTokens &&
         tile.last_visible[row] >= chunk * kChunkTokens;
}

/// The chunks that some row of the tile attends to.
struct ChunkRange {
  std::int64_t first;
  std::int64_t end;
};
TROUPE_INLINE ChunkRange visible_chunks(const QueryTile& tile) {
  // Rows are in order of their positions, and what they see begins and ends in that order.
  return {tile.first_visible[0] / kChunkTokens,
          tile.last_visible[tile.num_rows - 1] / kChunkTokens + 1};
}

/// Online-softmax state of a range of tokens: exponentials and `out` are relative to the largest
/// score, and `out` is not yet divided by `sum`.
struct SoftmaxState {
  float* max;  ///< [rows], largest score times log2(e)
  float* sum;  ///< [rows]
  float* out;  ///< [rows, value_dim]
};

/// Scales of a chunk's tokens, for types that have them.
struct ChunkScales {
  alignas(64) float keys[kChunkTokens];
  alignas(64) float values[kChunkTokens];
};

/// Scratch memory of attend_chunk; large, so one per running tile.
struct ChunkScratch {
  alignas(64) float scores[kQueryTileRows][kChunkTokens];
  alignas(64) std::byte staged_keys[kMaxLatentKeyDim * kLanes * 4];
  const std::byte* values[kChunkTokens];
  ChunkScales scales;
};

/// Collects the scales of the chunk's tokens in [first, last]; 0 for the others.
TROUPE_INLINE void gather_scales(const QueryTile& tile, const KvCacheView& cache,
                                 std::int64_t chunk_start, std::int64_t first, std::int64_t last,
                                 ChunkScales& scales) {
  std::memset(&scales, 0, sizeof scales);
  for (std::int64_t i = first; i <= last;) {
    const std::int64_t position = chunk_start + i;
    const std::int64_t block = tile.block_table[position / cache.block_size];
    const std::int64_t t = position % cache.block_size;
    const std::int64_t count = min_of(cache.block_size - t, last + 1 - i);
    const auto num_bytes = static_cast<std::size_t>(count) * sizeof(float);
    std::memcpy(scales.keys + i, token_scale(cache, key_block(cache, block, tile.kv_head), t),
                num_bytes);
    std::byte* const values = cache.latent_dim != 0 ? key_block(cache, block, tile.kv_head)
                                                    : value_block(cache, block, tile.kv_head);
    std::memcpy(scales.values + i, token_scale(cache, values, t), num_bytes);
    i += count;
  }
}

/// The softmax of the scores of kRows rows for positions [first, last]: put(row, i, weights) for
/// its vectors, which are exp(score - max), and 0 in lanes of the outer ones that are not in the
/// range; returns each row's max (times log2(e)) and sum. Where tokens have scales, the scores are
/// multiplied by those of the keys before, and the exponentials by those of the values after. Pre:
/// args.scale > 0.
template <ElementType kType, int kRows, class Put>
TROUPE_INLINE void softmax_scores(const AttentionArgs& args, const ChunkScales& scales,
                                  float (*scores)[kChunkTokens], std::int64_t first,
                                  std::int64_t last, float* max_out, float* sum_out,
                                  const Put& put) {
  constexpr bool kScaled = scale_bytes(kType) != 0;
  const std::int64_t begin = first / kLanes * kLanes;
  const auto raw_score = [&](int r, std::int64_t i) __attribute__((always_inline)) {
    Vec score = load(scores[r] + i);
    if constexpr (kScaled) score = score * load(scales.keys + i);
    return score;
  };
  const bool is_capped = args.logit_softcap > 0.0f;
  if (is_capped) {
    const Vec cap = broadcast(args.logit_softcap);
    for (int r = 0; r < kRows; ++r)
      for (std::int64_t i = begin; i <= last; i += kLanes)
        store(scores[r] + i, cap * tanh(raw_score(r, i) * broadcast(args.scale) / cap));
  }
  const auto score_at = [&](int r, std::int64_t i) __attribute__((always_inline)) {
    return is_capped ? load(scores[r] + i) : raw_score(r, i);
  };
  // exp(scale (x - max)) as 2^(factor x - factor max).
  const float factor = is_capped ? kLog2E : args.scale * kLog2E;
  const Vec first_lane = broadcast(static_cast<float>(first));
  const Vec end_lane = broadcast(static_cast<float>(last + 1));
  const auto where_visible = [&](std::int64_t i, Vec lanes, Vec otherwise)
      __attribute__((always_inline)) {
    const Vec position = broadcast(static_cast<float>(i)) + lane_numbers();
    return select(greater_equal(position, first_lane) & less(position, end_lane), lanes, otherwise);
  };
  // f(r, i, visible) for all vectors, the rows beside each other, since each of them is a chain of
  // dependent operations; visible(lanes, otherwise) has something to do in the outer ones.
  const auto for_each = [&](const auto& f) __attribute__((always_inline)) {
    const auto outer = [&](std::int64_t i) __attribute__((always_inline)) {
      for (int r = 0; r < kRows; ++r)
        f(r, i, [&](Vec lanes, Vec otherwise) { return where_visible(i, lanes, otherwise); });
    };
    outer(begin);
    std::int64_t i = begin + kLanes;
    for (; i + kLanes <= last + 1; i += kLanes) {
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) f(r, i, [](Vec lanes, Vec) { return lanes; });
    }
    if (i <= last) outer(i);
  };
  Vec largest[kRows];
  Vec sum[kRows];
  float row_max[kRows];
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    largest[r] = broadcast(-kInfinity);
    sum[r] = zero();
  }
  for_each([&](int r, std::int64_t i, auto visible) __attribute__((always_inline)) {
    largest[r] = max(largest[r], visible(score_at(r, i), broadcast(-kInfinity)));
  });
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) row_max[r] = max_of_lanes(largest[r]) * factor;
  for_each([&](int r, std::int64_t i, auto visible) __attribute__((always_inline)) {
    const Vec power = fma(score_at(r, i), broadcast(factor), broadcast(-row_max[r]));
    Vec weight = visible(exp2(power), zero());
    sum[r] = sum[r] + weight;
    // The scale of a masked token may not be finite.
    if constexpr (kScaled) weight = visible(weight * load(scales.values + i), zero());
    put(r, i, weight);
  });
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    max_out[r] = row_max[r];
    sum_out[r] = sum_of_lanes(sum[r]);
  }
}

/// How many rows' softmax is computed at once.
inline constexpr int kSoftmaxRows = 4;

/// softmax_scores of rows [begin, end), those with the same range together: row r attends to the
/// positions [first[r], last[r]], if any. put(row, i, weights).
template <ElementType kType, class Put>
TROUPE_INLINE void softmax_of_rows(const AttentionArgs& args, const ChunkScales& scales,
                                   float (*scores)[kChunkTokens], const std::int64_t* first,
                                   const std::int64_t* last, int begin, int end,
                                   const SoftmaxState& state, const Put& put) {
  const auto compute = [&](int row, auto rows) {
    softmax_scores<kType, decltype(rows)::value>(
        args, scales, scores + row, first[row], last[row], state.max + row,
        state.sum + row, [&](int r, std::int64_t i, Vec weights) __attribute__((always_inline)) {
          put(row + r, i, weights);
        });
  };
  for (int row = begin; row < end;) {
    bool are_equal = row + kSoftmaxRows <= end;
    for (int r = row + 1; are_equal && r < row + kSoftmaxRows; ++r)
      are_equal = first[r] == first[row] && last[r] == last[row];
    const bool is_visible = first[row] <= last[row];
    if (are_equal && is_visible)
      compute(row, RowCount<kSoftmaxRows>{});
    else if (is_visible)
      compute(row, RowCount<1>{});
    row += are_equal ? kSoftmaxRows : 1;
  }
}

/// The softmax of each row over the chunk. Rows that do not attend to it have no result. A row's
/// result has nothing of values outside of its own range, if these are finite where another row
/// sees them.
void attend_chunk(const AttentionArgs& args, const QueryTile& tile, std::int64_t chunk,
                  ChunkScratch& scratch, const SoftmaxState& state);

}  // namespace troupe::TROUPE_ISA
