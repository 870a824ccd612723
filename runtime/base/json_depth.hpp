#pragma once
// A nesting limit for JSON from clients and model folders.

#include <cstddef>
#include <string_view>

namespace troupe {

/// Maximum nesting of arrays and objects. The JSON library parses and destroys values of any depth
/// iteratively, but copies, compares and serialises them recursively: a megabyte of brackets would
/// overflow the stack.
inline constexpr std::size_t kMaxJsonDepth = 64;

/// Whether more than `max_depth` brackets are open at once, those in strings excluded. Exact if the
/// text is valid JSON.
[[nodiscard]] bool is_nested_deeper(std::string_view json, std::size_t max_depth) noexcept;

/// An upper bound of the number of values in the text, including arrays, objects and their
/// elements. Bounds the objects that a parser creates.
[[nodiscard]] std::size_t count_json_values(std::string_view json) noexcept;

/// Parses the text with the JSON library's type `Json`, whose header the caller includes; the
/// result is discarded if it is not JSON or nested deeper than kMaxJsonDepth.
template <class Json>
[[nodiscard]] Json parse_bounded_json(std::string_view text) {
  if (is_nested_deeper(text, kMaxJsonDepth)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace troupe
