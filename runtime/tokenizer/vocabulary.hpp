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

/// Lets a map of strings be asked with a string_view.
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
  /// The bound on ids that a tokenizer.json may use: a table indexed by id stays affordable.
  static constexpr TokenId kMaxId = (1 << 24) - 1;

  /// A token given twice keeps the later id. Pre: 0 <= id <= kMaxId.
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
