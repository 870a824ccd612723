#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace troupe {

/// RFC 4648, section 4, with padding.
[[nodiscard]] std::string to_base64(std::span<const std::byte> bytes);

}  // namespace troupe
