// Attention over paged keys and values: the plan. What is computed is in attention_chunk.hpp.

#include "kernels/cpu/attention_chunk.hpp"
#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/thread_pool.hpp"

#if defined(TROUPE_BF16_TILES)
#include "kernels/cpu/attention_tiles.hpp"
#endif

namespace troupe::TROUPE_ISA {
namespace {

std::int64_t num_query_rows(const AttentionArgs& args, std::int64_t seq) {
  return (args.query_start_loc[seq + 1] - args.query_start_loc[seq]) *
         (args.q.num_heads / args.cache.num_kv_heads);
}

/// Tiles of one sequence: those of KV head 0 first, in order of their rows.
std::int64_t num_tiles(const AttentionArgs& args, std::int64_t seq) {
  return args.cache.num_kv_heads * ceil_div(num_query_rows(args, seq), kTileRows);
}

QueryTile make_tile(const AttentionArgs& args, std::int64_t seq, std::int64_t tile_of_seq) {
  const std::int64_t group = args.q.num_heads / args.cache.num_kv_heads;
  const std::int64_t num_rows = num_query_rows(args, seq);
  const std::int64_t tiles_per_head = ceil_div(num_rows, kTileRows);
  const std::int64_t first_row = tile_of_seq % tiles_per_head * kTileRows;
  const std::int64_t first_token = args.query_start_loc[seq];
  const std::int64_t num_queries = args.query_start_loc[seq + 1] - first_token;
  QueryTile tile;
  tile.kv_head = tile_of_seq / tiles_per_head;
  tile.block_table = args.block_tables + seq * args.block_table_stride;
  tile.num_rows = static_cast<int>(min_of(kTileRows, num_rows - first_row));
  for (int i = 0; i < tile.num_rows; ++i) {
    const std::int64_t query = (first_row + i) / group;
    const std::int64_t head = tile.kv_head * group + (first_row + i) % group;
    const std::int64_t position = args.seq_lens[seq] - num_queries + query;
    tile.q[i] = args.q.row(first_token + query, head);
    tile.out[i] = args.out.row(first_token + query, head);
    tile.last_visible[i] = position;
    tile.first_visible[i] =
        args.sliding_window > 0 ? max_of(0, position - args.sliding_window + 1) : 0;
  }
  return tile;
}

TROUPE_INLINE void attend_chunk_of_type(const AttentionArgs& args, const QueryTile& tile,
                                        std::int64_t chunk, ChunkScratch& scratch,
                                        const SoftmaxState& state) {
#if defined(TROUPE_BF16_TILES)
  if (attends_in_tiles(args.cache)) {
    const auto attend = [&](auto type) {
      TileAttention<decltype(type)::value>(args, tile, chunk, scratch, state).run();
    };
    if (args.cache.type == ElementType::kI8) return attend(ElementConstant<ElementType::kI8>{});
    if (args.cache.type == ElementType::kF8E4M3) {
      return attend(ElementConstant<ElementType::kF8E4M3>{});
    }
    return attend(ElementConstant<ElementType::kBF16>{});
  }
#endif
  with_cache_type(args.cache.type, [&](auto type) {
    attend_chunk<decltype(type)::value>(args, tile, chunk, scratch, state);
  });
}

/// Takes the rows' softmax over one more chunk into their total.
void merge_chunk(const QueryTile& tile, std::int64_t chunk, std::int64_t head_dim,
                 const SoftmaxState& part, const SoftmaxState& total) {
  for (int row = 0; row < tile.num_rows; ++row) {
    if (!sees_chunk(tile, row, chunk)) continue;
    const Vec part_max = broadcast(part.max[row]);
    const Vec total_max = broadcast(total.max[row]);
    const Vec new_max = max(total_max, part_max);
    const Vec total_factor = exp(total_max - new_max);
    const Vec part_factor = exp(part_max - new_max);
    const Vec sum =
        broadcast(total.sum[row]) * total_factor + broadcast(part.sum[row]) * part_factor;
    const float* from = part.out + row * head_dim;
    float* to = total.out + row * head_dim;
    for_each_vector(head_dim, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(to + i, load_lanes(to + i) * total_factor + load_lanes(from + i) * part_factor);
    });
    alignas(64) float lanes[2][kLanes];
    store(lanes[0], new_max);
    store(lanes[1], sum);
    total.max[row] = lanes[0][0];
    total.sum[row] = lanes[1][0];
  }
}

void clear(const SoftmaxState& state, int num_rows, std::int64_t head_dim) {
  for (int row = 0; row < num_rows; ++row) {
    state.max[row] = -kInfinity;
    state.sum[row] = 0.0f;
  }
  std::memset(state.out, 0, static_cast<std::size_t>(num_rows * head_dim) * sizeof(float));
}

void write_out(const QueryTile& tile, std::int64_t head_dim, const SoftmaxState& total) {
  for (int row = 0; row < tile.num_rows; ++row) {
    const float* from = total.out + row * head_dim;
    float* to = tile.out[row];
    const Vec sum = broadcast(total.sum[row]);
    for_each_vector(head_dim, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      store_lanes(to + i, load_lanes(from + i) / sum);
    });
  }
}

