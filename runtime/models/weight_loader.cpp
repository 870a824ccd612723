#include "runtime/models/weight_loader.hpp"

#include <algorithm>
#include <array>

#include "runtime/base/log.hpp"
#include "runtime/models/quantize.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxErrors = 4;  // named in one message

// Groups of weights that are quantised here. 4-bit numbers need small ones; 8-bit numbers are exact
// enough in groups that fill an int8 tile's depth.
constexpr std::int32_t kInt8GroupSize = 64;
constexpr std::int32_t kInt4GroupSize = 32;

bool is_weight_type(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kBF16 || type == TensorType::kF16 ||
         is_block_type(type);
}

/// Of a wide tensor its own type, of blocks that of their widened numbers.
ElementType element_type(TensorType type) {
  switch (type) {
    case TensorType::kBF16:
      return ElementType::kBF16;
    case TensorType::kF16:
      return ElementType::kF16;
    default:
      return ElementType::kF32;
  }
}

/// Row `row` of the model's matrix in the tensor: converters for GGUF interleave the halves of each
/// head of q and k, since llama.cpp rotates neighbours.
std::int64_t stored_row(const Checkpoint::Tensor& tensor, std::int64_t row) {
  const std::int64_t head_dim = tensor.interleaved_head_dim;
  if (head_dim == 0) return row;
  const std::int64_t half = row % head_dim / (head_dim / 2);
  return row / head_dim * head_dim + row % (head_dim / 2) * 2 + half;
}

/// A slice of a tensor on its way into a packed matrix.
struct RowsToPack {
  const Checkpoint::Tensor& tensor;
  Slice rows;  ///< of the tensor
  Slice cols;
  std::int64_t first_row;  ///< of the packed matrix
};

/// Calls pack(begin, end) for pieces of [0, num_rows) on all threads.
template <class F>
void for_each_piece(Device& device, std::int64_t num_rows, const F& pack) {
  constexpr std::int64_t kRowsPerChunk = 64;
  device.pool().parallel_for((num_rows + kRowsPerChunk - 1) / kRowsPerChunk,
                             [&](std::int64_t chunk) {
                               const std::int64_t begin = chunk * kRowsPerChunk;
                               pack(begin, std::min(begin + kRowsPerChunk, num_rows));
                             });
}

void pack_wide(Device& device, const WeightSpec& spec, const RowsToPack& part, std::byte* packed) {
  const TensorView& view = part.tensor.view;
  const ElementType type = element_type(view.type);
  const bool is_wide = !is_block_type(view.type);
  const bool is_dense =
      is_wide && part.cols.count == view.shape.back() && part.tensor.interleaved_head_dim == 0;
  for_each_piece(device, part.rows.count, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> widened(is_wide ? 0 : static_cast<std::size_t>(part.cols.count));
    const std::int64_t rows_at_once = is_dense ? end - begin : 1;
    for (std::int64_t i = begin; i < end; i += rows_at_once) {
      const std::int64_t row = stored_row(part.tensor, part.rows.begin + i);
      const void* data = widened.data();
      if (is_wide)
        data =
            view.bytes.data() + (row * view.shape.back() + part.cols.begin) * element_bytes(type);
      else
        widen_row(view, row, part.cols.begin, part.cols.count, widened.data());
      device.ops().pack_rows(spec, {data, type, rows_at_once, part.cols.count}, part.first_row + i,
                             packed);
    }
  });
}

/// One row as quantised groups: those of the tensor's blocks, cut to spec's group size, or made
/// from its wide numbers.
class RowQuantizer {
 public:
  explicit RowQuantizer(const WeightSpec& spec)
      : spec_(spec),
        values_(static_cast<std::size_t>(spec.num_cols)),
        scales_(static_cast<std::size_t>(spec.k_shards * spec.groups_per_shard())),
        minimums_(scales_.size()),
        widened_(values_.size()) {}

  QuantizedRows run(const TensorView& view, std::int64_t row, std::int64_t first_col) {
    if (is_block_type(view.type)) {
      unpack(view, row, first_col);
    } else {
      widen_row(view, row, first_col, spec_.num_cols, widened_.data());
      quantize();
    }
    return {values_.data(), scales_.data(), minimums_.data(), 1};
  }

 private:
  void quantize() {
    const std::int64_t depth = spec_.num_cols / spec_.k_shards;
    std::size_t group = 0;
    for (std::int64_t shard = 0; shard < spec_.num_cols; shard += depth)
      for (std::int64_t k = 0; k < depth; k += spec_.group_size, ++group) {
        const auto begin = static_cast<std::size_t>(shard + k);
        const auto size =
            static_cast<std::size_t>(std::min<std::int64_t>(spec_.group_size, depth - k));
        const GroupScale scale = quantize_group(
            spec_.quantized, std::span(widened_).subspan(begin, size), values_.data() + begin);
        scales_[group] = scale.scale;
        minimums_[group] = scale.minimum;
      }
  }

