#pragma once
// Added tokens: matched in the text before anything else, never split by the model.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/tokenizer/aligned_text.hpp"
#include "runtime/tokenizer/normalizer.hpp"
#include "runtime/tokenizer/token_trie.hpp"
#include "runtime/tokenizer/vocabulary.hpp"

namespace troupe {

struct AddedToken {
  std::string content;
  bool single_word = false;  ///< not next to a word character
  bool lstrip = false;       ///< strips white space to its left
  bool rstrip = false;       ///< strips white space to its right
  bool normalized = false;   ///< matched, and decoded, in normalized form
  bool special = false;      ///< can be skipped in decoding
  TokenId id = -1;
  std::string shown;  ///< decoded text: the content, normalized if `normalized`
};

/// A part of a text: an added token, or plain text between them.
struct AddedSplit {
  ByteRange range;
  const AddedToken* token = nullptr;  ///< null for plain text
};

class AddedVocabulary {
 public:
  /// From the "added_tokens" of a tokenizer.json. Tokens of the model's vocabulary keep their id;
  /// others get the following ids in order, as in the reference library, whatever ids the file has.
  static Result<AddedVocabulary> from_json(const nlohmann::json& list, const Vocabulary& vocabulary,
                                           const Normalizer& normalizer);

  /// Splits a text at the tokens that are matched in raw text, or at those matched in normalized
  /// text. The splits cover the text; an rstrip token can reach into the next split.
  [[nodiscard]] std::vector<AddedSplit> split_raw(std::string_view text, WorkBudget& work) const {
    return split(text, raw_, work);
  }
  [[nodiscard]] std::vector<AddedSplit> split_normalized(std::string_view text,
                                                         WorkBudget& work) const {
    return split(text, normalized_, work);
  }

  [[nodiscard]] const AddedToken* find(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view content) const;
  [[nodiscard]] std::size_t id_limit() const noexcept { return id_limit_; }
  /// Number of tokens that are not in the model's vocabulary.
  [[nodiscard]] std::size_t num_new() const noexcept { return num_new_; }

 private:
  [[nodiscard]] std::vector<AddedSplit> split(std::string_view text, const TokenTrie& trie,
                                              WorkBudget& work) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<TokenId, std::size_t> by_id_;
  StringMap<std::size_t> by_content_;
  TokenTrie raw_;
  TokenTrie normalized_;
  std::size_t id_limit_ = 0;
  std::size_t num_new_ = 0;
};

}  // namespace troupe
