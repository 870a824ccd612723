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

/// scores[r][v * kLanes ...] = q[r] . keys, summed over d in order; keys[v] are kLanes tokens whose
/// element d is at d * key_stride.
template <ElementType kType, int kRows, int kVectors>
TROUPE_INLINE void score_keys(const float* const* q, const std::byte* const* keys,
                              std::int64_t key_stride, std::int64_t head_dim,
                              float (*scores)[kChunkTokens], std::int64_t first_score) {
  Vec acc[kRows][kVectors];
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  for (std::int64_t d = 0; d < head_dim; ++d) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const Vec k = load_as<kType>(keys[v], d * key_stride);
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) acc[r][v] = fma(broadcast(q[r][d]), k, acc[r][v]);
    }
  }
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) store(&scores[r][first_score + v * kLanes], acc[r][v]);
  }
}

/// The rows of a tile in groups of 4, 2 and 1: f(first row, number of rows as a constant).
template <class F>
TROUPE_INLINE void for_each_row_group(int num_rows, const F& f) {
  int row = 0;
  for (; row + 4 <= num_rows; row += 4) f(row, RowCount<4>{});
  if (row + 2 <= num_rows) {
    f(row, RowCount<2>{});
    row += 2;
  }
  if (row < num_rows) f(row, RowCount<1>{});
}

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

/// Scores of all rows for the chunk's tokens in [first, last] (positions in the chunk), unscaled.
template <ElementType kType>
TROUPE_INLINE void score_chunk(const QueryTile& tile, const KvCacheView& cache,
                               std::int64_t chunk_start, std::int64_t first, std::int64_t last,
                               ChunkScratch& scratch) {
  constexpr std::int64_t kNumberBytes = element_bytes(kType);
  const bool blocks_hold_vectors = cache.block_size % kLanes == 0;
  const std::int64_t stride = blocks_hold_vectors ? cache.block_size : kLanes;
  // The kLanes tokens from position `group * kLanes` of the chunk on.
  const auto keys_of_group = [&](std::int64_t group) -> const std::byte* {
    const std::int64_t position = chunk_start + group * kLanes;
    if (blocks_hold_vectors) {
      return key_block(cache, tile.block_table[position / cache.block_size], tile.kv_head) +
             position % cache.block_size * kNumberBytes;
    }
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      // Lanes outside of the range repeat a token in it: their scores are not used.
      const std::int64_t in_chunk = max_of(first, min_of(last, group * kLanes + lane));
      const std::int64_t token = chunk_start + in_chunk;
      const std::byte* keys =
          key_block(cache, tile.block_table[token / cache.block_size], tile.kv_head);
      for (std::int64_t d = 0; d < cache.head_dim; ++d) {
        std::memcpy(scratch.staged_keys + (d * kLanes + lane) * kNumberBytes,
                    keys + (d * cache.block_size + token % cache.block_size) * kNumberBytes,
                    kNumberBytes);
      }
    }
    return scratch.staged_keys;
  };
  constexpr int kVectors = 4;
  std::int64_t group = first / kLanes;
  const std::int64_t end_group = last / kLanes + 1;
  while (group < end_group) {
    if (blocks_hold_vectors && group + kVectors <= end_group) {
      const std::byte* keys[kVectors];
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) keys[v] = keys_of_group(group + v);
      for_each_row_group(tile.num_rows, [&](int row, auto rows) {
        score_keys<kType, decltype(rows)::value, kVectors>(
            tile.q + row, keys, stride, cache.head_dim, scratch.scores + row, group * kLanes);
      });
      group += kVectors;
    } else {
      const std::byte* keys = keys_of_group(group);
      for_each_row_group(tile.num_rows, [&](int row, auto rows) {
        score_keys<kType, decltype(rows)::value, 1>(tile.q + row, &keys, stride, cache.head_dim,
                                                    scratch.scores + row, group * kLanes);
      });
      ++group;
    }
  }
}

