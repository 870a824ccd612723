#pragma once
// Compressed request bodies.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// Decompresses gzip (RFC 1952), including several members. Errors: kInvalidArgument (not gzip,
/// truncated, or trailing data); kTooLarge (more than `max_bytes`; decompression stops there).
[[nodiscard]] Result<std::string> gunzip(std::string_view packed, std::uint64_t max_bytes);

}  // namespace troupe
