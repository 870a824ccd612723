#include "runtime/http/api_keys.hpp"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <utility>

#include "runtime/base/file.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/reload.hpp"

namespace troupe {

namespace {

constexpr std::size_t kMaxKeyFileBytes = 1 << 20;

/// KEY and its settings, in words.
Result<ApiKey> parse_line(const std::string& line, const std::string& where) {
  std::istringstream words(line);
  ApiKey key;
  words >> key.key;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    const auto fail = [&](const std::string& what) {
      return invalid_argument(where + ": " + what, "api-key-file");
    };
    if (name == "name") {
      if (value.empty()) return fail("name has no value");
      key.name = value;
      continue;
    }
    std::int64_t* const limit = name == "requests-per-minute" ? &key.limits.requests_per_minute
                                : name == "tokens-per-minute" ? &key.limits.tokens_per_minute
                                : name == "max-concurrent-requests"
                                    ? &key.limits.max_concurrent_requests
                                    : nullptr;
    if (limit == nullptr) {
      return fail("unknown setting '" + name +
                  "'; behind a key there may be name, requests-per-minute, tokens-per-minute and "
                  "max-concurrent-requests, as NAME=VALUE");
    }
    const char* const end = value.data() + value.size();
    const auto read = std::from_chars(value.data(), end, *limit);
    if (read.ec != std::errc() || read.ptr != end || *limit < 1)
      return fail(name + " is '" + value + "', it must be a whole number of at least 1");
  }
  return key;
}

}  // namespace

Result<std::vector<ApiKey>> read_api_key_file(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxKeyFileBytes));
  std::vector<ApiKey> keys;
  std::istringstream lines(text);
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    ASSIGN_OR_RETURN(ApiKey key,
                     parse_line(line, "api-key-file " + file + ", line " + std::to_string(number)));
    keys.push_back(std::move(key));
  }
  if (keys.empty()) return invalid_argument("api-key-file " + file + " has no key", "api-key-file");
  return keys;
}

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

ApiKeys::ApiKeys(const std::vector<ApiKey>& keys, ReadApiKeys read)
    : restricted_(!keys.empty()), read_(std::move(read)), reload_count_(reload_count) {
  accept(keys);
}

void ApiKeys::accept(const std::vector<ApiKey>& keys) const {
  for (Key& key : keys_) key.accepted = false;
  for (const ApiKey& key : keys) {
    const Digest wanted = digest(key.key);
    auto known = std::find_if(keys_.begin(), keys_.end(),
                              [&](const Key& each) { return each.digest == wanted; });
    if (known == keys_.end()) known = keys_.insert(known, Key{.digest = wanted});
    known->accepted = true;
    known->name = key.name;
    known->limits = key.limits;
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

std::string ApiKeys::key_id(std::string_view authorization) {
  const std::size_t space = authorization.find(' ');
  if (space == std::string_view::npos || space + 1 == authorization.size()) return "";
  return to_hex(digest(authorization.substr(space + 1)));
}

std::optional<std::uint32_t> ApiKeys::find_id(std::string_view key_id) const {
  const std::lock_guard lock(mutex_);
  reload();
  const auto found = std::find_if(keys_.begin(), keys_.end(), [&](const Key& key) {
    return key.accepted && to_hex(key.digest) == key_id;
  });
  if (found == keys_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - keys_.begin() + 1);
}

void ApiKeys::Bucket::fill(std::int64_t per_minute, double now) {
  const auto full = static_cast<double>(per_minute);
  level = filled_at == 0 ? full : std::min(full, level + (now - filled_at) * full / 60);
  filled_at = now;
}

std::string ApiKeys::name(std::uint32_t tenant) const {
  const std::lock_guard lock(mutex_);
  const bool has_name = tenant > 0 && tenant <= keys_.size() && !keys_[tenant - 1].name.empty();
  return has_name ? keys_[tenant - 1].name : std::to_string(tenant);
}

std::optional<RateLimited> ApiKeys::begin_request(std::uint32_t tenant, double now) const {
  const std::lock_guard lock(mutex_);
  if (tenant == 0 || tenant > keys_.size()) return std::nullopt;
  Key& key = keys_[tenant - 1];
  const KeyLimits& limits = key.limits;
  // `missing` of the limit are to come before the next request.
  const auto refuse = [&](const char* limit, std::int64_t value, double missing) {
    return RateLimited{
        {ErrorCode::kRateLimited,
         std::string("the API key's limit is reached: ") + limit + " is " + std::to_string(value),
         limit},
        std::max<std::int64_t>(
            1, static_cast<std::int64_t>(std::ceil(60 * missing / static_cast<double>(value))))};
  };
  if (limits.max_concurrent_requests > 0 && key.num_running >= limits.max_concurrent_requests)
    return refuse("max-concurrent-requests", limits.max_concurrent_requests, 0);
  if (limits.tokens_per_minute > 0) {
    key.tokens.fill(limits.tokens_per_minute, now);
    if (key.tokens.level <= 0)
      return refuse("tokens-per-minute", limits.tokens_per_minute, -key.tokens.level);
  }
  if (limits.requests_per_minute > 0) {
    key.requests.fill(limits.requests_per_minute, now);
    if (key.requests.level < 1)
      return refuse("requests-per-minute", limits.requests_per_minute, 1 - key.requests.level);
    --key.requests.level;
  }
  ++key.num_running;
  return std::nullopt;
}

void ApiKeys::end_request(std::uint32_t tenant) const {
  const std::lock_guard lock(mutex_);
  if (tenant > 0 && tenant <= keys_.size()) --keys_[tenant - 1].num_running;
}

void ApiKeys::spend_tokens(std::uint32_t tenant, std::int64_t num_tokens, double now) const {
  const std::lock_guard lock(mutex_);
  if (tenant == 0 || tenant > keys_.size()) return;
  Key& key = keys_[tenant - 1];
  if (key.limits.tokens_per_minute == 0) return;
  key.tokens.fill(key.limits.tokens_per_minute, now);
  key.tokens.level -= static_cast<double>(num_tokens);
}

}  // namespace troupe
