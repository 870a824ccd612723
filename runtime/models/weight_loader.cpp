#include "runtime/models/weight_loader.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>

#include "runtime/base/log.hpp"
#include "runtime/models/quantize.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxErrors = 4;  // named in one message
constexpr std::string_view kWeights = "weights";

// Groups of weights that are quantised here. 4-bit numbers need small ones; 8-bit numbers are exact
// enough in groups that fill an int8 tile's depth.
constexpr std::int32_t kInt8GroupSize = 64;
constexpr std::int32_t kInt4GroupSize = 32;
// Stored groups may be longer, but activations are quantised in the same groups.
constexpr std::int32_t kMaxGroupSize = 128;
// What the kernels can take.
constexpr std::int32_t kInt8GroupStep = 16;
constexpr std::int32_t kInt4GroupStep = 32;

constexpr std::array kWeightTypes = {
    TensorType::kF32,  TensorType::kBF16,   TensorType::kF16,    TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0,   TensorType::kQ5_1,   TensorType::kQ8_0,
    TensorType::kQ2_K, TensorType::kQ3_K,   TensorType::kQ4_K,   TensorType::kQ5_K,
    TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS, TensorType::kMXFP4};

/// Static scales of the KV cache, of attention's queries and of layers' outputs: ours find their
/// own.
bool is_activation_scale(std::string_view name) {
  constexpr std::array<std::string_view, 5> kSuffixes = {".k_scale", ".v_scale", ".q_scale",
                                                         ".kv_scale", ".output_scale"};
  return std::ranges::any_of(kSuffixes, [&](std::string_view s) { return name.ends_with(s); });
}

/// Pre: is_quantized(weight).
std::optional<BlockGroups> stored_groups(const StoredWeight& weight) {
  return weight.quantized ? weight.quantized->groups() : block_groups(weight.tensor->view.type);
}

bool is_fp4(const StoredWeight& weight) {
  return stored_groups(weight)->type == QuantizedType::kFp4;
}

/// Do all of them have groups, so that their numbers can be kept? Those of kFp4 are no integers.
bool have_groups(const std::vector<StoredWeight>& weights) {
  const auto has_groups = [](const auto& weight) {
    return is_quantized(weight) && stored_groups(weight);
  };
  return std::ranges::all_of(weights, has_groups) &&
         (std::ranges::all_of(weights, is_fp4) || std::ranges::none_of(weights, is_fp4));
}

/// The longest groups of which the groups of all `weights` consist exactly: parts of several kinds
/// meet in the wider numbers and in what divides both lengths. Nothing if there are none.
/// Pre: all have groups. cut_size: not 0 where groups begin anew every so many columns.
std::optional<BlockGroups> common_groups(const std::vector<StoredWeight>& weights,
                                         std::int64_t cut_size) {
  BlockGroups common{is_fp4(weights.front()) ? QuantizedType::kFp4 : QuantizedType::kInt4, 0,
                     false};
  for (const StoredWeight& weight : weights) {
    const BlockGroups groups = *stored_groups(weight);
    if (groups.type == QuantizedType::kInt8) common.type = QuantizedType::kInt8;
    common.group_size = std::gcd(common.group_size, groups.group_size);
    common.has_minimums = common.has_minimums || groups.has_minimums;
  }
  if (common.group_size == 0) {  // whole rows: any cut will do
    common.group_size = common.type == QuantizedType::kInt8 ? kInt8GroupSize : kInt4GroupSize;
    return common;
  }
  common.group_size = static_cast<std::int32_t>(std::gcd(common.group_size, cut_size));
  if (common.type == QuantizedType::kFp4) return common;
  if (common.group_size % kInt4GroupStep != 0) common.type = QuantizedType::kInt8;
  const std::int32_t step = common.type == QuantizedType::kInt8 ? kInt8GroupStep : kInt4GroupStep;
  for (std::int32_t size = kMaxGroupSize; size > 0; size -= step) {
    if (common.group_size % size != 0) continue;
    common.group_size = size;
    return common;
  }
  return std::nullopt;
}

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, Device& device, WeightFormat format,
                           const QuantizationConfig& stored, const ParallelConfig& parallel,
                           LoadProgressCallback progress, PackedWeightsFile* file, LoadPass pass)
    : checkpoint_(checkpoint),
      device_(device),
      format_(format),
      stored_(stored),
      parallel_(parallel),
      progress_(std::move(progress)),
      file_(file),
      pass_(pass) {}

