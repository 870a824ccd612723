// Matrix times packed weights. Every element of the product is reduced over k in one order,
// whatever the number of rows: rows, panels and threads only decide who computes it and when.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/matmul_f32.hpp"
#include "kernels/cpu/matmul_quantized.hpp"
#include "kernels/cpu/rows.hpp"

#if defined(TROUPE_BF16_TILES)
#include "kernels/cpu/matmul_quantized_tiles.hpp"
#include "kernels/cpu/matmul_tiles.hpp"
#elif defined(TROUPE_BF16_DOT)
#include "kernels/cpu/matmul_dot.hpp"
#endif

namespace troupe::TROUPE_ISA {
namespace {

#if defined(TROUPE_BF16_TILES) || defined(TROUPE_BF16_DOT)
#define TROUPE_BF16_UNIT
bool uses_bf16_unit(const WeightSpec& spec) {
  return spec.mode == ComputeMode::kBF16 && spec.type == ElementType::kBF16;
}
#endif

/// The sums of one block of rows by one panel: those of shard s begin at data + s * shard_stride,
/// those of a row at row * row_stride in them.
struct BlockSums {
  const float* data;
  std::int64_t shard_stride;
  std::int64_t row_stride;
};

/// out[rows, columns of the panel] from the sums of the shards: added as a tree, then the bias.
TROUPE_INLINE void finish_block(const MatmulArgs& args, std::int64_t num_shards,
                                const BlockSums& sums, std::int64_t first_row,
                                std::int64_t num_rows, std::int64_t first_col,
                                std::int64_t panel_cols) {
  const std::int64_t num_cols = min_of(panel_cols, args.weight.spec.num_rows - first_col);
  const std::int64_t shard_size = sums.shard_stride;
  const float* bias = args.bias == nullptr ? nullptr : args.bias + first_col;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const float* row = sums.data + r * sums.row_stride;
    float* to = args.out.row(first_row + r) + first_col;
    for_each_vector(num_cols, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
      Vec sum = load(row + i);
      if (num_shards >= 2) sum = sum + load(row + shard_size + i);
      if (num_shards == 4) {
        sum = sum + (load(row + 2 * shard_size + i) + load(row + 3 * shard_size + i));
      }
      if (bias != nullptr) sum = sum + load_lanes(bias + i);
      store_lanes(to + i, sum);
    });
  }
}

/// Covers the product with chunks of one or more panels by up to kChunkRows rows, and those with
/// blocks of up to kMaxRows rows. multiply(unit, first_row, num_rows, shard_index, shard, sums)
/// fills the sums of one block, [num_rows, layout.cols].
template <class Unit, int kMaxRows, class Multiply>
TROUPE_INLINE void for_each_block(const OpContext& context, const MatmulArgs& args,
                                  const Multiply& multiply) {
  constexpr std::int64_t kChunkRows = 8 * kMaxRows > 192 ? 8 * kMaxRows : 192;
  constexpr std::int64_t kChunkProducts = 64 * 1024;
  const WeightSpec& spec = args.weight.spec;
  const PanelLayout layout = panel_layout(spec);
  const std::int64_t num_shards = args.num_shards == 0 ? spec.k_shards : args.num_shards;
  const std::int64_t num_rows = args.x.num_rows;
  const std::int64_t row_chunks = ceil_div(num_rows, kChunkRows);
  const std::int64_t panel_products =
      max_of(1, min_of(num_rows, kChunkRows) * num_shards * layout.depth * layout.cols);
  const std::int64_t panels_per_chunk = max_of(1, kChunkProducts / panel_products);
  const std::int64_t panel_chunks = ceil_div(layout.num_panels, panels_per_chunk);

  context.pool->parallel_for(panel_chunks * row_chunks, [&](std::int64_t chunk) {
    alignas(64) float sums[kMaxShards * kMaxRows * kPanelCols];
    Unit unit;
    const std::int64_t first_panel = chunk / row_chunks * panels_per_chunk;
    const std::int64_t end_panel = min_of(layout.num_panels, first_panel + panels_per_chunk);
    const std::int64_t first_row = chunk % row_chunks * kChunkRows;
    const std::int64_t end_row = min_of(num_rows, first_row + kChunkRows);
    for (std::int64_t panel = first_panel; panel < end_panel; ++panel) {
      const std::int64_t col = panel * layout.cols;
      const std::byte* shards =
          args.weight.data + panel * layout.panel_bytes + args.first_shard * layout.shard_bytes;
      for (std::int64_t row = first_row, rows = 0; row < end_row; row += rows) {
        // Blocks of about equal size: 8 rows are 4 + 4 rather than 6 + 2.
        const std::int64_t blocks_left = ceil_div(end_row - row, kMaxRows);
        rows = ceil_div(end_row - row, blocks_left);
        for (std::int64_t s = 0; s < num_shards; ++s) {
          multiply(unit, row, static_cast<int>(rows), s, shards + s * layout.shard_bytes,
                   sums + s * rows * layout.cols);
        }
        finish_block(args, num_shards, {sums, rows * layout.cols, layout.cols}, row, rows, col,
                     layout.cols);
      }
    }
  });
}

