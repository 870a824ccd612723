// Models with a plain word list: WordLevel maps whole pieces, WordPiece splits them greedily.

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/model.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

using json_fields::Json;

/// Longest match first (Schuster and Nakajima 2012, as in BERT); a piece that cannot be covered
/// becomes one unknown token.
class WordPieceModel final : public TokenModel {
 public:
  WordPieceModel(Vocabulary vocabulary, TokenId unk_id, std::string prefix, std::size_t max_chars)
      : TokenModel(std::move(vocabulary)),
        unk_id_(unk_id),
        prefix_(std::move(prefix)),
        max_chars_(max_chars) {}

  void tokenize(std::string_view piece, std::vector<PieceToken>& tokens,
                WorkBudget& work) const override {
    work.charge_bytes(piece.size());
    const std::size_t first = tokens.size();
    if (unicode::count(piece) > max_chars_ || !cover(piece, tokens, work)) {
      tokens.resize(first);
      tokens.push_back({unk_id_, 0, static_cast<std::uint32_t>(piece.size())});
    }
  }

 private:
  [[nodiscard]] bool cover(std::string_view piece, std::vector<PieceToken>& tokens,
                           WorkBudget& work) const {
    std::string candidate;
    for (std::size_t begin = 0; begin < piece.size();) {
      candidate.assign(begin > 0 ? prefix_ : "").append(piece.substr(begin));
      std::size_t end = piece.size();
      std::optional<TokenId> id;
      while (end > begin && !(id = vocabulary().id_of(candidate))) {
        work.charge_bytes(candidate.size());
        const std::size_t old_end = end;
        static_cast<void>(unicode::previous(piece, end));
        candidate.resize(candidate.size() - (old_end - end));
      }
      if (!id) return false;
      tokens.push_back({*id, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
      begin = end;
    }
    return true;
  }

  TokenId unk_id_;
  std::string prefix_;
  std::size_t max_chars_;
};

class WordLevelModel final : public TokenModel {
 public:
  WordLevelModel(Vocabulary vocabulary, std::optional<TokenId> unk_id)
      : TokenModel(std::move(vocabulary)), unk_id_(unk_id) {}

  void tokenize(std::string_view piece, std::vector<PieceToken>& tokens,
                WorkBudget& work) const override {
    work.charge_bytes(piece.size());
    const auto id = vocabulary().id_of(piece);
    if (!id && !unk_id_) return;
    tokens.push_back({id ? *id : *unk_id_, 0, static_cast<std::uint32_t>(piece.size())});
  }

 private:
  std::optional<TokenId> unk_id_;
};

}  // namespace

Result<std::unique_ptr<const TokenModel>> make_word_piece(const Json& json) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary, read_vocabulary(json));
  ASSIGN_OR_RETURN(const std::string unk, json_fields::text(json, "unk_token"));
  ASSIGN_OR_RETURN(const auto prefix,
                   json_fields::optional_text(json, "continuing_subword_prefix"));
  ASSIGN_OR_RETURN(const auto max_chars,
                   json_fields::number(json, "max_input_chars_per_word", 100));
  const auto unk_id = vocabulary.id_of(unk);
  if (!unk_id) return json_fields::malformed("the vocabulary has no \"" + unk + "\"");
  return std::unique_ptr<const TokenModel>(std::make_unique<WordPieceModel>(
      std::move(vocabulary), *unk_id, prefix.value_or("##"), max_chars));
}

Result<std::unique_ptr<const TokenModel>> make_word_level(const Json& json) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary, read_vocabulary(json));
  ASSIGN_OR_RETURN(const auto unk, json_fields::optional_text(json, "unk_token"));
  const auto unk_id = unk ? vocabulary.id_of(*unk) : std::nullopt;
  return std::unique_ptr<const TokenModel>(
      std::make_unique<WordLevelModel>(std::move(vocabulary), unk_id));
}

}  // namespace troupe
