#include "runtime/models/quantized_weight.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "runtime/models/half_floats.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kWordBits = 32;
constexpr float kLargestF16 = 65504;
constexpr float kSmallestNormalF16 = 0x1p-14f;
/// With it, requantised weights, FP8 included, stay within f16.
constexpr float kMaxScale = 16384;

/// Row 8 i + j of an AWQ matrix is in nibble kAwqNibble[j] of its word.
constexpr std::array<int, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

constexpr std::initializer_list<TensorType> kWord = {TensorType::kI32};
constexpr std::initializer_list<TensorType> kFloats = {TensorType::kF32, TensorType::kBF16,
                                                       TensorType::kF16};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

float float_at(const TensorView& view, std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  switch (view.type) {
    case TensorType::kF32:
      return view.elements<float>()[at];
    case TensorType::kBF16:
      return widen_bf16(view.elements<std::uint16_t>()[at]);
    default:
      return widen_f16(view.elements<std::uint16_t>()[at]);
  }
}

/// Field `index` of `bits` bits in a row of 32-bit words, the lowest bits first.
std::int32_t field(std::uint32_t word, std::int64_t index, std::int32_t bits) {
  return static_cast<std::int32_t>(word >> (index * bits)) & ((1 << bits) - 1);
}

/// OCP 8-bit floating point, 4 bits of exponent, 3 of fraction, no infinities (arXiv 2209.05433).
float widen_f8_e4m3(std::uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return std::nanf("");
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return (bits & 0x80) != 0 ? -size : size;
}

const std::array<float, 256>& f8_e4m3_numbers() {
  static const std::array<float, 256> numbers = [] {
    std::array<float, 256> all{};
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = widen_f8_e4m3(static_cast<std::uint8_t>(i));
    return all;
  }();
  return numbers;
}

Error error_about(const Checkpoint::Tensor& tensor, const std::string& name,
                  const std::string& reason) {
  return {ErrorCode::kCorrupt, tensor.file + ": tensor \"" + name + "\" " + reason};
}

/// A tensor with a width of 4 or 8 bits: tells it from the number of words in dimension
/// `dimension`, in which `num_fields` are packed.
Result<std::int32_t> packed_bits(const Checkpoint::Tensor& tensor, const std::string& name,
                                 std::size_t dimension, std::int64_t num_fields) {
  for (const std::int32_t bits : {4, 8})
    if (tensor.view.shape.size() == 2 &&
        tensor.view.shape[dimension] == ceil_div(num_fields * bits, kWordBits))
      return bits;
  return error_about(tensor, name,
                     "has shape " + shape_text(tensor.view.shape) + ", expected " +
                         std::to_string(ceil_div(num_fields * 4, kWordBits)) + " or " +
                         std::to_string(ceil_div(num_fields * 8, kWordBits)) + " in dimension " +
                         std::to_string(dimension) + ": " + std::to_string(num_fields) +
                         " numbers of 4 or 8 bits in words");
}

Result<const TensorView*> require(const Checkpoint& checkpoint, const std::string& name,
                                  std::initializer_list<std::int64_t> shape,
                                  std::initializer_list<TensorType> types) {
  ASSIGN_OR_RETURN(const Checkpoint::Tensor* tensor,
                   checkpoint.require(name, std::span(shape), std::span(types)));
  return &tensor->view;
}

}  // namespace

bool QuantizedWeight::set_num_groups(std::int64_t num_groups, std::int64_t configured_size) {
  num_groups_ = num_groups;
  if (num_groups == 1) {
    group_size_ = num_cols_;
  } else if (configured_size > 0 && ceil_div(num_cols_, configured_size) == num_groups) {
    group_size_ = configured_size;
  } else if (num_groups > 0 && num_cols_ % num_groups == 0) {
    group_size_ = num_cols_ / num_groups;
  } else {
    return false;
  }
  return true;
}