/// The softmax of the scores of positions [first, last]: put(i, weights) for its vectors, which are
/// exp(score - max), and 0 in lanes of the outer ones that are not in the range; returns max (times
/// log2(e)) and sum. Where tokens have scales, the scores are multiplied by those of the keys
/// before, and the exponentials by those of the values after. Pre: args.scale > 0.
template <ElementType kType, class Put>
TROUPE_INLINE void softmax_scores(const AttentionArgs& args, const ChunkScales& scales,
                                  float* scores, std::int64_t first, std::int64_t last,
                                  float* max_out, float* sum_out, const Put& put) {
  constexpr bool kScaled = scale_bytes(kType) != 0;
  const std::int64_t begin = first / kLanes * kLanes;
  const auto raw_score = [&](std::int64_t i) __attribute__((always_inline)) {
    Vec score = load(scores + i);
    if constexpr (kScaled) score = score * load(scales.keys + i);
    return score;
  };
  const bool is_capped = args.logit_softcap > 0.0f;
  if (is_capped) {
    const Vec cap = broadcast(args.logit_softcap);
    for (std::int64_t i = begin; i <= last; i += kLanes)
      store(scores + i, cap * tanh(raw_score(i) * broadcast(args.scale) / cap));
  }
  const auto score_at = [&](std::int64_t i) __attribute__((always_inline)) {
    return is_capped ? load(scores + i) : raw_score(i);
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
  // f(i, visible) for all vectors; visible(lanes, otherwise) has something to do in the outer ones.
  const auto for_each = [&](const auto& f) __attribute__((always_inline)) {
    const auto outer = [&](std::int64_t i) __attribute__((always_inline)) {
      f(i, [&](Vec lanes, Vec otherwise) { return where_visible(i, lanes, otherwise); });
    };
    outer(begin);
    std::int64_t i = begin + kLanes;
    for (; i + kLanes <= last + 1; i += kLanes) f(i, [](Vec lanes, Vec) { return lanes; });
    if (i <= last) outer(i);
  };
  Vec largest = broadcast(-kInfinity);
  for_each([&](std::int64_t i, auto visible) __attribute__((always_inline)) {
    largest = max(largest, visible(score_at(i), broadcast(-kInfinity)));
  });
  const float row_max = max_of_lanes(largest) * factor;
  Vec sum = zero();
  for_each([&](std::int64_t i, auto visible) __attribute__((always_inline)) {
    const Vec power = fma(score_at(i), broadcast(factor), broadcast(-row_max));
    Vec weight = visible(exp2(power), zero());
    sum = sum + weight;
    // The scale of a masked token may not be finite.
    if constexpr (kScaled) weight = visible(weight * load(scales.values + i), zero());
    put(i, weight);
  });
  *max_out = row_max;
  *sum_out = sum_of_lanes(sum);
}

/// out[r][d ...] += weights[r][j] * values[j][d ...] for j in [first, last], in order.
template <ElementType kType, int kRows, int kVectors>
TROUPE_INLINE void weigh_values(const float (*weights)[kChunkTokens],
                                const std::byte* const* values, std::int64_t first,
                                std::int64_t last, std::int64_t d, float* out,
                                std::int64_t out_stride) {
  Vec acc[kRows][kVectors];
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) acc[r][v] = load(out + r * out_stride + d + v * kLanes);
  }
  for (std::int64_t j = first; j <= last; ++j) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const Vec value = load_as<kType>(values[j], d + v * kLanes);
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) acc[r][v] = fma(broadcast(weights[r][j]), value, acc[r][v]);
    }
  }
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) store(out + r * out_stride + d + v * kLanes, acc[r][v]);
  }
}