struct NoUnit {};

void matmul_f32(const OpContext& context, const MatmulArgs& args) {
  const std::int64_t depth = panel_layout(args.weight.spec).depth;
  with_element_type(args.weight.spec.type, [&](auto type) {
    constexpr ElementType kType = decltype(type)::value;
    for_each_block<NoUnit, kF32Rows>(
        context, args,
        [&](NoUnit&, std::int64_t row, int num_rows, std::int64_t shard_index,
            const std::byte* shard, float* sums) {
          multiply_rows_f32<kType>(num_rows, args.x.row(row) + shard_index * depth,
                                   args.x.row_stride, shard, depth, sums);
        });
  });
}

#if defined(TROUPE_BF16_TILES)

/// Rounds the activations into tiles (TileRows) in the workspace: tile after tile as they lie
/// there, since memory takes neighbouring lines much faster than those of one row, which are a tile
/// apart.
void round_activations(const OpContext& context, const MatmulArgs& args, const PanelLayout& layout,
                       const TileRows& rounded) {
  constexpr std::int64_t kStepsAtOnce = 16;
  const std::int64_t num_rows = args.x.num_rows;
  const std::int64_t shard_steps = layout.padded_depth / kBf16DepthStep;
  const std::int64_t num_steps = rounded.row_depth() / kBf16DepthStep;
  const std::int64_t row_chunks = ceil_div(num_steps, kStepsAtOnce);
  context.pool->parallel_for(ceil_div(num_rows, 16) * row_chunks, [&](std::int64_t chunk) {
    const std::int64_t first_row = chunk / row_chunks * 16;
    const std::int64_t rows = min_of(16, num_rows - first_row);
    const std::int64_t first_step = chunk % row_chunks * kStepsAtOnce;
    const std::int64_t end_step = min_of(num_steps, first_step + kStepsAtOnce);
    for (std::int64_t step = first_step; step < end_step; ++step) {
      const std::int64_t k = step % shard_steps * kBf16DepthStep;
      const std::int64_t count = min_of(kBf16DepthStep, layout.depth - k);
      const float* x = args.x.row(first_row) + step / shard_steps * layout.depth + k;
      std::uint16_t* to = rounded.row(first_row) + step * rounded.step_stride(first_row);
      for (std::int64_t row = 0; row < rows; ++row)
        round_to_bf16(x + row * args.x.row_stride, count, kBf16DepthStep,
                      to + row * kBf16DepthStep);
    }
  });
}

