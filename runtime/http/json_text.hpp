#pragma once
// Writes JSON directly to a string: the token path builds no DOM.

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

/// Appends `text` as a JSON string. Invalid UTF-8 becomes U+FFFD.
void append_json_string(std::string& json, std::string_view text);

/// Appends the shortest decimal that round-trips to `value`, always as a JSON float. Pre: finite.
void append_json_float(std::string& json, float value);
void append_json_float(std::string& json, double value);

template <std::integral T>
void append_json_integer(std::string& json, T value) {
  char digits[24];
  json.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

/// Appends `[f(0),...,f(size-1)]`, with elements written by write(json, element).
template <class Range, class Write>
void append_json_array(std::string& json, const Range& range, Write&& write) {
  json += '[';
  bool first = true;
  for (const auto& element : range) {
    if (!first) json += ',';
    first = false;
    write(json, element);
  }
  json += ']';
}

/// "2026-01-31T12:00:00Z", for seconds since 1970.
[[nodiscard]] std::string utc_time_text(std::int64_t seconds);

}  // namespace troupe
