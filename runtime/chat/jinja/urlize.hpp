#pragma once
// Links for the addresses in a text: Jinja's filter urlize.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/jinja/error.hpp"

namespace troupe::jinja {

struct LinkStyle {
  std::optional<std::int64_t> max_shown;   ///< code points of an address to show
  std::string attributes;                  ///< of each link to a page, with a leading space
  std::vector<std::string> other_schemes;  ///< "ftp:", "tel:"
};

/// `text`, which is already escaped for HTML, with links around URLs and e-mail addresses.
[[nodiscard]] std::string urlize(std::string_view text, const LinkStyle& style, Budget& budget);
/// Whether `scheme` is valid in other_schemes: two or more characters, a colon, up to two slashes.
[[nodiscard]] bool is_scheme(std::string_view scheme);

}  // namespace troupe::jinja
