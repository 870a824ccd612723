// Packing of weights into panels.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/ints.hpp"
#include "kernels/cpu/matmul_layout.hpp"

namespace troupe::TROUPE_ISA {
namespace {

/// pack_rows without conversion: copies pairs of k.
void copy_bf16_pairs(const WeightSpec& spec, const PanelLayout& layout, const StoredMatrix& part,
                     std::int64_t first_row, std::byte* packed) {
  const auto* from = static_cast<const std::byte*>(part.data);
  for (std::int64_t row = first_row; row < first_row + part.num_rows; ++row) {
    const PanelColumn at = panel_column(spec, layout, row);
    std::byte* shard = packed + at.panel * layout.panel_bytes;
    for (std::int64_t s = 0; s < spec.k_shards; ++s, shard += layout.shard_bytes) {
      for (std::int64_t k = 0; k < layout.depth; k += 2, from += 4) {
        const std::int64_t to = position_in_shard<ElementType::kBF16>(k, at.col);
        std::memcpy(shard + to * 2, from, 4);
      }
    }
  }
}

/// Packs one row of a matrix of kFp4: values [num_cols], scales [groups].
void pack_fp4_row(const WeightSpec& spec, const PanelLayout& layout, std::int64_t col,
                  const std::int8_t* values, const float* scales, std::byte* panel) {
  const std::int64_t num_groups = spec.groups_per_shard();
  for (std::int64_t s = 0; s < spec.k_shards; ++s) {
    for (std::int64_t g = 0; g < num_groups; ++g) {
      std::byte* group = panel + s * layout.shard_bytes + g * layout.group_bytes;
      const std::int64_t begin = g * spec.group_size;
      const std::int64_t end = min_of(begin + spec.group_size, layout.depth);
      for (std::int64_t k = begin; k < end; ++k) {
        const int value = values[s * layout.depth + k];
        const int size = value < 0 ? -value : value;
        // 0, 1, 2, 3, 4, 6, 8, 12 by their numbers.
        const int code = size < 4 ? size : size < 8 ? 2 + size / 2 : 4 + size / 4;
        const int nibble = value < 0 ? code | 8 : code;
        group[(k - begin) / 2 * kPanelCols + col] |=
            static_cast<std::byte>((k - begin) % 2 == 0 ? nibble : nibble << 4);
      }
      // Of a number of E2M1: of twice that number it is half as large.
      const std::uint32_t exponent = float_bits(scales[s * num_groups + g]) >> 23;
      group[group_value_bytes(spec) + col] =
          static_cast<std::byte>(exponent == 0 ? 0 : exponent + 1);
    }
  }
}

/// Packs one row of a quantised matrix: values [num_cols], scales and minimums [groups].
void pack_quantized_row(const WeightSpec& spec, const PanelLayout& layout, std::int64_t col,
                        const std::int8_t* values, const float* scales, const float* minimums,
                        std::byte* panel) {
  const std::int64_t num_groups = spec.groups_per_shard();
  const std::int64_t value_bytes = group_value_bytes(spec);
  for (std::int64_t s = 0; s < spec.k_shards; ++s) {
    for (std::int64_t g = 0; g < num_groups; ++g) {
      std::byte* group = panel + s * layout.shard_bytes + g * layout.group_bytes;
      const std::int64_t begin = g * spec.group_size;
      const std::int64_t end = min_of(begin + spec.group_size, layout.depth);
      // Whole words, with arbitrary content past the end: activations are zero there.
      constexpr std::int64_t kBlock = 32;
      for (std::int64_t k = 0; k < end - begin; k += kBlock) {
        std::uint32_t block[kBlock / 4] = {};
        std::memcpy(block, values + s * layout.depth + begin + k,
                    static_cast<std::size_t>(min_of(kBlock, end - begin - k)));
        const auto put = [&](std::int64_t word, std::uint32_t value)
            __attribute__((always_inline)) {
          std::memcpy(group + (word * kPanelCols + col) * 4, &value, sizeof value);
        };
        if (spec.quantized == QuantizedType::kInt4) {
          // A two's complement nibble plus 8 is the nibble with its upper bit flipped.
          static_assert(kInt4Bias == 8);
          const auto nibbles = [](std::uint32_t bytes) __attribute__((always_inline)) {
            return (bytes & 0x0f0f0f0fu) ^ 0x08080808u;
          };
          for (std::int64_t i = 0; i < 4; ++i)
            put(k / 8 + i, nibbles(block[i]) | nibbles(block[i + 4]) << 4);
        } else {
          static_assert(kInt8Bias == 0 || kInt8Bias == 128);
          constexpr std::uint32_t kBias = kInt8Bias == 0 ? 0 : 0x80808080u;
          const std::int64_t num_words = min_of(kBlock, spec.group_size - k) / 4;
          for (std::int64_t i = 0; i < num_words; ++i) put(k / 4 + i, block[i] ^ kBias);
        }
      }
      store_element<ElementType::kF16>(group + value_bytes, col, scales[s * num_groups + g]);
      if (spec.has_minimums) {
        store_element<ElementType::kF16>(group + value_bytes, kPanelCols + col,
                                         minimums[s * num_groups + g]);
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
        const PanelColumn at = panel_column(spec, layout, first_row + i);
        std::byte* panel = packed + at.panel * layout.panel_bytes;
        for (std::int64_t s = 0; s < spec.k_shards; ++s) {
          const std::int64_t from = i * part.num_cols + s * layout.depth;
          for (std::int64_t k = 0; k < layout.depth; ++k) {
            store_element<kPacked>(panel + s * layout.shard_bytes,
                                   position_in_shard<kPacked>(k, at.col),
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
    const PanelColumn at = panel_column(spec, layout, first_row + i);
    if (spec.quantized == QuantizedType::kFp4) {
      pack_fp4_row(spec, layout, at.col, part.values + i * spec.num_cols,
                   part.scales + i * num_groups, packed + at.panel * layout.panel_bytes);
      continue;
    }
    pack_quantized_row(spec, layout, at.col, part.values + i * spec.num_cols,
                       part.scales + i * num_groups,
                       spec.has_minimums ? part.minimums + i * num_groups : nullptr,
                       packed + at.panel * layout.panel_bytes);
  }
}

}  // namespace troupe::TROUPE_ISA
