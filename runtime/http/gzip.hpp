#pragma once
// Bodies that clients have packed.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe {

/// Unpacks gzip (RFC 1952), also of several members. Errors: kInvalidArgument, it is no gzip, cut
/// short, or has something behind it; kTooLarge, there are more than `max_bytes` in it, of which
/// none beyond them is made.
[[nodiscard]] Result<std::string> gunzip(std::string_view packed, std::uint64_t max_bytes);

}  // namespace troupe
