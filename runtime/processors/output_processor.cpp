#include "runtime/processors/output_processor.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/processors/output_sample.hpp"
#include "runtime/processors/token_strings.hpp"

namespace troupe {

/// Owns the samples of one request, and the data of its first output.
class OutputRequestState {
 public:
  OutputRequestState(OutputRequest added, const std::shared_ptr<const Tokenizer>& tokenizer)
      : request(std::move(added)) {
    samples.reserve(static_cast<std::size_t>(request.params.n));
    for (std::int32_t i = 0; i < request.params.n; ++i) {
      samples.push_back(std::make_unique<OutputSample>(request, i, tokenizer));
    }
    num_unfinished = static_cast<std::int32_t>(std::count_if(
        samples.begin(), samples.end(), [](const auto& sample) { return !sample->finished(); }));
    had_output_ = !request.emitted.empty();
    num_prompt_tokens = static_cast<std::int32_t>(request.prompt_token_ids.size());
  }
  // Samples refer to the request.
  OutputRequestState(const OutputRequestState&) = delete;
  OutputRequestState& operator=(const OutputRequestState&) = delete;

  [[nodiscard]] OutputSample& sample(RequestId id) {
    return *samples[static_cast<std::size_t>(value(id) - value(request.id))];
  }
  [[nodiscard]] bool final_only() const noexcept {
    return request.params.output_kind == OutputKind::kFinalOnly;
  }
  void add_prompt_logprobs(const PromptLogprobs& added, TokenStrings& strings);
  /// A RequestOutput without samples; the first one has the prompt's data.
  [[nodiscard]] RequestOutput start_output();
  void append_sample(OutputSample& sample, RequestOutput& output);
  /// Its last sample ends without any token for the client, now or before.
  [[nodiscard]] bool comes_to_nothing() const;
  [[nodiscard]] RequestOutput output_of(OutputSample& sample);
  [[nodiscard]] RequestOutput output_of_all();

  OutputRequest request;
  std::vector<std::unique_ptr<OutputSample>> samples;
  std::int32_t num_unfinished = 0;
  std::int32_t num_prompt_tokens = 0;
  std::string kv_transfer_params;  // for the client
  std::string ec_transfer_params;  // the same

