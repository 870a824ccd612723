#pragma once
// Merges the online-softmax states of chunks.

#include "kernels/cpu/attention_chunk.hpp"

namespace troupe::TROUPE_ISA {

/// A SoftmaxState with its own memory, for the rows of one tile.
struct TileState {
  alignas(64) float max[kQueryTileRows] = {};
  alignas(64) float sum[kQueryTileRows] = {};
  alignas(64) float out[kQueryTileRows * kMaxHeadDim];
  SoftmaxState view() { return {max, sum, out}; }
};

/// Of each of up to tiles_at_once tiles, the softmax over its chunks so far.
struct TileTotals {
  alignas(64) float max[kTilesAtOnce * kQueryTileRows];
  alignas(64) float sum[kTilesAtOnce * kQueryTileRows];
  alignas(64) float out[kQueryTileRows * kMaxDimsAtOnce];
  SoftmaxState of(std::int64_t tile, std::int64_t head_dim) {
    return {max + tile * kQueryTileRows, sum + tile * kQueryTileRows,
            out + tile * kQueryTileRows * head_dim};
  }
};

/// Merges the rows' softmax over one more chunk into their total.
inline void merge_chunk(const QueryTile& tile, std::int64_t chunk, std::int64_t head_dim,
                        const SoftmaxState& part, const SoftmaxState& total) {
  alignas(64) float max_of_both[kQueryTileRows];
  alignas(64) float sum_of_both[kQueryTileRows];
  alignas(64) float total_factor[kQueryTileRows];
  alignas(64) float part_factor[kQueryTileRows];
  for_each_vector(tile.num_rows, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
    const Vec part_max = load_lanes(part.max + i);
    const Vec total_max = load_lanes(total.max + i);
    const Vec largest = max(total_max, part_max);
    const Vec of_total = exp2(total_max - largest);
    const Vec of_part = exp2(part_max - largest);
    store_lanes(max_of_both + i, largest);
    store_lanes(sum_of_both + i,
                load_lanes(total.sum + i) * of_total + load_lanes(part.sum + i) * of_part);
    store_lanes(total_factor + i, of_total);
    store_lanes(part_factor + i, of_part);
  });
  for (int row = 0; row < tile.num_rows; ++row) {
    if (!sees_chunk(tile, row, chunk)) continue;
    const Vec of_total = broadcast(total_factor[row]);
    const Vec of_part = broadcast(part_factor[row]);
    const float* from = part.out + row * head_dim;
    float* to = total.out + row * head_dim;
    for_each_vector(head_dim, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(to + i, load_lanes(to + i) * of_total + load_lanes(from + i) * of_part);
    });
    total.max[row] = max_of_both[row];
    total.sum[row] = sum_of_both[row];
  }
}

inline void clear(const SoftmaxState& state, int num_rows, std::int64_t head_dim) {
  for (int row = 0; row < num_rows; ++row) {
    state.max[row] = -kInfinity;
    state.sum[row] = 0.0f;
  }
  std::memset(state.out, 0, static_cast<std::size_t>(num_rows * head_dim) * sizeof(float));
}

inline void copy(const SoftmaxState& from, int num_rows, std::int64_t head_dim,
                 const SoftmaxState& to) {
  const auto rows = static_cast<std::size_t>(num_rows);
  std::memcpy(to.max, from.max, rows * sizeof(float));
  std::memcpy(to.sum, from.sum, rows * sizeof(float));
  std::memcpy(to.out, from.out, rows * static_cast<std::size_t>(head_dim) * sizeof(float));
}

/// Whether every row of the tile attends to the chunk: a total may start with it.
inline bool all_see_chunk(const QueryTile& tile, std::int64_t chunk) {
  for (int row = 0; row < tile.num_rows; ++row) {
    if (!sees_chunk(tile, row, chunk)) return false;
  }
  return true;
}

/// What out is multiplied by where one more score, times log2(e), is in the softmax: that of a key
/// whose value is 0.
TROUPE_INLINE Vec factor_with_sink(float max_score, float sum, float sink) {
  const Vec largest = max(broadcast(max_score), broadcast(sink));
  const Vec of_total = exp2(broadcast(max_score) - largest);
  return of_total / (broadcast(sum) * of_total + exp2(broadcast(sink) - largest));
}

inline void write_out(const AttentionArgs& args, const QueryTile& tile, const SoftmaxState& total) {
  const std::int64_t head_dim = args.cache.value_dim();
  const bool bypasses_caches =
      head_dim % kLanes == 0 &&
      should_bypass_caches(args.out.data, args.out.num_tokens, args.out.token_stride);
  for (int row = 0; row < tile.num_rows; ++row) {
    const float* from = total.out + row * head_dim;
    float* to = tile.out[row];
    const Vec factor = args.sinks == nullptr ? broadcast(1.0f / total.sum[row])
                                             : factor_with_sink(total.max[row], total.sum[row],
                                                                tile.sinks[row] * kLog2E);
    if (bypasses_caches) {
      for (std::int64_t i = 0; i < head_dim; i += kLanes)
        non_temporal_store(to + i, load(from + i) * factor);
      continue;
    }
    for_each_vector(head_dim, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(to + i, load_lanes(from + i) * factor);
    });
  }
  if (bypasses_caches) finish_stores_around_caches();
}

/// Adds the softmax over the next of the tile's chunks to their total, and computes the tile's
/// output after the last one: begin(chunk, total) stores the first into the total, if all rows
/// attend to it; part(chunk) is the softmax over another.
template <class Begin, class Part>
void add_chunk(const AttentionArgs& args, const QueryTile& tile, std::int64_t chunk,
               const Begin& begin, const Part& part, const SoftmaxState& total) {
  const std::int64_t head_dim = args.cache.value_dim();
  const ChunkRange chunks = visible_chunks(tile);
  if (chunk == chunks.first && all_see_chunk(tile, chunk)) {
    begin(chunk, total);
  } else {
    if (chunk == chunks.first) clear(total, tile.num_rows, head_dim);
    merge_chunk(tile, chunk, head_dim, part(chunk), total);
  }
  if (chunk + 1 == chunks.end) write_out(args, tile, total);
}

}  // namespace troupe::TROUPE_ISA
