#pragma once
// Incremental detokenization of one sample, with stop strings.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "messages/ids.hpp"
#include "messages/sampling_params.hpp"
#include "runtime/tokenizer/incremental_decoder.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// A stop string was completed.
struct StopMatch {
  const std::string* stop = nullptr;  ///< one of SamplingParams::stop
  std::size_t num_tokens = 0;         ///< of the update, up to the one that completes it
};

/// Owns the text of one sample. While stop strings are excluded from the text, its last characters
/// (one fewer than the longest stop string) are held back, so that no part of a stop string is ever
/// returned. Without `params.detokenize` there is no text.
class Detokenizer {
 public:
  /// `params` must outlive the object. `prompt` primes the decoder: its text is not part of the
  /// sample's. A prompt that ends within a character is completed by the first tokens.
  Detokenizer(const std::shared_ptr<const Tokenizer>& tokenizer, const SamplingParams& params,
              std::span<const TokenId> prompt);

  /// Tokens that the client has already received: their text counts as returned, as far as it was
  /// due.
  void skip(std::span<const TokenId> tokens);

  /// Adds the sample's next tokens. `stopped_by_token`: the last one ended the request; it has no
  /// text unless params.include_stop_str_in_output. Stop strings count once there are more than
  /// params.min_tokens tokens, in the text after the first min_tokens. Of several, the one that
  /// ends first counts (then the earlier in params.stop); the text is truncated before it, or after
  /// it if it is to be included.
  std::optional<StopMatch> update(std::span<const TokenId> tokens, bool stopped_by_token);

  /// The whole text, without the held-back part unless `finished`.
  [[nodiscard]] std::string text(bool finished) const;
  /// The part of it that was not taken yet.
  [[nodiscard]] std::string take_new_text(bool finished);

 private:
  void decode(TokenId token);
  [[nodiscard]] std::size_t available(bool finished) const noexcept;
  [[nodiscard]] std::optional<StopMatch> find_stop(std::size_t check_from);

  const SamplingParams& params_;
  std::optional<IncrementalDecoder> decoder_;
  std::string text_;
  std::size_t num_taken_bytes_ = 0;
  std::size_t num_held_back_ = 0;  // code points
  std::size_t num_tokens_ = 0;
  std::vector<std::size_t> ends_;  // of the latest update: end of the text after each token
};

}  // namespace troupe
