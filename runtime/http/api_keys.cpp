#include "runtime/http/api_keys.hpp"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

namespace troupe {

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(digest(key));
}

std::optional<std::uint32_t> ApiKeys::find(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return std::nullopt;
  const bool bearer = std::equal(
      kScheme.begin(), kScheme.end(), authorization.begin(),
      [](char expected, char c) { return expected == (c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  const Digest given = digest(authorization.substr(kScheme.size()));
  std::uint32_t found = 0, number = 0;
  for (const Digest& accepted : digests_) {
    const bool same = CRYPTO_memcmp(given.data(), accepted.data(), given.size()) == 0;
    found |= ++number * static_cast<std::uint32_t>(same && found == 0);
  }
  if (!bearer || found == 0) return std::nullopt;
  return found;
}

}  // namespace troupe
