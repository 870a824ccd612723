#pragma once
// The texts of a model's tokens, arranged for masks: tokens that begin alike are looked at once.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/ids.hpp"

namespace troupe {

class Tokenizer;

/// Tokens in the order of their bytes, each byte a node, children behind their parents.
class TokenBytesTree {
 public:
  static constexpr TokenId kNoToken = -1;
  struct Node {
    std::uint32_t end = 0;  ///< the first node behind this one's children
    TokenId token = kNoToken;
    std::uint16_t depth = 0;  ///< bytes before this one
    unsigned char byte = 0;
  };

  TokenBytesTree() = default;
  /// `tokens`: sorted by their bytes, which differ and are not empty.
  TokenBytesTree(std::span<const std::string> token_bytes, std::span<const TokenId> tokens);
  [[nodiscard]] const std::vector<Node>& nodes() const noexcept { return nodes_; }
  [[nodiscard]] std::size_t max_depth() const noexcept { return max_depth_; }

 private:
  std::vector<Node> nodes_;
  std::size_t max_depth_ = 0;
};

/// Constant after it is made; shared by all grammars of a model.
class GrammarVocabulary {
 public:
  /// Tokens of at most max_characters plain characters: those that JSON takes in a string as they
  /// are, without ends of lines. A parser's state that takes as many of them takes all of these
  /// tokens, and only the others are looked at (the idea is llguidance's "slices").
  struct Slice {
    std::uint32_t max_characters = 0;
    std::vector<std::uint32_t> tokens;  ///< a bit each
    TokenBytesTree others;
  };

  /// What stands for a special token in a grammar: its spelling between two bytes that no text in
  /// UTF-8 has. A grammar takes it only where it names it.
  static constexpr char kSpecialMark = '\xFF';
  [[nodiscard]] static std::string special_bytes(std::string_view spelling);

  /// token_bytes[id]: what the token stands for; empty for those that no grammar takes (ids that
  /// are none). `size`: bits of a mask, not less than token_bytes.size().
  static std::shared_ptr<const GrammarVocabulary> make(std::vector<std::string> token_bytes,
                                                       std::size_t size);
  /// Of a tokenizer, for a model with `size` logits. Tokens that do not stand for certain bytes
  /// are taken by no grammar.
  static std::shared_ptr<const GrammarVocabulary> from_tokenizer(const Tokenizer& tokenizer,
                                                                 std::size_t size);

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t num_words() const noexcept { return (size_ + 31) / 32; }
  /// The spellings of special tokens.
  [[nodiscard]] std::span<const std::string> special_tokens() const noexcept {
    return special_tokens_;
  }
  /// Empty if no grammar takes it. Pre: 0 <= token < size().
  [[nodiscard]] std::string_view bytes(TokenId token) const;
  [[nodiscard]] const TokenBytesTree& tree() const noexcept { return tree_; }
  /// By max_characters, the last one without a limit.
  [[nodiscard]] std::span<const Slice> slices() const noexcept { return slices_; }
  /// Another token with the same bytes, -1 if there is none.
  [[nodiscard]] TokenId same_bytes(TokenId token) const {
    return same_bytes_.empty() ? -1 : same_bytes_[static_cast<std::size_t>(token)];
  }

 private:
  GrammarVocabulary() = default;

  std::size_t size_ = 0;
  std::vector<std::string> token_bytes_;
  std::vector<std::string> special_tokens_;
  std::vector<TokenId> same_bytes_;  ///< a chain through the tokens of equal bytes; empty if none
  TokenBytesTree tree_;
  std::vector<Slice> slices_;
};

}  // namespace troupe
