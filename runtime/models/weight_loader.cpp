#include "runtime/models/weight_loader.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/log.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxErrors = 4;  // named in one message

/// Pre: the type is one of the three.
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

/// A slice of a stored matrix; its rows need not be dense.
struct StoredSlice {
  const std::byte* data = nullptr;
  ElementType type = ElementType::kF32;
  std::int64_t num_rows = 0;
  std::int64_t num_cols = 0;
  std::int64_t row_stride = 0;  ///< elements
};

StoredMatrix stored_matrix(const TensorView& tensor, std::int64_t num_rows, std::int64_t num_cols) {
  return {tensor.bytes.data(), element_type(tensor.type), num_rows, num_cols};
}

float widen_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// IEEE 754 binary16, subnormal numbers included.
float widen_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1f;
  const std::uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide_exponent = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

void widen(const TensorView& tensor, float* out) {
  switch (element_type(tensor.type)) {
    case ElementType::kF32:
      std::memcpy(out, tensor.bytes.data(), tensor.bytes.size());
      return;
    case ElementType::kBF16:
      std::ranges::transform(tensor.elements<std::uint16_t>(), out, widen_bf16);
      return;
    case ElementType::kF16:
      std::ranges::transform(tensor.elements<std::uint16_t>(), out, widen_f16);
      return;
  }
}

/// Packs `part` at first_row with all threads.
void pack_in_parallel(Device& device, const WeightSpec& spec, const StoredSlice& part,
                      std::int64_t first_row, std::byte* packed) {
  constexpr std::int64_t kRowsPerChunk = 64;
  const std::int64_t num_chunks = (part.num_rows + kRowsPerChunk - 1) / kRowsPerChunk;
  const OpTable& ops = device.ops();
  const auto pack_chunk = [&](std::int64_t chunk) {
    const std::int64_t begin = chunk * kRowsPerChunk;
    const std::int64_t end = std::min(begin + kRowsPerChunk, part.num_rows);
    const std::int64_t rows_at_once = part.row_stride == part.num_cols ? end - begin : 1;
    for (std::int64_t row = begin; row < end; row += rows_at_once) {
      const StoredMatrix rows{part.data + row * part.row_stride * element_bytes(part.type),
                              part.type, rows_at_once, part.num_cols};
      ops.pack_rows(spec, rows, first_row + row, packed);
    }
  };
  device.pool().parallel_for(num_chunks, pack_chunk);
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

const TensorView* WeightLoader::find(const std::string& name, std::span<const std::int64_t> shape) {
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
  if (view.type != TensorType::kF32 && view.type != TensorType::kBF16 &&
      view.type != TensorType::kF16) {
    fail(ErrorCode::kUnsupported, tensor->file + ": tensor \"" + name + "\" has type " +
                                      std::string(to_string(view.type)) +
                                      ", supported are F32, BF16, F16");
    return nullptr;
  }
  return &view;
}

void WeightLoader::report_progress(std::string_view what, std::size_t num_bytes) {
  num_read_bytes_ += static_cast<std::int64_t>(num_bytes);
  if (progress_)
    progress_(static_cast<double>(num_read_bytes_) /
                  static_cast<double>(std::max<std::int64_t>(1, checkpoint_.num_bytes())),
              what);
}

PackedMatrix WeightLoader::matrix(const std::vector<Part>& parts, std::int64_t num_cols, Slice cols,
                                  std::int32_t k_shards) {
  PackedMatrix matrix;
  std::vector<const TensorView*> tensors;
  std::int64_t num_rows = 0;
  for (const Part& part : parts) {
    const std::int64_t shape[] = {part.num_rows, num_cols};
    const TensorView* tensor = find(part.name + ".weight", shape);
    if (tensor == nullptr) continue;
    tensors.push_back(tensor);
    num_rows += part.rows.count;
  }
  if (tensors.size() != parts.size() || !errors_.empty()) return matrix;

  // Parts of one matrix share a type: the widest, so that as_stored loses nothing.
  ElementType type = format_.type;
  if (format_.as_stored) {
    type = element_type(tensors.front()->type);
    for (const TensorView* tensor : tensors)
      if (element_type(tensor->type) != type) type = ElementType::kF32;
  }
  matrix.spec = {num_rows, cols.count, type, format_.mode, k_shards};
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
    const ElementType stored = element_type(tensors[i]->type);
    const std::int64_t first = parts[i].rows.begin * num_cols + cols.begin;
    const StoredSlice slice{tensors[i]->bytes.data() + first * element_bytes(stored), stored,
                            parts[i].rows.count, cols.count, num_cols};
    pack_in_parallel(device_, matrix.spec, slice, first_row, matrix.memory.data());
    first_row += parts[i].rows.count;
    report_progress(parts[i].name, tensors[i]->bytes.size());
  }
  return matrix;
}

std::vector<float> WeightLoader::biases(const std::vector<Part>& parts) {
  std::vector<float> all;
  for (const Part& part : parts) {
    const std::int64_t shape[] = {part.num_rows};
    const TensorView* tensor = find(part.name + ".bias", shape);
    if (tensor == nullptr) continue;
    std::vector<float> whole(static_cast<std::size_t>(part.num_rows));
    widen(*tensor, whole.data());
    all.insert(all.end(), whole.begin() + part.rows.begin, whole.begin() + part.rows.end());
  }
  return all;
}

std::vector<float> WeightLoader::vector(const std::string& name, std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  const std::int64_t shape[] = {size};
  if (const TensorView* tensor = find(name + ".weight", shape); tensor != nullptr)
    widen(*tensor, values.data());
  return values;
}

StoredMatrix WeightLoader::table(const std::string& name, std::int64_t num_rows,
                                 std::int64_t num_cols) {
  const std::int64_t shape[] = {num_rows, num_cols};
  const TensorView* tensor = find(name + ".weight", shape);
  return tensor == nullptr ? StoredMatrix{} : stored_matrix(*tensor, num_rows, num_cols);
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
