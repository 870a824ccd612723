#include "runtime/http/target.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "runtime/base/ascii.hpp"

namespace troupe {

bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::optional<std::string_view> query_value(std::string_view target, std::string_view name) {
  std::string_view query = target.substr(std::min(target.find('?'), target.size()));
  while (!query.empty()) {
    query.remove_prefix(1);
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(pair.size());
    if (pair.starts_with(name) && pair.substr(name.size(), 1) == "=")
      return pair.substr(name.size() + 1);
  }
  return std::nullopt;
}

Result<bool> query_flag(std::string_view target, std::string_view name, bool otherwise) {
  const auto value = query_value(target, name);
  if (!value) return otherwise;
  if (const auto flag = parse_flag(*value)) return *flag;
  if (equal_ignoring_case(*value, "t") || equal_ignoring_case(*value, "y")) return true;
  if (equal_ignoring_case(*value, "f") || equal_ignoring_case(*value, "n")) return false;
  return invalid_argument(std::string(name) + " is \"" + std::string(value->substr(0, 32)) +
                              "\", must be true or false",
                          std::string(name));
}

std::string unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint8_t byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      plain += static_cast<char>(byte);
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}
}  // namespace troupe
