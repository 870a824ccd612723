#pragma once
// One sample of a request, on its way from tokens to a CompletionOutput.

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

/// Reads row after row out of LogprobRows.
class LogprobRowReader {
 public:
  explicit LogprobRowReader(const LogprobRows& rows) : rows_(rows) {}
  [[nodiscard]] bool at_end() const noexcept { return row_ == rows_.row_sizes.size(); }
  /// The next row, with the tokens' texts behind `context`. Pre: !at_end().
  [[nodiscard]] PositionLogprobs next(TokenStrings& strings, std::span<const TokenId> context);

 private:
  const LogprobRows& rows_;
  std::size_t row_ = 0;
  std::size_t entry_ = 0;
};

/// Owns a sample's text and what of it has not been handed out: for OutputKind::kDelta the tokens
/// since the last output, otherwise all of them.
class OutputSample {
 public:
  /// `request` must outlive the object. The sample goes on behind request.emitted[index], if there
  /// is such a thing.
  OutputSample(const OutputRequest& request, std::int32_t index,
               const std::shared_ptr<const Tokenizer>& tokenizer);

  /// Takes the tokens of a step, which it moves from. True if a stop string ended the sample, which
  /// the engine does not know.
  bool add(EngineCoreOutput& output, TokenStrings& strings);
  /// Ends the sample here.
  void finish(FinishReason reason) { finish_reason_ = reason; }

  /// True if there is something to hand out, and it is time to (params.stream_interval).
  [[nodiscard]] bool wants_output() const noexcept;
  /// What is to be handed out now.
  [[nodiscard]] CompletionOutput take_output();

  [[nodiscard]] bool finished() const noexcept { return finish_reason_.has_value(); }
  [[nodiscard]] RequestId id() const noexcept;

  RequestTimes times;                         ///< of this engine run
  std::optional<PrefillStats> prefill_stats;  ///< until it is handed out
  std::int32_t num_cached_tokens = 0;
  bool has_tokens = false;  ///< of this engine run: the first step's latency is none between tokens
  bool is_resumed = false;  ///< another engine run computed its prompt before

 private:
  void add_logprobs(const LogprobRows& rows, std::span<const TokenId> tokens,
                    TokenStrings& strings);

  const OutputRequest& request_;
  std::int32_t index_;
  Detokenizer detokenizer_;
  std::vector<TokenId> token_ids_;
  std::vector<PositionLogprobs> logprobs_;
  std::vector<TokenId> context_;  // the last tokens, if there are log-probabilities
  double cumulative_logprob_ = 0;
  std::size_t num_tokens_ = 0;
  std::size_t num_sent_tokens_ = 0;
  std::optional<FinishReason> finish_reason_;
  StopReason stop_reason_;
};

}  // namespace troupe