Result<void> QuantizedWeight::set_group_scales(const Checkpoint& checkpoint,
                                               const QuantizationConfig& config,
                                               const std::string& name, std::int64_t per_word) {
  const Checkpoint::Tensor* scales = checkpoint.find(name + ".scales");
  const std::int64_t num_groups =
      scales == nullptr || scales->view.shape.empty() ? 1 : scales->view.shape.front();
  ASSIGN_OR_RETURN(scales_,
                   require(checkpoint, name + ".scales", {num_groups, num_rows_}, kFloats));
  if (!set_num_groups(num_groups, config.group_size))
    return error_about(*scales, name + ".scales",
                       "has " + std::to_string(num_groups) + " groups for " +
                           std::to_string(num_cols_) + " columns");
  if (!config.symmetric || checkpoint.find(name + ".qzeros") != nullptr) {
    ASSIGN_OR_RETURN(zero_points_, require(checkpoint, name + ".qzeros",
                                           {num_groups, ceil_div(num_rows_, per_word)}, kWord));
  }
  scale_row_stride_ = 1;
  scale_group_stride_ = num_rows_;
  return {};
}

Result<void> QuantizedWeight::set_group_index(const Checkpoint& checkpoint,
                                              const std::string& name) {
  const Checkpoint::Tensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) return {};
  ASSIGN_OR_RETURN(const TensorView* view, require(checkpoint, name, {num_cols_}, kWord));
  const std::span<const std::int32_t> groups = view->elements<std::int32_t>();
  // -1 everywhere: none.
  if (std::ranges::all_of(groups, [](std::int32_t group) { return group == -1; })) return {};
  for (const std::int32_t group : groups)
    if (group < 0 || group >= num_groups_)
      return error_about(
          *tensor, name,
          "names group " + std::to_string(group) + " of " + std::to_string(num_groups_));
  for (std::int64_t col = 0; col < num_cols_; ++col) {
    if (groups[static_cast<std::size_t>(col)] == col / group_size_) continue;
    group_index_.assign(groups.begin(), groups.end());
    break;
  }
  return {};
}

Result<QuantizedWeight> QuantizedWeight::find_gptq(const Checkpoint& checkpoint,
                                                   const QuantizationConfig& config,
                                                   const std::string& name,
                                                   QuantizedWeight weight) {
  weight.layout_ = Layout::kGptq;
  const Checkpoint::Tensor& numbers = *checkpoint.find(name + ".qweight");
  ASSIGN_OR_RETURN(weight.bits_, packed_bits(numbers, name + ".qweight", 0, weight.num_cols_));
  const std::int64_t per_word = kWordBits / weight.bits_;
  ASSIGN_OR_RETURN(weight.numbers_,
                   require(checkpoint, name + ".qweight",
                           {ceil_div(weight.num_cols_, per_word), weight.num_rows_}, kWord));
  RETURN_IF_ERROR(weight.set_group_scales(checkpoint, config, name, per_word));
  weight.zero_points_minus_one_ = config.zero_points_minus_one;
  RETURN_IF_ERROR(weight.set_group_index(checkpoint, name + ".g_idx"));
  return weight;
}

Result<QuantizedWeight> QuantizedWeight::find_awq(const Checkpoint& checkpoint,
                                                  const QuantizationConfig& config,
                                                  const std::string& name, QuantizedWeight weight) {
  constexpr std::int64_t kPerWord = 8;
  weight.layout_ = Layout::kAwq;
  const Checkpoint::Tensor& numbers = *checkpoint.find(name + ".qweight");
  if (weight.num_rows_ % kPerWord != 0)
    return error_about(numbers, name + ".qweight",
                       "has " + std::to_string(weight.num_rows_) + " outputs, not a multiple of 8");
  const std::int64_t num_words = weight.num_rows_ / kPerWord;
  ASSIGN_OR_RETURN(weight.numbers_,
                   require(checkpoint, name + ".qweight", {weight.num_cols_, num_words}, kWord));
  RETURN_IF_ERROR(weight.set_group_scales(checkpoint, config, name, kPerWord));
  return weight;
}

Result<void> QuantizedWeight::set_row_scales(const Checkpoint::Tensor& scales,
                                             const std::string& name,
                                             const QuantizationConfig& config) {
  const std::vector<std::int64_t>& shape = scales.view.shape;
  scales_ = &scales.view;
  if (scales.view.num_elements() == 1) {
    set_num_groups(1, 0);
    return {};
  }
  const auto [block_rows, block_cols] = config.block;
  if (layout_ == Layout::kFp8 && block_rows > 0 &&
      shape == std::vector{ceil_div(num_rows_, block_rows), ceil_div(num_cols_, block_cols)}) {
    num_groups_ = shape[1];
    group_size_ = block_cols;
    rows_per_scale_ = block_rows;
    scale_row_stride_ = num_groups_;
    scale_group_stride_ = 1;
    return {};
  }
  const bool is_matrix = shape.size() == 2;
  const std::int64_t num_groups = is_matrix ? shape[1] : 1;
  if ((!is_matrix && shape.size() != 1) || shape.front() != num_rows_ ||
      !set_num_groups(num_groups, config.group_size))
    return error_about(scales, name,
                       "has shape " + shape_text(shape) + ", expected [1] or [" +
                           std::to_string(num_rows_) + ", groups of " + std::to_string(num_cols_) +
                           " columns]");
  scale_row_stride_ = num_groups;
  scale_group_stride_ = 1;
  return {};
}

