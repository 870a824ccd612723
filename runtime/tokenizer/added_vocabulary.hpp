#pragma once
// Added tokens: found in the text before anything else, never cut by the model.

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
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space behind it
  bool normalized = false;   ///< looked for, and shown, in normalized form
  bool special = false;      ///< decoding can skip it
  TokenId id = -1;
  std::string shown;  ///< what decoding shows: the content, normalized where it says so
};

/// A part of a text: an added token, or what lies between.
struct AddedSplit {
  ByteRange range;
  const AddedToken* token = nullptr;  ///< null for plain text
};

class AddedVocabulary {
 public:
  /// From the "added_tokens" of a tokenizer.json. A token of the model's vocabulary keeps that id,
  /// others are numbered behind it in order, as the reference library does whatever ids the file
  /// gives.
  static Result<AddedVocabulary> from_json(const nlohmann::json& list, const Vocabulary& vocabulary,
                                           const Normalizer& normalizer);

  /// Cuts a text at the tokens that are looked for as written, or at those looked for in normalized
  /// text. The splits cover the text; an rstrip token can reach into the next.
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
  /// Tokens that the model's vocabulary does not have.
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
