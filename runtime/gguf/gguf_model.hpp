#pragma once
// A model in one GGUF file, or in several that one was split into (llama-gguf-split of llama.cpp).

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/mapped_file.hpp"
#include "runtime/base/result.hpp"
#include "runtime/gguf/gguf_file.hpp"

namespace troupe {

/// `path` itself, or all the parts of the model if it is named as one of them
/// ("x-00002-of-00003.gguf"), in their order.
[[nodiscard]] std::vector<std::filesystem::path> gguf_paths(const std::filesystem::path& path);

/// Owns the mappings of a model's files.
struct GgufModel {
  std::vector<MappedFile> files;
  std::vector<std::string> file_names;  ///< one per file, for errors
  GgufContents contents;                ///< the metadata of the first file, the tensors of all
};

/// The model of which `path` is the file, or any part.
/// Errors: those of MappedFile::open and parse_gguf; kNotFound (a part, by its path and number),
/// kCorrupt (split.count or split.no does not fit the name, a tensor is in two parts, or some are
/// in none).
Result<GgufModel> open_gguf_model(const std::filesystem::path& path, GgufKeys keys);

}  // namespace troupe
