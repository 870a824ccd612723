// Matrix times packed weights. Every element of the product is reduced over k in one order,
// whatever the number of rows: rows, panels and threads only decide who computes it and when.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/matmul_f32.hpp"
#include "kernels/cpu/matmul_quantized.hpp"
#include "kernels/cpu/rows.hpp"

#if defined(TROUPE_BF16_TILES)
#include "kernels/cpu/matmul_tiles.hpp"
#elif defined(TROUPE_BF16_DOT)
#include "kernels/cpu/matmul_dot.hpp"
#endif

namespace troupe::TROUPE_ISA {
namespace {

#if defined(TROUPE_BF16_TILES) || defined(TROUPE_BF16_DOT)
constexpr bool kHasBf16Unit = true;
#else
constexpr bool kHasBf16Unit = false;
/// Stands for the unit that this instruction set lacks; never asked to multiply.
struct Bf16Unit {
  static constexpr int kMaxRows = 1;
  void multiply(int, const std::uint16_t*, std::int64_t, const std::byte*, std::int64_t, float*) {}
};
#endif

bool uses_bf16_unit(const WeightSpec& spec) {
  return kHasBf16Unit && spec.mode == ComputeMode::kBF16 && spec.type == ElementType::kBF16;
}

/// The product's rows and columns [0, num_rows) x [0, num_cols) from the partial sums of the
/// shards, [num_shards, sums_rows, kPanelCols]: added as a tree, then the bias.
TROUPE_INLINE void finish_block(const float* sums, std::int64_t sums_rows, std::int64_t num_shards,
                                const float* bias, std::int64_t num_rows, std::int64_t num_cols,
                                float* out, std::int64_t out_stride) {
  const std::int64_t shard_size = sums_rows * kPanelCols;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const float* row = sums + r * kPanelCols;
    float* to = out + r * out_stride;
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
/// fills the sums of one block.
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
      max_of(1, min_of(num_rows, kChunkRows) * num_shards * layout.depth * kPanelCols);
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
      const std::int64_t col = panel * kPanelCols;
      const std::byte* shards =
          args.weight.data + panel * layout.panel_bytes + args.first_shard * layout.shard_bytes;
      for (std::int64_t row = first_row, rows = 0; row < end_row; row += rows) {
        // Blocks of about equal size: 8 rows are 4 + 4 rather than 6 + 2.
        const std::int64_t blocks_left = ceil_div(end_row - row, kMaxRows);
        rows = ceil_div(end_row - row, blocks_left);
        for (std::int64_t s = 0; s < num_shards; ++s) {
          multiply(unit, row, static_cast<int>(rows), s, shards + s * layout.shard_bytes,
                   sums + s * rows * kPanelCols);
        }
        finish_block(sums, rows, num_shards, args.bias == nullptr ? nullptr : args.bias + col, rows,
                     min_of(kPanelCols, spec.num_rows - col), args.out.row(row) + col,
                     args.out.row_stride);
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

/// bf16 activations in the workspace, [num_rows, num_shards, padded_depth], the padding zero.
void round_activations(const OpContext& context, const MatmulArgs& args, std::int64_t num_shards,
                       const PanelLayout& layout, std::uint16_t* rounded) {
  for_each_row(context, args.x.num_rows, args.x.num_cols, [&](std::int64_t row) {
    for (std::int64_t s = 0; s < num_shards; ++s) {
      const float* x = args.x.row(row) + s * layout.depth;
      std::uint16_t* to = rounded + (row * num_shards + s) * layout.padded_depth;
      for (std::int64_t k = 0; k < layout.depth; ++k) to[k] = to_bf16(x[k]);
      for (std::int64_t k = layout.depth; k < layout.padded_depth; ++k) to[k] = 0;
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
  for_each_block<Bf16Unit, Bf16Unit::kMaxRows>(
      context, args,
      [&](Bf16Unit& unit, std::int64_t row, int num_rows, std::int64_t shard_index,
          const std::byte* shard, float* sums) {
        unit.multiply(num_rows, rounded + row * stride + shard_index * layout.padded_depth, stride,
                      shard, layout.padded_depth, sums);
      });
}

/// Where the quantised activations of all rows lie in the workspace: first their numbers,
/// [num_rows, num_shards, padded_depth], then their groups.
struct QuantizedSpace {
  std::int64_t value_stride;
  std::int64_t group_stride;
  std::int64_t value_bytes;
  std::int64_t num_bytes;
};
QuantizedSpace quantized_space(const WeightSpec& spec, std::int64_t num_rows,
                               std::int64_t num_shards) {
  QuantizedSpace space;
  space.value_stride = num_shards * panel_layout(spec).padded_depth;
  space.group_stride = num_shards * spec.groups_per_shard();
  space.value_bytes = round_up(num_rows * space.value_stride, 64);
  space.num_bytes =
      space.value_bytes +
      round_up(num_rows * space.group_stride * static_cast<std::int64_t>(sizeof(QuantizedGroup)),
               64);
  return space;
}

template <QuantizedType kType>
void matmul_quantized(const OpContext& context, const MatmulArgs& args) {
  const WeightSpec& spec = args.weight.spec;
  const PanelLayout layout = panel_layout(spec);
  const std::int64_t num_shards = args.num_shards == 0 ? spec.k_shards : args.num_shards;
  const std::int64_t shard_groups = spec.groups_per_shard();
  const QuantizedSpace space = quantized_space(spec, args.x.num_rows, num_shards);
  auto* values = reinterpret_cast<std::int8_t*>(context.workspace.data());
  auto* groups = reinterpret_cast<QuantizedGroup*>(context.workspace.data() + space.value_bytes);
  for_each_row(context, args.x.num_rows, args.x.num_cols, [&](std::int64_t row) {
    for (std::int64_t s = 0; s < num_shards; ++s) {
      for (std::int64_t g = 0; g < shard_groups; ++g) {
        const std::int64_t begin = g * spec.group_size;
        groups[row * space.group_stride + s * shard_groups + g] =
            quantize_group(args.x.row(row) + s * layout.depth + begin,
                           min_of(spec.group_size, layout.depth - begin), spec.group_size,
                           values + row * space.value_stride + s * layout.padded_depth + begin);
      }
    }
  });
  for_each_block<NoUnit, kQuantizedRows>(
      context, args,
      [&](NoUnit&, std::int64_t row, int num_rows, std::int64_t shard_index, const std::byte* shard,
          float* sums) {
        const QuantizedActivations x{
            values + row * space.value_stride + shard_index * layout.padded_depth,
            groups + row * space.group_stride + shard_index * shard_groups, space.value_stride,
            space.group_stride};
        multiply_rows_quantized<kType>(num_rows, spec, layout.group_bytes, x, shard, sums);
      });
}

}  // namespace

std::int64_t packed_bytes(const WeightSpec& spec) noexcept {
  const PanelLayout layout = panel_layout(spec);
  return round_up(layout.num_panels * layout.panel_bytes, 64);
}

void pack_rows(const WeightSpec& spec, const StoredMatrix& part, std::int64_t first_row,
               std::byte* packed) noexcept {
  const PanelLayout layout = panel_layout(spec);
  with_element_type(spec.type, [&](auto packed_type) {
    constexpr ElementType kPacked = decltype(packed_type)::value;
    with_element_type(part.type, [&](auto stored_type) {
      constexpr ElementType kStored = decltype(stored_type)::value;
      for (std::int64_t i = 0; i < part.num_rows; ++i) {
        const std::int64_t row = first_row + i;
        std::byte* panel = packed + row / kPanelCols * layout.panel_bytes;
        for (std::int64_t s = 0; s < spec.k_shards; ++s) {
          const std::int64_t from = i * part.num_cols + s * layout.depth;
          for (std::int64_t k = 0; k < layout.depth; ++k) {
            store_element<kPacked>(panel + s * layout.shard_bytes,
                                   position_in_shard<kPacked>(k, row % kPanelCols),
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
  if (!uses_bf16_unit(spec)) return 0;
  return round_up(max_rows * spec.k_shards * panel_layout(spec).padded_depth * 2, 64);
}

void matmul(const OpContext& context, const MatmulArgs& args) noexcept {
  if (args.weight.spec.quantized == QuantizedType::kInt8) {
    matmul_quantized<QuantizedType::kInt8>(context, args);
  } else if (args.weight.spec.quantized == QuantizedType::kInt4) {
    matmul_quantized<QuantizedType::kInt4>(context, args);
  } else if (uses_bf16_unit(args.weight.spec)) {
    matmul_bf16(context, args);
  } else {
    matmul_f32(context, args);
  }
}

}  // namespace troupe::TROUPE_ISA