/// weigh_values over the whole head_dim.
template <ElementType kType, int kRows>
TROUPE_INLINE void weigh_values_of_rows(const float (*weights)[kChunkTokens],
                                        const std::byte* const* values, std::int64_t first,
                                        std::int64_t last, std::int64_t head_dim, float* out) {
  if (first > last) return;
  std::int64_t d = 0;
  for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) {
    weigh_values<kType, kRows, 4>(weights, values, first, last, d, out, head_dim);
  }
  for (; d + kLanes <= head_dim; d += kLanes) {
    weigh_values<kType, kRows, 1>(weights, values, first, last, d, out, head_dim);
  }
  if (d == head_dim) return;
  const std::int64_t rest = head_dim - d;
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    Vec acc = load_first(out + r * head_dim + d, rest);
    for (std::int64_t j = first; j <= last; ++j) {
      acc = fma(broadcast(weights[r][j]), load_first_as<kType>(values[j], d, rest), acc);
    }
    store_first(out + r * head_dim + d, acc, rest);
  }
}

/// out[r][d] = sum over the chunk's tokens j in [first, last] of weights[r][j] times element d of
/// the value of j, a latent vector, whose lanes are neighbouring tokens: one sum for each lane,
/// which are added at the end. Weights of tokens that a row does not see are 0.
template <ElementType kType, int kRows>
TROUPE_INLINE void weigh_latents(const QueryTile& tile, const KvCacheView& cache,
                                 const float (*weights)[kChunkTokens], std::int64_t chunk_start,
                                 std::int64_t first, std::int64_t last, float* out) {
  constexpr std::int64_t kNumberBytes = element_bytes(kType);
  const std::int64_t block_size = cache.block_size;
  const std::int64_t first_dim = cache.head_dim - cache.latent_dim;
  const bool blocks_hold_vectors = block_size % kLanes == 0;
  const std::int64_t first_group = first / kLanes;
  const std::int64_t end_group = last / kLanes + 1;
  const auto latents_at = [&](std::int64_t token) __attribute__((always_inline)) {
    return key_block(cache, tile.block_table[token / block_size], tile.kv_head) +
           (first_dim * block_size + token % block_size) * kNumberBytes;
  };
  const std::byte* groups[kChunkTokens / kLanes];
  for (std::int64_t g = first_group; blocks_hold_vectors && g < end_group; ++g)
    groups[g] = latents_at(chunk_start + g * kLanes);
  // Element d of the tokens of a group; 0 outside of the range, where anything may be stored.
  const auto load_outer = [&](std::int64_t g, std::int64_t d) {
    alignas(64) float lanes[kLanes];
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const std::int64_t j = g * kLanes + lane;
      const bool is_inside = j >= first && j <= last;
      lanes[lane] =
          is_inside ? load_element<kType>(latents_at(chunk_start + j), d * block_size) : 0.0f;
    }
    return load(lanes);
  };
  for (std::int64_t d = 0; d < cache.latent_dim; ++d) {
    Vec acc[kRows];
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) acc[r] = zero();
    const auto add = [&](std::int64_t g, Vec values) __attribute__((always_inline)) {
      TROUPE_UNROLL
      for (int r = 0; r < kRows; ++r) acc[r] = fma(load(weights[r] + g * kLanes), values, acc[r]);
    };
    for (std::int64_t g = first_group; g < end_group; ++g) {
      const bool is_whole = g * kLanes >= first && (g + 1) * kLanes <= last + 1;
      add(g, blocks_hold_vectors && is_whole ? load_as<kType>(groups[g], d * block_size)
                                             : load_outer(g, d));
    }
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) out[r * cache.latent_dim + d] = sum_of_lanes(acc[r]);
  }
}

/// The values of a chunk of latent vectors, for all rows of the tile.
template <ElementType kType>
TROUPE_INLINE void add_latents(const QueryTile& tile, const KvCacheView& cache,
                               std::int64_t chunk_start, std::int64_t tile_first,
                               std::int64_t tile_last, const std::int64_t* first,
                               const std::int64_t* last, ChunkScratch& scratch,
                               const SoftmaxState& state) {
  const std::int64_t begin = tile_first / kLanes * kLanes;
  const std::int64_t end = round_up(tile_last + 1, kLanes);
  for (int row = 0; row < tile.num_rows; ++row) {
    float* weights = scratch.scores[row];
    for (std::int64_t j = begin; j < end; ++j)
      if (j < first[row] || j > last[row]) weights[j] = 0.0f;
  }
  for_each_row_group(tile.num_rows, [&](int row, auto rows) {
    weigh_latents<kType, decltype(rows)::value>(tile, cache, scratch.scores + row, chunk_start,
                                                tile_first, tile_last,
                                                state.out + row * cache.latent_dim);
  });
}