void WeightLoader::fail(ErrorCode code, std::string message) {
  errors_.push_back({code, std::move(message)});
}

const Checkpoint::Tensor* WeightLoader::find(const std::string& name,
                                             std::span<const std::int64_t> shape) {
  const auto tensor = checkpoint_.require(name, shape, kWeightTypes);
  if (!tensor.ok()) {
    errors_.push_back(tensor.error());
    return nullptr;
  }
  used_.insert(name);
  return *tensor;
}

std::optional<std::vector<float>> WeightLoader::widen_quantized(const std::string& name,
                                                                std::span<const std::int64_t> shape,
                                                                Slice rows) {
  if (shape.size() != 2) return std::nullopt;
  auto quantized = QuantizedWeight::find(checkpoint_, stored_, name, shape[0], shape[1]);
  if (!quantized.ok()) {
    errors_.push_back(quantized.error());
    return std::nullopt;
  }
  const Checkpoint::Tensor* blocks = nullptr;
  if (*quantized) {
    used_.insert((*quantized)->tensor_names().begin(), (*quantized)->tensor_names().end());
  } else {
    blocks = checkpoint_.find(name + ".weight");
    if (blocks == nullptr || !is_block_type(blocks->view.type)) return std::nullopt;
    blocks = find(name + ".weight", shape);
    if (blocks == nullptr) return std::nullopt;
  }
  if (is_check()) return std::vector<float>();
  std::vector<float> wide(static_cast<std::size_t>(shape[0] * shape[1]));
  device_.pool().parallel_for(rows.count, [&](std::int64_t i) {
    const std::int64_t row = rows.begin + i;
    float* const out = wide.data() + row * shape[1];
    if (blocks != nullptr)
      widen_row(blocks->view, row, 0, shape[1], out);
    else
      (*quantized)->widen({row, 1}, {0, shape[1]}, out);
  });
  return wide;
}

std::optional<StoredWeight> WeightLoader::find_rearranged(const Part& part, std::int64_t num_cols) {
  const std::int64_t stored_rows = part.row_padding.stored(part.num_rows);
  const std::int64_t stored_cols = part.col_padding.stored(num_cols);
  const Layout layout =
      part.layout.value_or(Layout{.shape = {stored_rows, stored_cols}, .row_stride = stored_cols});
  const auto place = [&](std::int64_t row, std::int64_t col) {
    return layout.first + row * layout.row_stride + col * layout.col_stride;
  };
  Rearranged& own = rearranged_.emplace_back();
  own.tensor.view.shape = {part.num_rows, num_cols};
  std::span<const std::byte> stored_bytes;
  const std::int64_t row_size = layout.shape.back();
  const std::int64_t first_row = layout.first / row_size;
  const std::int64_t end_row = place(stored_rows - 1, stored_cols - 1) / row_size + 1;
  const auto wide = layout.has_suffix
                        ? widen_quantized(part.name, layout.shape, {first_row, end_row - first_row})
                        : std::nullopt;
  if (wide) {
    stored_bytes = std::as_bytes(std::span(*wide));
  } else {
    const Checkpoint::Tensor* const stored =
        find(part.name + (layout.has_suffix ? ".weight" : ""), layout.shape);
    if (stored == nullptr) return std::nullopt;
    if (is_block_type(stored->view.type)) {
      fail(ErrorCode::kUnsupported, stored->file + ": tensor " + part.name + " of type " +
                                        std::string(to_string(stored->view.type)) +
                                        " is not supported, only floating-point ones");
      return std::nullopt;
    }
    own.tensor.file = stored->file;
    own.tensor.view.type = stored->view.type;
    stored_bytes = stored->view.bytes;
  }
  if (is_check()) return StoredWeight{&own.tensor, std::nullopt};
  const auto size = static_cast<std::size_t>(type_block(own.tensor.view.type).num_bytes);
  const bool is_padded = part.row_padding.is_needed() || part.col_padding.is_needed();
  if (!is_padded && layout.col_stride == 1 && layout.row_stride == stored_cols && !wide) {
    own.tensor.view.bytes =
        stored_bytes.subspan(static_cast<std::size_t>(layout.first) * size,
                             static_cast<std::size_t>(stored_rows * stored_cols) * size);
    return StoredWeight{&own.tensor, std::nullopt};
  }
  own.bytes.resize(static_cast<std::size_t>(part.num_rows * num_cols) * size);
  device_.pool().parallel_for(stored_rows, [&](std::int64_t row) {
    for (std::int64_t col = 0; col < stored_cols; ++col) {
      const std::int64_t to = part.row_padding.place(row) * num_cols + part.col_padding.place(col);
      std::memcpy(own.bytes.data() + static_cast<std::size_t>(to) * size,
                  stored_bytes.data() + static_cast<std::size_t>(place(row, col)) * size, size);
    }
  });
  own.tensor.view.bytes = own.bytes;
  return StoredWeight{&own.tensor, std::nullopt};
}

