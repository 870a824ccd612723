#include "runtime/cache_server/client_tokens.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "runtime/base/file.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/secret.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxTokenFileBytes = 1 << 20;

std::array<std::uint8_t, 32> digest_of(std::string_view token) {
  return sha256(std::span(reinterpret_cast<const std::uint8_t*>(token.data()), token.size()));
}

}  // namespace

Result<ClientTokens> ClientTokens::read(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxTokenFileBytes));
  ClientTokens tokens;
  std::istringstream lines(text);
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word.starts_with('#')) continue;
    const auto bad = [&](const std::string& what) {
      return invalid_argument(
          "token-file " + file + ", line " + std::to_string(number) + ": " + what, "token-file");
    };
    Token token{digest_of(word), std::to_string(tokens.tokens_.size() + 1), {}};
    while (words >> word) {
      const std::size_t middle = word.find('=');
      const std::string name = word.substr(0, middle);
      const std::string value = middle == std::string::npos ? "" : word.substr(middle + 1);
      if (name == "name" && !value.empty()) {
        token.name = value;
        continue;
      }
      std::int64_t* const limit = name == "max-memory-bytes" ? &token.quota.max_memory_bytes
                                  : name == "max-disk-bytes" ? &token.quota.max_disk_bytes
                                                             : nullptr;
      if (limit == nullptr) return bad("'" + word + "' is unknown");
      const auto read = std::from_chars(value.data(), value.data() + value.size(), *limit);
      if (read.ec != std::errc() || read.ptr != value.data() + value.size() || *limit < 1)
        return bad(name + " is '" + value + "', it must be a number of bytes");
    }
    for (const Token& other : tokens.tokens_)
      if (other.name == token.name) return bad("the name " + token.name + " is there twice");
    tokens.tokens_.push_back(std::move(token));
  }
  if (tokens.tokens_.empty())
    return invalid_argument("token-file " + file + " has no token", "token-file");
  return tokens;
}

std::optional<std::string> ClientTokens::owner(std::string_view token) const {
  const auto digest = digest_of(token);
  std::optional<std::string> owner;
  for (const Token& known : tokens_)
    if (same_secret(known.digest, digest)) owner = known.name;
  return owner;
}

std::unordered_map<std::string, CacheQuota> ClientTokens::quotas() const {
  std::unordered_map<std::string, CacheQuota> quotas;
  for (const Token& token : tokens_)
    if (token.quota.max_memory_bytes > 0 || token.quota.max_disk_bytes > 0)
      quotas.emplace(token.name, token.quota);
  return quotas;
}

}  // namespace troupe
