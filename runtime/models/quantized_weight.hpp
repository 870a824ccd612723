#pragma once
// A weight matrix as quantisation tools store it: numbers of 4 or 8 bits in one tensor, their
// scales, zero points and order in others.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/models/parallel.hpp"
#include "runtime/models/quantization_config.hpp"
#include "runtime/models/quantize.hpp"
#include "runtime/models/safetensors.hpp"

namespace troupe {

/// One such matrix in a checkpoint, read where it lies. W[n, k] = scale (number - zero point), for
/// FP8 scale * number. Constant after find().
class QuantizedWeight {
 public:
  /// The matrix `name` (without ".weight"), [num_rows, num_cols]; nothing if the checkpoint stores
  /// it wide, or not at all. Every tensor of it must have the shape that follows from these sizes.
  /// Errors: kCorrupt, kUnsupported, naming file, tensor, what was expected and found.
  static Result<std::optional<QuantizedWeight>> find(const Checkpoint& checkpoint,
                                                     const QuantizationConfig& config,
                                                     const std::string& name, std::int64_t num_rows,
                                                     std::int64_t num_cols);

  /// Names of all its tensors, those that are not needed included.
  [[nodiscard]] const std::vector<std::string>& tensor_names() const noexcept { return names_; }

  /// How its rows look as groups of integers; group_size 0: a row is one group. Nothing for
  /// FP8, where neighbouring columns belong to different groups (act-order), and where f16 would
  /// round a scale to fewer bits than it has for larger ones: these can only be widened.
  [[nodiscard]] std::optional<BlockGroups> groups() const noexcept;

  /// values[i, j] = number of row rows.begin + i and column cols.begin + j, in [-8, 7] or
  /// [-128, 127]. Pre: groups().
  void unpack(Slice rows, Slice cols, std::int8_t* values) const;
  /// What makes a weight of row and column from such a number. Pre: groups().
  [[nodiscard]] GroupScale group_scale(std::int64_t row, std::int64_t col) const;
  /// out[i, j] = the weight.
  void widen(Slice rows, Slice cols, float* out) const;

 private:
  enum class Layout : std::uint8_t {
    kGptq,    ///< I32 [num_cols / n, num_rows], n columns in a word, the first one lowest
    kAwq,     ///< I32 [num_cols, num_rows / 8], eight rows in a word, in AutoAWQ's order
    kPacked,  ///< I32 [num_rows, num_cols / n], n columns in a word, the first one lowest
    kInt8,    ///< I8 [num_rows, num_cols]
    kFp8,     ///< F8_E4M3 [num_rows, num_cols]
  };

  QuantizedWeight() = default;
  static Result<QuantizedWeight> find_gptq(const Checkpoint& checkpoint,
                                           const QuantizationConfig& config,
                                           const std::string& name, QuantizedWeight weight);
  static Result<QuantizedWeight> find_awq(const Checkpoint& checkpoint,
                                          const QuantizationConfig& config, const std::string& name,
                                          QuantizedWeight weight);
  static Result<QuantizedWeight> find_packed(const Checkpoint& checkpoint,
                                             const QuantizationConfig& config,
                                             const std::string& name, QuantizedWeight weight);
  static Result<QuantizedWeight> find_bytes(const Checkpoint& checkpoint,
                                            const QuantizationConfig& config,
                                            const std::string& name, QuantizedWeight weight);
  /// Sets scales [groups, num_rows] and zero points [groups, words of per_word rows].
  Result<void> set_group_scales(const Checkpoint& checkpoint, const QuantizationConfig& config,
                                const std::string& name, std::int64_t per_word);
  /// Sets the group of each column if the tensor is there and they are not in order.
  Result<void> set_group_index(const Checkpoint& checkpoint, const std::string& name);
  /// Sets the scales of a tensor [num_rows, groups], or fewer of them.
  Result<void> set_row_scales(const Checkpoint::Tensor& scales, const std::string& name,
                              const QuantizationConfig& config);
  /// Sets groups of equal size from their number. False if that is not possible.
  bool set_num_groups(std::int64_t num_groups, std::int64_t configured_size);

  [[nodiscard]] std::int64_t group_of(std::int64_t col) const noexcept {
    if (!group_index_.empty()) return group_index_[static_cast<std::size_t>(col)];
    return col / group_size_;
  }
  [[nodiscard]] std::int32_t half() const noexcept { return 1 << (bits_ - 1); }
  /// Zero point minus half of the range, as unpack() gives numbers.
  [[nodiscard]] std::int32_t zero_point(std::int64_t row, std::int64_t group) const;
  [[nodiscard]] std::int64_t scale_index(std::int64_t row, std::int64_t group) const noexcept;
  /// Zero points that are all half of the range are none.
  void drop_middle_zero_points();
  /// Finds out whether packed groups, whose scales are f16, can hold these. Errors: kCorrupt, one
  /// that is not finite, or so large that groups made anew could not hold the weights either.
  Result<void> check_scales(const Checkpoint& checkpoint);

  Layout layout_ = Layout::kPacked;
  std::int32_t bits_ = 4;
  std::int64_t num_rows_ = 0;
  std::int64_t num_cols_ = 0;
  std::int64_t num_groups_ = 1;
  std::int64_t group_size_ = 0;
  const TensorView* numbers_ = nullptr;
  const TensorView* scales_ = nullptr;
  const TensorView* zero_points_ = nullptr;  ///< null: half of the range everywhere
  bool zero_points_minus_one_ = false;
  std::int64_t rows_per_scale_ = 1;
  std::int64_t scale_row_stride_ = 0;
  std::int64_t scale_group_stride_ = 0;
  bool scales_fit_f16_ = true;             ///< with all of its bits, and so do the minimums
  std::vector<std::int32_t> group_index_;  ///< of each column; empty: in order
  std::vector<std::string> names_;
};

}  // namespace troupe