std::optional<StoredWeight> WeightLoader::find_blocks(const Part& part, std::int64_t num_cols) {
  constexpr std::int64_t kBlockSize = 32;
  constexpr std::int64_t kBlockBytes = kBlockSize / 2;
  constexpr std::array kBytes = {TensorType::kU8};
  constexpr std::byte kNan{0xff};
  const std::int64_t num_blocks = num_cols / kBlockSize;
  if (num_cols % kBlockSize != 0) {
    fail(ErrorCode::kUnsupported, "the rows of tensor \"" + part.name + "_blocks\" have " +
                                      std::to_string(num_cols) + " numbers, not a multiple of " +
                                      std::to_string(kBlockSize));
    return std::nullopt;
  }
  std::vector<std::int64_t> shape = part.blocks->shape;
  shape.push_back(num_blocks);
  const auto scales = checkpoint_.require(part.name + "_scales", shape, kBytes);
  shape.push_back(kBlockBytes);
  const auto blocks = checkpoint_.require(part.name + "_blocks", shape, kBytes);
  for (const auto* tensor : {&scales, &blocks})
    if (!tensor->ok()) errors_.push_back(tensor->error());
  if (!scales.ok() || !blocks.ok()) return std::nullopt;
  used_.insert({part.name + "_scales", part.name + "_blocks"});

  Rearranged& own = rearranged_.emplace_back();
  own.tensor.file = (*blocks)->file;
  own.tensor.view.type = TensorType::kMXFP4;
  own.tensor.view.shape = {part.num_rows, num_cols};
  if (is_check()) return StoredWeight{&own.tensor, std::nullopt};
  own.bytes.resize(static_cast<std::size_t>(part.num_rows * num_blocks * (1 + kBlockBytes)));
  std::atomic<bool> has_nan = false;
  device_.pool().parallel_for(part.num_rows, [&](std::int64_t row) {
    const std::int64_t first =
        (part.blocks->first_row + row * part.blocks->row_stride) * num_blocks;
    std::byte* to = own.bytes.data() + row * num_blocks * (1 + kBlockBytes);
    for (std::int64_t block = first; block < first + num_blocks; ++block) {
      const std::byte* numbers = (*blocks)->view.bytes.data() + block * kBlockBytes;
      *to = (*scales)->view.bytes[static_cast<std::size_t>(block)];
      if (*to++ == kNan) has_nan = true;
      // GGUF's order: the upper halves are the other 16 numbers.
      const auto nibble = [&](std::int64_t i) {
        return numbers[i / 2] >> (i % 2 * 4) & std::byte{15};
      };
      for (std::int64_t i = 0; i < kBlockBytes; ++i) *to++ = nibble(i) | nibble(i + 16) << 4;
    }
  });
  if (has_nan) {
    fail(ErrorCode::kCorrupt, (*scales)->file + ": tensor \"" + part.name +
                                  "_scales\" has a scale that is not a number");
    return std::nullopt;
  }
  own.tensor.view.bytes = own.bytes;
  return StoredWeight{&own.tensor, std::nullopt};
}

