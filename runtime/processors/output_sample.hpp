#pragma once
// Detokenizes one sample of a request and builds its CompletionOutputs.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "messages/engine_output.hpp"
#include "messages/request.hpp"
#include "runtime/processors/detokenizer.hpp"
#include "runtime/processors/token_strings.hpp"

namespace troupe {

/// Reads consecutive rows of LogprobRows.
class LogprobRowReader {
 public:
  explicit LogprobRowReader(const LogprobRows& rows) : rows_(rows) {}
  [[nodiscard]] bool at_end() const noexcept { return row_ == rows_.row_sizes.size(); }
  /// The next row, with the tokens' texts after `context`. Pre: !at_end().
  [[nodiscard]] PositionLogprobs next(TokenStrings& strings, std::span<const TokenId> context);

 private:
  const LogprobRows& rows_;
  std::size_t row_ = 0;
  std::size_t entry_ = 0;
};

/// Owns a sample's text and pending output: for OutputKind::kDelta the tokens since the last
/// output, otherwise all of them.
class OutputSample {
 public:
  /// `request` must outlive the object. The sample continues after request.emitted[index], if there
  /// is one.
  OutputSample(const OutputRequest& request, std::int32_t index,
               const std::shared_ptr<const Tokenizer>& tokenizer);

  /// Adds the tokens of a step, which it moves from. Returns true if a stop string ended the
  /// sample, which the engine does not know.
  bool add(EngineCoreOutput& output, TokenStrings& strings);
  /// Ends the sample here.
  void finish(FinishReason reason) { finish_reason_ = reason; }

  /// Whether there is output, and it is due (params.stream_interval).
  [[nodiscard]] bool wants_output() const noexcept;
  /// Takes the output that is due.
  [[nodiscard]] CompletionOutput take_output();

  [[nodiscard]] bool finished() const noexcept { return finish_reason_.has_value(); }
  [[nodiscard]] RequestId id() const noexcept;

  RequestTimes times;                         ///< of this engine run
  std::optional<PrefillStats> prefill_stats;  ///< until it is returned
  std::int32_t num_cached_tokens = 0;
  /// Of this engine run: the first step's latency is not an inter-token latency.
  bool has_tokens = false;
  bool is_resumed = false;  ///< another engine run computed its prompt before

 private:
  void add_logprobs(const LogprobRows& rows, std::span<const TokenId> tokens,
                    TokenStrings& strings);

  const OutputRequest& request_;
  std::int32_t index_;
  Detokenizer detokenizer_;
  std::vector<TokenId> token_ids_;
  std::vector<PositionLogprobs> logprobs_;
  std::vector<TokenId> context_;  // the last tokens, if log-probabilities are requested
  double cumulative_logprob_ = 0;
  std::size_t num_tokens_ = 0;
  std::size_t num_sent_tokens_ = 0;
  std::optional<FinishReason> finish_reason_;
  StopReason stop_reason_;
  std::vector<float> embedding_;
};

}  // namespace troupe