  /// Pre: spec's groups cut those of the blocks without a rest, and begin where they begin.
  void unpack(const TensorView& view, std::int64_t row, std::int64_t first_col) {
    const TypeBlock block = type_block(view.type);
    const std::byte* data =
        view.bytes.data() + row * (view.shape.back() / block.num_elements) * block.num_bytes;
    const std::int64_t size = block_groups(view.type).group_size;
    std::array<std::int8_t, 32> whole{};
    for (std::int64_t col = 0; col < spec_.num_cols; col += spec_.group_size) {
      const std::int64_t stored = first_col + col;
      const GroupScale scale = unpack_group(view.type, data, stored / size, whole.data());
      std::copy_n(whole.data() + stored % size, spec_.group_size, values_.data() + col);
      const auto group = static_cast<std::size_t>(col / spec_.group_size);
      scales_[group] = scale.scale;
      minimums_[group] = scale.minimum;
    }
  }

  WeightSpec spec_;
  std::vector<std::int8_t> values_;
  std::vector<float> scales_;
  std::vector<float> minimums_;
  std::vector<float> widened_;
};

void pack_quantized(Device& device, const WeightSpec& spec, const RowsToPack& part,
                    std::byte* packed) {
  for_each_piece(device, part.rows.count, [&](std::int64_t begin, std::int64_t end) {
    RowQuantizer quantizer(spec);
    for (std::int64_t i = begin; i < end; ++i)
      device.ops().pack_quantized_rows(
          spec,
          quantizer.run(part.tensor.view, stored_row(part.tensor, part.rows.begin + i),
                        part.cols.begin),
          part.first_row + i, packed);
  });
}

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, Device& device, WeightFormat format,
                           const ParallelConfig& parallel, LoadProgressCallback progress)
    : checkpoint_(checkpoint),
      device_(device),
      format_(format),
      parallel_(parallel),
      progress_(std::move(progress)) {}

void WeightLoader::fail(ErrorCode code, std::string message) {
  errors_.push_back({code, std::move(message)});
}

const Checkpoint::Tensor* WeightLoader::find(const std::string& name,
                                             std::span<const std::int64_t> shape) {
  const Checkpoint::Tensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr) {
    fail(ErrorCode::kCorrupt, "tensor \"" + name + "\" of shape " + shape_text(shape) +
                                  " is in none of the " + std::to_string(checkpoint_.num_files()) +
                                  " weight files");
    return nullptr;
  }
  used_.insert(name);
  const TensorView& view = tensor->view;
  if (!std::ranges::equal(view.shape, shape)) {
    fail(ErrorCode::kCorrupt, tensor->file + ": tensor \"" + name + "\" has shape " +
                                  shape_text(view.shape) + ", expected " + shape_text(shape));
    return nullptr;
  }
  if (!is_weight_type(view.type)) {
    fail(ErrorCode::kUnsupported, tensor->file + ": tensor \"" + name + "\" has type " +
                                      std::string(to_string(view.type)) +
                                      ", supported are F32, BF16, F16, Q4_0, Q8_0, Q4_K, Q6_K");
    return nullptr;
  }
  return tensor;
}

void WeightLoader::report_progress(std::string_view what, std::size_t num_bytes) {
  num_read_bytes_ += static_cast<std::int64_t>(num_bytes);
  if (progress_)
    progress_(static_cast<double>(num_read_bytes_) /
                  static_cast<double>(std::max<std::int64_t>(1, checkpoint_.num_bytes())),
              what);
}

WeightSpec WeightLoader::matrix_spec(const std::vector<const Checkpoint::Tensor*>& tensors,
                                     std::int64_t num_rows, Slice cols, std::int32_t k_shards,
                                     MatrixRole role) const {
  WeightSpec spec{.num_rows = num_rows,
                  .num_cols = cols.count,
                  .type = format_.type,
                  .mode = format_.mode,
                  .k_shards = k_shards};
  if (format_.as_stored) {
    // Parts of one matrix share a type: the widest, so that as_stored loses nothing.
    spec.type = element_type(tensors.front()->view.type);
    for (const Checkpoint::Tensor* tensor : tensors)
      if (element_type(tensor->view.type) != spec.type) spec.type = ElementType::kF32;
  }
  const auto is_blocks = [](const Checkpoint::Tensor* tensor) {
    return is_block_type(tensor->view.type);
  };
  if (std::ranges::none_of(tensors, is_blocks)) {
    spec.quantized = format_.quantized;
    if (spec.quantized == QuantizedType::kInt4 && role == MatrixRole::kHead)
      spec.quantized = QuantizedType::kInt8;
    spec.group_size = spec.quantized == QuantizedType::kInt8 ? kInt8GroupSize : kInt4GroupSize;
    return spec;
  }
  // Parts of several block types meet in the wider numbers and the smaller groups: that is exact.
  WeightSpec blocks = spec;
  blocks.quantized = QuantizedType::kInt4;
  blocks.group_size = 32;
  for (const Checkpoint::Tensor* tensor : tensors) {
    const BlockGroups groups = block_groups(tensor->view.type);
    if (groups.type == QuantizedType::kInt8) blocks.quantized = QuantizedType::kInt8;
    blocks.group_size = std::min(blocks.group_size, groups.group_size);
    blocks.has_minimums = blocks.has_minimums || groups.has_minimums;
  }
  const bool is_cut_at_groups =
      cols.begin % blocks.group_size == 0 && cols.count / k_shards % blocks.group_size == 0;
  return is_cut_at_groups && std::ranges::all_of(tensors, is_blocks) ? blocks : spec;
}

