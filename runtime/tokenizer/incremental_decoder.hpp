#pragma once
// Streaming text: ids in one by one, text out as soon as it is final.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// Turns a request's tokens into text as they arrive. A piece is held back while it ends in the
/// middle of a character. The same pieces as the `DecodeStream` of Hugging Face `tokenizers` as
/// vLLM drives it.
///
/// Owns the ids whose text is not yet settled (the window: the tokens of the last two pieces) and
/// their decoded text; a step decodes the window only. One per request, used by one thread at a
/// time.
class IncrementalDecoder {
 public:
  struct Step {
    /// New text; none while the last character is incomplete.
    std::optional<std::string> text;
    /// The bytes after an emitted character made it invalid in hindsight: the stream was started
    /// afresh with this token, as vLLM does. The text already sent stays.
    bool reset = false;
    bool operator==(const Step&) const = default;
  };

  /// `prompt_ids` prime the stream, so that the first token gets its separator as inside a text;
  /// their own text is never emitted unless they end within a character.
  IncrementalDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                     std::span<const TokenId> prompt_ids = {});

  /// Takes one id. With special tokens kept, an added token directly after an added token is
  /// emitted as its own content when `spaces_between_special_tokens` was set false.
  Step step(TokenId id);

  void set_spaces_between_special_tokens(bool value) noexcept { spaces_between_special_ = value; }

 private:
  /// One step of the stream; `is_invalid` is set where the text already sent turns out wrong.
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
