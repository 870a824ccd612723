#pragma once
// Hash functions.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// SHA-256 (FIPS 180-4), with the CPU's SHA instructions where available.
[[nodiscard]] std::array<std::uint8_t, 32> sha256(std::span<const std::uint8_t> bytes);

/// XXH3, 128 bits, seed 0, in canonical (big-endian) order.
[[nodiscard]] std::array<std::uint8_t, 16> xxh3_128(std::span<const std::uint8_t> bytes);
[[nodiscard]] std::array<std::uint8_t, 16> xxh3_128(std::string_view text);

/// Lower-case hexadecimal digits.
[[nodiscard]] std::string to_hex(std::span<const std::uint8_t> bytes);

}  // namespace troupe
