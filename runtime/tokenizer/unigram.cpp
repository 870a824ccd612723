// Unigram language model (Kudo, arXiv 1804.10959): the segmentation of highest total score, by
// Viterbi.

#include <algorithm>
#include <cstdio>
#include <limits>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/aligned_text.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/model.hpp"
#include "runtime/tokenizer/token_trie.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

using json_fields::Json;

/// How far below the rarest token an unknown character scores.
constexpr double kUnknownPenalty = 10.0;

class UnigramModel final : public TokenModel {
 public:
  UnigramModel(Vocabulary vocabulary, std::vector<double> scores, std::optional<TokenId> unk_id,
               bool byte_fallback)
      : TokenModel(std::move(vocabulary)),
        scores_(std::move(scores)),
        unk_id_(unk_id),
        byte_fallback_(byte_fallback) {
    double lowest = std::numeric_limits<double>::infinity();
    for (const double score : scores_) lowest = std::min(lowest, score);
    unknown_score_ = lowest - kUnknownPenalty;
    for (std::size_t id = 0; id < scores_.size(); ++id) {
      const auto token = this->vocabulary().token_of(static_cast<TokenId>(id));
      // The last of duplicate tokens counts.
      if (token && this->vocabulary().id_of(*token) == static_cast<TokenId>(id)) {
        trie_.add(*token, id);
      }
    }
  }

  void tokenize(std::string_view piece, std::vector<PieceToken>& tokens,
                WorkBudget& work) const override {
    const std::vector<Step> best = best_steps(piece, work);
    // Backtracks from the end; adjacent unknowns are merged.
    std::vector<ByteRange> parts;
    bool after_unknown = false;
    for (std::size_t end = piece.size(); end > 0; end = best[end].begin) {
      const bool is_unknown = best[end].is_unknown;
      if (is_unknown && after_unknown) {
        parts.back().begin = best[end].begin;
      } else {
        parts.push_back({best[end].begin, end});
      }
      after_unknown = is_unknown;
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      add_part(piece.substr(part->begin, part->size()), static_cast<std::uint32_t>(part->begin),
               tokens);
    }
  }

 private:
  /// The best way to reach a byte: its last token.
  struct Step {
    std::size_t begin = 0;
    double score = 0;
    bool is_reached = false;
    bool is_unknown = false;
  };

  [[nodiscard]] std::vector<Step> best_steps(std::string_view piece, WorkBudget& work) const {
    std::vector<Step> best(piece.size() + 1);
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t next =
          begin + unicode::char_bytes(static_cast<unsigned char>(piece[begin]));
      const double score_here = best[begin].score;
      bool has_single = false;
      const auto offer = [&](std::size_t end, double score, bool is_unknown) {
        if (best[end].is_reached && score <= best[end].score) return;
        best[end] = {begin, score, true, is_unknown};
      };
      const std::size_t walked =
          trie_.for_each_prefix(piece, begin, [&](std::size_t end, std::size_t id) {
            offer(end, score_here + scores_[id], unk_id_ == static_cast<TokenId>(id));
            has_single |= end == next;
          });
      work.charge(1 + walked);
      if (!has_single) offer(next, score_here + unknown_score_, true);
      begin = next;
    }
    return best;
  }

  void add_part(std::string_view part, std::uint32_t begin, std::vector<PieceToken>& tokens) const {
    const std::uint32_t end = begin + static_cast<std::uint32_t>(part.size());
    if (const auto id = vocabulary().id_of(part)) {
      tokens.push_back({*id, begin, end});
      return;
    }
    if (byte_fallback_) {
      const std::size_t first = tokens.size();
      for (const char c : part) {
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned char>(c));
        const auto id = vocabulary().id_of(name);
        if (!id) break;
        tokens.push_back({*id, begin, end});
      }
      if (tokens.size() - first == part.size()) return;
      tokens.resize(first);
    }
    if (unk_id_) tokens.push_back({*unk_id_, begin, end});
  }

  std::vector<double> scores_;  ///< by id
  std::optional<TokenId> unk_id_;
  bool byte_fallback_;
  double unknown_score_;
  TokenTrie trie_;
};

}  // namespace

Result<std::unique_ptr<const TokenModel>> make_unigram(const Json& json) {
  ASSIGN_OR_RETURN(const Json* list, json_fields::array(json, "vocab"));
  Vocabulary vocabulary;
  std::vector<double> scores;
  for (const Json& entry : *list) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number() ||
        scores.size() > static_cast<std::size_t>(Vocabulary::kMaxId)) {
      return json_fields::malformed("a Unigram token is not a string and its score");
    }
    vocabulary.add(entry[0].get<std::string>(), static_cast<TokenId>(scores.size()));
    scores.push_back(entry[1].get<double>());
  }
  std::optional<TokenId> unk_id;
  if (json.contains("unk_id") && !json["unk_id"].is_null()) {
    ASSIGN_OR_RETURN(const std::uint32_t id, json_fields::number(json, "unk_id"));
    if (id >= scores.size()) {
      return json_fields::malformed("unk_id " + std::to_string(id) + " is not in a vocabulary of " +
                                    std::to_string(scores.size()));
    }
    unk_id = static_cast<TokenId>(id);
  }
  ASSIGN_OR_RETURN(const bool byte_fallback, json_fields::boolean(json, "byte_fallback", false));
  return std::unique_ptr<const TokenModel>(std::make_unique<UnigramModel>(
      std::move(vocabulary), std::move(scores), unk_id, byte_fallback));
}

}  // namespace troupe
