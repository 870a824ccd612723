#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// RFC 4648, section 4, with padding.
[[nodiscard]] std::string to_base64(std::span<const std::byte> bytes);
/// The bytes of such a text. Pre: text.size() is a multiple of 4. Errors: kInvalidArgument, which
/// names the first character that is not of its alphabet.
[[nodiscard]] Result<std::vector<std::byte>> from_base64(std::string_view text);

}  // namespace troupe