std::optional<StoredWeight> WeightLoader::find_matrix(const Part& part, std::int64_t num_cols) {
  if (part.blocks) return find_blocks(part, num_cols);
  if (part.layout || part.row_padding.is_needed() || part.col_padding.is_needed())
    return find_rearranged(part, num_cols);
  const std::string& name = part.name;
  const std::int64_t num_rows = part.num_rows;
  auto quantized = QuantizedWeight::find(checkpoint_, stored_, name, num_rows, num_cols);
  if (!quantized.ok()) {
    errors_.push_back(quantized.error());
    return std::nullopt;
  }
  if (*quantized) {
    used_.insert((*quantized)->tensor_names().begin(), (*quantized)->tensor_names().end());
    return StoredWeight{nullptr, std::move(*quantized)};
  }
  const std::int64_t shape[] = {num_rows, num_cols};
  const Checkpoint::Tensor* tensor = find(name + ".weight", shape);
  if (tensor == nullptr) return std::nullopt;
  return StoredWeight{tensor, std::nullopt};
}

void WeightLoader::finish_matrix(const std::string& name, const StoredWeight& weight) {
  std::size_t num_bytes = 0;
  const auto drop = [&](const Checkpoint::Tensor& tensor) {
    checkpoint_.drop_pages(tensor);
    num_bytes += tensor.view.bytes.size();
  };
  if (weight.quantized) {
    for (const std::string& tensor : weight.quantized->tensor_names())
      drop(*checkpoint_.find(tensor));
  } else {
    drop(*weight.tensor);
  }
  report_progress(name, num_bytes);
}

void WeightLoader::report_progress(std::string_view what, std::size_t num_bytes) {
  num_read_bytes_ += static_cast<std::int64_t>(num_bytes);
  if (progress_)
    progress_(
        std::min(1.0, static_cast<double>(num_read_bytes_) /
                          static_cast<double>(std::max<std::int64_t>(1, checkpoint_.num_bytes()))),
        what);
}

WeightSpec WeightLoader::matrix_spec(const std::vector<StoredWeight>& weights,
                                     std::int64_t num_rows, std::int64_t num_cols, Slice cols,
                                     std::int32_t k_shards, MatrixRole role) const {
  WeightSpec spec{.num_rows = num_rows,
                  .num_cols = cols.count,
                  .type = format_.type,
                  .mode = format_.mode,
                  .k_shards = k_shards,
                  .is_gated = role == MatrixRole::kGateUp};
  if (role == MatrixRole::kRouter) {
    spec.type = element_type(weights.front());
    spec.mode = ComputeMode::kF32;
    return spec;
  }
  if (format_.as_stored) {
    // Parts of one matrix share a type: the widest, so that as_stored loses nothing.
    spec.type = element_type(weights.front());
    for (const StoredWeight& weight : weights)
      if (element_type(weight) != spec.type) spec.type = ElementType::kF32;
  }
  if (std::ranges::none_of(weights, is_quantized)) {
    if (role == MatrixRole::kEncoder) return spec;
    spec.quantized = format_.quantized;
    if (spec.quantized == QuantizedType::kInt4 && role == MatrixRole::kHead)
      spec.quantized = QuantizedType::kInt8;
    spec.group_size = spec.quantized == QuantizedType::kInt8 ? kInt8GroupSize : kInt4GroupSize;
    return spec;
  }
  if (!std::ranges::all_of(weights, is_quantized)) return spec;
  if (!have_groups(weights)) {
    spec.quantized = QuantizedType::kInt8;
    spec.group_size = kInt8GroupSize;
    return spec;
  }
  // Groups may be cut short at the end of a row, but not between the parts of K, which other ranks
  // may hold.
  const bool is_whole = cols.count == num_cols && k_shards == 1;
  if (const auto common = common_groups(weights, is_whole ? 0 : cols.count / k_shards)) {
    spec.quantized = common->type;
    spec.group_size = common->group_size;
    spec.has_minimums = common->has_minimums;
  }
  return spec;
}

