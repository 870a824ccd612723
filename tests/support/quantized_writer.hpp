#pragma once
// Writes checkpoints as quantisation tools do (AutoGPTQ, AutoAWQ, compressed-tensors, FP8), each
// format by its own few lines.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// Builds a safetensors file in memory.
class SafetensorsWriter {
 public:
  /// `dtype` as the format spells it; `bytes`: row major.
  void add(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape,
           std::string bytes);
  void add_floats(const std::string& name, std::vector<std::int64_t> shape,
                  std::span<const float> values);
  [[nodiscard]] std::string bytes() const;

 private:
  struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Tensor> tensors_;
};

enum class QuantizedFormat : std::uint8_t {
  kGptq,          ///< zero points minus one
  kGptqV2,        ///< zero points as they are
  kAwq,           ///< GEMM
  kPacked,        ///< compressed-tensors, pack-quantized
  kInt8,          ///< compressed-tensors, int-quantized
  kFloat8,        ///< compressed-tensors, float-quantized: a scale for each row
  kFp8Block,      ///< Hugging Face's fp8: a scale for each block
  kFp8Tensor,     ///< the same with one scale, of no dimensions, and one of the activations
  kFloat8Tensor,  ///< compressed-tensors, float-quantized: one scale, [1]
  kFloat8Block,   ///< compressed-tensors, float-quantized: a scale for each block
};

struct QuantizedOptions {
  QuantizedFormat format = QuantizedFormat::kGptq;
  int bits = 4;
  std::int64_t group_size = 32;  ///< 0: a whole row
  bool symmetric = true;
  bool act_order = false;  ///< GPTQ, kPacked: columns belong to groups in an order of their own
  /// The groups of columns in order are said too (GPTQ: `act_order` or not, they are there).
  bool has_group_index = true;
  bool has_zero_points = true;     ///< GPTQ, symmetric: or they are not there
  std::string scale_type = "F16";  ///< GPTQ, AWQ, kPacked; or BF16, F32
};

/// A quantised matrix: W[n, k] = scale[n, g(k)] (number[n, k] - zero_point[n, g(k)]).
struct QuantizedNumbers {
  QuantizedNumbers(std::span<const float> weights, std::int64_t num_rows, std::int64_t num_cols,
                   const QuantizedOptions& options);
  [[nodiscard]] float weight(std::int64_t row, std::int64_t col) const;
  [[nodiscard]] std::size_t group(std::int64_t row, std::int64_t col) const;
  /// Adds the tensors of the matrix `name`.
  void write(SafetensorsWriter& writer, const std::string& name) const;

  QuantizedOptions options;
  std::int64_t num_rows;
  std::int64_t num_cols;
  std::int64_t num_groups;
  std::vector<std::int64_t> group_of_col;
  std::vector<int> numbers;      ///< from 0; FP8: the bytes
  std::vector<float> scales;     ///< [num_rows, num_groups]
  std::vector<int> zero_points;  ///< as the scales
};

/// The member quantization_config of config.json.
[[nodiscard]] std::string quantization_config(const QuantizedOptions& options);

/// Copies a reference model to `quantized`, with the matrices of its layers so (FP8 and act-order:
/// its head too), and to `widened`, with what these mean in f32. Throws std::runtime_error.
void write_quantized_model(const std::filesystem::path& model, const QuantizedOptions& options,
                           const std::filesystem::path& quantized,
                           const std::filesystem::path& widened);

}  // namespace troupe
