#include "runtime/base/secret.hpp"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "runtime/base/check.hpp"
#include "runtime/base/hash.hpp"

namespace troupe {

std::array<std::uint8_t, 32> hmac_sha256(std::string_view key, std::span<const std::byte> message) {
  std::array<std::uint8_t, 32> code;
  unsigned size = 0;
  const unsigned char* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(message.data()),
                                   message.size(), code.data(), &size);
  CHECK(done != nullptr && size == code.size(), size);
  return code;
}

bool same_secret(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  CHECK(a.size() == b.size(), a.size(), b.size());
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    CHECK(count > 0 || errno == EINTR, errno);
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::uint64_t random_bits() {
  std::array<std::uint8_t, sizeof(std::uint64_t)> bytes;
  fill_random(bytes);
  std::uint64_t bits = 0;
  for (const std::uint8_t byte : bytes) bits = bits << 8 | byte;
  return bits;
}

std::string random_hex(std::size_t num_bytes) {
  std::vector<std::uint8_t> bytes(num_bytes);
  fill_random(bytes);
  return to_hex(bytes);
}

std::string random_secret() { return random_hex(32); }

}  // namespace troupe
