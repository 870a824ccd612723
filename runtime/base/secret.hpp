#pragma once
// Secrets and proofs of knowing one.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// HMAC-SHA256 (RFC 2104).
[[nodiscard]] std::array<std::uint8_t, 32> hmac_sha256(std::string_view key,
                                                       std::span<const std::byte> message);

/// Compares in constant time. Pre: equal lengths.
[[nodiscard]] bool same_secret(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);

/// From the operating system's cryptographic generator. Every capability (a stream id, a token, the
/// name of a shared segment) is generated here.
void fill_random(std::span<std::uint8_t> bytes);
[[nodiscard]] std::uint64_t random_bits();

/// num_bytes random bytes as hexadecimal digits.
[[nodiscard]] std::string random_hex(std::size_t num_bytes);

/// 256 bits as hexadecimal digits.
[[nodiscard]] std::string random_secret();

}  // namespace troupe
