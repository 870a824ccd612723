// Matrix times packed weights. Every element of the product is reduced over k in one order,
// whatever the number of rows: rows, panels and threads only affect where and when it is computed.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/matmul_f32.hpp"
#include "kernels/cpu/matmul_finish.hpp"
#include "kernels/cpu/matmul_quantized.hpp"
#include "kernels/cpu/quantized_rows.hpp"
#include "kernels/cpu/row_blocks.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/cpu/weight_prefetcher.hpp"

#if defined(TROUPE_BF16_TILES)
#include "kernels/cpu/matmul_quantized_tiles.hpp"
#include "kernels/cpu/matmul_tiles.hpp"
#elif defined(TROUPE_BF16_DOT)
#include "kernels/cpu/matmul_dot.hpp"
#include "kernels/cpu/rounded_rows.hpp"
#endif

namespace troupe::TROUPE_ISA {
namespace {

constexpr std::int64_t kKi = 1024;

#if defined(TROUPE_BF16_UNIT)
bool uses_bf16_unit(const WeightSpec& spec) {
  return spec.quantized == QuantizedType::kNone && spec.mode == ComputeMode::kBF16 &&
         spec.type == ElementType::kBF16;
}
#endif

/// A product split by the shards of a weight that are in use.
struct Product {
  PackedWeight weight;
  PanelLayout layout;
  std::int64_t first_shard;
  std::int64_t num_shards;

  explicit Product(const PackedWeight& whole) : Product(whole, 0, whole.spec.k_shards) {}
  Product(const PackedWeight& from, std::int64_t first, std::int64_t count)
      : weight(from), layout(panel_layout(from.spec)), first_shard(first), num_shards(count) {}