Result<QuantizedWeight> QuantizedWeight::find_packed(const Checkpoint& checkpoint,
                                                     const QuantizationConfig& config,
                                                     const std::string& name,
                                                     QuantizedWeight weight) {
  weight.layout_ = Layout::kPacked;
  const Checkpoint::Tensor& numbers = *checkpoint.find(name + ".weight_packed");
  ASSIGN_OR_RETURN(weight.bits_,
                   packed_bits(numbers, name + ".weight_packed", 1, weight.num_cols_));
  const std::int64_t per_word = kWordBits / weight.bits_;
  ASSIGN_OR_RETURN(weight.numbers_,
                   require(checkpoint, name + ".weight_packed",
                           {weight.num_rows_, ceil_div(weight.num_cols_, per_word)}, kWord));
  if (const Checkpoint::Tensor* shape = checkpoint.find(name + ".weight_shape")) {
    ASSIGN_OR_RETURN(const TensorView* view,
                     require(checkpoint, name + ".weight_shape", {2}, {TensorType::kI64}));
    const std::span<const std::int64_t> sizes = view->elements<std::int64_t>();
    if (sizes[0] != weight.num_rows_ || sizes[1] != weight.num_cols_)
      return error_about(*shape, name + ".weight_shape",
                         "is " + shape_text(sizes) + ", expected [" +
                             std::to_string(weight.num_rows_) + ", " +
                             std::to_string(weight.num_cols_) + "]");
  }
  ASSIGN_OR_RETURN(const Checkpoint::Tensor* scales,
                   checkpoint.require(name + ".weight_scale", std::nullopt, std::span(kFloats)));
  RETURN_IF_ERROR(weight.set_row_scales(*scales, name + ".weight_scale", config));
  if (checkpoint.find(name + ".weight_zero_point") != nullptr) {
    ASSIGN_OR_RETURN(weight.zero_points_,
                     require(checkpoint, name + ".weight_zero_point",
                             {ceil_div(weight.num_rows_, per_word), weight.num_groups_}, kWord));
  }
  RETURN_IF_ERROR(weight.set_group_index(checkpoint, name + ".weight_g_idx"));
  return weight;
}

Result<QuantizedWeight> QuantizedWeight::find_bytes(const Checkpoint& checkpoint,
                                                    const QuantizationConfig& config,
                                                    const std::string& name,
                                                    QuantizedWeight weight) {
  weight.bits_ = 8;
  ASSIGN_OR_RETURN(weight.numbers_,
                   require(checkpoint, name + ".weight", {weight.num_rows_, weight.num_cols_},
                           {TensorType::kI8, TensorType::kF8E4M3}));
  weight.layout_ = weight.numbers_->type == TensorType::kI8 ? Layout::kInt8 : Layout::kFp8;
  const std::string inverse = name + ".weight_scale_inv";  // multiplied with, for all its name
  const std::string scale_name =
      checkpoint.find(inverse) != nullptr ? inverse : name + ".weight_scale";
  ASSIGN_OR_RETURN(const Checkpoint::Tensor* scales,
                   checkpoint.require(scale_name, std::nullopt, std::span(kFloats)));
  RETURN_IF_ERROR(weight.set_row_scales(*scales, scale_name, config));
  const std::string zero_name = name + ".weight_zero_point";
  if (weight.layout_ == Layout::kInt8 && checkpoint.find(zero_name) != nullptr) {
    ASSIGN_OR_RETURN(const Checkpoint::Tensor* zero_points,
                     checkpoint.require(zero_name, scales->view.shape, {{TensorType::kI8}}));
    weight.zero_points_ = &zero_points->view;
  }
  return weight;
}