bool WeightLoader::take_from_file(PackedMatrix& matrix, std::string_view name,
                                  std::size_t num_bytes) {
  if (file_ == nullptr || !file_->is_mapped()) return false;
  const auto mapped = file_->next(matrix.spec, num_bytes);
  if (!mapped.ok()) {
    log_warning(
        "packed weights are of another model: this tensor and those behind it are packed anew",
        kv("tensor", name));
    give_up_file(mapped.error());
    return false;
  }
  matrix.mapped = *mapped;
  return !mapped->empty();
}

void WeightLoader::give_up_file(const Error& error) {
  log_warning("packed weights not kept", kv("error", error.message));
  file_->discard();
  file_ = nullptr;
}

PackedMatrix WeightLoader::matrix(const std::vector<Part>& parts, std::int64_t num_cols, Slice cols,
                                  std::int32_t k_shards, MatrixRole role) {
  PackedMatrix matrix;
  rearranged_.clear();
  std::vector<StoredWeight> weights;
  std::int64_t num_rows = 0;
  for (const Part& part : parts) {
    std::optional<StoredWeight> weight = find_matrix(part, num_cols);
    if (!weight) continue;
    weights.push_back(std::move(*weight));
    num_rows += part.rows.count;
  }
  if (weights.size() != parts.size() || !errors_.empty()) return matrix;

  matrix.spec = matrix_spec(weights, num_rows, num_cols, cols, k_shards, role);
  if (is_check()) return matrix;
  const bool packs_groups = matrix.spec.quantized != QuantizedType::kNone;
  const auto num_bytes = static_cast<std::size_t>(device_.ops().packed_bytes(matrix.spec));
  const bool is_packed = take_from_file(matrix, parts.front().name, num_bytes);
  Memory packed;
  if (!is_packed && !allocate_packed(packed, num_bytes)) return matrix;
  const bool keeps_groups = have_groups(weights);
  std::int64_t first_row = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const RowsToPack part{weights[i], parts[i].rows, cols, first_row, keeps_groups};
    if (!is_packed)
      (packs_groups ? pack_quantized : pack_wide)(device_, matrix.spec, part, packed.data());
    first_row += parts[i].rows.count;
    const bool is_read_again = i + 1 < parts.size() && parts[i + 1].name == parts[i].name;
    if (!is_read_again) finish_matrix(parts[i].name, weights[i]);
  }
  if (!is_packed) make_compact(matrix.spec, packed);
  if (!is_packed && file_ != nullptr) {
    const auto kept = file_->append(matrix.spec, packed.bytes());
    if (!kept.ok()) give_up_file(kept.error());
  }
  if (!is_packed) {
    matrix.memory = value_or_fail(device_.upload(std::move(packed), kWeights));
  } else if (!device_.is_host()) {
    matrix.memory = value_or_fail(device_.upload_copy(matrix.mapped, kWeights));
    matrix.mapped = {};
  }
  num_packed_bytes_ += static_cast<std::int64_t>(matrix.bytes().size());
  return matrix;
}

DeviceMemory WeightLoader::allocate(std::int64_t num_bytes, std::string_view what) {
  if (is_check()) return {};
  return value_or_fail(device_.allocate(static_cast<std::size_t>(num_bytes), what));
}

bool WeightLoader::allocate_packed(Memory& memory, std::size_t num_bytes) {
  Result<Memory> allocated = Memory::allocate(num_bytes, kWeights);
  if (!allocated.ok()) {
    errors_.push_back(allocated.error());
    return false;
  }
  memory = std::move(allocated).value();
  return true;
}

template <class T>
T WeightLoader::value_or_fail(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  errors_.push_back(std::move(result).error());
  return {};
}

void WeightLoader::make_compact(WeightSpec& spec, Memory& packed) {
  const OpTable& ops = device_.ops();
  if (ops.compact == nullptr) return;
  const std::int64_t num_bytes = ops.compact_bytes(device_.context(), spec, packed.data());
  Memory compact;
  if (num_bytes == 0 || !allocate_packed(compact, static_cast<std::size_t>(num_bytes))) return;
  ops.compact(device_.context(), spec, packed.data(), compact.data());
  packed = std::move(compact);
  spec.is_compact = true;
}

