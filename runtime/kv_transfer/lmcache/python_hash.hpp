#pragma once
// hash() of CPython 3.11 on 64 bits, for the values that LMCache hashes with it.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace troupe::lmcache {

/// An integer of Python between -2^63 and 2^64 - 1: hashes of chunks are signed or unsigned.
struct PythonInt {
  std::uint64_t magnitude = 0;
  bool negative = false;

  [[nodiscard]] static constexpr PythonInt of(std::int64_t x) noexcept {
    const auto bits = static_cast<std::uint64_t>(x);
    return x < 0 ? PythonInt{0 - bits, true} : PythonInt{bits, false};
  }
  bool operator==(const PythonInt&) const = default;
};

/// n modulo 2^61 - 1, with the sign of n; -2 for -1.
[[nodiscard]] std::int64_t python_hash(PythonInt n) noexcept;
/// Of a tuple whose elements have these hashes: xxHash of their 64 bits.
[[nodiscard]] std::int64_t python_hash_tuple(std::span<const std::int64_t> elements) noexcept;
/// Of a tuple of integers.
[[nodiscard]] std::int64_t python_hash_integers(std::span<const std::int64_t> integers);

/// What PYTHONHASHSEED makes the hashes of texts depend on.
using PythonHashKey = std::array<std::uint64_t, 2>;
/// nullopt: `seed` is no number from 0 to 2^32 - 1.
[[nodiscard]] std::optional<PythonHashKey> python_hash_key(std::string_view seed) noexcept;
/// SipHash-1-3 of an ASCII text.
[[nodiscard]] std::int64_t python_hash_text(std::string_view text,
                                            const PythonHashKey& key) noexcept;

}  // namespace troupe::lmcache