Result<std::optional<QuantizedWeight>> QuantizedWeight::find(const Checkpoint& checkpoint,
                                                             const QuantizationConfig& config,
                                                             const std::string& name,
                                                             std::int64_t num_rows,
                                                             std::int64_t num_cols) {
  QuantizedWeight weight;
  weight.num_rows_ = num_rows;
  weight.num_cols_ = num_cols;
  for (const char* suffix :
       {".qweight", ".qzeros", ".scales", ".g_idx", ".weight", ".weight_packed", ".weight_scale",
        ".weight_scale_inv", ".weight_zero_point", ".weight_shape", ".weight_g_idx", ".input_scale",
        ".input_zero_point"})
    if (checkpoint.find(name + suffix) != nullptr) weight.names_.push_back(name + suffix);
  const auto is_there = [&](const char* suffix) {
    return checkpoint.find(name + suffix) != nullptr;
  };
  const Checkpoint::Tensor* plain = checkpoint.find(name + ".weight");
  const bool is_bytes = plain != nullptr && (plain->view.type == TensorType::kI8 ||
                                             plain->view.type == TensorType::kF8E4M3);
  using Find = Result<QuantizedWeight>(const Checkpoint&, const QuantizationConfig&,
                                       const std::string&, QuantizedWeight);
  Find* find_form = nullptr;
  if (config.method == QuantizationMethod::kGptq) {
    if (is_there(".qweight")) find_form = find_gptq;
  } else if (config.method == QuantizationMethod::kAwq) {
    if (is_there(".qweight")) find_form = find_awq;
  } else if (config.method != QuantizationMethod::kNone) {
    if (is_there(".weight_packed"))
      find_form = find_packed;
    else if (is_bytes)
      find_form = find_bytes;
  }
  if (find_form == nullptr) return std::optional<QuantizedWeight>();
  ASSIGN_OR_RETURN(weight, find_form(checkpoint, config, name, std::move(weight)));
  weight.drop_middle_zero_points();
  RETURN_IF_ERROR(weight.check_scales(checkpoint));
  return std::optional<QuantizedWeight>(std::move(weight));
}

void QuantizedWeight::drop_middle_zero_points() {
  if (zero_points_ == nullptr) return;
  for (std::int64_t group = 0; group < num_groups_; ++group)
    for (std::int64_t row = 0; row < num_rows_; ++row)
      if (zero_point(row, group) != 0) return;
  zero_points_ = nullptr;
}

Result<void> QuantizedWeight::check_scales(const Checkpoint& checkpoint) {
  const std::int64_t num_scales = scales_->num_elements();
  for (std::int64_t i = 0; i < num_scales; ++i) {
    const float scale = float_at(*scales_, i);
    const float size = std::fabs(scale);
    if (!(size <= kMaxScale)) {
      const auto name = std::ranges::find_if(
          names_, [&](const std::string& n) { return &checkpoint.find(n)->view == scales_; });
      return error_about(*checkpoint.find(*name), *name,
                         "has the scale " + std::to_string(scale) + ", the limit is " +
                             std::to_string(static_cast<int>(kMaxScale)));
    }
    const bool loses_bits = size < kSmallestNormalF16 && round_to_f16(scale) != scale;
    const bool minimum_may_overflow =
        zero_points_ != nullptr && size * static_cast<float>(half()) > kLargestF16;
    if (loses_bits || minimum_may_overflow) scales_fit_f16_ = false;
  }
  return {};
}

std::int64_t QuantizedWeight::scale_index(std::int64_t row, std::int64_t group) const noexcept {
  return row / rows_per_scale_ * scale_row_stride_ + group * scale_group_stride_;
}

std::int32_t QuantizedWeight::zero_point(std::int64_t row, std::int64_t group) const {
  if (zero_points_ == nullptr) return 0;
  if (layout_ == Layout::kInt8)
    return zero_points_->elements<std::int8_t>()[static_cast<std::size_t>(scale_index(row, group))];
  const std::int64_t per_word = kWordBits / bits_;
  const std::int64_t words_per_group = ceil_div(num_rows_, per_word);
  const std::int64_t word = layout_ == Layout::kPacked ? row / per_word * num_groups_ + group
                                                       : group * words_per_group + row / per_word;
  const std::int64_t place = row % per_word;
  const std::int32_t stored =
      field(zero_points_->elements<std::uint32_t>()[static_cast<std::size_t>(word)],
            layout_ == Layout::kAwq ? kAwqNibble[static_cast<std::size_t>(place)] : place, bits_);
  // The sum wraps as it does where these checkpoints were made.
  const std::int32_t actual = zero_points_minus_one_ ? (stored + 1) & ((1 << bits_) - 1) : stored;
  return actual - half();
}