/// Whether every row of the tile sees the chunk: a total may begin with it.
bool all_see_chunk(const QueryTile& tile, std::int64_t chunk) {
  for (int row = 0; row < tile.num_rows; ++row) {
    if (!sees_chunk(tile, row, chunk)) return false;
  }
  return true;
}

void copy(const SoftmaxState& from, int num_rows, std::int64_t head_dim, const SoftmaxState& to) {
  const auto rows = static_cast<std::size_t>(num_rows);
  std::memcpy(to.max, from.max, rows * sizeof(float));
  std::memcpy(to.sum, from.sum, rows * sizeof(float));
  std::memcpy(to.out, from.out, rows * static_cast<std::size_t>(head_dim) * sizeof(float));
}

/// A SoftmaxState in memory of its own, for the rows of one tile.
struct TileState {
  float max[kTileRows];
  float sum[kTileRows];
  alignas(64) float out[kTileRows * kMaxHeadDim];
  SoftmaxState view() { return {max, sum, out}; }
};

struct ChunkRange {
  std::int64_t first;
  std::int64_t end;
};
ChunkRange visible_chunks(const QueryTile& tile) {
  // Rows are in order of their positions.
  return {tile.first_visible[0] / kChunkTokens,
          tile.last_visible[tile.num_rows - 1] / kChunkTokens + 1};
}

/// A tile from beginning to end on one thread.
void attend_tile(const AttentionArgs& args, const QueryTile& tile) {
  const std::int64_t head_dim = args.cache.head_dim;
  ChunkScratch scratch;
  TileState part;
  TileState total;
  ChunkRange chunks = visible_chunks(tile);
  if (all_see_chunk(tile, chunks.first)) {
    attend_chunk_of_type(args, tile, chunks.first++, scratch, total.view());
  } else {
    clear(total.view(), tile.num_rows, head_dim);
  }
  for (std::int64_t chunk = chunks.first; chunk < chunks.end; ++chunk) {
    attend_chunk_of_type(args, tile, chunk, scratch, part.view());
    merge_chunk(tile, chunk, head_dim, part.view(), total.view());
  }
  write_out(tile, head_dim, total.view());
}

/// Which sequence the tile with this number over the whole batch belongs to, and its number there.
struct TileIndex {
  std::int64_t seq;
  std::int64_t tile;
};
TileIndex locate_tile(const AttentionArgs& args, std::int64_t tile, bool one_tile_per_head) {
  if (one_tile_per_head) {
    return {tile / args.cache.num_kv_heads, tile % args.cache.num_kv_heads};
  }
  std::int64_t seq = 0;
  for (; tile >= num_tiles(args, seq); ++seq) tile -= num_tiles(args, seq);
  return {seq, tile};
}

std::int64_t split_state_floats(std::int64_t num_rows, std::int64_t head_dim) {
  return round_up(num_rows * (head_dim + 2), 16);
}

/// A tile's chunks in the workspace, one SoftmaxState each.
SoftmaxState split_state(const OpContext& context, std::int64_t index, std::int64_t num_rows,
                         std::int64_t head_dim) {
  float* first = reinterpret_cast<float*>(context.workspace.data()) +
                 index * split_state_floats(num_rows, head_dim);
  return {first, first + num_rows, first + 2 * num_rows};
}

