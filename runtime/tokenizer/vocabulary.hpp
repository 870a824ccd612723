#pragma once
// Tokens and their ids, both ways.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "messages/ids.hpp"

namespace troupe {

/// Enables lookups by string_view in a map of strings.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>()(text);
  }
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

class Vocabulary {
 public:
  /// Maximum id in a tokenizer.json, which bounds tables indexed by id.
  static constexpr TokenId kMaxId = (1 << 24) - 1;

  /// The later id wins for a duplicate token. Pre: 0 <= id <= kMaxId.
  void add(std::string token, TokenId id);
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view token) const;
  [[nodiscard]] std::optional<std::string_view> token_of(TokenId id) const;
  [[nodiscard]] std::size_t size() const noexcept { return ids_.size(); }
  /// Highest id + 1.
  [[nodiscard]] std::size_t id_limit() const noexcept { return tokens_.size(); }

 private:
  StringMap<TokenId> ids_;
  std::vector<const std::string*> tokens_;  ///< by id; keys of ids_, null in gaps
};

}  // namespace troupe