/// The softmax of each row over the chunk. Rows that do not attend to it have no result. A row's
/// result has nothing of values outside of its own range, if these are finite where another row
/// sees them.
template <ElementType kType>
void attend_chunk(const AttentionArgs& args, const QueryTile& tile, std::int64_t chunk,
                  ChunkScratch& scratch, const SoftmaxState& state) {
  const KvCacheView& cache = args.cache;
  const std::int64_t chunk_start = chunk * kChunkTokens;
  const std::int64_t head_dim = cache.value_dim();
  std::int64_t first[kQueryTileRows] = {};
  std::int64_t last[kQueryTileRows] = {};
  std::int64_t tile_first = kChunkTokens;
  std::int64_t tile_last = -1;
  for (int row = 0; row < tile.num_rows; ++row) {
    first[row] = max_of(0, tile.first_visible[row] - chunk_start);
    last[row] = min_of(kChunkTokens - 1, tile.last_visible[row] - chunk_start);
    if (!sees_chunk(tile, row, chunk)) continue;
    tile_first = min_of(tile_first, first[row]);
    tile_last = max_of(tile_last, last[row]);
  }
  if (tile_last < tile_first) return;

  if constexpr (scale_bytes(kType) != 0) {
    gather_scales(tile, cache, chunk_start, tile_first, tile_last, scratch.scales);
  }
  score_chunk<kType>(tile, cache, chunk_start, tile_first, tile_last, scratch);
  for (int row = 0; row < tile.num_rows; ++row) {
    if (!sees_chunk(tile, row, chunk)) continue;
    float* scores = scratch.scores[row];
    softmax_scores<kType>(args, scratch.scales, scores, first[row], last[row], &state.max[row],
                          &state.sum[row],
                          [scores](std::int64_t i, Vec weights) { store(scores + i, weights); });
    std::memset(state.out + row * head_dim, 0, static_cast<std::size_t>(head_dim) * sizeof(float));
  }

  if (cache.latent_dim != 0) {
    return add_latents<kType>(tile, cache, chunk_start, tile_first, tile_last, first, last, scratch,
                              state);
  }
  for (std::int64_t j = tile_first; j <= tile_last; ++j) {
    const std::int64_t position = chunk_start + j;
    scratch.values[j] =
        value_block(cache, tile.block_table[position / cache.block_size], tile.kv_head) +
        position % cache.block_size * head_dim * element_bytes(kType);
  }
  for_each_row_group(tile.num_rows, [&](int row, auto rows) {
    constexpr int kRows = decltype(rows)::value;
    // Each row reads its range in order: alone, then with the other rows of the group, then alone.
    std::int64_t common_first = 0;
    std::int64_t common_last = kChunkTokens - 1;
    for (int r = row; r < row + kRows; ++r) {
      common_first = max_of(common_first, first[r]);
      common_last = min_of(common_last, last[r]);
    }
    const bool overlap = common_first <= common_last;
    for (int r = row; r < row + kRows; ++r) {
      if (!sees_chunk(tile, r, chunk)) continue;
      weigh_values_of_rows<kType, 1>(scratch.scores + r, scratch.values, first[r],
                                     overlap ? common_first - 1 : last[r], head_dim,
                                     state.out + r * head_dim);
    }
    if (!overlap) return;
    weigh_values_of_rows<kType, kRows>(scratch.scores + row, scratch.values, common_first,
                                       common_last, head_dim, state.out + row * head_dim);
    for (int r = row; r < row + kRows; ++r) {
      weigh_values_of_rows<kType, 1>(scratch.scores + r, scratch.values, common_last + 1, last[r],
                                     head_dim, state.out + r * head_dim);
    }
  });
}

}  // namespace troupe::TROUPE_ISA
