#pragma once
// Whole files.

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

/// The file's bytes. Errors: kNotFound (there is none), kIo (it cannot be read), kTooLarge (it has
/// more than `max_bytes`); each names the file.
Result<std::string> read_file(const std::filesystem::path& path,
                              std::size_t max_bytes = std::numeric_limits<std::size_t>::max());

/// The error that these bytes are only what git leaves in place of a file that git-lfs keeps
/// elsewhere, and what to do; nothing if they are not.
std::optional<Error> lfs_pointer_error(std::string_view bytes, std::string_view file_name);

/// Writes all of the bytes into the open file, from `offset` on. False, and errno says why, if the
/// system does not take them.
[[nodiscard]] bool write_all(int file, std::span<const std::byte> bytes, std::uint64_t offset);

}  // namespace troupe
