#pragma once
// Byte pair encoding (Sennrich et al., arXiv 1508.07909): merge the adjacent pair of lowest rank
// until none is left.

#include <array>
#include <optional>
#include <string>
#include <unordered_set>

#include "runtime/tokenizer/model.hpp"
#include "runtime/tokenizer/pair_table.hpp"

namespace troupe {

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  /// Pieces are raw bytes, and the vocabulary uses the byte-level alphabet (byte_level.hpp).
  bool takes_bytes = false;
};

/// Owns vocabulary, merges and derived tables; constant after construction. Results for short
/// pieces are cached per thread.
class BpeModel final : public TokenModel {
 public:
  /// `merges` holds, in order of rank, the ids of a pair and of its product.
  BpeModel(Vocabulary vocabulary, BpeOptions options, PairTable merges);

  void tokenize(std::string_view piece, std::vector<PieceToken>& tokens,
                WorkBudget& work) const override;

 private:
  struct Symbol {
    TokenId id;
    std::uint32_t num_bytes;
  };

  void tokenize_word(std::string_view word, std::uint32_t offset, std::vector<PieceToken>& tokens,
                     WorkBudget& work) const;
  void merge_word(std::string_view word, std::vector<Symbol>& symbols, WorkBudget& work) const;
  void add_byte_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
  void add_character_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
  bool add_fallback_symbols(std::string_view spelled, std::vector<Symbol>& symbols) const;
  [[nodiscard]] std::optional<TokenId> whole_word(std::string_view word) const;
  [[nodiscard]] bool splits_before_mark(std::string_view piece, std::size_t mark) const;
  void find_mark_joiners();
  void merge_few(std::vector<Symbol>& symbols) const;
  void merge_many(std::vector<Symbol>& symbols, WorkBudget& work) const;

  BpeOptions options_;
  PairTable merges_;
  std::optional<TokenId> unk_id_;
  std::array<TokenId, 256> byte_ids_{};      ///< takes_bytes: the token of each byte, -1 if none
  std::array<TokenId, 256> fallback_ids_{};  ///< byte_fallback: the token "<0xNN>", -1 if none
  StringMap<TokenId> words_;  ///< takes_bytes and ignore_merges: tokens by their bytes
  /// Characters that some token has directly before U+2581. Before any other character a text can
  /// be cut at that mark: no merge reaches over it, so the parts are independent.
  std::unordered_set<char32_t> mark_joiners_;
  bool can_split_at_marks_ = false;
  std::uint64_t cache_key_;
};

Result<LoadedTokenModel> make_bpe(const nlohmann::json& json, bool pieces_are_bytes);

}  // namespace troupe