 private:
  std::vector<PositionLogprobs> prompt_logprobs_;
  std::string first_token_text_;
  bool had_output_ = false;
};

namespace {

/// Merges the statistics of samples returned together: the prompt is counted once, the computed
/// tokens are summed.
PrefillStats join(const PrefillStats& a, const PrefillStats& b) {
  return {.num_prompt_tokens = std::max(a.num_prompt_tokens, b.num_prompt_tokens),
          .num_computed_tokens = a.num_computed_tokens + b.num_computed_tokens,
          .num_cached_tokens = a.num_cached_tokens + b.num_cached_tokens,
          .num_local_cached_tokens = a.num_local_cached_tokens + b.num_local_cached_tokens,
          .num_external_cached_tokens = a.num_external_cached_tokens + b.num_external_cached_tokens,
          .num_cache_creation_tokens =
              std::max(a.num_cache_creation_tokens, b.num_cache_creation_tokens),
          .num_mm_queries = a.num_mm_queries + b.num_mm_queries,
          .num_mm_hits = a.num_mm_hits + b.num_mm_hits,
          .num_host_cached_tokens = a.num_host_cached_tokens + b.num_host_cached_tokens,
          .num_disk_cached_tokens = a.num_disk_cached_tokens + b.num_disk_cached_tokens,
          .num_peer_cached_tokens = a.num_peer_cached_tokens + b.num_peer_cached_tokens,
          .num_remote_cached_tokens = a.num_remote_cached_tokens + b.num_remote_cached_tokens};
}

}  // namespace

/// Every sample computes them; those that arrive before the first output count.
void OutputRequestState::add_prompt_logprobs(const PromptLogprobs& added, TokenStrings& strings) {
  if (had_output_) return;
  const std::span<const TokenId> prompt = request.prompt_token_ids;
  if (prompt_logprobs_.empty()) first_token_text_ = strings.text(prompt.front(), {});
  prompt_logprobs_.resize(prompt.size());
  LogprobRowReader reader(added.rows);
  for (auto position = static_cast<std::size_t>(added.first_position); !reader.at_end();
       ++position) {
    CHECK(position < prompt.size(), position, prompt.size());
    prompt_logprobs_[position] = reader.next(strings, prompt.first(position));
  }
}

RequestOutput OutputRequestState::start_output() {
  RequestOutput output;
  output.id = request.id;
  output.finished = num_unfinished == 0;
  if (output.finished) {
    output.kv_transfer_params = std::move(kv_transfer_params);
    output.ec_transfer_params = std::move(ec_transfer_params);
  }
  if (!std::exchange(had_output_, true)) {
    output.prompt_token_ids = request.prompt_token_ids;
    request.prompt_token_ids = {};
    output.prompt_text = std::move(request.prompt_text);
    output.prompt_logprobs = std::move(prompt_logprobs_);
    output.first_token_text = std::move(first_token_text_);
  }
  return output;
}

void OutputRequestState::append_sample(OutputSample& sample, RequestOutput& output) {
  output.outputs.push_back(sample.take_output());
  if (const auto stats = std::exchange(sample.prefill_stats, std::nullopt)) {
    output.prefill_stats = output.prefill_stats ? join(*output.prefill_stats, *stats) : *stats;
  }
  if (sample.finished()) output.finished_times.push_back(sample.times);
}

bool OutputRequestState::comes_to_nothing() const {
  return num_unfinished == 1 &&
         std::none_of(samples.begin(), samples.end(),
                      [](const auto& sample) { return sample->has_tokens || sample->is_resumed; });
}

RequestOutput OutputRequestState::output_of(OutputSample& sample) {
  RequestOutput output = start_output();
  output.num_cached_tokens = sample.num_cached_tokens;
  append_sample(sample, output);
  return output;
}

RequestOutput OutputRequestState::output_of_all() {
  RequestOutput output = start_output();
  output.num_cached_tokens = samples.front()->num_cached_tokens;
  for (const auto& sample : samples) append_sample(*sample, output);
  return output;
}

namespace {

/// Updates a step's metrics and the sample's times from an output.
void count(const EngineCoreOutput& output, std::int32_t num_prompt_tokens, OutputSample& sample,
           IterationStats& stats) {
  RequestTimes& times = sample.times;
  for (const EngineEvent& event : output.events) {
    if (event.kind == EngineEventKind::kQueued) times.queued = event.time;
    // A preempted request is scheduled again: the first time counts.
    if (event.kind == EngineEventKind::kScheduled && times.scheduled == 0) {
      times.scheduled = event.time;
    }
    if (event.kind == EngineEventKind::kPreempted) {
      ++times.num_preemptions;
      ++stats.num_preemptions;
    }
  }
  if (output.pooling_output) stats.num_prompt_tokens += num_prompt_tokens;
  if (output.new_token_ids.empty()) return;
  stats.num_generation_tokens += static_cast<std::int32_t>(output.new_token_ids.size());
  if (std::exchange(sample.has_tokens, true)) {
    stats.inter_token_latencies.push_back(stats.time - times.last_token);
  } else {
    if (!sample.is_resumed) stats.num_prompt_tokens += num_prompt_tokens;
    times.first_token = stats.time;
  }
  times.last_token = stats.time;
}

}  // namespace

OutputProcessor::OutputProcessor(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)),
      token_strings_(std::make_unique<TokenStrings>(tokenizer_)) {}

OutputProcessor::~OutputProcessor() = default;

void OutputProcessor::add(OutputRequest request) {
  CHECK(request.params.n >= 1, request.params.n);
  CHECK(request.emitted.empty() ||
            request.emitted.size() == static_cast<std::size_t>(request.params.n),
        request.params.n, request.emitted.size());
  const RequestId id = request.id;
  auto state = std::make_unique<OutputRequestState>(std::move(request), tokenizer_);
  for (const auto& sample : state->samples) {
    if (sample->finished()) continue;
    const bool is_new = samples_.emplace(sample->id(), state.get()).second;
    CHECK(is_new, value(sample->id()));
  }
  requests_.emplace(id, std::move(state));
}

