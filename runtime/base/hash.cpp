#include "runtime/base/hash.hpp"

#include <openssl/sha.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace troupe {

// The one-shot functions of OpenSSL 3 look up the algorithm at each call, which costs more than
// hashing a block; the older streaming functions do not.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
std::array<std::uint8_t, 32> sha256(std::span<const std::uint8_t> bytes) {
  std::array<std::uint8_t, 32> digest;
  SHA256_CTX context;
  SHA256_Init(&context);
  SHA256_Update(&context, bytes.data(), bytes.size());
  SHA256_Final(digest.data(), &context);
  return digest;
}
#pragma GCC diagnostic pop

std::array<std::uint8_t, 16> xxh3_128(std::span<const std::uint8_t> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::array<std::uint8_t, 16> digest;
  static_assert(sizeof canonical.digest == sizeof digest);
  for (std::size_t i = 0; i < digest.size(); ++i) digest[i] = canonical.digest[i];
  return digest;
}

std::array<std::uint8_t, 16> xxh3_128(std::string_view text) {
  return xxh3_128(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

std::string to_hex(std::span<const std::uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace troupe
