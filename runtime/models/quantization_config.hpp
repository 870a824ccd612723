#pragma once
// The part of config.json in which a quantisation tool says how it stored the weights.

#include <array>
#include <cstdint>
#include <string_view>

#include "runtime/models/config_fields.hpp"

namespace troupe {

/// Checkpoint formats of quantised weights, by the names that vLLM gives them.
enum class QuantizationMethod : std::uint8_t {
  kNone,
  kGptq,               ///< arXiv 2210.17323, as AutoGPTQ and GPTQModel write it
  kAwq,                ///< arXiv 2306.00978, as AutoAWQ writes it (GEMM)
  kCompressedTensors,  ///< pack-quantized, int-quantized, float-quantized
  kFp8,                ///< e4m3 with one scale, or one for each block of a matrix
  kMxFp4,              ///< experts of gpt-oss as MXFP4 (OCP microscaling formats)
};
/// "none", "gptq", "awq", "compressed-tensors", "fp8", "mxfp4".
[[nodiscard]] std::string_view to_string(QuantizationMethod method) noexcept;
/// Also reads vLLM's names of the methods with other kernels, "gptq_marlin" and "awq_marlin".
/// kNone for a name that is none of the methods'.
[[nodiscard]] QuantizationMethod parse_quantization_method(std::string_view name) noexcept;

/// What the tensors do not say themselves. Bits, granularity, and which matrices were left wide
/// (`ignore`, `modules_to_not_convert`) are read off the tensors.
struct QuantizationConfig {
  QuantizationMethod method = QuantizationMethod::kNone;
  std::int64_t group_size = 0;             ///< columns that share a scale; 0: a whole row
  bool zero_points_minus_one = false;      ///< as GPTQ's first format stores them
  bool symmetric = false;                  ///< GPTQ: zero points may be missing, all in the middle
  bool fp8_kv_cache = false;               ///< the checkpoint was made for a KV cache in fp8
  std::array<std::int64_t, 2> block = {};  ///< FP8: rows and columns that share a scale; 0: all
};

/// quantization_config of config.json, or compression_config, its older name. Errors go to `root`:
/// kUnsupported (method or format), kCorrupt.
[[nodiscard]] QuantizationConfig parse_quantization(ConfigFields& root);

}  // namespace troupe