/// Every chunk is some panels by some rows; in it, every panel is multiplied by groups of rows
/// whose sums stay near, and a stretch of the panel's depth at a time, which then stays near too
/// while the rows pass. Stretches are long, since between them sums go to memory and back.
void matmul_bf16(const OpContext& context, const MatmulArgs& args) {
  constexpr std::int64_t kRowsAtOnce = 128;
  constexpr std::int64_t kStretch = 1024;              // of the depth
  constexpr std::int64_t kChunkRowBytes = 512 * 1024;  // rounded rows in the L2 cache
  constexpr std::int64_t kChunkWeightBytes = 256 * 1024;
  constexpr std::int64_t kWeightsAhead = 8 * 1024;  // memory answers while so much is multiplied
  constexpr std::int64_t kStepLines = kBf16DepthStep * kBf16PanelCols * 2 / 64;
  constexpr std::int64_t kShardSums = kRowsAtOnce * kBf16PanelCols;
  const WeightSpec& spec = args.weight.spec;
  const PanelLayout layout = panel_layout(spec);
  const std::int64_t num_shards = args.num_shards == 0 ? spec.k_shards : args.num_shards;
  const std::int64_t num_rows = args.x.num_rows;
  const TileRows rounded(reinterpret_cast<std::uint16_t*>(context.workspace.data()), num_rows,
                         num_shards * layout.padded_depth);
  round_activations(context, args, layout, rounded);

  const std::int64_t most_rows =
      max_of(kRowsAtOnce, kChunkRowBytes / (rounded.row_depth() * 2) / kRowsAtOnce * kRowsAtOnce);
  const std::int64_t row_chunks = ceil_div(num_rows, most_rows);
  const std::int64_t chunk_rows = round_up(ceil_div(num_rows, row_chunks), 32);
  const std::int64_t panels_per_chunk =
      max_of(1, kChunkWeightBytes / max_of(1, num_shards * layout.shard_bytes));
  const std::int64_t panel_chunks = ceil_div(layout.num_panels, panels_per_chunk);
  context.pool->parallel_for(panel_chunks * row_chunks, [&](std::int64_t chunk) {
    alignas(64) float sums[kMaxShards * kShardSums];
    TileUnit unit;
    const std::int64_t first_row = chunk / panel_chunks * chunk_rows;
    const std::int64_t end_row = min_of(num_rows, first_row + chunk_rows);
    const std::int64_t first_panel = chunk % panel_chunks * panels_per_chunk;
    const std::int64_t end_panel = min_of(layout.num_panels, first_panel + panels_per_chunk);
    // The first 32 rows ask for what they are about to use, the others for a share each of the next
    // panel.
    const std::int64_t shares = ceil_div(end_row - first_row, 32) - 1;
    for (std::int64_t panel = first_panel; panel < end_panel; ++panel) {
      const std::byte* shards =
          args.weight.data + panel * layout.panel_bytes + args.first_shard * layout.shard_bytes;
      const std::int64_t share_lines =
          shares > 0 && panel + 1 < end_panel ? ceil_div(kStepLines, shares) : 0;
      for (std::int64_t group = first_row; group < end_row; group += kRowsAtOnce) {
        const std::int64_t end_group = min_of(end_row, group + kRowsAtOnce);
        for (std::int64_t s = 0; s < num_shards; ++s) {
          for (std::int64_t k = 0; k < layout.padded_depth; k += kStretch) {
            const std::int64_t depth = min_of(kStretch, layout.padded_depth - k);
            const std::byte* weights = shards + s * layout.shard_bytes + k * kBf16PanelCols * 2;
            const std::int64_t num_steps = depth / kBf16DepthStep;
            const std::int64_t stretch_lines = num_steps * share_lines;
            const bool is_last = s + 1 == num_shards && k + depth == layout.padded_depth;
            for (std::int64_t row = group; row < end_group; row += 32) {
              const std::int64_t rows = min_of(32, end_group - row);
              float* block = sums + (row - group) * kBf16PanelCols;
              PrefetchOut out;
              if (is_last) {
                out = {args.out.row(row) + panel * kBf16PanelCols, args.out.row_stride, rows,
                       ceil_div(rows, num_steps)};
              }
              const std::int64_t share = (row - first_row) / 32 - 1;
              const Prefetch ahead =
                  share < 0 ? Prefetch{weights + kWeightsAhead, kStepLines}
                            : Prefetch{weights + layout.panel_bytes + share * stretch_lines * 64,
                                       share_lines};
              unit.multiply(rounded, row, static_cast<int>(rows), s * layout.padded_depth + k,
                            depth, weights, ahead, out, k == 0, block + s * kShardSums);
              if (is_last) {
                finish_block(args, num_shards, {block, kShardSums, kBf16PanelCols}, row, rows,
                             panel * kBf16PanelCols, kBf16PanelCols);
              }
            }
          }
        }
      }
    }
  });
}

#elif defined(TROUPE_BF16_DOT)

/// bf16 activations in the workspace, [num_rows, num_shards, padded_depth], the padding zero.
void round_activations(const OpContext& context, const MatmulArgs& args, std::int64_t num_shards,
                       const PanelLayout& layout, std::uint16_t* rounded) {
  for_each_row(context, args.x.num_rows, args.x.num_cols, [&](std::int64_t row) {
    for (std::int64_t s = 0; s < num_shards; ++s) {
      round_to_bf16(args.x.row(row) + s * layout.depth, layout.depth, layout.padded_depth,
                    rounded + (row * num_shards + s) * layout.padded_depth);
    }
  });
}

