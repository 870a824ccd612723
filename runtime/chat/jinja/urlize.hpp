#pragma once
// Links around the addresses in a text: Jinja's filter urlize.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/jinja/error.hpp"

namespace troupe::jinja {

struct LinkStyle {
  std::optional<std::int64_t> max_shown;   ///< code points of an address that are shown
  std::string attributes;                  ///< of each link to a page, a space in front
  std::vector<std::string> other_schemes;  ///< "ftp:", "tel:"
};

/// `text`, which is escaped for HTML already, with links around what looks like an address of a
/// page or of a mailbox.
[[nodiscard]] std::string urlize(std::string_view text, const LinkStyle& style, Budget& budget);
/// Whether `scheme` may be one of other_schemes: two or more characters, a colon, up to two
/// slashes.
[[nodiscard]] bool is_scheme(std::string_view scheme);

}  // namespace troupe::jinja
