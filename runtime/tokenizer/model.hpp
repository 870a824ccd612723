#pragma once
// The model of a tokenizer.json: maps one piece of text to tokens.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/base/work_budget.hpp"
#include "runtime/tokenizer/vocabulary.hpp"

namespace troupe {

/// A token and its byte range in the piece.
struct PieceToken {
  TokenId id = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the tokens of `piece`. Pre: `piece` is not empty. Thread-safe. Throws WorkStopped if
  /// `work` is exhausted or cancelled.
  virtual void tokenize(std::string_view piece, std::vector<PieceToken>& tokens,
                        WorkBudget& work) const = 0;
  [[nodiscard]] const Vocabulary& vocabulary() const noexcept { return vocabulary_; }

 protected:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

 private:
  Vocabulary vocabulary_;
};

struct LoadedTokenModel {
  std::unique_ptr<const TokenModel> model;
  /// The model takes raw bytes: the pre-tokenizer's last step can skip the byte-level alphabet.
  bool takes_bytes = false;
};

/// `pieces_are_bytes`: the pre-tokenizer ends in ByteLevel. Errors: kUnsupported (BPE dropout, an
/// unknown model), kCorrupt (a merge of tokens that do not exist, ...).
Result<LoadedTokenModel> make_model(const nlohmann::json& json, bool pieces_are_bytes);

Result<std::unique_ptr<const TokenModel>> make_word_piece(const nlohmann::json& json);
Result<std::unique_ptr<const TokenModel>> make_word_level(const nlohmann::json& json);
Result<std::unique_ptr<const TokenModel>> make_unigram(const nlohmann::json& json);
/// The "vocab" object of a model: token -> id.
Result<Vocabulary> read_vocabulary(const nlohmann::json& model);

}  // namespace troupe
