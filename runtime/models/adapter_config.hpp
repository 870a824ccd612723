#pragma once
// adapter_config.json of PEFT.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// What decides how an adapter's matrices are applied.
struct AdapterConfig {
  std::int64_t rank = 0;
  double alpha = 0;
  bool uses_rslora = false;  ///< scaling is alpha / sqrt(rank) (arXiv 2312.03732)
  /// Modules whose names end with a pattern, as PEFT matches them, have another rank or alpha.
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;

  /// "mlp.experts.gate_up_proj": parameters that are updated, of modules that are no linear layers.
  std::vector<std::string> target_parameters;

  /// Whether `parameter` ends with one of those, as PEFT matches them.
  [[nodiscard]] bool targets_parameter(std::string_view parameter) const;
  [[nodiscard]] std::int64_t rank_of(std::string_view module) const;
  /// By which B A is multiplied.
  [[nodiscard]] float scaling_of(std::string_view module) const;
};

/// Reads the text of the file. What is not plain LoRA is refused by its name: DoRA, biases,
/// modules_to_save, aLoRA, replicated layers, initialisations that change the base model; and any
/// field that is not known and not empty. Errors: kCorrupt, kUnsupported.
Result<AdapterConfig> parse_adapter_config(std::string_view text);

}  // namespace troupe
