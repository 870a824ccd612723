#include "runtime/http/api_keys.hpp"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/reload.hpp"

namespace troupe {

constexpr std::size_t kMaxKeyFileBytes = 1 << 20;

Result<std::vector<std::string>> read_api_key_file(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxKeyFileBytes));
  constexpr std::string_view kSpace = " \t\r";
  std::vector<std::string> keys;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, std::min(line.size(), line.find_first_not_of(kSpace)));
    line.erase(line.find_last_not_of(kSpace) + 1);
    if (!line.empty() && line.front() != '#') keys.push_back(std::move(line));
  }
  if (keys.empty()) return invalid_argument("api-key-file " + file + " has no key", "api-key-file");
  return keys;
}

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

ApiKeys::ApiKeys(const std::vector<std::string>& keys, ReadApiKeys read)
    : restricted_(!keys.empty()), read_(std::move(read)), reload_count_(reload_count) {
  accept(keys);
}

void ApiKeys::accept(const std::vector<std::string>& keys) const {
  for (Key& key : keys_) key.accepted = false;
  for (const std::string& key : keys) {
    const Digest wanted = digest(key);
    const auto known = std::find_if(keys_.begin(), keys_.end(),
                                    [&](const Key& each) { return each.digest == wanted; });
    if (known != keys_.end()) {
      known->accepted = true;
    } else {
      keys_.push_back({wanted, true});
    }
  }
}

void ApiKeys::reload() const {
  if (!read_ || reload_count_ == reload_count) return;
  reload_count_ = reload_count;
  const auto keys = read_();
  if (!keys.ok() || (keys->empty() && restricted_)) {
    log_warning("API keys not reloaded, the old ones stay valid",
                kv("reason", keys.ok() ? "no key left" : keys.error().message));
    return;
  }
  if (keys->empty()) return;
  accept(*keys);
  restricted_ = true;
  log_info("API keys reloaded", kv("keys", keys->size()));
}

std::optional<std::uint32_t> ApiKeys::find(std::string_view authorization) const {
  const std::lock_guard lock(mutex_);
  reload();
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return std::nullopt;
  const bool bearer = std::equal(
      kScheme.begin(), kScheme.end(), authorization.begin(),
      [](char expected, char c) { return expected == (c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  const Digest given = digest(authorization.substr(kScheme.size()));
  std::uint32_t found = 0, number = 0;
  for (const Key& key : keys_) {
    const bool same = CRYPTO_memcmp(given.data(), key.digest.data(), given.size()) == 0;
    found |= ++number * static_cast<std::uint32_t>(same && key.accepted && found == 0);
  }
  if (!bearer || found == 0) return std::nullopt;
  return found;
}

}  // namespace troupe
