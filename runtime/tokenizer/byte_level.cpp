#include "runtime/tokenizer/byte_level.hpp"

#include <array>

#include "runtime/tokenizer/unicode.hpp"

namespace troupe::byte_level {
namespace {

constexpr char32_t kNumCharacters = 0x144;

struct Tables {
  std::array<std::string, 256> spelling;
  std::array<int, kNumCharacters> byte;

  Tables() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      const char32_t character = printable ? b : next++;
      spelling[b] = unicode::to_utf8(character);
      byte[character] = static_cast<int>(b);
    }
  }
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

}  // namespace

std::string_view spelling(unsigned char byte) noexcept { return tables().spelling[byte]; }

std::optional<unsigned char> byte_of(char32_t character) noexcept {
  if (character >= kNumCharacters || tables().byte[character] < 0) return std::nullopt;
  return static_cast<unsigned char>(tables().byte[character]);
}

std::optional<std::string> bytes_of(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const auto byte = byte_of(unicode::next(token, i));
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

}  // namespace troupe::byte_level
