#pragma once
// What the configuration of a draft head says.

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {

/// The field `method` of speculative-config: "eagle", "eagle3", "mtp".
[[nodiscard]] std::string_view to_string(DraftHeadKind kind) noexcept;

struct DraftHeadConfig {
  DraftHeadKind kind = DraftHeadKind::kEagle;
  ModelConfig layers;  ///< of the head's own layers; what is embedded, and how long it may be
  std::int64_t draft_vocab_size = 0;  ///< tokens that it can guess
  /// kEagle3: of the model, the layers whose inputs it takes; empty: it takes the hidden states
  /// behind the final norm, as the others do.
  std::vector<std::int32_t> input_layers;
  std::int64_t target_hidden_size = 0;
  bool norm_before_residual = false;  ///< kEagle3: the stream begins with the normed states
  std::int64_t first_layer = 0;       ///< kMtp: number of its layer in the checkpoint
};

/// Reads the config.json of a head for a model with the configuration `target`, in the layouts of
/// the published heads and of speculators; for kMtp that of the model's own folder. Errors: those
/// of load_model_config, and what does not fit the model.
Result<DraftHeadConfig> load_draft_head_config(DraftHeadKind kind,
                                               const std::filesystem::path& folder,
                                               const ModelConfig& target);
/// The same of the text of such a file.
Result<DraftHeadConfig> parse_draft_head_config(DraftHeadKind kind, std::string_view json_text,
                                                const ModelConfig& target);

}  // namespace troupe
