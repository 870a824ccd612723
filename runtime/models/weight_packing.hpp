#pragma once
// Rows of a checkpoint's matrix on their way into a packed one: as they are, or as quantised
// groups.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/ops.hpp"
#include "runtime/models/device.hpp"
#include "runtime/models/parallel.hpp"
#include "runtime/models/quantized_weight.hpp"
#include "runtime/models/safetensors.hpp"

namespace troupe {

/// A matrix as the checkpoint has it: one tensor, or what a quantisation tool made of it.
struct StoredWeight {
  const Checkpoint::Tensor* tensor = nullptr;
  std::optional<QuantizedWeight> quantized;  ///< where there is no `tensor`
};

/// The type of a wide tensor's elements; f32 for integer-quantised ones, which are widened to it.
[[nodiscard]] ElementType element_type(const StoredWeight& weight);
/// Stored as integers with scales, by a quantisation tool or in the blocks of GGUF.
[[nodiscard]] bool is_quantized(const StoredWeight& weight);
/// The tensor's row that holds row `row` of the model's matrix: converters for GGUF interleave the
/// halves of each head of q and k, since llama.cpp rotates neighbours.
[[nodiscard]] std::int64_t stored_row(const Checkpoint::Tensor& tensor, std::int64_t row);

/// A slice of a matrix on its way into a packed one.
struct RowsToPack {
  const StoredWeight& weight;
  Slice rows;  ///< of the stored matrix
  Slice cols;
  std::int64_t first_row;  ///< of the packed matrix
  bool keeps_groups;       ///< its numbers go as they are, those of all parts of the matrix do
};

/// Packs the rows of `part` on all threads, widened where they are not wide. Pre: spec is not
/// quantised, `packed` was zero filled.
void pack_wide(Device& device, const WeightSpec& spec, const RowsToPack& part, std::byte* packed);
/// The same for a quantised spec: the stored groups cut to spec's group size, or quantised here.
void pack_quantized(Device& device, const WeightSpec& spec, const RowsToPack& part,
                    std::byte* packed);

}  // namespace troupe
