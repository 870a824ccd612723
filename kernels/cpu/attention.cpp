// Attention over paged keys and values: partitioning of the work. The computation is in
// attention_chunk.cpp and, for bf16 units, attention_bf16.cpp.

#include "kernels/cpu/attention_merge.hpp"
#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/thread_pool.hpp"

#if defined(TROUPE_BF16_UNIT)
#include "kernels/cpu/attention_bf16.hpp"
#endif

namespace troupe::TROUPE_ISA {
namespace {

std::int64_t num_query_rows(const AttentionArgs& args, std::int64_t seq) {
  return (args.query_start_loc[seq + 1] - args.query_start_loc[seq]) *
         (args.q.num_heads / args.cache.num_kv_heads);
}

/// Tiles of one sequence and KV head.
std::int64_t tiles_per_head(const AttentionArgs& args, std::int64_t seq) {
  return ceil_div(num_query_rows(args, seq), kQueryTileRows);
}

QueryTile make_tile(const AttentionArgs& args, std::int64_t seq, std::int64_t kv_head,
                    std::int64_t tile_of_head) {
  const std::int64_t group = args.q.num_heads / args.cache.num_kv_heads;
  const std::int64_t num_rows = num_query_rows(args, seq);
  const std::int64_t first_row = tile_of_head * kQueryTileRows;
  const std::int64_t first_token = args.query_start_loc[seq];
  const std::int64_t num_queries = args.query_start_loc[seq + 1] - first_token;
  QueryTile tile;
  tile.kv_head = kv_head;
  tile.block_table = args.block_tables + args.block_table_rows[seq] * args.block_table_stride;
  tile.num_rows = static_cast<int>(min_of(kQueryTileRows, num_rows - first_row));
  for (int i = 0; i < tile.num_rows; ++i) {
    const std::int64_t query = (first_row + i) / group;
    const std::int64_t head = tile.kv_head * group + (first_row + i) % group;
    const std::int64_t position = args.seq_lens[seq] - num_queries + query;
    tile.q[i] = args.q.row(first_token + query, head);
    tile.out[i] = args.out.row(first_token + query, head);
    if (args.sinks != nullptr) tile.sinks[i] = args.sinks[head];
    const VisibleRange visible = visible_range(args, seq, position);
    tile.first_visible[i] = visible.first;
    tile.last_visible[i] = visible.last;
  }
  return tile;
}

/// One chunk of a tile.
void attend_one_chunk(const AttentionArgs& args, const QueryTile& tile, std::int64_t chunk,
                      const SoftmaxState& state) {
#if defined(TROUPE_BF16_UNIT)
  if (attends_in_bf16(args.cache)) {
    return attend_chunk_in_bf16(args, tile, chunk, state);
  }
#endif
  ChunkScratch scratch;
  attend_chunk(args, tile, chunk, scratch, state);
}

/// All chunks of some tiles of one sequence and KV head, in order, on one thread.
void attend_tiles(const AttentionArgs& args, const QueryTile* tiles, int num_tiles) {
#if defined(TROUPE_BF16_UNIT)
  if (attends_in_bf16(args.cache)) {
    return attend_in_bf16(args, tiles, num_tiles);
  }
#endif
  ChunkScratch scratch;
  TileState part;
  TileTotals totals;
  const std::int64_t end = visible_chunks(tiles[num_tiles - 1]).end;
  for (std::int64_t chunk = visible_chunks(tiles[0]).first; chunk < end; ++chunk) {
    for (int i = 0; i < num_tiles; ++i) {
      const ChunkRange chunks = visible_chunks(tiles[i]);
      if (chunk < chunks.first || chunk >= chunks.end) continue;
      const auto attend = [&](std::int64_t c, const SoftmaxState& state) {
        attend_chunk(args, tiles[i], c, scratch, state);
      };
      const auto part_of = [&](std::int64_t c) {
        attend(c, part.view());
        return part.view();
      };
      add_chunk(args, tiles[i], chunk, attend, part_of, totals.of(i, args.cache.value_dim()));
    }
  }
}

/// Tiles that one thread processes together: up to `at_once` of one sequence and KV head. Those of
/// KV head 0 come first, in order of their rows.
struct TileRun {
  std::int64_t seq;
  std::int64_t kv_head;
  std::int64_t first_tile;
};
std::int64_t num_runs(const AttentionArgs& args, std::int64_t seq, std::int64_t at_once) {
  return args.cache.num_kv_heads * ceil_div(tiles_per_head(args, seq), at_once);
}
TileRun locate_run(const AttentionArgs& args, std::int64_t index, std::int64_t at_once,
                   bool one_tile_per_head) {
  if (one_tile_per_head)
    return {index / args.cache.num_kv_heads, index % args.cache.num_kv_heads, 0};
  std::int64_t seq = 0;
  for (; index >= num_runs(args, seq, at_once); ++seq) index -= num_runs(args, seq, at_once);
  const std::int64_t runs_per_head = ceil_div(tiles_per_head(args, seq), at_once);
  return {seq, index / runs_per_head, index % runs_per_head * at_once};
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

/// Split-KV for few tiles over long sequences: the chunks of all tiles in parallel, then merged in
/// order. The same operations on the same numbers as attend_tiles.
void attend_split(const OpContext& context, const AttentionArgs& args, std::int64_t total_tiles,
                  std::int64_t max_chunks, std::int64_t max_rows) {
  const std::int64_t head_dim = args.cache.value_dim();
  const auto tile_at = [&](std::int64_t index) {
    return make_tile(args, index / args.cache.num_kv_heads, index % args.cache.num_kv_heads, 0);
  };
  context.pool->parallel_for(total_tiles * max_chunks, [&](std::int64_t index) {
    const QueryTile tile = tile_at(index / max_chunks);
    const std::int64_t chunk = index % max_chunks;
    const ChunkRange chunks = visible_chunks(tile);
    if (chunk < chunks.first || chunk >= chunks.end) return;
    attend_one_chunk(args, tile, chunk, split_state(context, index, max_rows, head_dim));
  });
  context.pool->parallel_for(total_tiles, [&](std::int64_t index) {
    const QueryTile tile = tile_at(index);
    const auto state_of = [&](std::int64_t chunk) {
      return split_state(context, index * max_chunks + chunk, max_rows, head_dim);
    };
    const auto begin = [&](std::int64_t chunk, const SoftmaxState& total) {
      copy(state_of(chunk), tile.num_rows, head_dim, total);
    };
    TileState total;
    const ChunkRange chunks = visible_chunks(tile);
    for (std::int64_t chunk = chunks.first; chunk < chunks.end; ++chunk)
      add_chunk(args, tile, chunk, begin, state_of, total.view());
  });
}

/// Splitting pays off only below this number of tiles per thread.
constexpr std::int64_t kSplitTilesPerThread = 2;
/// Tiles are grouped only while there are at least this many runs per thread.
constexpr std::int64_t kRunsPerThread = 4;

}  // namespace

std::int64_t attention_head_dim_unit(ElementType cache_type) noexcept {
  return max_of(bf16_unit_head_dim(cache_type), 1);
}

std::int64_t attention_workspace_bytes(const AttentionShape& shape, int num_threads) noexcept {
  const std::int64_t rows = min_of(kQueryTileRows, shape.num_heads / shape.num_kv_heads);
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
    const std::int64_t tiles = tiles_per_head(args, seq);
    total_tiles += args.cache.num_kv_heads * tiles;
    one_tile_per_head = one_tile_per_head && tiles == 1;
    max_rows = max_of(max_rows, num_query_rows(args, seq));
    max_chunks = max_of(max_chunks, ceil_div(args.seq_lens[seq], kChunkTokens));
  }
  const int num_threads = context.pool->num_threads();
  if (one_tile_per_head && num_threads > 1 && max_chunks > 1 &&
      total_tiles < kSplitTilesPerThread * num_threads) {
    const std::int64_t bytes = total_tiles * max_chunks *
                               split_state_floats(max_rows, args.cache.value_dim()) *
                               static_cast<std::int64_t>(sizeof(float));
    if (bytes <= static_cast<std::int64_t>(context.workspace.size())) {
      return attend_split(context, args, total_tiles, max_chunks, max_rows);
    }
  }
  const std::int64_t at_once =
      max_of(1, min_of(tiles_at_once(args.cache), total_tiles / (kRunsPerThread * num_threads)));
  std::int64_t total_runs = 0;
  for (std::int64_t seq = 0; seq < args.num_seqs; ++seq) total_runs += num_runs(args, seq, at_once);
  context.pool->parallel_for(total_runs, [&](std::int64_t index) {
    const TileRun run = locate_run(args, index, at_once, one_tile_per_head);
    const std::int64_t end = min_of(tiles_per_head(args, run.seq), run.first_tile + at_once);
    QueryTile tiles[kTilesAtOnce];
    int num_tiles = 0;
    for (std::int64_t tile = run.first_tile; tile < end; ++tile) {
      tiles[num_tiles] = make_tile(args, run.seq, run.kv_head, tile);
      tiles[num_tiles++].is_whole = true;
    }
    attend_tiles(args, tiles, num_tiles);
  });
}

}  // namespace troupe::TROUPE_ISA