std::optional<BlockGroups> QuantizedWeight::groups() const noexcept {
  if (layout_ == Layout::kFp8 || !group_index_.empty() || !scales_fit_f16_) return std::nullopt;
  return BlockGroups{.type = bits_ == 4 ? QuantizedType::kInt4 : QuantizedType::kInt8,
                     .group_size = num_groups_ == 1 ? 0 : static_cast<std::int32_t>(group_size_),
                     .has_minimums = zero_points_ != nullptr};
}

void QuantizedWeight::unpack(Slice rows, Slice cols, std::int8_t* values) const {
  const std::int64_t per_word = kWordBits / bits_;
  const auto centred = [this](std::uint32_t word, std::int64_t index) {
    return static_cast<std::int8_t>(field(word, index, bits_) - half());
  };
  switch (layout_) {
    case Layout::kInt8:
    case Layout::kFp8:
      for (std::int64_t i = 0; i < rows.count; ++i)
        std::memcpy(values + i * cols.count,
                    numbers_->bytes.data() + (rows.begin + i) * num_cols_ + cols.begin,
                    static_cast<std::size_t>(cols.count));
      return;
    case Layout::kPacked: {
      const std::int64_t words_per_row = ceil_div(num_cols_, per_word);
      const std::uint32_t* words = numbers_->elements<std::uint32_t>().data();
      for (std::int64_t i = 0; i < rows.count; ++i) {
        const std::uint32_t* row = words + (rows.begin + i) * words_per_row;
        for (std::int64_t col = cols.begin; col < cols.end(); ++col)
          *values++ = centred(row[col / per_word], col % per_word);
      }
      return;
    }
    case Layout::kGptq: {
      // Neighbouring rows lie side by side, so all of them take what a word has in turn.
      const std::uint32_t* words = numbers_->elements<std::uint32_t>().data();
      for (std::int64_t col = cols.begin; col < cols.end();) {
        const std::uint32_t* of_col = words + col / per_word * num_rows_ + rows.begin;
        const std::int64_t end = std::min(cols.end(), (col / per_word + 1) * per_word);
        for (std::int64_t i = 0; i < rows.count; ++i)
          for (std::int64_t k = col; k < end; ++k)
            values[i * cols.count + k - cols.begin] = centred(of_col[i], k % per_word);
        col = end;
      }
      return;
    }
    case Layout::kAwq: {
      const std::int64_t words_per_col = num_rows_ / per_word;
      const std::uint32_t* words = numbers_->elements<std::uint32_t>().data();
      for (std::int64_t i = 0; i < rows.count; ++i) {
        const std::int64_t row = rows.begin + i;
        const int nibble = kAwqNibble[static_cast<std::size_t>(row % per_word)];
        const std::uint32_t* of_row = words + row / per_word;
        for (std::int64_t k = cols.begin; k < cols.end(); ++k)
          *values++ = centred(of_row[k * words_per_col], nibble);
      }
      return;
    }
  }
}

GroupScale QuantizedWeight::group_scale(std::int64_t row, std::int64_t col) const {
  const std::int64_t group = group_of(col);
  const float scale = float_at(*scales_, scale_index(row, group));
  return {scale, scale * static_cast<float>(-zero_point(row, group))};
}

void QuantizedWeight::widen(Slice rows, Slice cols, float* out) const {
  std::vector<std::int8_t> values(static_cast<std::size_t>(rows.count * cols.count));
  unpack(rows, cols, values.data());
  const std::int8_t* number = values.data();
  for (std::int64_t row = rows.begin; row < rows.end(); ++row) {
    for (std::int64_t col = cols.begin; col < cols.end();) {
      const std::int64_t group = group_of(col);
      const float scale = float_at(*scales_, scale_index(row, group));
      const std::int32_t zero = zero_point(row, group);
      for (; col < cols.end() && group_of(col) == group; ++col) {
        const std::int8_t value = *number++;
        *out++ =
            scale * (layout_ == Layout::kFp8 ? f8_e4m3_numbers()[static_cast<std::uint8_t>(value)]
                                             : static_cast<float>(value - zero));
      }
    }
  }
}

}  // namespace troupe