void matmul_bf16(const OpContext& context, const MatmulArgs& args) {
  const WeightSpec& spec = args.weight.spec;
  const PanelLayout layout = panel_layout(spec);
  const std::int64_t num_shards = args.num_shards == 0 ? spec.k_shards : args.num_shards;
  const std::int64_t stride = num_shards * layout.padded_depth;
  auto* rounded = reinterpret_cast<std::uint16_t*>(context.workspace.data());
  round_activations(context, args, num_shards, layout, rounded);
  for_each_block<DotUnit, DotUnit::kMaxRows>(
      context, args,
      [&](DotUnit& unit, std::int64_t row, int num_rows, std::int64_t shard_index,
          const std::byte* shard, float* sums) {
        unit.multiply(num_rows, rounded + row * stride + shard_index * layout.padded_depth, stride,
                      shard, layout.padded_depth, sums);
      });
}

#endif

/// How many rows of activations have their groups side by side: those of a tile where tiles
/// multiply them, else one.
std::int64_t quantized_rows_at_once(const WeightSpec& spec, std::int64_t num_rows) {
#if defined(TROUPE_BF16_TILES)
  // Below, unpacking the weights costs more than the unit saves; that of nibbles costs more.
  const std::int64_t min_rows = spec.quantized == QuantizedType::kInt8 ? 8 : 24;
  if (num_rows >= min_rows && spec.group_size <= kQuantizedStretch) return kTileRows;
#endif
  static_cast<void>(spec);
  static_cast<void>(num_rows);
  return 1;
}

/// Where the quantised activations of all rows lie in the workspace: first their numbers,
/// [num_rows, num_shards, padded_depth], then their groups, [num_shards, groups of a shard] of
/// rows_at_once rows side by side.
struct QuantizedSpace {
  std::int64_t rows_at_once;
  std::int64_t value_stride;
  std::int64_t row_groups;
  std::int64_t value_bytes;
  std::int64_t num_bytes;
};
QuantizedSpace quantized_space(const WeightSpec& spec, std::int64_t num_rows,
                               std::int64_t num_shards) {
  QuantizedSpace space;
  space.rows_at_once = quantized_rows_at_once(spec, num_rows);
  space.value_stride = num_shards * panel_layout(spec).padded_depth;
  space.row_groups = num_shards * spec.groups_per_shard();
  space.value_bytes = round_up(num_rows * space.value_stride, 64);
  const std::int64_t num_groups = round_up(num_rows, space.rows_at_once) * space.row_groups;
  space.num_bytes = space.value_bytes +
                    round_up(num_groups * static_cast<std::int64_t>(sizeof(QuantizedGroup)), 64);
  return space;
}

/// All rows of x, quantised in the workspace.
class QuantizedX {
 public:
  QuantizedX(const OpContext& context, const MatmulArgs& args, const PanelLayout& layout,
             std::int64_t num_shards)
      : space_(quantized_space(args.weight.spec, args.x.num_rows, num_shards)),
        depth_(layout.padded_depth),
        shard_groups_(args.weight.spec.groups_per_shard()),
        group_size_(args.weight.spec.group_size),
        values_(reinterpret_cast<std::int8_t*>(context.workspace.data())),
        groups_(reinterpret_cast<QuantizedGroup*>(context.workspace.data() + space_.value_bytes)) {
    for_each_row(context, args.x.num_rows, args.x.num_cols, [&](std::int64_t row) {
      QuantizedGroup* groups = groups_ + first_group(row);
      std::int8_t* values = values_ + row * space_.value_stride;
      for (std::int64_t s = 0; s < num_shards; ++s) {
        for (std::int64_t g = 0; g < shard_groups_; ++g) {
          const std::int64_t begin = g * group_size_;
          *groups = quantize_group(args.x.row(row) + s * layout.depth + begin,
                                   min_of(group_size_, layout.depth - begin), group_size_,
                                   values + s * depth_ + begin);
          groups += space_.rows_at_once;
        }
      }
    });
    // What tiles multiply beyond the last row counts for nothing, but must be no slow number.
    const std::int64_t num_rows = args.x.num_rows;
    for (std::int64_t row = num_rows; row % space_.rows_at_once != 0; ++row) {
      for (std::int64_t g = 0; g < space_.row_groups; ++g)
        groups_[first_group(row) + g * space_.rows_at_once] = {};
    }
  }

