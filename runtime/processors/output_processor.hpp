#pragma once
// Tokens to text, stop strings, log-probabilities, and the joining of a request's samples.

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "messages/engine_output.hpp"
#include "messages/request.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

class OutputRequestState;
class TokenStrings;

/// What a call of the OutputProcessor gives rise to.
struct ProcessedOutputs {
  RequestOutputs to_frontend;
  std::vector<RequestId> to_abort;  ///< samples that the Scheduler still runs, but need not
};

/// Owns, per request, its detokenizers and what is not yet handed out. Every request that is added
/// ends in exactly one RequestOutput with `finished` set; outputs of requests that are not known
/// (any more) are ignored. Called by the OutputProcessor actor.
///
/// What is handed out, by OutputKind: kDelta, what is new; kCumulative, everything since the
/// start, in both cases one RequestOutput for each sample that goes on; kFinalOnly, one
/// RequestOutput with all samples by index when the last one ends. With n > 1 `finished` is set on
/// the last sample's end. An error of one sample ends the whole request.
class OutputProcessor {
 public:
  explicit OutputProcessor(std::shared_ptr<const Tokenizer> tokenizer);
  ~OutputProcessor();
  OutputProcessor(const OutputProcessor&) = delete;
  OutputProcessor& operator=(const OutputProcessor&) = delete;

  /// Expects the outputs of all samples of a request. With `emitted` the request goes on behind
  /// these tokens: their text counts as handed out (but for kCumulative, which repeats it), and so
  /// does what belongs to the prompt. Pre: no sample's id is known; not all samples have ended.
  void add(OutputRequest request);

  /// Takes the outputs of one step. The times of `outputs` enter the statistics.
  [[nodiscard]] ProcessedOutputs process(EngineCoreOutputs outputs);

  /// Ends requests, each named by the id of its first sample, with finish_reason abort. There are
  /// no statistics in the result.
  [[nodiscard]] ProcessedOutputs abort(std::span<const RequestId> ids);

  /// Requests that have not ended.
  [[nodiscard]] std::size_t num_requests() const noexcept { return requests_.size(); }

 private:
  void process_one(EngineCoreOutput& output, ProcessedOutputs& processed);
  void end_request(OutputRequestState& state, FinishReason reason, std::optional<Error> error,
                   ProcessedOutputs& processed);

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<TokenStrings> token_strings_;
  std::unordered_map<RequestId, std::unique_ptr<OutputRequestState>> requests_;  // by first sample
  std::unordered_map<RequestId, OutputRequestState*> samples_;                   // every sample
};

}  // namespace troupe
