#pragma once
// Tokens of the cache server's clients.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/cache_server/value_store.hpp"

namespace troupe {

/// Owns digests of the tokens, not the tokens. Immutable.
class ClientTokens {
 public:
  /// None: every client may do everything.
  ClientTokens() = default;

  /// A file with one token per line: TOKEN [name=NAME] [max-memory-bytes=N] [max-disk-bytes=N].
  /// Empty lines and lines that begin with # are ignored. The default name is the token's number.
  /// Errors: of read_file; no token, a name twice, an unknown setting or value, with its line.
  [[nodiscard]] static Result<ClientTokens> read(const std::string& file);

  [[nodiscard]] bool needed() const noexcept { return !tokens_.empty(); }
  /// The name of its owner; nullopt: there is no such token. Constant time over all tokens.
  [[nodiscard]] std::optional<std::string> owner(std::string_view token) const;
  /// The quotas of the owners that have any.
  [[nodiscard]] std::unordered_map<std::string, CacheQuota> quotas() const;

 private:
  struct Token {
    std::array<std::uint8_t, 32> digest;
    std::string name;
    CacheQuota quota;
  };
  std::vector<Token> tokens_;
};

}  // namespace troupe
