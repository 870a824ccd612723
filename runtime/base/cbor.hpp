#pragma once
// Canonical CBOR (RFC 8949, 4.2.1), the subset that block hashes need: integers, byte and text
// strings, arrays, nil.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace troupe {

/// Appends to a buffer owned by the caller.
class CborWriter {
 public:
  explicit CborWriter(std::vector<std::uint8_t>& out) : out_(out) {}

  void integer(std::int64_t x) {
    if (x >= 0)
      head(0, static_cast<std::uint64_t>(x));
    else
      head(1, static_cast<std::uint64_t>(-1 - x));
  }
  void natural(std::uint64_t x) { head(0, x); }
  /// As integer() for each, without growing the buffer in between.
  void integers(std::span<const std::int32_t> xs) {
    constexpr std::size_t kMaxBytes = 5;
    const std::size_t before = out_.size();
    out_.resize(before + xs.size() * kMaxBytes);
    std::uint8_t* next = out_.data() + before;
    for (const std::int32_t x : xs) {
      const std::uint32_t major = x < 0 ? 0x20 : 0;
      const std::uint32_t n = static_cast<std::uint32_t>(x < 0 ? -1 - x : x);
      const auto put = [&](std::uint32_t byte) { *next++ = static_cast<std::uint8_t>(byte); };
      if (n < 24) {
        put(major | n);
      } else if (n <= 0xff) {
        put(major | 24), put(n);
      } else if (n <= 0xffff) {
        put(major | 25), put(n >> 8), put(n);
      } else {
        put(major | 26), put(n >> 24), put(n >> 16), put(n >> 8), put(n);
      }
    }
    out_.resize(static_cast<std::size_t>(next - out_.data()));
  }
  void bytes(std::span<const std::uint8_t> x) {
    head(2, x.size());
    out_.insert(out_.end(), x.begin(), x.end());
  }
  void text(std::string_view x) {
    head(3, x.size());
    out_.insert(out_.end(), x.begin(), x.end());
  }
  /// `size` elements follow.
  void array(std::size_t size) { head(4, size); }
  void nil() { out_.push_back(0xf6); }

 private:
  void head(std::uint8_t major, std::uint64_t n) {
    const auto first = static_cast<std::uint8_t>(major << 5);
    int num_bytes = 8;
    if (n < 24) {
      out_.push_back(static_cast<std::uint8_t>(first | n));
      return;
    }
    if (n <= 0xff) {
      out_.push_back(first | 24);
      num_bytes = 1;
    } else if (n <= 0xffff) {
      out_.push_back(first | 25);
      num_bytes = 2;
    } else if (n <= 0xffffffff) {
      out_.push_back(first | 26);
      num_bytes = 4;
    } else {
      out_.push_back(first | 27);
    }
    for (int i = num_bytes - 1; i >= 0; --i)
      out_.push_back(static_cast<std::uint8_t>(n >> (8 * i)));
  }
  std::vector<std::uint8_t>& out_;
};

}  // namespace troupe