  [[nodiscard]] const std::byte* panel(std::int64_t index) const {
    return weight.data + index * layout.panel_bytes + first_shard * layout.shard_bytes;
  }
};

/// A shard of a panel, and where the thread continues after it.
struct ShardInChunk {
  std::int64_t index;  ///< of the product's shards
  const std::byte* data;
  const std::byte* next;
  const std::byte* end_of_chunk;
  const std::byte* next_chunk;
};

/// Calls f(row, number of rows, block, number of blocks) for num_rows rows in blocks of up to
/// kMaxRows.
template <int kMaxRows, class F>
TROUPE_INLINE void for_each_row_block(std::int64_t num_rows, const F& f) {
  const std::int64_t num_blocks = ceil_div(num_rows, kMaxRows);
  for (std::int64_t row = 0, rows = 0, block = 0; row < num_rows; row += rows, ++block) {
    rows = next_block_rows(num_rows - row, kMaxRows);
    f(row, static_cast<int>(rows), block, num_blocks);
  }
}

/// Panels of a chunk: so many that each thread gets this number of chunks, within the two bounds
/// but for a single panel. row_chunks: chunks with the same panels and other rows.
std::int64_t panels_of_chunk(const OpContext& context, const PanelLayout& layout,
                             std::int64_t row_chunks, std::int64_t chunks_per_thread,
                             std::int64_t least, std::int64_t most) {
  const std::int64_t thread_panels =
      layout.num_panels * row_chunks / (chunks_per_thread * context.pool->num_threads());
  return max_of(max_of(1, least), min_of(thread_panels, most));
}

/// Covers the product with chunks of one or more panels by up to kChunkRows rows. multiply(unit,
/// first_row, num_rows, shard, sums) computes the sums of a chunk's rows for one shard, [num_rows,
/// layout.cols].
template <int kMaxRows, class Store, class Multiply>
TROUPE_INLINE void for_each_shard(const OpContext& context, const Product& product,
                                  std::int64_t num_rows, const Store& store,
                                  const Multiply& multiply) {
  constexpr std::int64_t kBlockRows = kMaxRows;
  constexpr std::int64_t kChunkRows = 8 * kBlockRows > 192 ? 8 * kBlockRows : 192;
  // Small enough that threads finish together, large enough for low contention on the counter.
  constexpr std::int64_t kChunksPerThread = 16;
  constexpr std::int64_t kMinChunkProducts = 64 * kKi;
  constexpr std::int64_t kMaxChunkProducts = 256 * kKi;
  const PanelLayout& layout = product.layout;
  const std::int64_t num_shards = product.num_shards;
  const std::int64_t row_chunks = ceil_div(num_rows, kChunkRows);
  const std::int64_t panel_products =
      max_of(1, min_of(num_rows, kChunkRows) * num_shards * layout.depth * layout.cols);
  const std::int64_t panels_per_chunk =
      panels_of_chunk(context, layout, row_chunks, kChunksPerThread,
                      kMinChunkProducts / panel_products, kMaxChunkProducts / panel_products);
  const std::int64_t num_chunks = ceil_div(layout.num_panels, panels_per_chunk) * row_chunks;

  context.pool->parallel_for(num_chunks, [&](std::int64_t chunk) {
    alignas(64) float sums[kMaxShards * kChunkRows * kPanelCols];
    const std::int64_t first_panel = chunk / row_chunks * panels_per_chunk;
    const std::int64_t end_panel = min_of(layout.num_panels, first_panel + panels_per_chunk);
    const std::int64_t first_row = chunk % row_chunks * kChunkRows;
    const std::int64_t end_row = min_of(num_rows, first_row + kChunkRows);
    // The chunk that this thread is likely to get next.
    const std::int64_t next_chunk = min_of(num_chunks - 1, chunk + context.pool->num_threads());
    const std::byte* const next_chunk_panel =
        product.panel(next_chunk / row_chunks * panels_per_chunk);
    for (std::int64_t panel = first_panel; panel < end_panel; ++panel) {
      const std::byte* shard = product.panel(panel);
      for (std::int64_t s = 0; s < num_shards; ++s, shard += layout.shard_bytes) {
        const std::byte* next_shard = shard + layout.shard_bytes;
        if (s + 1 == num_shards)
          next_shard = panel + 1 < end_panel ? product.panel(panel + 1) : next_chunk_panel;
        multiply(first_row, end_row - first_row,
                 ShardInChunk{s, shard, next_shard, product.panel(end_panel), next_chunk_panel},
                 sums + s * kChunkRows * layout.cols);
      }
      store_block(store, {sums, kChunkRows * layout.cols, layout.cols, num_shards}, first_row,
                  end_row - first_row, panel, layout.cols);
    }
    store.finish();
  });
}

/// for_each_shard, with blocks of up to kMaxRows rows: multiply(row, num_rows, shard, prefetcher,
/// sums) fills the sums of one block.
template <int kMaxRows, class Store, class Multiply>
TROUPE_INLINE void for_each_block(const OpContext& context, const Product& product,
                                  std::int64_t num_rows, const Store& store,
                                  const Multiply& multiply) {
  for_each_shard<kMaxRows>(
      context, product, num_rows, store,
      [&](std::int64_t first_row, std::int64_t chunk_rows, const ShardInChunk& shard, float* sums) {
        for_each_row_block<kMaxRows>(
            chunk_rows, [&](std::int64_t row, int rows, std::int64_t block,
                            std::int64_t num_blocks) __attribute__((always_inline)) {
              const WeightPrefetcher prefetcher =
                  num_blocks == 1 ? WeightPrefetcher(shard.end_of_chunk, shard.next_chunk)
                                  : WeightPrefetcher(shard.next - shard.data, block, num_blocks);
              multiply(first_row + row, rows, shard, prefetcher, sums + row * product.layout.cols);
            });
      });
}

template <class Store>
void multiply_f32(const OpContext& context, const Product& product, ConstMatrix x,
                  const Store& store) {
  const std::int64_t depth = product.layout.depth;
  with_element_type(product.weight.spec.type, [&](auto type) {
    constexpr ElementType kType = decltype(type)::value;
    for_each_block<kF32Rows>(context, product, x.num_rows, store,
                             [&](std::int64_t row, int num_rows, const ShardInChunk& shard,
                                 const WeightPrefetcher& prefetcher, float* sums) {
                               multiply_rows_f32<kType>(num_rows, x.row(row) + shard.index * depth,
                                                        x.row_stride, shard.data, depth, prefetcher,
                                                        sums);
                             });
  });
}

template <class Store>
void multiply_fp4(const OpContext& context, const Product& product, ConstMatrix x,
                  const Store& store) {
  const PanelLayout& layout = product.layout;
  for_each_block<kF32Rows>(context, product, x.num_rows, store,
                           [&](std::int64_t row, int num_rows, const ShardInChunk& shard,
                               const WeightPrefetcher& prefetcher, float* sums) {
                             multiply_rows_fp4(num_rows, x.row(row) + shard.index * layout.depth,
                                               x.row_stride, product.weight.spec, layout,
                                               shard.data, prefetcher, sums);
                           });
}

#if defined(TROUPE_BF16_TILES)

/// Every chunk is some panels by some rows; in it, every panel is multiplied by groups of rows
/// whose sums stay in cache, and one stretch of the panel's depth at a time, which stays in cache
/// while the rows are processed. Stretches are long, since sums are written to memory between them.
template <class Store>
void multiply_bf16(const OpContext& context, const Product& product, const RoundedRows& x,
                   const Store& store) {
  constexpr std::int64_t kTallRows = TileUnit::kTallRows;
  constexpr std::int64_t kRowsAtOnce = 3 * kTallRows;
  constexpr std::int64_t kStretch = 1024;              // of the depth
  constexpr std::int64_t kChunkRowBytes = 1600 * kKi;  // rounded rows in the L2 cache
  // Small enough that threads finish together, large enough for few rounds of rows through cache.
  constexpr std::int64_t kChunksPerThread = 8;
  constexpr std::int64_t kMinChunkWeightBytes = 64 * kKi;
  constexpr std::int64_t kMaxChunkWeightBytes = 512 * kKi;
  constexpr std::int64_t kWeightsAhead = 8 * kKi;  // latency of memory, in weights multiplied
  constexpr std::int64_t kStepLines = kBf16DepthStep * kBf16PanelCols * 2 / 64;
  constexpr std::int64_t kShardSums = kRowsAtOnce * kBf16PanelCols;
  const PanelLayout& layout = product.layout;
  const std::int64_t num_shards = product.num_shards;
  const std::int64_t num_rows = x.num_rows();
  const std::int64_t most_rows =
      max_of(kRowsAtOnce, kChunkRowBytes / (x.row_depth() * 2) / kTallRows * kTallRows);
  const std::int64_t row_chunks = ceil_div(num_rows, most_rows);
  const std::int64_t chunk_rows = round_up(ceil_div(num_rows, row_chunks), kTallRows);
  const std::int64_t panel_bytes = max_of(1, num_shards * layout.shard_bytes);
  const std::int64_t panels_per_chunk =
      panels_of_chunk(context, layout, row_chunks, kChunksPerThread,
                      kMinChunkWeightBytes / panel_bytes, kMaxChunkWeightBytes / panel_bytes);
  const std::int64_t panel_chunks = ceil_div(layout.num_panels, panels_per_chunk);
  const std::int64_t num_chunks = panel_chunks * row_chunks;
  context.pool->parallel_for(num_chunks, [&](std::int64_t chunk) {
    alignas(64) float sums[kMaxShards * kShardSums];
    TileUnit unit;
    Finisher finisher(store);
    const std::int64_t first_row = chunk / panel_chunks * chunk_rows;
    const std::int64_t end_row = min_of(num_rows, first_row + chunk_rows);
    const std::int64_t first_panel = chunk % panel_chunks * panels_per_chunk;
    const std::int64_t end_panel = min_of(layout.num_panels, first_panel + panels_per_chunk);
    // The chunk that this thread is likely to get next.
    const std::int64_t next_chunk = min_of(num_chunks - 1, chunk + context.pool->num_threads());
    // The first block prefetches what it is about to use, the others a share each of the next
    // panel.
    const std::int64_t shares = ceil_div(end_row - first_row, kTallRows) - 1;
    const std::int64_t share_lines = shares > 0 ? ceil_div(kStepLines, shares) : 0;
    for (std::int64_t panel = first_panel; panel < end_panel; ++panel) {
      const std::byte* shards = product.panel(panel);
      const std::byte* next_shards = product.panel(
          panel + 1 < end_panel ? panel + 1 : next_chunk % panel_chunks * panels_per_chunk);
      for (std::int64_t group = first_row; group < end_row; group += kRowsAtOnce) {
        const std::int64_t end_group = min_of(end_row, group + kRowsAtOnce);
        for (std::int64_t s = 0; s < num_shards; ++s) {
          for (std::int64_t k = 0; k < layout.padded_depth; k += kStretch) {
            const std::int64_t depth = min_of(kStretch, layout.padded_depth - k);
            const std::int64_t first_byte = s * layout.shard_bytes + k * kBf16PanelCols * 2;
            const std::int64_t num_steps = depth / kBf16DepthStep;
            const bool is_last = s + 1 == num_shards && k + depth == layout.padded_depth;
            for (std::int64_t row = group, rows = 0; row < end_group; row += rows) {
              rows = min_of(kTallRows, end_group - row);
              if (rows < kTallRows) rows = min_of(32, rows);
              float* block = sums + (row - group) * kBf16PanelCols;
              finisher.begin(num_steps);
              const std::int64_t share = (row - first_row) / kTallRows - 1;
              const Prefetch prefetcher =
                  share < 0
                      ? Prefetch{shards + first_byte + kWeightsAhead, kStepLines}
                      : Prefetch{next_shards + first_byte + share * num_steps * share_lines * 64,
                                 share_lines};
              unit.multiply(x, row, static_cast<int>(rows), s * layout.padded_depth + k, depth,
                            shards + first_byte, prefetcher, finisher, k == 0,
                            block + s * kShardSums);
              finisher.end({block, kShardSums, kBf16PanelCols, num_shards}, panel, row,
                           is_last ? rows : 0);
            }
          }
        }
      }
    }
    finisher.finish();
  });
}

#elif defined(TROUPE_BF16_DOT)

/// A single block of rows unpacks the weights on the fly. With several blocks, the first one
/// unpacks a stretch for all of them, which stays in cache while the others use it.
template <class Store>
void multiply_compact(const OpContext& context, const Product& product, const RoundedRows& x,
                      const Store& store) {
  constexpr std::int64_t kStretchPairs = 512;
  const std::int64_t num_pairs = product.layout.padded_depth / 2;
  for_each_shard<DotUnit::kMaxRows>(
      context, product, x.num_rows(), store,
      [&](std::int64_t first_row, std::int64_t num_rows, const ShardInChunk& shard, float* sums) {
        const std::uint16_t* const first = x.row(first_row, shard.index);
        CompactLines lines(shard.data);
        if (num_rows <= DotUnit::kMaxRows) {
          return DotUnit::multiply(
              static_cast<int>(num_rows), first, x.row_depth(), lines, num_pairs,
              WeightPrefetcher(shard.end_of_chunk, shard.next_chunk), false, sums);
        }
        alignas(64) std::byte kept[kStretchPairs * PlainLines::kPairBytes];
        for (std::int64_t pair = 0; pair < num_pairs; pair += kStretchPairs) {
          const std::int64_t count = min_of(kStretchPairs, num_pairs - pair);
          const std::byte* const stretch = lines.at(pair);
          const std::byte* const next =
              pair + count < num_pairs ? lines.at(pair + count) : shard.next;
          for_each_row_block<DotUnit::kMaxRows>(
              num_rows, [&](std::int64_t row, int rows, std::int64_t block, std::int64_t num_blocks)
                            __attribute__((always_inline)) {
                              const WeightPrefetcher prefetcher(next - stretch, block, num_blocks);
                              const auto multiply = [&](auto from) __attribute__((always_inline)) {
                                DotUnit::multiply(rows, first + row * x.row_depth() + pair * 2,
                                                  x.row_depth(), from, count, prefetcher, pair > 0,
                                                  sums + row * product.layout.cols);
                                return from;
                              };
                              if (block == 0) {
                                lines = multiply(KeepingLines(lines, pair, kept)).rest();
                              } else {
                                multiply(KeptLines(kept, stretch));
                              }
                            });
        }
      });
}

template <class Store>
void multiply_bf16(const OpContext& context, const Product& product, const RoundedRows& x,
                   const Store& store) {
  const std::int64_t num_pairs = product.layout.padded_depth / 2;
  if (product.weight.spec.is_compact) return multiply_compact(context, product, x, store);
  for_each_block<DotUnit::kMaxRows>(context, product, x.num_rows(), store,
                                    [&](std::int64_t row, int num_rows, const ShardInChunk& shard,
                                        const WeightPrefetcher& prefetcher, float* sums) {
                                      PlainLines lines(shard.data);
                                      DotUnit::multiply(num_rows, x.row(row, shard.index),
                                                        x.row_depth(), lines, num_pairs, prefetcher,
                                                        false, sums);
                                    });
}

#endif

#if defined(TROUPE_BF16_TILES)

/// Every chunk is a panel by some rows; a stretch of the panel is unpacked, then multiplied with
/// all these rows.
template <QuantizedType kType, bool kHasMinimums, class Store>
void multiply_by_tiles(const OpContext& context, const Product& product, const QuantizedX& x,
                       std::int64_t num_rows, const Store& store) {
  constexpr std::int64_t kRowsAtOnce = 256;
  const WeightSpec& spec = product.weight.spec;
  const PanelLayout& layout = product.layout;
  const std::int64_t num_shards = product.num_shards;
  const std::int64_t shard_groups = spec.groups_per_shard();
  const std::int64_t stretch_groups = kQuantizedStretch / spec.group_size;
  const std::int64_t row_chunks = ceil_div(num_rows, kRowsAtOnce);
  const std::int64_t chunk_rows = round_up(ceil_div(num_rows, row_chunks), kTileRows);
  const std::int64_t num_chunks = layout.num_panels * row_chunks;
  context.pool->parallel_for(num_chunks, [&](std::int64_t chunk) {
    alignas(64) float sums[kMaxShards * kRowsAtOnce * kPanelCols];
    UnpackedStretch stretch;
    QuantizedTileUnit unit(spec.group_size);
    const std::int64_t panel = chunk % layout.num_panels;
    // The chunk that this thread is likely to get next.
    const std::int64_t next_chunk = min_of(num_chunks - 1, chunk + context.pool->num_threads());
    const std::int64_t first_row = chunk / layout.num_panels * chunk_rows;
    const std::int64_t end_row = min_of(num_rows, first_row + chunk_rows);
    const std::int64_t row_tiles = max_of(1, ceil_div(end_row - first_row, kTileRows));
    const std::byte* shard = product.panel(panel);
    for (std::int64_t s = 0; s < num_shards; ++s, shard += layout.shard_bytes) {
      for (std::int64_t g = 0; g < shard_groups; g += stretch_groups) {
        const std::int64_t num_groups = min_of(stretch_groups, shard_groups - g);
        unpack_stretch<kType>(spec, layout.group_bytes, shard, g, num_groups, stretch);
        // The next stretch is prefetched while this one is multiplied.
        const bool is_last = s + 1 == num_shards && g + num_groups == shard_groups;
        Prefetch prefetcher{is_last ? product.panel(next_chunk % layout.num_panels)
                                    : shard + (g + num_groups) * layout.group_bytes};
        const std::int64_t num_steps = unit.num_steps(num_groups);
        prefetcher.lines_per_step =
            ceil_div(num_groups * layout.group_bytes, 64 * num_steps * row_tiles);
        for (std::int64_t row = first_row; row < end_row; row += kTileRows) {
          unit.multiply<kHasMinimums>(spec.group_size, x.at(row, s, g),
                                      static_cast<int>(min_of(kTileRows, end_row - row)),
                                      num_groups, stretch, prefetcher, g == 0,
                                      sums + (s * kRowsAtOnce + row - first_row) * kPanelCols);
          prefetcher.first += num_steps * prefetcher.lines_per_step * 64;
        }
      }
    }
    if (first_row < end_row) {
      store_block(store, {sums, kRowsAtOnce * kPanelCols, kPanelCols, num_shards}, first_row,
                  end_row - first_row, panel, kPanelCols);
    }
    store.finish();
  });
}

#endif

template <QuantizedType kType, class Store>
void multiply_quantized(const OpContext& context, const Product& product, ConstMatrix wide_x,
                        const Store& store) {
  const WeightSpec& spec = product.weight.spec;
  const QuantizedX x(context, spec, product.num_shards, wide_x);
#if defined(TROUPE_BF16_TILES)
  if (x.is_for_tiles()) {
    if (spec.has_minimums)
      return multiply_by_tiles<kType, true>(context, product, x, wide_x.num_rows, store);
    return multiply_by_tiles<kType, false>(context, product, x, wide_x.num_rows, store);
  }
#endif
  for_each_block<kQuantizedRows>(context, product, wide_x.num_rows, store,
                                 [&](std::int64_t row, int num_rows, const ShardInChunk& shard,
                                     const WeightPrefetcher& prefetcher, float* sums) {
                                   multiply_rows_quantized<kType>(
                                       num_rows, spec, product.layout.group_bytes,
                                       x.at(row, shard.index, 0), shard.data, prefetcher, sums);
                                 });
}

template <class Store>
void multiply(const OpContext& context, const Product& product, ConstMatrix x, const Store& store) {
  const WeightSpec& spec = product.weight.spec;
  if (spec.quantized == QuantizedType::kInt8)
    return multiply_quantized<QuantizedType::kInt8>(context, product, x, store);
  if (spec.quantized == QuantizedType::kInt4)
    return multiply_quantized<QuantizedType::kInt4>(context, product, x, store);
  if (spec.quantized == QuantizedType::kFp4) return multiply_fp4(context, product, x, store);
#if defined(TROUPE_BF16_UNIT)
  if (uses_bf16_unit(spec)) {
    const RoundedRows rounded(context.workspace.data(), x.num_rows, product.num_shards,
                              product.layout);
    rounded.round(context, x);
    return multiply_bf16(context, product, rounded, store);
  }
#endif
  multiply_f32(context, product, x, store);
}

/// Whether the gated activations are stored in the input format of the second product's unit.
bool keeps_hidden_rounded([[maybe_unused]] const WeightSpec& gate_up,
                          [[maybe_unused]] const WeightSpec& down) {
#if defined(TROUPE_BF16_UNIT)
  return uses_bf16_unit(gate_up) && uses_bf16_unit(down) &&
         RoundedRows::takes_vectors(panel_layout(down));
#else
  return false;
#endif
}

/// Size of the gated activations in bytes.
std::int64_t hidden_bytes(const WeightSpec& gate_up, const WeightSpec& down,
                          std::int64_t num_rows) {
  if (keeps_hidden_rounded(gate_up, down)) return matmul_workspace_bytes(down, num_rows);
  return round_up(num_rows * down.num_cols * 4, 64);
}

}  // namespace

std::int64_t matmul_workspace_bytes(const WeightSpec& spec, std::int64_t max_rows) noexcept {
  if (spec.quantized == QuantizedType::kFp4) return 0;
  if (spec.quantized != QuantizedType::kNone)
    return quantized_space(spec, max_rows, spec.k_shards).num_bytes;
#if defined(TROUPE_BF16_UNIT)
  if (uses_bf16_unit(spec))
    return round_up(max_rows * spec.k_shards * panel_layout(spec).padded_depth * 2, 64);
#endif
  return 0;
}

void matmul(const OpContext& context, const MatmulArgs& args) noexcept {
  const std::int64_t num_shards =
      args.num_shards == 0 ? args.weight.spec.k_shards : args.num_shards;
  multiply(context, Product(args.weight, args.first_shard, num_shards), args.x,
           StoreProduct(args.out, args.bias));
}

std::int64_t gated_mlp_workspace_bytes(const WeightSpec& gate_up, const WeightSpec& down,
                                       std::int64_t max_rows) noexcept {
  const std::int64_t first = matmul_workspace_bytes(gate_up, max_rows);
  const std::int64_t second = matmul_workspace_bytes(down, max_rows);
  return hidden_bytes(gate_up, down, max_rows) +
         (keeps_hidden_rounded(gate_up, down) ? first : max_of(first, second));
}

void gated_mlp(const OpContext& context, const GatedMlpArgs& args) noexcept {
  const Product gate_up(args.gate_up);
  const Product down(args.down);
  const WeightSpec& spec = args.down.spec;
  const std::int64_t num_rows = args.x.num_rows;
  const std::int64_t num_gates = spec.num_cols;
  std::byte* const first = context.workspace.data();
  OpContext rest = context;
  rest.workspace = context.workspace.subspan(
      static_cast<std::size_t>(hidden_bytes(args.gate_up.spec, spec, num_rows)));
  const StoreProduct store(args.out, args.down_bias);
#if defined(TROUPE_BF16_UNIT)
  if (keeps_hidden_rounded(args.gate_up.spec, spec)) {
    const RoundedRows hidden(first, num_rows, down.num_shards, down.layout);
    multiply(rest, gate_up, args.x,
             StoreGated<RoundedRows>{hidden, args.activation, args.clamp, args.gate_up_bias,
                                     num_gates, args.gate_up_update, args.hidden});
    return multiply_bf16(rest, down, hidden, store);
  }
#endif
  const Matrix hidden(reinterpret_cast<float*>(first), num_rows, num_gates);
  multiply(rest, gate_up, args.x,
           StoreGated<WideRows>{{hidden},
                                args.activation,
                                args.clamp,
                                args.gate_up_bias,
                                num_gates,
                                args.gate_up_update,
                                args.hidden});
  multiply(rest, down, hidden, store);
}

}  // namespace troupe::TROUPE_ISA