std::int32_t WeightLoader::add_adapter_target(const std::vector<Part>& parts, std::int64_t num_cols,
                                              Slice cols, bool is_embedding) {
  AdapterTarget target{
      .parts = {}, .num_cols = num_cols, .cols = cols, .is_embedding = is_embedding};
  for (const Part& part : parts) target.parts.push_back({part.name, part.num_rows, part.rows});
  return add_adapter_target(std::move(target));
}

std::int32_t WeightLoader::add_adapter_target(AdapterTarget target) {
  adapter_targets_.push_back(std::move(target));
  return static_cast<std::int32_t>(adapter_targets_.size()) - 1;
}

DeviceArray<const std::byte*> WeightLoader::addresses(std::vector<const std::byte*> weights) {
  return upload(std::move(weights));
}

DeviceArray<const float*> WeightLoader::addresses(std::vector<const float*> vectors) {
  return upload(std::move(vectors));
}

DeviceArray<float> WeightLoader::biases(const std::vector<Part>& parts) {
  std::vector<float> all;
  for (const Part& part : parts) {
    const std::int64_t num_stored = part.row_padding.stored(part.num_rows);
    if (!part.has_bias) {
      all.resize(all.size() + static_cast<std::size_t>(part.rows.count));
      continue;
    }
    const Layout layout = part.bias_layout.value_or(Layout{.shape = {num_stored}});
    const Checkpoint::Tensor* tensor =
        find(part.name + (layout.has_suffix ? ".bias" : "_bias"), layout.shape);
    if (tensor == nullptr || is_check()) continue;
    std::vector<float> whole(static_cast<std::size_t>(part.num_rows));
    const TensorView flat{tensor->view.type, {tensor->view.num_elements()}, tensor->view.bytes};
    for (std::int64_t row = 0; row < num_stored; ++row)
      widen_row(flat, 0, layout.first + stored_row(*tensor, row) * layout.row_stride, 1,
                &whole[static_cast<std::size_t>(part.row_padding.place(row))]);
    all.insert(all.end(), whole.begin() + part.rows.begin, whole.begin() + part.rows.end());
  }
  return upload(std::move(all));
}

DeviceArray<float> WeightLoader::vector(const std::string& name, std::int64_t size) {
  return upload(values(name + ".weight", size));
}

std::vector<float> WeightLoader::rows(const std::string& name, std::int64_t num_rows,
                                      std::int64_t num_cols) {
  std::vector<float> values(static_cast<std::size_t>(num_rows * num_cols));
  const std::int64_t shape[] = {num_rows, num_cols};
  const Checkpoint::Tensor* tensor = find(name + ".weight", shape);
  for (std::int64_t row = 0; tensor != nullptr && !is_check() && row < num_rows; ++row)
    widen_row(tensor->view, row, 0, num_cols, values.data() + row * num_cols);
  return values;
}

std::vector<float> WeightLoader::values(const std::string& name, std::int64_t size) {
  return values(name, std::span(&size, 1));
}

std::vector<float> WeightLoader::values(const std::string& name,
                                        std::span<const std::int64_t> shape) {
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  std::vector<float> values(static_cast<std::size_t>(size));
  if (const Checkpoint::Tensor* tensor = find(name, shape); tensor != nullptr && !is_check())
    widen_row(tensor->view, 0, 0, size, values.data());
  return values;
}

std::vector<std::int64_t> WeightLoader::integers(const std::string& name, std::int64_t size) {
  constexpr std::array kTypes = {TensorType::kI64};
  std::vector<std::int64_t> integers(static_cast<std::size_t>(size));
  const auto tensor = checkpoint_.require(name, std::span(&size, 1), kTypes);
  if (!tensor.ok()) {
    errors_.push_back(tensor.error());
    return integers;
  }
  used_.insert(name);
  if (is_check()) return integers;
  std::memcpy(integers.data(), (*tensor)->view.bytes.data(), (*tensor)->view.bytes.size());
  return integers;
}

