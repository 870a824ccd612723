#pragma once
// Names of models on the Hugging Face Hub, as users write them.

#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

struct HubReference {
  std::string repository;  ///< OWNER/NAME
  std::string revision;    ///< branch, tag or commit; empty: main
  std::string file;        ///< GGUF file, or a part of its name such as Q4_K_M; empty: safetensors

  /// As users write it: OWNER/NAME[@REVISION][:FILE].
  [[nodiscard]] std::string text() const;
};

/// OWNER/NAME, OWNER/NAME@REVISION, OWNER/NAME:FILE.gguf, OWNER/NAME@REVISION:FILE.gguf, with or
/// without https://huggingface.co/, https://hf.co/ or hf:// before it. Nullopt: the text has none
/// of these forms.
[[nodiscard]] std::optional<HubReference> parse_hub_reference(std::string_view text);

/// Whether a repository may have a file of this name: a relative path whose parts are not "..".
[[nodiscard]] bool is_repository_path(std::string_view path) noexcept;

}  // namespace troupe
