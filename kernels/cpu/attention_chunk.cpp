// Attention of a few query rows to one chunk, for each type of cache.
#include "kernels/cpu/attention_chunk.hpp"

#include "kernels/cpu/row_blocks.hpp"

namespace troupe::TROUPE_ISA {

// The sums of a group of rows stay in registers, of which AVX-512 has 32, and the others 16.
constexpr bool kHas32Registers = kLanes == 16;
constexpr int kMaxGroupRows = kHas32Registers ? 4 : 6;
/// Vectors of keys, or of values, for a group of so many rows.
constexpr int vectors_at_once(int num_rows) { return kHas32Registers || num_rows <= 2 ? 4 : 2; }
/// A step that decodes has few rows, and reads keys and values from memory: what comes next is
/// prefetched. Where there are many, the caches have them.
constexpr bool prefetches(int num_rows) { return num_rows < kMaxGroupRows; }
/// How many tokens before they are needed values are prefetched.
constexpr std::int64_t kValuesAhead = 16;

/// scores[r][v * kLanes ...] = q[r] . keys, summed over d in order; keys[v] are kLanes tokens whose
/// element d is at d * key_stride. next_keys: of the tokens after these, to prefetch.
template <ElementType kType, int kRows, int kVectors>
TROUPE_INLINE void score_keys(const float* const* q, const std::byte* const* keys,
                              const std::byte* const* next_keys, std::int64_t key_stride,
                              std::int64_t head_dim, float (*scores)[kChunkTokens],
                              std::int64_t first_score) {
  Vec acc[kRows][kVectors];
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) acc[r][v] = zero();
  }
  // Blocks have 16 tokens at least, except for odd ones.
  constexpr int kVectorsOfBlock = kLanes < 16 ? static_cast<int>(16 / kLanes) : 1;
  // Elements of a line, less 1: a power of 2, as key_stride is a multiple of kLanes.
  [[maybe_unused]] const std::int64_t line_mask =
      max_of(1, 64 / (key_stride * element_bytes(kType))) - 1;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    if constexpr (prefetches(kRows)) {
      if ((d & line_mask) == 0) {
        for (int v = 0; v < kVectors; v += kVectorsOfBlock)
          __builtin_prefetch(next_keys[v] + d * key_stride * element_bytes(kType), 0, 2);
      }
    }
    Vec k[kVectors];
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) k[v] = load_as<kType>(keys[v], d * key_stride);
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec element = broadcast(q[r][d]);
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(element, k[v], acc[r][v]);
    }
  }
  TROUPE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) store(&scores[r][first_score + v * kLanes], acc[r][v]);
  }
}

/// The rows of a tile in groups of kMaxGroupRows, 4, 2 and 1: f(first row, number of rows as a
/// constant).
template <class F>
TROUPE_INLINE void for_each_row_group(int num_rows, const F& f) {
  int row = 0;
  for (; row + kMaxGroupRows <= num_rows; row += kMaxGroupRows) f(row, RowCount<kMaxGroupRows>{});
  if constexpr (kMaxGroupRows > 4) {
    if (row + 4 <= num_rows) {
      f(row, RowCount<4>{});
      row += 4;
    }
  }
  if (row + 2 <= num_rows) {
    f(row, RowCount<2>{});
    row += 2;
  }
  if (row < num_rows) f(row, RowCount<1>{});
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
      const std::byte* next_keys[kVectors];
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        keys[v] = keys_of_group(group + v);
        next_keys[v] = keys_of_group(min_of(group + kVectors + v, end_group - 1));
      }
      for_each_row_group(tile.num_rows, [&](int row, auto rows) {
        constexpr int kAtOnce = vectors_at_once(decltype(rows)::value);
        TROUPE_UNROLL
        for (int v = 0; v < kVectors; v += kAtOnce) {
          score_keys<kType, decltype(rows)::value, kAtOnce>(
              tile.q + row, keys + v, next_keys + v, stride, cache.head_dim, scratch.scores + row,
              (group + v) * kLanes);
        }
      });
      group += kVectors;
    } else {
      const std::byte* keys = keys_of_group(group);
      for_each_row_group(tile.num_rows, [&](int row, auto rows) {
        score_keys<kType, decltype(rows)::value, 1>(tile.q + row, &keys, &keys, stride,
                                                    cache.head_dim, scratch.scores + row,
                                                    group * kLanes);
      });
      ++group;
    }
  }
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
    if constexpr (prefetches(kRows)) {
      const std::byte* later = values[min_of(j + kValuesAhead, last)] + d * element_bytes(kType);
      for (std::int64_t i = 0; i < kVectors * kLanes * element_bytes(kType); i += 64)
        __builtin_prefetch(later + i, 0, 2);
    }
    Vec value[kVectors];
    TROUPE_UNROLL
    for (int v = 0; v < kVectors; ++v) value[v] = load_as<kType>(values[j], d + v * kLanes);
    TROUPE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = broadcast(weights[r][j]);
      TROUPE_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(weight, value[v], acc[r][v]);
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
  constexpr int kVectors = vectors_at_once(kRows);
  std::int64_t d = 0;
  for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) {
    weigh_values<kType, kRows, kVectors>(weights, values, first, last, d, out, head_dim);
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

/// As attend_chunk, for one type.
template <ElementType kType>
void attend_chunk_of(const AttentionArgs& args, const QueryTile& tile, std::int64_t chunk,
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
  softmax_of_rows<kType>(args, scratch.scales, scratch.scores, first, last, 0, tile.num_rows, state,
                         [&scratch](int row, std::int64_t i, Vec weights) {
                           store(scratch.scores[row] + i, weights);
                         });
  for (int row = 0; row < tile.num_rows; ++row) {
    if (sees_chunk(tile, row, chunk))
      std::memset(state.out + row * head_dim, 0,
                  static_cast<std::size_t>(head_dim) * sizeof(float));
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

void attend_chunk(const AttentionArgs& args, const QueryTile& tile, std::int64_t chunk,
                  ChunkScratch& scratch, const SoftmaxState& state) {
  with_cache_type(args.cache.type, [&](auto type) {
    attend_chunk_of<decltype(type)::value>(args, tile, chunk, scratch, state);
  });
}

}  // namespace troupe::TROUPE_ISA
