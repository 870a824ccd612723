#pragma once
// The text files of a model: read from its folder, or derived from the metadata of a GGUF file, so
// that all other code handles one format.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/gguf/architecture.hpp"
#include "runtime/gguf/gguf_file.hpp"

namespace troupe {

/// Whether this path is a GGUF file, not a folder.
[[nodiscard]] bool is_gguf(const std::filesystem::path& model);

/// The file `name` of a model folder; for a GGUF file, the equivalent of generation_config.json,
/// tokenizer.json or tokenizer_config.json from its metadata. Errors: kNotFound, kIo; for a GGUF
/// file also kCorrupt and kUnsupported, naming file and key.
Result<std::string> read_model_text(const std::filesystem::path& model, std::string_view name);

/// A tensor of llama that is part of the configuration: Llama 3's frequency scaling.
inline constexpr std::string_view kRopeDivisors = "rope_freqs.weight";
/// And of phi3: LongRoPE's.
inline constexpr std::string_view kShortRopeDivisors = "rope_factors_short.weight";
inline constexpr std::string_view kLongRopeDivisors = "rope_factors_long.weight";

/// A tensor of a GGUF file, or one of its stacked matrices, with its name in a Hugging Face
/// checkpoint.
struct GgufWeight {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  /// Not 0: the halves of each group of this many rows are interleaved.
  std::int64_t interleaved_head_dim = 0;
};
/// nullopt if the tensor is not a weight of the model. Errors: kCorrupt if the architecture expects
/// stacked matrices and the tensor has none; `file_name` is for errors.
Result<std::vector<GgufWeight>> huggingface_weights(std::string_view gguf_name,
                                                    const GgufTensor& tensor,
                                                    const GgufArchitecture& architecture,
                                                    const nlohmann::json& metadata,
                                                    std::string_view file_name);

/// `key` has their number, or a list of one for each layer, with 0 for layers without attention.
/// Errors: as GgufMetadata's.
[[nodiscard]] std::int64_t num_gguf_kv_heads(GgufMetadata& metadata, const std::string& key,
                                             std::int64_t num_heads);

// Metadata of a GGUF file in the format of these files. `file_name` is for errors only.

/// config.json for this architecture, without the model's class name. Errors: kUnsupported,
/// kCorrupt.
Result<nlohmann::json> gguf_config_json(const GgufContents& gguf,
                                        const GgufArchitecture& architecture,
                                        std::string_view file_name);
/// Vocabularies "gpt2" (byte-level BPE; tokenizer.ggml.pre selects the pre-tokenizer) and "llama"
/// (SentencePiece with scores). Errors: kUnsupported, kCorrupt.
Result<std::string> gguf_tokenizer_json(const GgufContents& gguf, std::string_view file_name);
/// Special tokens and the chat template.
Result<std::string> gguf_tokenizer_config_json(const GgufContents& gguf,
                                               std::string_view file_name);
/// End-of-generation tokens.
Result<std::string> gguf_generation_config_json(const GgufContents& gguf,
                                                std::string_view file_name);

}  // namespace troupe
