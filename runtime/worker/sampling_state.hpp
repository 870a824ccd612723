#pragma once
// The sampler's state of one request.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "messages/ids.hpp"
#include "messages/sampling_params.hpp"
#include "runtime/worker/logits_processors/logits_processor.hpp"

namespace troupe {

/// Owns a request's sampling parameters and the logits processors that they ask for. A token costs
/// O(1).
///
/// The model runner keeps one per request, calls append() for every token that the request was
/// given, and builds a new one when the request returns after a preemption.
class SamplingState {
 public:
  /// `token_ids`: every known token; the first `num_prompt_tokens` are the prompt.
  /// `transcription`: of a speech model.
  SamplingState(const SamplingParams& params, std::span<const TokenId> token_ids,
                std::size_t num_prompt_tokens, const TranscriptionRules* transcription = nullptr);
  SamplingState(const SamplingState& other);
  SamplingState& operator=(const SamplingState& other) = delete;
  SamplingState(SamplingState&&) noexcept = default;
  SamplingState& operator=(SamplingState&&) noexcept = default;
  ~SamplingState() = default;

  /// The request's next output token.
  void append(TokenId token);

  [[nodiscard]] const SamplingParams& params() const noexcept { return params_; }
  /// Index, in prompt and outputs together, of the token that is sampled next.
  [[nodiscard]] std::uint64_t position() const noexcept { return num_tokens_; }

  /// True if logits must pass through process_logits before the best or a random one is taken.
  [[nodiscard]] bool changes_logits() const noexcept { return !processors_.empty(); }
  /// Everything that comes before the temperature, in the order of make_logits_processors.
  /// logits: [vocab_size].
  void process_logits(std::span<float> logits) const;

 private:
  SamplingParams params_;
  std::vector<std::unique_ptr<LogitsProcessor>> processors_;
  std::uint64_t num_tokens_ = 0;
};

}  // namespace troupe
