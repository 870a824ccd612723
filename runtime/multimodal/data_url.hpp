#pragma once
// data: URLs (RFC 2397) with base64 content: how clients put media into a request.

#include <cstddef>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// The bytes of "data:<media type>;base64,<base64>" (RFC 4648, section 4, with padding; no blanks,
/// no %-escapes). The media type is not looked at: what the bytes are shows in themselves.
/// Errors: kInvalidArgument (another scheme or encoding, a character that is not base64, a wrong
/// length, more than `max_bytes`, which is checked before decoding); they name what is wrong and
/// where, and show nothing of the content.
[[nodiscard]] Result<std::vector<std::byte>> decode_data_url(std::string_view url,
                                                             std::size_t max_bytes);

}  // namespace troupe
