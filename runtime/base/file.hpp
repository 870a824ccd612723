#pragma once
// Reading and writing whole files.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// The file's bytes. Errors: kNotFound, kIo (not readable), kTooLarge (more than `max_bytes`); each
/// names the file.
Result<std::string> read_file(const std::filesystem::path& path,
                              std::size_t max_bytes = std::numeric_limits<std::size_t>::max());

/// The error for a git-lfs pointer file in place of the real content, with advice; nullopt for any
/// other content.
std::optional<Error> lfs_pointer_error(std::string_view bytes, std::string_view file_name);

/// Writes all bytes to the open file at `offset`. On failure returns false and sets errno.
[[nodiscard]] bool write_all(int file, std::span<const std::byte> bytes, std::uint64_t offset);

}  // namespace troupe
