#pragma once
// A vision encoder in a GGUF file beside the language model's (llama.cpp's "mmproj" files).

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/gguf/architecture.hpp"
#include "runtime/gguf/gguf_file.hpp"

namespace troupe {

/// The vision_config of config.json. Each key of the file must be known, irrelevant to the result,
/// or have a neutral value. Errors go to `metadata`, the file's: kUnsupported (another kind of
/// file or projector, an unknown key), kCorrupt.
[[nodiscard]] nlohmann::json mmproj_vision_config(GgufMetadata& metadata,
                                                  const GgufProjector& projector);

/// The names of the file's tensors in a Hugging Face checkpoint.
class MmprojNames {
 public:
  MmprojNames(const GgufContents& mmproj, const GgufProjector& projector);
  /// The tensor's own name if it is not known.
  [[nodiscard]] std::string huggingface_name(std::string_view gguf_name) const;

 private:
  const GgufProjector& projector_;
  bool are_mlps_swapped_;  ///< ffn_up and ffn_down have each other's names, as in older files
};

/// preprocessor_config.json of the file's images. Errors: as above, and those of opening it.
Result<std::string> mmproj_preprocessor_json(const std::filesystem::path& mmproj);

}  // namespace troupe
