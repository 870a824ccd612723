#pragma once
// Worker -> Executor -> Scheduler: the result of one step.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "messages/error.hpp"
#include "messages/ids.hpp"

namespace troupe {

/// Log-probabilities of some rows (positions). Rows have different numbers of entries: the token of
/// the position first, then the top ones by rank. Flat, in row order.
struct LogprobRows {
  std::vector<std::int32_t> row_sizes;
  std::vector<TokenId> token_ids;
  std::vector<float> logprobs;
  std::vector<std::int32_t> ranks;  ///< 1 = most likely; number of logprobs >= its own
  bool operator==(const LogprobRows&) const = default;
};
TROUPE_MESSAGE(LogprobRows, row_sizes, token_ids, logprobs, ranks)

/// Prompt log-probabilities of one request, for prompt positions first .. first + rows - 1
/// (position 0 has none).
struct PromptLogprobs {
  RequestId id{};
  std::int32_t first_position = 0;
  LogprobRows rows;
  bool operator==(const PromptLogprobs&) const = default;
};
TROUPE_MESSAGE(PromptLogprobs, id, first_position, rows)

/// Events of the KV connector's worker side since the last step.
struct KVConnectorOutput {
  std::vector<RequestId> finished_sending;
  std::vector<RequestId> finished_recving;  ///< including failed ones
  std::vector<RequestId> failed_recving;    ///< of these, those whose load failed entirely
  std::vector<BlockId> invalid_block_ids;   ///< that could not be loaded
  /// Rank and the address at which other engines reach its connector.
  std::vector<std::pair<std::int32_t, std::string>> endpoints;
  [[nodiscard]] bool empty() const noexcept {
    return finished_sending.empty() && finished_recving.empty() && failed_recving.empty() &&
           invalid_block_ids.empty() && endpoints.empty();
  }
  bool operator==(const KVConnectorOutput&) const = default;
};
TROUPE_MESSAGE(KVConnectorOutput, finished_sending, finished_recving, failed_recving,
               invalid_block_ids, endpoints)

/// Events of a worker's encoder and EC connector since the last step, by the identifiers of the
/// items.
struct ECConnectorOutput {
  std::vector<std::string> saved;   ///< available for loading from now on
  std::vector<std::string> loaded;  ///< instead of being encoded
  std::vector<std::string> failed;  ///< failed loads and fetches: they are encoded instead
  /// Requests whose release the connector delayed: it no longer needs their outputs.
  std::vector<RequestId> finished_sending;
  /// Without a connector: encoded in slices (SchedulerOutput::encode_ahead), the output is kept for
  /// the step that needs it.
  std::vector<std::string> encoded_ahead;
  /// Asynchronous fetches that have ended: the output is local now. Failed ones are in `failed` as
  /// well.
  std::vector<std::string> fetched;
  [[nodiscard]] bool empty() const noexcept {
    return saved.empty() && loaded.empty() && failed.empty() && finished_sending.empty() &&
           encoded_ahead.empty() && fetched.empty();
  }
  bool operator==(const ECConnectorOutput&) const = default;
};
TROUPE_MESSAGE(ECConnectorOutput, saved, loaded, failed, finished_sending, encoded_ahead, fetched)

/// What a draft model or head has computed after a step.
struct DraftReport {
  std::int64_t us = 0;
  std::int32_t num_passes = 0;
  std::int32_t num_rows = 0;  ///< of all passes
  /// Tokens that the model still has to compute of that request of the step that lacks the fewest;
  /// the largest number: it will never catch up with any.
  std::int32_t least_behind = 0;
  /// Requests of the step that get no guesses from now on, until they are admitted again.
  std::vector<RequestId> undrafted;
  bool operator==(const DraftReport&) const = default;
};
TROUPE_MESSAGE(DraftReport, us, num_passes, num_rows, least_behind, undrafted)

/// With several ranks, the output rank fills all fields; of the others' the Executor uses step,
/// rank, request_errors, kv_connector and ec_connector.
struct ModelRunnerOutput {
  std::uint64_t step = 0;
  std::vector<RequestId> ids;  ///< the step's batch
  /// Flat; request i sampled num_sampled[i] tokens (0: its prefill is not finished).
  std::vector<TokenId> sampled_token_ids;
  std::vector<std::int32_t> num_sampled;
  LogprobRows logprobs;  ///< rows of the requests that want them, in batch order, one row per token
  std::vector<std::int32_t> num_logprob_rows;  ///< parallel to ids; empty if no request wants them
  std::vector<PromptLogprobs> prompt_logprobs;
  std::vector<std::pair<RequestId, std::vector<TokenId>>> draft_token_ids;  ///< for the next step
  /// Requests that failed in this step by themselves; the others are not affected.
  std::vector<std::pair<RequestId, Error>> request_errors;
  std::vector<std::pair<RequestId, std::vector<float>>> pooling_outputs;
  KVConnectorOutput kv_connector;
  ECConnectorOutput ec_connector;
  DraftReport drafting;
  std::int32_t rank = 0;
  bool operator==(const ModelRunnerOutput&) const = default;
};
TROUPE_MESSAGE(ModelRunnerOutput, step, ids, sampled_token_ids, num_sampled, logprobs,
               num_logprob_rows, prompt_logprobs, draft_token_ids, request_errors, pooling_outputs,
               kv_connector, rank, ec_connector, drafting)

}  // namespace troupe
