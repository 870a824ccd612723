#pragma once
// A model in one GGUF file, or in several (llama-gguf-split of llama.cpp).

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/mapped_file.hpp"
#include "runtime/base/result.hpp"
#include "runtime/gguf/gguf_file.hpp"

namespace troupe {

/// `path` itself, or if it names a part ("x-00002-of-00003.gguf") all parts of the model, in order.
[[nodiscard]] std::vector<std::filesystem::path> gguf_paths(const std::filesystem::path& path);

/// Owns the mappings of a model's files.
struct GgufModel {
  std::vector<MappedFile> files;
  std::vector<std::string> file_names;  ///< one per file, for errors
  GgufContents contents;                ///< metadata of the first file, tensors of all
};

/// Opens the model of which `path` is the file, or any part. Errors: those of MappedFile::open and
/// parse_gguf; kNotFound (a part, by path and number), kCorrupt (split.count or split.no
/// contradicts the name, a tensor is in two parts, or some are missing).
Result<GgufModel> open_gguf_model(const std::filesystem::path& path, GgufKeys keys);

}  // namespace troupe
