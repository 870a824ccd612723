#pragma once
// Detokenization, stop strings, log-probabilities, and merging of a request's samples.

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

/// The results of a call of the OutputProcessor.
struct ProcessedOutputs {
  RequestOutputs to_frontend;
  std::vector<RequestId> to_abort;  ///< samples that the Scheduler still runs but need not
};

/// Owns, per request, its detokenizers and pending output. Every added request ends in exactly one
/// RequestOutput with `finished` set; outputs of unknown requests are ignored. Used by the
/// OutputProcessor actor.
///
/// Output by OutputKind: kDelta, new tokens; kCumulative, everything since the start, in both cases
/// one RequestOutput per sample that has output; kFinalOnly, one RequestOutput with all samples by
/// index when the last one ends. With n > 1 `finished` is set when the last sample ends. An error
/// of one sample ends the whole request.
class OutputProcessor {
 public:
  explicit OutputProcessor(std::shared_ptr<const Tokenizer> tokenizer);
  ~OutputProcessor();
  OutputProcessor(const OutputProcessor&) = delete;
  OutputProcessor& operator=(const OutputProcessor&) = delete;

  /// Registers all samples of a request. With `emitted` the request continues after these tokens:
  /// their text counts as returned (except for kCumulative, which repeats it), and so does the
  /// prompt's data. Pre: no sample's id is known; not all samples have finished.
  void add(OutputRequest request);

  /// Processes the outputs of one step. The times of `outputs` are used for statistics.
  [[nodiscard]] ProcessedOutputs process(EngineCoreOutputs outputs);

  /// Ends requests, identified by their first sample's id, with finish_reason abort. The result has
  /// no statistics.
  [[nodiscard]] ProcessedOutputs abort(std::span<const RequestId> ids);

  /// Unfinished requests.
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