PackedMatrix WeightLoader::matrix(const std::vector<Part>& parts, std::int64_t num_cols, Slice cols,
                                  std::int32_t k_shards, MatrixRole role) {
  PackedMatrix matrix;
  std::vector<const Checkpoint::Tensor*> tensors;
  std::int64_t num_rows = 0;
  for (const Part& part : parts) {
    const std::int64_t shape[] = {part.num_rows, num_cols};
    const Checkpoint::Tensor* tensor = find(part.name + ".weight", shape);
    if (tensor == nullptr) continue;
    tensors.push_back(tensor);
    num_rows += part.rows.count;
  }
  if (tensors.size() != parts.size() || !errors_.empty()) return matrix;

  matrix.spec = matrix_spec(tensors, num_rows, cols, k_shards, role);
  const bool is_quantized = matrix.spec.quantized != QuantizedType::kNone;
  if (is_quantized && device_.ops().pack_quantized_rows == nullptr) {
    fail(ErrorCode::kUnsupported,
         std::string(device_.ops().name) + " has no quantised matrices: " + parts.front().name);
    return matrix;
  }
  const std::int64_t num_bytes = device_.ops().packed_bytes(matrix.spec);
  Result<Memory> memory = Memory::allocate(static_cast<std::size_t>(num_bytes), "weights");
  if (!memory.ok()) {
    errors_.push_back(memory.error());
    return matrix;
  }
  matrix.memory = std::move(memory).value();
  num_packed_bytes_ += num_bytes;
  std::int64_t first_row = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const RowsToPack part{*tensors[i], parts[i].rows, cols, first_row};
    (is_quantized ? pack_quantized : pack_wide)(device_, matrix.spec, part, matrix.memory.data());
    first_row += parts[i].rows.count;
    checkpoint_.drop_pages(*tensors[i]);
    report_progress(parts[i].name, tensors[i]->view.bytes.size());
  }
  return matrix;
}

std::vector<float> WeightLoader::biases(const std::vector<Part>& parts) {
  std::vector<float> all;
  for (const Part& part : parts) {
    const std::int64_t shape[] = {part.num_rows};
    const Checkpoint::Tensor* tensor = find(part.name + ".bias", shape);
    if (tensor == nullptr) continue;
    std::vector<float> whole(static_cast<std::size_t>(part.num_rows));
    widen_row(tensor->view, 0, 0, part.num_rows, whole.data());
    for (std::int64_t row = part.rows.begin; row < part.rows.end(); ++row)
      all.push_back(whole[static_cast<std::size_t>(stored_row(*tensor, row))]);
  }
  return all;
}

std::vector<float> WeightLoader::vector(const std::string& name, std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  const std::int64_t shape[] = {size};
  if (const Checkpoint::Tensor* tensor = find(name + ".weight", shape); tensor != nullptr)
    widen_row(tensor->view, 0, 0, size, values.data());
  return values;
}

const TensorView* WeightLoader::table(const std::string& name, std::int64_t num_rows,
                                      std::int64_t num_cols) {
  const std::int64_t shape[] = {num_rows, num_cols};
  const Checkpoint::Tensor* tensor = find(name + ".weight", shape);
  return tensor == nullptr ? nullptr : &tensor->view;
}

void WeightLoader::ignore(std::string_view prefix) {
  for (const auto& [name, tensor] : checkpoint_.tensors())
    if (name.starts_with(prefix)) used_.insert(name);
}

Result<void> WeightLoader::finish() {
  if (!errors_.empty()) {
    Error error = errors_.front();
    for (std::size_t i = 1; i < std::min(errors_.size(), kMaxErrors); ++i)
      error.message += "; " + errors_[i].message;
    if (errors_.size() > kMaxErrors)
      error.message += "; and " + std::to_string(errors_.size() - kMaxErrors) + " more";
    return error;
  }
  for (const auto& [name, tensor] : checkpoint_.tensors())
    if (!used_.contains(name))
      log_warning("weight not used", kv("tensor", name), kv("file", tensor.file));
  return {};
}

}  // namespace troupe
