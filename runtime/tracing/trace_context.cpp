#include "runtime/tracing/trace_context.hpp"

#include <array>
#include <charconv>
#include <span>

#include "runtime/base/hash.hpp"

namespace troupe {
namespace {

bool is_lower_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}
bool is_zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

}  // namespace

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  constexpr std::size_t kSize = 55, kTrace = 3, kParent = 36, kFlags = 53;
  if (header.size() < kSize || header[2] != '-' || header[kParent - 1] != '-' ||
      header[kFlags - 1] != '-')
    return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(kTrace, 32),
                         parent = header.substr(kParent, 16), flags = header.substr(kFlags, 2);
  // Later versions may have more behind a dash.
  if (header.size() > kSize && (version == "00" || header[kSize] != '-')) return std::nullopt;
  if (!is_lower_hex(version) || version == "ff" || !is_lower_hex(trace) || is_zero(trace) ||
      !is_lower_hex(parent) || is_zero(parent) || !is_lower_hex(flags))
    return std::nullopt;
  unsigned bits = 0;
  std::from_chars(flags.data(), flags.data() + flags.size(), bits, 16);
  return TraceContext{std::string(trace), std::string(parent), (bits & 1) != 0};
}

std::string random_hex(std::size_t bytes, const std::function<std::uint64_t()>& random) {
  std::string text;
  do {
    text.clear();
    while (text.size() < 2 * bytes) {
      std::uint64_t bits = random();
      std::array<std::uint8_t, 8> piece{};
      for (std::uint8_t& byte : piece) {
        byte = static_cast<std::uint8_t>(bits);
        bits >>= 8;
      }
      text += to_hex(piece);
    }
    text.resize(2 * bytes);
  } while (is_zero(text));
  return text;
}

}  // namespace troupe