  [[nodiscard]] TROUPE_INLINE bool is_for_tiles() const { return space_.rows_at_once > 1; }
  /// From that row, and that group of a shard, on.
  [[nodiscard]] TROUPE_INLINE QuantizedActivations at(std::int64_t row, std::int64_t shard,
                                                      std::int64_t group) const {
    return {values_ + row * space_.value_stride + shard * depth_ + group * group_size_,
            groups_ + first_group(row) + (shard * shard_groups_ + group) * space_.rows_at_once,
            space_.value_stride, is_for_tiles() ? 1 : space_.row_groups, space_.rows_at_once};
  }

 private:
  [[nodiscard]] TROUPE_INLINE std::int64_t first_group(std::int64_t row) const {
    const std::int64_t in_tile = row % space_.rows_at_once;
    return (row - in_tile) * space_.row_groups + in_tile;
  }

  QuantizedSpace space_;
  std::int64_t depth_;
  std::int64_t shard_groups_;
  std::int64_t group_size_;
  std::int8_t* values_;
  QuantizedGroup* groups_;
};

#if defined(TROUPE_BF16_TILES)

/// Every chunk is a panel by some rows; a stretch of the panel is unpacked, then all these rows are
/// multiplied with it.
template <QuantizedType kType, bool kHasMinimums>
void multiply_by_tiles(const OpContext& context, const MatmulArgs& args, const PanelLayout& layout,
                       std::int64_t num_shards, const QuantizedX& x) {
  constexpr std::int64_t kRowsAtOnce = 256;
  const WeightSpec& spec = args.weight.spec;
  const std::int64_t shard_groups = spec.groups_per_shard();
  const std::int64_t stretch_groups = kQuantizedStretch / spec.group_size;
  const std::int64_t num_rows = args.x.num_rows;
  const std::int64_t row_chunks = ceil_div(num_rows, kRowsAtOnce);
  const std::int64_t chunk_rows = round_up(ceil_div(num_rows, row_chunks), kTileRows);
  context.pool->parallel_for(layout.num_panels * row_chunks, [&](std::int64_t chunk) {
    alignas(64) float sums[kMaxShards * kRowsAtOnce * kPanelCols];
    UnpackedStretch stretch;
    QuantizedTileUnit unit(spec.group_size);
    const std::int64_t panel = chunk % layout.num_panels;
    const std::int64_t first_row = chunk / layout.num_panels * chunk_rows;
    const std::int64_t end_row = min_of(num_rows, first_row + chunk_rows);
    const std::byte* shard =
        args.weight.data + panel * layout.panel_bytes + args.first_shard * layout.shard_bytes;
    for (std::int64_t s = 0; s < num_shards; ++s, shard += layout.shard_bytes) {
      for (std::int64_t g = 0; g < shard_groups; g += stretch_groups) {
        const std::int64_t num_groups = min_of(stretch_groups, shard_groups - g);
        unpack_stretch<kType>(spec, layout.group_bytes, shard, g, num_groups, stretch);
        for (std::int64_t row = first_row; row < end_row; row += kTileRows) {
          unit.multiply<kHasMinimums>(
              spec.group_size, x.at(row, s, g), static_cast<int>(min_of(kTileRows, end_row - row)),
              num_groups, stretch, g == 0, sums + (s * kRowsAtOnce + row - first_row) * kPanelCols);
        }
      }
    }
    if (first_row < end_row) {
      finish_block(args, num_shards, {sums, kRowsAtOnce * kPanelCols, kPanelCols}, first_row,
                   end_row - first_row, panel * kPanelCols, kPanelCols);
    }
  });
}

#endif

template <QuantizedType kType>
void matmul_quantized(const OpContext& context, const MatmulArgs& args) {
  const WeightSpec& spec = args.weight.spec;
  const PanelLayout layout = panel_layout(spec);
  const std::int64_t num_shards = args.num_shards == 0 ? spec.k_shards : args.num_shards;
  const QuantizedX x(context, args, layout, num_shards);
#if defined(TROUPE_BF16_TILES)
  if (x.is_for_tiles()) {
    if (spec.has_minimums)
      return multiply_by_tiles<kType, true>(context, args, layout, num_shards, x);
    return multiply_by_tiles<kType, false>(context, args, layout, num_shards, x);
  }
#endif
  for_each_block<NoUnit, kQuantizedRows>(
      context, args,
      [&](NoUnit&, std::int64_t row, int num_rows, std::int64_t shard_index, const std::byte* shard,
          float* sums) {
        multiply_rows_quantized<kType>(num_rows, spec, layout.group_bytes,
                                       x.at(row, shard_index, 0), shard, sums);
      });
}

