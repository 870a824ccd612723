#include "runtime/http/json_text.hpp"

#include <array>
#include <cmath>
#include <ctime>

#include "runtime/base/check.hpp"
#include "runtime/base/utf8.hpp"

namespace troupe {
namespace {

/// Bytes of the well-formed UTF-8 character at `text[at]`, or 0 (Unicode 15, table 3-7).
std::size_t utf8_length(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if ((lead & 0xF0u) == 0xE0) {
    const bool overlong = lead == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = lead == 0xED && byte(1) > 0x9F;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool overlong = lead == 0xF0 && byte(1) < 0x90;
    const bool beyond = lead == 0xF4 && byte(1) > 0x8F;
    return continues(1) && continues(2) && continues(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

void append_escape(std::string& json, unsigned char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      json += "\\\"";
      break;
    case '\\':
      json += "\\\\";
      break;
    case '\n':
      json += "\\n";
      break;
    case '\r':
      json += "\\r";
      break;
    case '\t':
      json += "\\t";
      break;
    case '\b':
      json += "\\b";
      break;
    case '\f':
      json += "\\f";
      break;
    default:
      json.append("\\u00").append(1, kHex[c >> 4]).append(1, kHex[c & 15]);
  }
}

template <class Float>
void append_float(std::string& json, Float value) {
  CHECK(std::isfinite(value), value);
  char digits[40];
  const char* const end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  const std::string_view text(digits, static_cast<std::size_t>(end - digits));
  json += text;
  if (text.find_first_of(".e") == std::string_view::npos) json += ".0";
}

}  // namespace

void append_json_string(std::string& json, std::string_view text) {
  json += '"';
  std::size_t plain = 0;  // text[plain, i) is not yet copied
  const auto flush = [&](std::size_t end) { json.append(text.substr(plain, end - plain)); };
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
      ++i;
    } else if (c < 0x80) {
      flush(i);
      append_escape(json, c);
      plain = ++i;
    } else if (const std::size_t length = utf8_length(text, i); length > 0) {
      i += length;
    } else {
      flush(i);
      json += unicode::kReplacement;
      plain = ++i;
    }
  }
  flush(text.size());
  json += '"';
}

void append_json_float(std::string& json, float value) { append_float(json, value); }
void append_json_float(std::string& json, double value) { append_float(json, value); }

std::string utc_time_text(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace troupe