ProcessedOutputs OutputProcessor::process(EngineCoreOutputs outputs) {
  ProcessedOutputs processed;
  IterationStats& stats = processed.to_frontend.stats;
  stats.engine_index = outputs.engine_index;
  stats.time = outputs.time;
  stats.scheduler = std::move(outputs.stats);
  processed.to_frontend.outputs.reserve(outputs.outputs.size());
  for (EngineCoreOutput& output : outputs.outputs) process_one(output, processed);
  return processed;
}

void OutputProcessor::process_one(EngineCoreOutput& output, ProcessedOutputs& processed) {
  const auto found = samples_.find(output.id);
  if (found == samples_.end()) return;
  OutputRequestState& state = *found->second;
  OutputSample& sample = state.sample(output.id);
  count(output, state.num_prompt_tokens, sample, processed.to_frontend.stats);
  if (output.prefill_stats) {
    sample.prefill_stats = output.prefill_stats;
    // Of the request, so once.
    sample.prefill_stats->num_mm_queries = std::exchange(state.request.num_mm_queries, 0);
    sample.prefill_stats->num_mm_hits = std::exchange(state.request.num_mm_hits, 0);
    sample.num_cached_tokens = output.prefill_stats->num_cached_tokens;
  }
  // A timeout is an error only if there is no output.
  const bool failed = output.finish_reason == FinishReason::kTimeout
                          ? state.comes_to_nothing()
                          : output.error || output.finish_reason == FinishReason::kError;
  if (failed) {
    samples_.erase(found);  // the engine has already finished this one
    end_request(state, output.finish_reason.value_or(FinishReason::kError),
                output.error.value_or(Error{
                    ErrorCode::kInternal, "the engine ended the request without a reason", {}}),
                processed);
    return;
  }
  if (output.new_prompt_logprobs) {
    state.add_prompt_logprobs(*output.new_prompt_logprobs, *token_strings_);
  }
  if (!output.kv_transfer_params.empty())
    state.kv_transfer_params = std::move(output.kv_transfer_params);
  if (!output.ec_transfer_params.empty())
    state.ec_transfer_params = std::move(output.ec_transfer_params);
  const bool is_early = output.new_token_ids.empty() && !output.finish_reason &&
                        !output.new_prompt_logprobs && !output.pooling_output;
  if (is_early && !state.kv_transfer_params.empty()) {
    // Its KV can be loaded already; there is nothing else to tell.
    processed.to_frontend.outputs.push_back(
        {.id = state.request.id,
         .kv_transfer_params = std::exchange(state.kv_transfer_params, {})});
    return;
  }
  if (sample.add(output, *token_strings_)) processed.to_abort.push_back(output.id);
  if (sample.finished()) {
    samples_.erase(found);
    --state.num_unfinished;
  }
  if (!state.final_only()) {
    if (sample.wants_output()) processed.to_frontend.outputs.push_back(state.output_of(sample));
  } else if (state.num_unfinished == 0) {
    processed.to_frontend.outputs.push_back(state.output_of_all());
  }
  if (state.num_unfinished == 0) requests_.erase(RequestId{state.request.id});
}

ProcessedOutputs OutputProcessor::abort(std::span<const RequestId> ids) {
  ProcessedOutputs processed;
  for (const RequestId id : ids) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) continue;
    end_request(*found->second, FinishReason::kAbort, std::nullopt, processed);
  }
  return processed;
}

void OutputProcessor::end_request(OutputRequestState& state, FinishReason reason,
                                  std::optional<Error> error, ProcessedOutputs& processed) {
  state.num_unfinished = 0;
  RequestOutput output = state.start_output();
  output.error = std::move(error);
  for (const auto& sample : state.samples) {
    const bool ends_here = !sample->finished();
    if (ends_here) {
      sample->finish(reason);
      if (samples_.erase(sample->id()) != 0) processed.to_abort.push_back(sample->id());
    }
    if (ends_here || state.final_only()) state.append_sample(*sample, output);
  }
  output.num_cached_tokens = state.samples.front()->num_cached_tokens;
  processed.to_frontend.outputs.push_back(std::move(output));
  requests_.erase(RequestId{state.request.id});
}

}  // namespace troupe
