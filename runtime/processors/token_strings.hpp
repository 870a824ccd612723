#pragma once
// The text of single tokens in lists of log-probabilities.

#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "messages/ids.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// Caches the strings of the tokens seen so far (bounded by the vocabulary). Used by the
/// OutputProcessor.
class TokenStrings {
 public:
  /// A character may be spread over this many tokens before the last one.
  static constexpr std::size_t kMaxContext = 4;

  explicit TokenStrings(std::shared_ptr<const Tokenizer> tokenizer);

  /// The text of `id` after `context` (the preceding tokens, of which the last kMaxContext are
  /// used). A token that ends within a character has no text; the one that completes the character
  /// has all of it.
  [[nodiscard]] std::string text(TokenId id, std::span<const TokenId> context);

 private:
  const std::string& text_alone(TokenId id);
  std::string completed_text(TokenId id, std::span<const TokenId> context);

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unordered_map<TokenId, std::string> texts_;
};

}  // namespace troupe
