#pragma once
// The components of one tokenizer.json, assembled.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/tokenizer/added_vocabulary.hpp"
#include "runtime/tokenizer/decoder.hpp"
#include "runtime/tokenizer/lone_texts.hpp"
#include "runtime/tokenizer/model.hpp"
#include "runtime/tokenizer/normalizer.hpp"
#include "runtime/tokenizer/post_processor.hpp"
#include "runtime/tokenizer/pre_tokenizer.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// Owns the components; constant after construction. Order of the steps: raw added tokens,
/// normalizer, normalized added tokens, pre-tokenizer, model, post-processor. Tokenizer is its
/// public interface.
class TokenizerPipeline {
 public:
  static Result<std::unique_ptr<const TokenizerPipeline>> from_json(const nlohmann::json& json);

  /// Both throw WorkStopped if `work` is exhausted or cancelled.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, bool add_special_tokens,
                                            WorkBudget& work) const;
  /// `second` is null for a single text.
  [[nodiscard]] Encoding encode_with_offsets(std::string_view first, const std::string_view* second,
                                             bool add_special_tokens, WorkBudget& work) const;
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  [[nodiscard]] const AddedVocabulary& added() const noexcept { return added_; }
  [[nodiscard]] const Vocabulary& vocabulary() const noexcept { return model_->vocabulary(); }
  /// The decoded form of an id.
  [[nodiscard]] std::optional<std::string_view> spelling(TokenId id) const;
  /// Whether decoding may begin at this token: it does not continue a character that an earlier
  /// token began.
  [[nodiscard]] bool starts_character(TokenId id) const;
  /// The text that the token adds after any text of whole characters, if that is independent of the
  /// text and consists of whole characters; otherwise empty. Valid during this object's lifetime.
  [[nodiscard]] std::string_view lone_text(TokenId id) const;

 private:
  TokenizerPipeline() = default;

  /// Calls added(token, text, range) and piece(text, range, tokens) in the order of the text.
  template <class OnAdded, class OnPiece>
  void run(std::string_view text, bool tracks_origins, WorkBudget& work, const OnAdded& on_added,
           const OnPiece& on_piece) const;
  template <class OnToken>
  void for_each_spelling(std::span<const TokenId> ids, bool skip_special_tokens,
                         const OnToken& on_token) const;
  [[nodiscard]] std::vector<PlacedToken> place_tokens(std::string_view text,
                                                      WorkBudget& work) const;

  std::unique_ptr<const Normalizer> normalizer_;
  AddedVocabulary added_;
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;
  std::unique_ptr<const TokenModel> model_;
  PostProcessor post_processor_;
  std::unique_ptr<const TokenDecoder> decoder_;
  bool decodes_byte_level_ = false;
  std::unique_ptr<const LoneTexts> lone_texts_;  ///< null: no token decodes independently
  bool needs_origins_ = false;                   ///< even if only ids are needed
};

}  // namespace troupe
