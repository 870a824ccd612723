#pragma once

#include <algorithm>
#include <span>
#include <string_view>

namespace troupe {

/// The format with this name or alias; null if there is none.
template <class Format>
[[nodiscard]] const Format* find_format(std::span<const Format> formats, std::string_view name) {
  const auto found = std::ranges::find_if(formats, [&](const Format& format) {
    return format.name == name || std::ranges::find(format.aliases, name) != format.aliases.end();
  });
  return found == formats.end() ? nullptr : &*found;
}

}  // namespace troupe
