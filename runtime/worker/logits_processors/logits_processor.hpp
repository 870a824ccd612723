#pragma once
// What a request's parameters, and a speech model's rules, do to its logits before the temperature,
// one kind per file.

#include <memory>
#include <span>
#include <vector>

#include "messages/ids.hpp"
#include "messages/sampling_params.hpp"
#include "runtime/models/transcription_rules.hpp"

namespace troupe {

/// One kind of change to a request's logits, with what it has to know of the request's tokens. A
/// token costs O(1).
class LogitsProcessor {
 public:
  virtual ~LogitsProcessor() = default;
  [[nodiscard]] virtual std::unique_ptr<LogitsProcessor> clone() const = 0;
  /// The request's next output token.
  virtual void append(TokenId /*token*/) {}
  /// logits: [vocab_size]; forbidden tokens become -inf. Ids outside the vocabulary are ignored.
  virtual void apply(std::span<float> logits) const = 0;
};

/// What those of a request are made from.
struct LogitsProcessorInputs {
  const SamplingParams& params;
  std::span<const TokenId> prompt;
  const TranscriptionRules* transcription = nullptr;  ///< of a speech model, else null
};

/// The kinds that these ask for, in the order in which they are applied. What the request has
/// generated so far is to be appended to each.
[[nodiscard]] std::vector<std::unique_ptr<LogitsProcessor>> make_logits_processors(
    const LogitsProcessorInputs& inputs);

/// -inf for this token, if it is in the vocabulary.
void forbid(std::span<float> logits, TokenId token) noexcept;
/// The token's logit; null if it is not in the vocabulary.
[[nodiscard]] inline float* logit_of(std::span<float> logits, TokenId token) noexcept {
  const bool is_known = token >= 0 && static_cast<std::size_t>(token) < logits.size();
  return is_known ? &logits[static_cast<std::size_t>(token)] : nullptr;
}

}  // namespace troupe
