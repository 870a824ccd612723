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

bool ApiKeys::allow(std::string_view authorization) const {
  if (digests_.empty()) return true;
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return false;
  const bool bearer = std::equal(
      kScheme.begin(), kScheme.end(), authorization.begin(),
      [](char expected, char c) { return expected == (c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  const Digest given = digest(authorization.substr(kScheme.size()));
  bool known = false;
  for (const Digest& accepted : digests_) {
    known |= CRYPTO_memcmp(given.data(), accepted.data(), given.size()) == 0;
  }
  return bearer && known;
}

}  // namespace troupe
