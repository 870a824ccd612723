#pragma once
// JSON from clients and from model folders, with a limit to how deep it is nested.

#include <cstddef>
#include <string_view>

namespace troupe {

/// Levels of arrays and objects that are read. The JSON library parses and destroys values of any
/// depth, but copies, compares and writes them by recursion: a megabyte of brackets would overflow
/// the stack.
inline constexpr std::size_t kMaxJsonDepth = 64;

/// Has the text more than `max_depth` brackets open at once, those within strings not counted?
/// Right as far as the text is valid JSON.
[[nodiscard]] bool is_nested_deeper(std::string_view json, std::size_t max_depth) noexcept;

/// How many values the text has, arrays and objects counted with what is in them; never less than
/// there are. What reads a text makes something of each.
[[nodiscard]] std::size_t count_json_values(std::string_view json) noexcept;

/// The text as a value of the JSON library's type `Json`, whose header the caller includes; a
/// discarded one if it is no JSON, or is nested deeper than kMaxJsonDepth.
template <class Json>
[[nodiscard]] Json parse_bounded_json(std::string_view text) {
  if (is_nested_deeper(text, kMaxJsonDepth)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace troupe
