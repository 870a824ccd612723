#pragma once
// Streaming detokenization: ids in one by one, text out as soon as it is final.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// Decodes a request's tokens as they arrive. Text that ends within a character is held back. Same
/// output as the `DecodeStream` of Hugging Face `tokenizers` as used by vLLM.
///
/// Owns the ids whose text is not final (the window: the tokens of the last two emitted texts) and
/// their decoded text; a step decodes the window only. One per request, not thread-safe.
class IncrementalDecoder {
 public:
  struct Step {
    /// New text; none while the last character is incomplete.
    std::optional<std::string> text;
    /// Later bytes invalidated an emitted character: the stream was restarted with this token, as
    /// in vLLM. Emitted text stays.
    bool reset = false;
    bool operator==(const Step&) const = default;
  };

  /// `prompt_ids` prime the stream, so that the first token is decoded as inside a text; their own
  /// text is never emitted unless they end within a character.
  IncrementalDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                     std::span<const TokenId> prompt_ids = {});

  /// Takes one id. With special tokens kept and `spaces_between_special_tokens` false, an added
  /// token directly after an added token is emitted as its own content.
  Step step(TokenId id);

  void set_spaces_between_special_tokens(bool value) noexcept { spaces_between_special_ = value; }

 private:
  /// One step of the stream; sets `is_invalid` if emitted text turns out to be wrong.
  std::optional<std::string> advance(TokenId id, bool& is_invalid);

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<TokenId> ids_;  ///< the window
  std::string prefix_;        ///< text of the window's first num_prefix_ids_ ids, already emitted
  std::size_t num_prefix_ids_ = 0;
  bool skip_special_tokens_ = false;
  bool spaces_between_special_ = true;
  bool last_was_added_ = false;
};

}  // namespace troupe
