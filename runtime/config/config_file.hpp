#pragma once
// Reads the configuration file format of CAF 0.17 applications: INI with typed values.
//
//   [engine]                 ; a comment
//   max-num-seqs=64
//   model="path/to/model"
//   api-key=["a", "b"]
//
// Values are "strings", 'atoms', numbers, durations (500ms), true and false, <uris> and lists of
// them. CAF silently drops what it does not understand; this parser reports it, with the line.

#include <filesystem>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/config/option_set.hpp"

namespace troupe {

[[nodiscard]] Result<std::vector<ConfigEntry>> parse_config(std::string_view text,
                                                            std::string_view file_name);
[[nodiscard]] Result<std::vector<ConfigEntry>> read_config_file(const std::filesystem::path& file);

}  // namespace troupe
