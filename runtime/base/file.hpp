#pragma once
// Whole files.

#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe {

/// The file's bytes. Errors: kNotFound (there is none), kIo (it cannot be read), kTooLarge (it has
/// more than `max_bytes`); each names the file.
Result<std::string> read_file(const std::filesystem::path& path,
                              std::size_t max_bytes = std::numeric_limits<std::size_t>::max());

}  // namespace troupe
