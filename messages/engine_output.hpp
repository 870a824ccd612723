#pragma once
// A request's output: from the Scheduler to the OutputProcessor (tokens), and from there to the
// Frontend (text).

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "messages/cache.hpp"
#include "messages/error.hpp"
#include "messages/ids.hpp"
#include "messages/model_runner_output.hpp"

namespace troupe {

enum class FinishReason : std::uint8_t {
  kStop = 0,
  kLength = 1,
  kAbort = 2,
  kError = 3,
  kRepetition = 4,
  kTimeout = 5  ///< a limit of RequestLimits has passed; not in vLLM
};
[[nodiscard]] constexpr const char* to_string(FinishReason reason) noexcept {
  constexpr const char* kNames[] = {"stop", "length", "abort", "error", "repetition", "timeout"};
  return kNames[static_cast<std::size_t>(reason)];
}

/// Why a request stopped: nothing (eos, length), the stop token's id, or the stop string.
using StopReason = std::variant<std::monostate, TokenId, std::string>;

/// Times are seconds of the engine's monotonic clock.
enum class EngineEventKind : std::uint8_t { kQueued = 1, kScheduled = 2, kPreempted = 3 };
struct EngineEvent {
  EngineEventKind kind{};
  double time = 0;
  bool operator==(const EngineEvent&) const = default;
};
TROUPE_MESSAGE(EngineEvent, kind, time)

/// How the prompt was computed; sent once, with a request's first output.
struct PrefillStats {
  std::int32_t num_prompt_tokens = 0;
  std::int32_t num_computed_tokens = 0;
  std::int32_t num_cached_tokens = 0;
  std::int32_t num_local_cached_tokens = 0;
  std::int32_t num_external_cached_tokens = 0;
  std::int32_t num_cache_creation_tokens = 0;
  std::int32_t num_mm_queries = 0;  ///< as in OutputRequest
  std::int32_t num_mm_hits = 0;
  /// The sources of the external ones.
  std::int32_t num_host_cached_tokens = 0;  ///< host memory
  std::int32_t num_disk_cached_tokens = 0;
  std::int32_t num_peer_cached_tokens = 0;    ///< another engine
  std::int32_t num_remote_cached_tokens = 0;  ///< a cache server
  bool operator==(const PrefillStats&) const = default;
};
TROUPE_MESSAGE(PrefillStats, num_prompt_tokens, num_computed_tokens, num_cached_tokens,
               num_local_cached_tokens, num_external_cached_tokens, num_cache_creation_tokens,
               num_mm_queries, num_mm_hits, num_host_cached_tokens, num_disk_cached_tokens,
               num_peer_cached_tokens, num_remote_cached_tokens)

struct EngineCoreOutput {
  RequestId id{};
  std::vector<TokenId> new_token_ids;
  LogprobRows new_logprobs;  ///< a row per new token, if requested
  std::optional<PromptLogprobs> new_prompt_logprobs;
  std::optional<FinishReason> finish_reason;
  StopReason stop_reason;
  std::vector<EngineEvent> events;
  std::optional<PrefillStats> prefill_stats;
  std::optional<Error> error;
  std::uint32_t client_index = 0;
  std::optional<std::vector<float>> pooling_output;  ///< before PoolingParams are applied
  std::string kv_transfer_params;  ///< from the KV connector: a JSON object, or empty
  std::string ec_transfer_params;  ///< from the EC connector: a JSON object, or empty
  bool operator==(const EngineCoreOutput&) const = default;
};
TROUPE_MESSAGE(EngineCoreOutput, id, new_token_ids, new_logprobs, new_prompt_logprobs,
               finish_reason, stop_reason, events, prefill_stats, error, client_index,
               pooling_output, kv_transfer_params, ec_transfer_params)

/// Since the previous report.
struct PrefixCacheStats {
  std::uint64_t requests = 0;
  std::uint64_t queries = 0;  ///< tokens
  std::uint64_t hits = 0;     ///< tokens
  std::uint64_t preempted_requests = 0, preempted_queries = 0, preempted_hits = 0;
  bool reset = false;  ///< the cache was emptied
  bool operator==(const PrefixCacheStats&) const = default;
};
TROUPE_MESSAGE(PrefixCacheStats, requests, queries, hits, preempted_requests, preempted_queries,
               preempted_hits, reset)

/// Since the previous report.
struct EncoderCacheStats {
  std::uint64_t queries = 0;  ///< items that steps required
  std::uint64_t hits = 0;     ///< of these, cached ones
  bool operator==(const EncoderCacheStats&) const = default;
};
TROUPE_MESSAGE(EncoderCacheStats, queries, hits)

/// Of one step.
struct SpecDecodingStats {
  std::int32_t num_requests = 0;  ///< with drafts
  std::int32_t num_draft_tokens = 0;
  std::int32_t num_accepted_tokens = 0;
  std::vector<std::int32_t> num_accepted_per_position;
  std::vector<std::int32_t> num_drafted_per_position;
  bool operator==(const SpecDecodingStats&) const = default;
};
TROUPE_MESSAGE(SpecDecodingStats, num_requests, num_draft_tokens, num_accepted_tokens,
               num_accepted_per_position, num_drafted_per_position)

/// Outputs of encoders that an EC connector transfers, in items; since the last report.
struct EncoderTransferStats {
  std::int32_t num_queries = 0;  ///< scheduled items that were not in this engine's encoder cache
  std::int32_t num_hits = 0;     ///< of these, those that the connector holds
  std::int32_t num_failed = 0;   ///< of these, those that could not be loaded
  std::int32_t num_saved = 0;
  std::int32_t num_fetched = 0;  ///< over a network, asynchronously
  bool operator==(const EncoderTransferStats&) const = default;
};
TROUPE_MESSAGE(EncoderTransferStats, num_queries, num_hits, num_failed, num_saved, num_fetched)

struct SchedulerStats {
  std::int32_t num_running_reqs = 0;
  std::int32_t num_waiting_reqs = 0;  ///< without deferred requests
  std::int32_t num_deferred_reqs = 0;
  double kv_cache_usage = 0;  ///< 0..1
  std::int32_t num_free_blocks = 0;
  std::int32_t num_pinned_blocks = 0;
  std::int32_t num_scheduled_tokens = 0;  ///< of the step that this report belongs to
  PrefixCacheStats prefix_cache;
  SpecDecodingStats spec_decoding;
  EncoderCacheStats encoder_cache;
  PrefixCacheStats connector_prefix_cache;  ///< queries: tokens beyond the local hit
  EncoderTransferStats encoder_transfer;
  /// Requests whose KV is loaded asynchronously: not started, in progress, done and waiting.
  std::int32_t num_kv_loads_to_start = 0;
  std::int32_t num_kv_loads_in_progress = 0;
  std::int32_t num_kv_loads_waiting = 0;
  std::vector<BlockResidency> evicted_blocks;  ///< a sample of them, if enabled
  std::vector<std::string> running_adapters;   ///< names, sorted: of running requests
  std::vector<std::string> waiting_adapters;   ///< of waiting ones
  bool operator==(const SchedulerStats&) const = default;
};
TROUPE_MESSAGE(SchedulerStats, num_running_reqs, num_waiting_reqs, num_deferred_reqs,
               kv_cache_usage, num_free_blocks, num_pinned_blocks, num_scheduled_tokens,
               prefix_cache, spec_decoding, encoder_cache, connector_prefix_cache,
               num_kv_loads_to_start, num_kv_loads_in_progress, num_kv_loads_waiting,
               evicted_blocks, encoder_transfer, running_adapters, waiting_adapters)

/// Scheduler -> OutputProcessor, one per step, and one for requests that end without a step.
struct EngineCoreOutputs {
  std::uint32_t engine_index = 0;
  double time = 0;  ///< engine clock at creation
  std::vector<EngineCoreOutput> outputs;
  std::optional<SchedulerStats> stats;  ///< none: no load report
  /// Client and request, if the Scheduler tracks them: finished since the last message.
  std::vector<std::pair<std::uint32_t, RequestId>> finished_requests;
  bool operator==(const EngineCoreOutputs&) const = default;
};
TROUPE_MESSAGE(EngineCoreOutputs, engine_index, time, outputs, stats, finished_requests)

struct Logprob {
  TokenId token_id = 0;
  float logprob = 0;
  std::int32_t rank = 0;
  std::string token;  ///< decoded; incomplete UTF-8 sequences are left out (see OutputProcessor)
  bool operator==(const Logprob&) const = default;
};
TROUPE_MESSAGE(Logprob, token_id, logprob, rank, token)

/// The position's own token first, then the best ones by rank.
using PositionLogprobs = std::vector<Logprob>;

/// The delta (or all, by OutputKind) of one sample.
struct CompletionOutput {
  std::int32_t index = 0;
  std::string text;
  std::vector<TokenId> token_ids;
  std::vector<PositionLogprobs> logprobs;
  double cumulative_logprob = 0;
  std::optional<FinishReason> finish_reason;
  StopReason stop_reason;
  std::vector<float> embedding;  ///< of a pooling request
  bool operator==(const CompletionOutput&) const = default;
};
TROUPE_MESSAGE(CompletionOutput, index, text, token_ids, logprobs, cumulative_logprob,
               finish_reason, stop_reason, embedding)

/// Timings for the per-request histograms, seconds. Sent with the final output of each sample.
struct RequestTimes {
  double queued = 0;  ///< engine clock
  double scheduled = 0;
  double first_token = 0;
  double last_token = 0;
  std::int32_t num_generation_tokens = 0;
  std::int32_t num_preemptions = 0;
  std::int32_t num_earlier_tokens = 0;  ///< of those, generated before the request was resubmitted
  bool operator==(const RequestTimes&) const = default;
};
TROUPE_MESSAGE(RequestTimes, queued, scheduled, first_token, last_token, num_generation_tokens,
               num_preemptions, num_earlier_tokens)

/// OutputProcessor (or InputProcessor, for an error) -> Frontend. Exactly one output of a request
/// has `finished` set.
struct RequestOutput {
  RequestId id{};                                 ///< of the GenerateRequest
  std::vector<TokenId> prompt_token_ids;          ///< with the first output only
  std::string prompt_text;                        ///< with the first output only, if requested
  std::vector<PositionLogprobs> prompt_logprobs;  ///< with the first output only; entry 0 is empty
  std::vector<CompletionOutput> outputs;
  bool finished = false;
  std::int32_t num_cached_tokens = 0;
  std::optional<PrefillStats> prefill_stats;
  std::vector<RequestTimes> finished_times;
  std::optional<Error> error;
  std::string first_token_text;    ///< of the prompt, with prompt_logprobs, which leave it out
  std::string kv_transfer_params;  ///< with the last output: as in EngineCoreOutput
  std::string ec_transfer_params;  ///< the same
  bool operator==(const RequestOutput&) const = default;
};
TROUPE_MESSAGE(RequestOutput, id, prompt_token_ids, prompt_text, prompt_logprobs, outputs, finished,
               num_cached_tokens, prefill_stats, finished_times, error, first_token_text,
               kv_transfer_params, ec_transfer_params)

/// Statistics of one step for the metrics, besides the outputs.
struct IterationStats {
  std::uint32_t engine_index = 0;
  double time = 0;  ///< engine clock
  std::int32_t num_generation_tokens = 0;
  std::int32_t num_prompt_tokens = 0;  ///< of requests whose prefill ended in this step
  std::int32_t num_preemptions = 0;
  std::vector<double> inter_token_latencies;  ///< seconds, engine clock
  /// None for requests that end without the Scheduler: aborts, rejections.
  std::optional<SchedulerStats> scheduler;
  bool operator==(const IterationStats&) const = default;
};
TROUPE_MESSAGE(IterationStats, engine_index, time, num_generation_tokens, num_prompt_tokens,
               num_preemptions, inter_token_latencies, scheduler)

/// OutputProcessor -> Frontend, one per step.
struct RequestOutputs {
  std::vector<RequestOutput> outputs;
  IterationStats stats;
  bool operator==(const RequestOutputs&) const = default;
};
TROUPE_MESSAGE(RequestOutputs, outputs, stats)

}  // namespace troupe
