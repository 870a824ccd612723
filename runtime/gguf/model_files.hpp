#pragma once
// The texts of a model folder, wherever they come from: the folder's own files, or what the
// metadata of a GGUF file says in their place. So all else reads one form.

#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/gguf/gguf_file.hpp"

namespace troupe {

/// Is this path a GGUF file, not a folder?
[[nodiscard]] bool is_gguf(const std::filesystem::path& model);

/// `name` of a model folder; or of a GGUF file what its metadata gives for config.json,
/// generation_config.json, tokenizer.json and tokenizer_config.json.
/// Errors: kNotFound (there is no such text), kIo; of a GGUF file also kCorrupt and kUnsupported,
/// naming file and key.
Result<std::string> read_model_text(const std::filesystem::path& model, std::string_view name);

/// A tensor of llama that is a part of the configuration: Llama 3's scaling of the rotation.
inline constexpr std::string_view kRopeDivisors = "rope_freqs.weight";

/// What a Hugging Face checkpoint calls a tensor.
struct GgufTensorName {
  std::string name;  ///< empty: no weight of the model
  /// Not 0: the halves of each so many rows are interleaved.
  std::int64_t interleaved_head_dim = 0;
};
[[nodiscard]] GgufTensorName huggingface_tensor(std::string_view gguf_name,
                                                const nlohmann::json& metadata,
                                                std::span<const std::int64_t> shape);

// What a GGUF file says, in the form of these files. `file_name` is for errors only.

/// Architectures llama, qwen2, qwen3 and gemma3. Errors: kUnsupported, kCorrupt.
Result<std::string> gguf_config_json(const GgufContents& gguf, std::string_view file_name);
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
