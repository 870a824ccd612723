#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// The texts of a model's special tokens, in the order of tokenizer.json, of which nothing behind
/// its added tokens is read; none if the model has no such file. Errors: kIo, kCorrupt.
[[nodiscard]] Result<std::vector<std::string>> load_special_tokens(
    const std::filesystem::path& model);
/// The same of a file's text.
[[nodiscard]] Result<std::vector<std::string>> parse_special_tokens(
    std::string_view tokenizer_json);

}  // namespace troupe
