#pragma once
// Writing a file in the safetensors format that has one tensor.

#include <filesystem>
#include <map>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/models/safetensors.hpp"

namespace troupe {

/// At once: whoever reads it finds the old file or the new one whole. The folder is made if it is
/// missing. `metadata`: texts for readers. Errors: kIo, naming the path.
Result<void> write_tensor_file(const std::filesystem::path& path, const std::string& name,
                               const TensorView& tensor,
                               const std::map<std::string, std::string>& metadata);
/// The texts of a file that parse_safetensors has read; of other programs' there may be none.
[[nodiscard]] std::map<std::string, std::string> tensor_file_metadata(
    std::span<const std::byte> file);

}  // namespace troupe