/// pack_rows where nothing is converted: pairs of k go as they are.
void copy_bf16_pairs(const WeightSpec& spec, const PanelLayout& layout, const StoredMatrix& part,
                     std::int64_t first_row, std::byte* packed) {
  const auto* from = static_cast<const std::byte*>(part.data);
  for (std::int64_t row = first_row; row < first_row + part.num_rows; ++row) {
    std::byte* shard = packed + row / layout.cols * layout.panel_bytes;
    for (std::int64_t s = 0; s < spec.k_shards; ++s, shard += layout.shard_bytes) {
      for (std::int64_t k = 0; k < layout.depth; k += 2, from += 4) {
        const std::int64_t to = position_in_shard<ElementType::kBF16>(k, row % layout.cols);
        std::memcpy(shard + to * 2, from, 4);
      }
    }
  }
}

}  // namespace

std::int64_t packed_bytes(const WeightSpec& spec) noexcept {
  const PanelLayout layout = panel_layout(spec);
  return round_up(layout.num_panels * layout.panel_bytes, 64);
}

void pack_rows(const WeightSpec& spec, const StoredMatrix& part, std::int64_t first_row,
               std::byte* packed) noexcept {
  const PanelLayout layout = panel_layout(spec);
  if (spec.type == ElementType::kBF16 && part.type == ElementType::kBF16 && layout.depth % 2 == 0)
    return copy_bf16_pairs(spec, layout, part, first_row, packed);
  with_element_type(spec.type, [&](auto packed_type) {
    constexpr ElementType kPacked = decltype(packed_type)::value;
    with_element_type(part.type, [&](auto stored_type) {
      constexpr ElementType kStored = decltype(stored_type)::value;
      for (std::int64_t i = 0; i < part.num_rows; ++i) {
        const std::int64_t row = first_row + i;
        std::byte* panel = packed + row / layout.cols * layout.panel_bytes;
        for (std::int64_t s = 0; s < spec.k_shards; ++s) {
          const std::int64_t from = i * part.num_cols + s * layout.depth;
          for (std::int64_t k = 0; k < layout.depth; ++k) {
            store_element<kPacked>(panel + s * layout.shard_bytes,
                                   position_in_shard<kPacked>(k, row % layout.cols),
                                   load_element<kStored>(part.data, from + k));
          }
        }
      }
    });
  });
}

void pack_quantized_rows(const WeightSpec& spec, const QuantizedRows& part, std::int64_t first_row,
                         std::byte* packed) noexcept {
  const PanelLayout layout = panel_layout(spec);
  const std::int64_t num_groups = spec.k_shards * spec.groups_per_shard();
  for (std::int64_t i = 0; i < part.num_rows; ++i) {
    const std::int64_t row = first_row + i;
    pack_quantized_row(spec, layout, row % kPanelCols, part.values + i * spec.num_cols,
                       part.scales + i * num_groups,
                       spec.has_minimums ? part.minimums + i * num_groups : nullptr,
                       packed + row / kPanelCols * layout.panel_bytes);
  }
}

std::int64_t matmul_workspace_bytes(const WeightSpec& spec, std::int64_t max_rows) noexcept {
  if (spec.quantized != QuantizedType::kNone)
    return quantized_space(spec, max_rows, spec.k_shards).num_bytes;
#if defined(TROUPE_BF16_UNIT)
  if (uses_bf16_unit(spec))
    return round_up(max_rows * spec.k_shards * panel_layout(spec).padded_depth * 2, 64);
#endif
  return 0;
}

void matmul(const OpContext& context, const MatmulArgs& args) noexcept {
  const WeightSpec& spec = args.weight.spec;
  if (spec.quantized == QuantizedType::kInt8)
    return matmul_quantized<QuantizedType::kInt8>(context, args);
  if (spec.quantized == QuantizedType::kInt4)
    return matmul_quantized<QuantizedType::kInt4>(context, args);
#if defined(TROUPE_BF16_UNIT)
  if (uses_bf16_unit(spec)) return matmul_bf16(context, args);
#endif
  matmul_f32(context, args);
}

}  // namespace troupe::TROUPE_ISA
