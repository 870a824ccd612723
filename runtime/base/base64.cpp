#include "runtime/base/base64.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdint>

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

}  // namespace

std::string to_base64(std::span<const std::byte> bytes) {
  // One more for the zero that the library writes behind the text.
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

Result<std::vector<std::byte>> from_base64(std::string_view text) {
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
    return invalid_argument("character " + std::to_string(bad - digits.begin() + 1) +
                            " of its content (code " +
                            std::to_string(static_cast<unsigned char>(*bad)) + ")");
  }
  return bytes;
}

}  // namespace troupe