DeviceArray<float> WeightLoader::elements(const std::string& name, std::int64_t size, Slice slice) {
  const std::vector<float> all = values(name, size);
  return upload(std::vector<float>(all.begin() + slice.begin, all.begin() + slice.end()));
}

EmbeddingTable WeightLoader::table(const std::string& name, std::int64_t num_rows,
                                   std::int64_t num_cols) {
  const std::int64_t shape[] = {num_rows, num_cols};
  const Checkpoint::Tensor* tensor = find(name + ".weight", shape);
  EmbeddingTable table;
  if (tensor == nullptr) return table;
  table.stored = &tensor->view;
  const bool is_read_by_host = device_.is_host() || is_block_type(tensor->view.type);
  if (parallel_.is_first_stage() && !is_read_by_host && !is_check())
    table.copy = value_or_fail(device_.upload_copy(tensor->view.bytes, kWeights));
  return table;
}

std::shared_ptr<const RopeTables> WeightLoader::rope_tables(const RopeConfig& config,
                                                            std::int64_t head_dim,
                                                            std::int64_t num_positions) {
  constexpr std::string_view kWhat = "the tables of the rotary embedding";
  auto tables = std::make_shared<RopeTables>();
  if (is_check()) return tables;
  RotaryEmbedding rope(config, head_dim, num_positions);
  tables->rotary_dim = rope.rotary_dim();
  tables->style = config.pairs_neighbours ? RopeStyle::kInterleaved : RopeStyle::kNeox;
  tables->cos = value_or_fail(device_.upload(std::move(rope).cos(), kWhat));
  tables->sin = value_or_fail(device_.upload(std::move(rope).sin(), kWhat));
  return tables;
}

bool WeightLoader::are_equal(const std::string& a, const std::string& b) const {
  const TensorView& left = checkpoint_.find(a)->view;
  const TensorView& right = checkpoint_.find(b)->view;
  return left.type == right.type && left.shape == right.shape &&
         (is_check() || std::ranges::equal(left.bytes, right.bytes));
}

void WeightLoader::ignore(std::string_view prefix) {
  for (const auto& [name, tensor] : checkpoint_.tensors())
    if (name.starts_with(prefix)) used_.insert(name);
}

Result<void> WeightLoader::check_unused() const {
  std::string names;
  std::size_t num_unused = 0;
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (used_.contains(name)) continue;
    if (!checkpoint_.is_gguf()) {
      if (!is_check() && !is_activation_scale(name))
        log_warning("weight not used", kv("tensor", name), kv("file", tensor.file));
    } else if (++num_unused <= kMaxErrors) {
      names += (names.empty() ? "" : ", ") + tensor.file + ": \"" + tensor.name_in_file + "\"";
    }
  }
  if (num_unused == 0) return {};
  if (num_unused > kMaxErrors) names += " and " + std::to_string(num_unused - kMaxErrors) + " more";
  return Error{ErrorCode::kUnsupported,
               "tensors that this architecture has no use for here, so the result would be "
               "another model's: " +
                   names};
}

Result<void> WeightLoader::finish() {
  if (!errors_.empty()) {
    // Several matrices may be parts of one tensor.
    std::vector<std::string> messages;
    for (const Error& each : errors_)
      if (std::ranges::find(messages, each.message) == messages.end())
        messages.push_back(each.message);
    Error error = errors_.front();
    for (std::size_t i = 1; i < std::min(messages.size(), kMaxErrors); ++i)
      error.message += "; " + messages[i];
    if (messages.size() > kMaxErrors)
      error.message += "; and " + std::to_string(messages.size() - kMaxErrors) + " more";
    return error;
  }
  RETURN_IF_ERROR(check_unused());
  RETURN_IF_ERROR(checkpoint_.check());
  if (file_ != nullptr) {
    RETURN_IF_ERROR(file_->check());
    const auto kept = file_->commit();
    if (!kept.ok()) {
      give_up_file(kept.error());
    } else if (*kept) {
      log_info("packed weights written", kv("file", file_->path().string()));
    }
  }
  return {};
}

}  // namespace troupe
