#include "runtime/multimodal/data_url.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace troupe {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint32_t kNotBase64 = 1U << 31;

/// The value of each character, or kNotBase64.
constexpr std::array<std::uint32_t, 256> kDigitValues = [] {
  std::array<std::uint32_t, 256> values{};
  values.fill(kNotBase64);
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::uint32_t>(i);
  return values;
}();

std::uint32_t digit_value(char character) {
  return kDigitValues[static_cast<unsigned char>(character)];
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower, {}, [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
}

/// Pre: text.size() is a multiple of 4.
Result<std::vector<std::byte>> decode_base64(std::string_view text) {
  std::vector<std::byte> bytes;
  if (text.empty()) return bytes;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  const std::string_view digits = text.substr(0, text.size() - padding);
  bytes.resize(text.size() / 4 * 3 - padding);
  const auto digit = [&digits](std::size_t i) {
    return i < digits.size() ? digit_value(digits[i]) : 0;
  };
  std::size_t out = 0;
  std::uint32_t seen = 0;
  for (std::size_t i = 0; i < digits.size(); i += 4) {
    const std::uint32_t a = digit(i), b = digit(i + 1), c = digit(i + 2), d = digit(i + 3);
    seen |= a | b | c | d;
    const std::uint32_t group = a << 18 | b << 12 | c << 6 | d;
    for (int shift = 16; shift >= 0 && out < bytes.size(); shift -= 8)
      bytes[out++] = static_cast<std::byte>(group >> shift & 0xFF);
  }
  if ((seen & kNotBase64) != 0) {
    const auto bad = std::ranges::find(digits, kNotBase64, digit_value);
    return invalid_argument("the data URL is not base64: character " +
                            std::to_string(bad - digits.begin() + 1) + " of its content (code " +
                            std::to_string(static_cast<unsigned char>(*bad)) + ")");
  }
  return bytes;
}

}  // namespace

Result<std::vector<std::byte>> decode_data_url(std::string_view url, std::size_t max_bytes) {
  constexpr std::string_view kScheme = "data:";
  constexpr std::string_view kEncoding = ";base64";
  if (!equals_ignoring_case(url.substr(0, kScheme.size()), kScheme))
    return invalid_argument("the URL is not a data URL");
  const std::size_t comma = url.find(',');
  if (comma == std::string_view::npos)
    return invalid_argument("the data URL has no comma between its media type and its content");
  const std::string_view head = url.substr(kScheme.size(), comma - kScheme.size());
  const std::string_view content = url.substr(comma + 1);
  if (head.size() < kEncoding.size() ||
      !equals_ignoring_case(head.substr(head.size() - kEncoding.size()), kEncoding))
    return invalid_argument(
        "the data URL is not base64: supported is data:<media type>;base64,<base64>");
  // Four characters at most for three bytes.
  if (content.size() / 4 > max_bytes / 3 + 1)
    return invalid_argument("the data URL has " + std::to_string(content.size() / 4 * 3) +
                            " bytes of content, the limit is " + std::to_string(max_bytes));
  if (content.size() % 4 != 0)
    return invalid_argument("the data URL is not base64: its content has " +
                            std::to_string(content.size()) +
                            " characters, which is not a multiple of 4");
  ASSIGN_OR_RETURN(std::vector<std::byte> bytes, decode_base64(content));
  if (bytes.size() > max_bytes)
    return invalid_argument("the data URL has " + std::to_string(bytes.size()) +
                            " bytes of content, the limit is " + std::to_string(max_bytes));
  return bytes;
}

}  // namespace troupe
