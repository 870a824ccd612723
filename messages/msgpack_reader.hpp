#pragma once
// Reads msgpack that comes from elsewhere.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe::msgspec {

/// Reads msgpack. After malformed input ok() stays false and every value is empty.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  [[nodiscard]] bool ok() const noexcept { return ok_; }
  /// The next value is nil; it is read then.
  bool nil() {
    if (!ok_ || bytes_.empty() || bytes_.front() != '\xc0') return false;
    byte();
    return true;
  }
  /// The next value, whatever it is, as it is encoded.
  std::string_view raw() {
    const std::string_view before = bytes_;
    skip();
    return ok_ ? before.substr(0, before.size() - bytes_.size()) : std::string_view();
  }
  [[nodiscard]] bool at_end() const noexcept { return ok_ && bytes_.empty(); }

  std::int64_t integer() {
    const std::uint8_t first = byte();
    if (first < 0x80 || first >= 0xe0) return static_cast<std::int8_t>(first);
    switch (first) {
      case 0xcc:
        return static_cast<std::int64_t>(word(1));
      case 0xcd:
        return static_cast<std::int64_t>(word(2));
      case 0xce:
        return static_cast<std::int64_t>(word(4));
      case 0xcf: {
        const std::uint64_t x = word(8);
        if (x > INT64_MAX) ok_ = false;
        return ok_ ? static_cast<std::int64_t>(x) : 0;
      }
      case 0xd0:
        return static_cast<std::int8_t>(word(1));
      case 0xd1:
        return static_cast<std::int16_t>(word(2));
      case 0xd2:
        return static_cast<std::int32_t>(word(4));
      case 0xd3:
        return static_cast<std::int64_t>(word(8));
      default:
        ok_ = false;
        return 0;
    }
  }
  bool boolean() {
    const std::uint8_t first = byte();
    if (first != 0xc2 && first != 0xc3) ok_ = false;
    return ok_ && first == 0xc3;
  }
  std::string text() { return std::string(take(size(0xa0, 0x1f, 0xd9, 1))); }
  std::size_t array() { return limited(size(0x90, 0x0f, 0xdc, 2), 1); }
  std::size_t map() { return limited(size(0x80, 0x0f, 0xde, 2), 2); }
  /// A map: calls read(name) for each of its fields, which reads the value.
  template <class Read>
  void fields(Read&& read) {
    for (std::size_t left = map(); ok_ && left > 0; --left) read(text());
  }
  /// Any value of the types that replies have, at most kMaxDepth deep.
  void skip(int depth = 0) {
    if (!ok_ || bytes_.empty() || depth > kMaxDepth) {
      ok_ = false;
      return;
    }
    const auto first = static_cast<std::uint8_t>(bytes_.front());
    if (first < 0x80 || first >= 0xe0) {
      byte();
    } else if (first >= 0xcc && first <= 0xd3) {  // integers, also those that no int64 holds
      byte();
      word(std::size_t{1} << (first & 3));
    } else if (first == 0xc0) {
      byte();
    } else if (first == 0xc2 || first == 0xc3) {
      boolean();
    } else if (first >= 0xc4 && first <= 0xc6) {
      byte();
      take(word(std::size_t{1} << (first - 0xc4)));
    } else if (first == 0xca || first == 0xcb) {
      byte();
      word(first == 0xca ? 4 : 8);
    } else if ((first & 0xe0) == 0xa0 || (first >= 0xd9 && first <= 0xdb)) {
      text();
    } else if ((first & 0xf0) == 0x90 || first == 0xdc || first == 0xdd) {
      for (std::size_t left = array(); ok_ && left > 0; --left) skip(depth + 1);
    } else {
      for (std::size_t left = 2 * map(); ok_ && left > 0; --left) skip(depth + 1);
    }
  }

 private:
  static constexpr int kMaxDepth = 16;

  std::string_view take(std::uint64_t count) {
    if (!ok_ || count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(word(1)); }
  std::uint64_t word(std::size_t num_bytes) {
    std::uint64_t x = 0;
    for (const char c : take(num_bytes)) x = x << 8 | static_cast<std::uint8_t>(c);
    return x;
  }
  /// Of a text, array or map: in the first byte, or in words behind it, from `wide` on, the first
  /// of which has `num_bytes`.
  std::uint64_t size(std::uint8_t fixed, std::uint8_t mask, std::uint8_t wide,
                     std::size_t num_bytes) {
    const std::uint8_t first = byte();
    if ((first & ~mask) == fixed) return first & mask;
    const std::size_t num_widths = wide == 0xd9 ? 3 : 2;
    for (std::size_t i = 0; i < num_widths; ++i)
      if (first == wide + i) return word(num_bytes << i);
    ok_ = false;
    return 0;
  }
  /// What cannot be in the bytes that are left is malformed.
  std::size_t limited(std::uint64_t count, std::size_t least_bytes) {
    if (count > bytes_.size() / least_bytes) ok_ = false;
    return ok_ ? count : 0;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace troupe::msgspec
