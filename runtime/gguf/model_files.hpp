#pragma once
// The texts of a model folder, wherever they come from: the folder's own files, or what the
// metadata of a GGUF file says in their place. So all else reads one form.

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

/// Is this path a GGUF file, not a folder?
[[nodiscard]] bool is_gguf(const std::filesystem::path& model);

/// `name` of a model folder; or of a GGUF file what its metadata gives for generation_config.json,
/// tokenizer.json and tokenizer_config.json.
/// Errors: kNotFound (there is no such text), kIo; of a GGUF file also kCorrupt and kUnsupported,
/// naming file and key.
Result<std::string> read_model_text(const std::filesystem::path& model, std::string_view name);

/// A tensor of llama that is a part of the configuration: Llama 3's scaling of the rotation.
inline constexpr std::string_view kRopeDivisors = "rope_freqs.weight";

/// A tensor of a GGUF file, or one of the matrices in it, as a Hugging Face checkpoint has it.
struct GgufWeight {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  /// Not 0: the halves of each so many rows are interleaved.
  std::int64_t interleaved_head_dim = 0;
};
/// None if the tensor is no weight of the model. Errors: kCorrupt, it is no stack of matrices where
/// the architecture has one; `file_name` is for them.
Result<std::vector<GgufWeight>> huggingface_weights(std::string_view gguf_name,
                                                    const GgufTensor& tensor,
                                                    const GgufArchitecture& architecture,
                                                    const nlohmann::json& metadata,
                                                    std::string_view file_name);

// What a GGUF file says, in the form of these files. `file_name` is for errors only.

/// config.json of a file of that architecture, but for the name of the model's class. Errors:
/// kUnsupported, kCorrupt.
Result<nlohmann::json> gguf_config_json(const GgufContents& gguf,
                                        const GgufArchitecture& architecture,
                                        std::string_view file_name);
/// Vocabularies "gpt2" (byte-level BPE; tokenizer.ggml.pre says how it cuts text) and "llama"
/// (SentencePiece with scores). Errors: kUnsupported, kCorrupt.
Result<std::string> gguf_tokenizer_json(const GgufContents& gguf, std::string_view file_name);
/// Special tokens and the chat template.
Result<std::string> gguf_tokenizer_config_json(const GgufContents& gguf,
                                               std::string_view file_name);
/// Where generation ends.
Result<std::string> gguf_generation_config_json(const GgufContents& gguf,
                                                std::string_view file_name);

}  // namespace troupe
