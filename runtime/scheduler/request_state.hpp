#pragma once
// The Scheduler's state of a request.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "messages/engine_output.hpp"
#include "messages/ids.hpp"
#include "messages/request.hpp"
#include "messages/shared_vector.hpp"
#include "runtime/scheduler/grammar.hpp"

namespace troupe {

/// The order matters: everything after kPreempted is finished.
enum class RequestStatus : std::uint8_t {
  kWaiting = 1,
  kWaitingForGrammar,
  kWaitingForRemoteKVs,
  kWaitingForStreamingRequest,
  kRunning,
  kPreempted,
  kFinishedStopped,
  kFinishedLengthCapped,
  kFinishedAborted,
  kFinishedIgnored,
  kFinishedError,
  kFinishedRepetition,
  kFinishedTimeout,
};
[[nodiscard]] constexpr bool is_finished(RequestStatus status) noexcept {
  return status > RequestStatus::kPreempted;
}
/// Pre: finished, or a session that waits for its next chunk (which reports a stop).
[[nodiscard]] FinishReason finish_reason(RequestStatus status);

/// State of an asynchronous load by a KV connector.
enum class KVLoad : std::uint8_t {
  kNone,
  kToStart,     ///< the connector has it, but there were not enough blocks
  kInProgress,  ///< the blocks are allocated
  kFinished,    ///< successful or not; until the request is admitted
};

inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// Invariants between steps: 0 <= num_computed_tokens <= num_tokens() + num_output_placeholders;
/// the KV of tokens below num_computed_tokens is (or, while results are in flight, will be) in the
/// cache.
struct RequestState {
  explicit RequestState(EngineCoreRequest request);

  [[nodiscard]] std::int32_t num_tokens() const noexcept {
    return static_cast<std::int32_t>(token_ids.size());
  }
  [[nodiscard]] std::int32_t num_output_tokens() const noexcept {
    return num_tokens() - num_prompt_tokens;
  }
  [[nodiscard]] std::int32_t num_tokens_with_drafts() const noexcept {
    return num_tokens() + static_cast<std::int32_t>(draft_token_ids.size());
  }
  /// Owns KV blocks while it waits.
  [[nodiscard]] bool holds_kv() const noexcept {
    return num_computed_tokens > 0 || status == RequestStatus::kWaitingForRemoteKVs;
  }

  /// The next deadline.
  [[nodiscard]] double next_deadline() const noexcept {
    return std::min(queue_deadline, request_deadline);
  }

  RequestId id{};
  std::uint32_t client_index = 0;
  std::uint32_t tenant = 0;
  std::int32_t priority = 0;   ///< smaller is more urgent
  double arrival_time = 0;     ///< seconds
  std::uint64_t sequence = 0;  ///< order of adding
  RequestLimits limits;
  double arrival = 0;                ///< engine clock
  double queue_deadline = kNever;    ///< engine clock; none after it was first scheduled
  double request_deadline = kNever;  ///< engine clock
  SamplingParams params;
  std::optional<LoraRequest> lora;
  std::vector<MultiModalFeature> mm_features;  ///< by ascending offset
  bool pooling = false;
  std::int32_t second_text_begin = 0;  ///< as in EngineCoreRequest
  bool resumable = false;
  bool resubmitted = false;  ///< another engine computed its prompt before
  std::deque<std::optional<EngineCoreRequest>> next_chunks;  ///< of a session; nullopt: its end

  /// The prompt, then the outputs. Samples of one request share their prompt until they run.
  SharedVector<TokenId> token_ids;
  std::int32_t num_prompt_tokens = 0;
  std::int32_t max_tokens = 0;
  std::vector<TokenId> draft_token_ids;  ///< to verify in the next step; -1 is a placeholder
  bool is_undrafted = false;             ///< since its admission: DraftReport::undrafted

  RequestStatus status = RequestStatus::kWaiting;
  StopReason stop_reason;
  std::int32_t num_computed_tokens = 0;
  std::int32_t num_output_placeholders = 0;  ///< async: sampled, not yet known here
  std::int32_t num_in_flight_tokens = 0;     ///< scheduled, result not processed
  std::int32_t num_stale_tokens = 0;         ///< of those, scheduled before a preemption
  bool drop_stale_output = false;
  std::int32_t num_preemptions = 0;
  bool is_prefill_chunk = false;  ///< its prefill continues after the last scheduled step
  std::uint64_t next_decode_step = 0;
  std::int32_t shared_prefix_boundary = 0;
  bool deferred = false;                ///< was skipped by the admission scan
  std::int32_t num_bypasses = 0;        ///< later requests that were admitted before it
  std::int32_t num_hit_tokens = 0;      ///< found in the prefix cache when it was last admitted
  std::int32_t num_charged_tokens = 0;  ///< kFair: of its first tokens, charged to its tenant
  bool takes_turns = false;             ///< kFair: counted among its tenant's requests

  std::int32_t num_cached_estimate = 0;       ///< length of its longest cached prefix
  std::optional<PrefillStats> prefill_stats;  ///< until they are reported
  std::vector<EngineEvent> events;

  std::unique_ptr<Grammar> grammar;    ///< of a structured request, once compiled
  std::optional<Error> grammar_error;  ///< compilation failed
  /// With drafts of one of its steps; if they are not accepted, it means nothing.
  std::optional<GrammarEnd> grammar_end;
  GrammarProposal proposal;  ///< the last one; no tokens: there is none
  /// Of the drafts that its grammar has proposed.
  std::int32_t num_rejected_proposals = 0;
  std::int32_t num_accepted_proposals = 0;
  bool grammar_error_reported = false;

  std::string session_id;

  std::string kv_transfer_params;  ///< as sent by the client
  bool only_looks_up = false;      ///< kLookupParams
  KVLoad kv_load = KVLoad::kNone;
  bool kv_load_failed = false;  ///< from num_computed_tokens on
  bool is_blended = false;      ///< its blocks do not enter the prefix cache
  /// Finished, but its blocks are still read or written by the KV connector.
  bool holds_blocks_after_end = false;
  std::uint64_t last_fence = 0;  ///< of the last step that included it
  bool has_blocks = false;       ///< since they were allocated, until free_blocks
};

/// Appends a token and checks whether the request ends with it: sets status and stop_reason. Order:
/// eos, stop ids, length; then, beyond min_tokens, repetition.
[[nodiscard]] bool append_and_check_stop(RequestState& request, TokenId token,
                                         std::int32_t max_model_len);

}  // namespace troupe