/// Few tiles over long sequences: the chunks of all tiles in parallel, then merged in order. The
/// same operations on the same numbers as attend_tile.
void attend_split(const OpContext& context, const AttentionArgs& args, std::int64_t total_tiles,
                  std::int64_t max_chunks, std::int64_t max_rows) {
  const std::int64_t head_dim = args.cache.head_dim;
  const auto tile_at = [&](std::int64_t index) {
    const TileIndex place = locate_tile(args, index, true);
    return make_tile(args, place.seq, place.tile);
  };
  context.pool->parallel_for(total_tiles * max_chunks, [&](std::int64_t index) {
    const QueryTile tile = tile_at(index / max_chunks);
    const std::int64_t chunk = index % max_chunks;
    const ChunkRange chunks = visible_chunks(tile);
    if (chunk < chunks.first || chunk >= chunks.end) return;
    ChunkScratch scratch;
    attend_chunk_of_type(args, tile, chunk, scratch,
                         split_state(context, index, max_rows, head_dim));
  });
  context.pool->parallel_for(total_tiles, [&](std::int64_t index) {
    const QueryTile tile = tile_at(index);
    TileState total;
    const auto state_of = [&](std::int64_t chunk) {
      return split_state(context, index * max_chunks + chunk, max_rows, head_dim);
    };
    ChunkRange chunks = visible_chunks(tile);
    if (all_see_chunk(tile, chunks.first)) {
      copy(state_of(chunks.first++), tile.num_rows, head_dim, total.view());
    } else {
      clear(total.view(), tile.num_rows, head_dim);
    }
    for (std::int64_t chunk = chunks.first; chunk < chunks.end; ++chunk) {
      merge_chunk(tile, chunk, head_dim, state_of(chunk), total.view());
    }
    write_out(tile, head_dim, total.view());
  });
}

/// Splitting pays only while there are fewer tiles than this for each thread.
constexpr std::int64_t kSplitTilesPerThread = 2;

}  // namespace

std::int64_t attention_workspace_bytes(const AttentionShape& shape, int num_threads) noexcept {
  const std::int64_t rows = min_of(kTileRows, shape.num_heads / shape.num_kv_heads);
  const std::int64_t chunks = ceil_div(shape.max_seq_len, kChunkTokens);
  return kSplitTilesPerThread * num_threads * chunks * split_state_floats(rows, shape.head_dim) *
         static_cast<std::int64_t>(sizeof(float));
}

void attention(const OpContext& context, const AttentionArgs& args) noexcept {
  std::int64_t total_tiles = 0;
  std::int64_t max_rows = 1;
  std::int64_t max_chunks = 1;
  bool one_tile_per_head = true;
  for (std::int64_t seq = 0; seq < args.num_seqs; ++seq) {
    const std::int64_t tiles = num_tiles(args, seq);
    total_tiles += tiles;
    one_tile_per_head = one_tile_per_head && tiles == args.cache.num_kv_heads;
    max_rows = max_of(max_rows, num_query_rows(args, seq));
    max_chunks = max_of(max_chunks, ceil_div(args.seq_lens[seq], kChunkTokens));
  }
  const int num_threads = context.pool->num_threads();
  if (one_tile_per_head && num_threads > 1 && max_chunks > 1 && max_rows <= kTileRows &&
      total_tiles < kSplitTilesPerThread * num_threads) {
    const std::int64_t bytes = total_tiles * max_chunks *
                               split_state_floats(max_rows, args.cache.head_dim) *
                               static_cast<std::int64_t>(sizeof(float));
    if (bytes <= static_cast<std::int64_t>(context.workspace.size())) {
      return attend_split(context, args, total_tiles, max_chunks, max_rows);
    }
  }
  context.pool->parallel_for(total_tiles, [&](std::int64_t index) {
    const TileIndex place = locate_tile(args, index, one_tile_per_head);
    QueryTile tile = make_tile(args, place.seq, place.tile);
    tile.is_whole = true;
    attend_tile(args, tile);
  });
}

}  // namespace troupe::TROUPE_ISA
