// KV connector: asynchronous loads, failed loads, and blocks that outlive their requests.

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/base/json.hpp"
#include "runtime/scheduler/scheduler.hpp"

namespace troupe {

// ---- asynchronous loads -------------------------------------------------------------------------

/// The KV of a waiting request has arrived, at least partly: it is an ordinary waiting request
/// again.
bool Scheduler::waits_for_remote_kvs(RequestState& request) {
  if (request.status != RequestStatus::kWaitingForRemoteKVs) return false;
  if (request.kv_load != KVLoad::kFinished) return true;
  if (request.num_computed_tokens > 0) {
    tell_kv(KVCacheCommandKind::kCacheBlocks, request.id, request.num_computed_tokens);
    // The last token is always computed: its logits are needed.
    if (request.num_computed_tokens == request.num_tokens()) --request.num_computed_tokens;
  } else {
    free_blocks(request);
    request.kv_load = KVLoad::kNone;
  }
  request.kv_load_failed = false;
  request.status =
      request.num_preemptions > 0 ? RequestStatus::kPreempted : RequestStatus::kWaiting;
  return false;
}

void Scheduler::start_load(RequestState& request, std::int32_t num_computed) {
  request.status = RequestStatus::kWaitingForRemoteKVs;
  request.has_blocks = true;
  request.num_computed_tokens = num_computed;
  request.kv_load = KVLoad::kInProgress;
  unfinished_prefills_.insert(&request);
}

/// A load cannot be preempted, so it must not take blocks that running requests still need.
void Scheduler::reserve_for_prefills(AdmitRequest& question) const {
  for (const RequestState* prefill : unfinished_prefills_)
    question.reserve_for.push_back({prefill->id, prefill->num_computed_tokens});
  const SpeculativeConfig& speculative = config_.speculative;
  if (speculative.num_draft_tokens > 0)
    question.num_reserved_tokens =
        1 + speculative.num_draft_tokens + speculative.num_lookahead_tokens;
}

// ---- failed loads -------------------------------------------------------------------------------

/// Truncates requests to their valid prefix, from which they are recomputed; or fails them, by
/// configuration. Returns those whose part of the step's result is invalid.
Task<std::vector<RequestId>> Scheduler::take_failed_loads(const SchedulerOutput& step,
                                                          const KVConnectorOutput& report) {
  const bool recompute = config_.kv_transfer.recompute_failed_loads;
  const auto fail = [this](RequestId id) {
    failures_.emplace_back(
        id, Error{ErrorCode::kInternal, "the KV of the request could not be loaded", {}});
  };
  for (const RequestId id : report.failed_recving) {
    const auto known = requests_.find(id);
    if (known == requests_.end() || is_finished(known->second->status)) continue;
    if (!recompute) {
      fail(id);
      continue;
    }
    known->second->num_computed_tokens = 0;
    known->second->kv_load_failed = true;
  }
  std::vector<RequestId> lost;
  if (report.invalid_block_ids.empty()) co_return lost;

  // A step's own loads are reported as done by it: nobody is to find what came wrong, even if its
  // request ends before it is computed.
  const bool is_of_step = std::ranges::any_of(running_, [&report](const RequestState* request) {
    return std::ranges::find(report.finished_recving, request->id) != report.finished_recving.end();
  });
  FindInvalidBlocks question{.updates = take_kv_updates(),
                             .block_ids = report.invalid_block_ids,
                             .drop_content = !recompute || is_of_step};
  for (const RequestState* request : holding_.list())
    if (request->status == RequestStatus::kWaitingForRemoteKVs)
      question.loading.push_back({request->id, request->num_computed_tokens});
  for (const RequestState* request : running_) {
    std::int32_t num_tokens = request->num_computed_tokens;
    const auto scheduled =
        std::find(step.scheduled_ids.begin(), step.scheduled_ids.end(), request->id);
    if (scheduled != step.scheduled_ids.end())
      num_tokens -= step.num_scheduled_tokens[static_cast<std::size_t>(scheduled -
                                                                       step.scheduled_ids.begin())];
    question.running.push_back({request->id, num_tokens});
  }
  const std::vector<FindInvalidBlocks::Loaded> loading = question.loading;
  const std::vector<FindInvalidBlocks::Loaded> running = question.running;
  const InvalidBlocksFound found = co_await kv_cache_.find_invalid_blocks(std::move(question));
  num_free_blocks_ = found.num_free_blocks;
  for (std::size_t i = 0; i < loading.size(); ++i) {
    if (found.loading[i] < 0) continue;
    RequestState& request = *requests_.at(loading[i].id);
    request.num_computed_tokens = found.loading[i];
    request.kv_load_failed = true;
    if (!recompute) fail(request.id);
  }
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (found.running[i] < 0) continue;
    RequestState& request = *requests_.at(running[i].id);
    if (!recompute) fail(request.id);
    if (config_.kv_transfer.num_groups > 1) {
      std::erase(running_, &request);
      preempt(request, /*drop_output=*/true);
      continue;
    }
    request.num_computed_tokens = found.running[i];
    lost.push_back(request.id);
    // It may need earlier images again, for which those that it holds leave no space.
    if (!request.mm_features.empty()) tell_encoder(EncoderCacheCommandKind::kFreeAll, request);
    if (config_.async_scheduling && recompute) {
      // Results of later steps are invalid too: they were computed from the same KV.
      request.num_output_placeholders = 0;
      request.num_stale_tokens = request.num_in_flight_tokens;
      request.drop_stale_output = true;
      request.draft_token_ids.clear();
      // The input of its next token may be among them: the last known one is computed again.
      request.num_computed_tokens = std::min(request.num_computed_tokens, request.num_tokens() - 1);
    }
  }
  co_return lost;
}

/// A failed load keeps its blocks until the scan of the waiting requests gets to it, its reserved
/// blocks until its request runs, and its place before those whose KV is loaded: as in vLLM, where
/// the first request that is to be loaded again then waits for the others, and they for it.
bool Scheduler::release_failed_loads() {
  const auto is_loading = [](const RequestState* request) {
    return request->kv_load == KVLoad::kInProgress;
  };
  if (!running_.empty() || num_holding_after_end_ > 0 || !deferred_fences_.empty() ||
      std::ranges::any_of(unfinished_prefills_, is_loading))
    return false;  // blocks become free in any case
  std::vector<RequestState*> failed;
  for (const RequestState* waiting : holding_.list()) {
    RequestState& request = *requests_.at(waiting->id);
    if (request.num_computed_tokens > 0 || waits_for_remote_kvs(request)) continue;
    holding_.remove(&request);
    failed.push_back(&request);
  }
  waiting_.prepend(failed);
  const auto has_no_blocks = [](const RequestState* request) { return !request->has_blocks; };
  return std::erase_if(unfinished_prefills_, has_no_blocks) > 0 || !failed.empty();
}

// ---- finished requests --------------------------------------------------------------------------

namespace {

/// For a remote prefill, reports the number of cached tokens to the client.
void add_remote_prefill(std::string& kv_transfer_params, const PrefillStats& stats) {
  auto params = nlohmann::json::parse(kv_transfer_params, nullptr, /*allow_exceptions=*/false);
  if (!params.is_object()) return;
  const auto flag = params.find("do_remote_prefill");
  if (flag == params.end() || *flag != true) return;
  params["remote_prefill_cached_tokens"] = stats.num_cached_tokens;
  kv_transfer_params = params.dump();
}

}  // namespace

/// Notifies the connector of requests that have finished since the last call; it may keep their
/// blocks. `outputs` get its parameters for the clients.
Task<bool> Scheduler::release_ended(std::span<EngineCoreOutput> outputs) {
  const std::vector<RequestState*> ended = std::exchange(ended_, {});
  for (RequestState* const request : ended) {
    ReadBlockTable question{take_kv_updates(), request->id,
                            connector_->num_tokens_to_keep(*request),
                            request->num_in_flight_tokens};
    const BlockTableRead answer = co_await kv_cache_.read_block_table(std::move(question));
    num_free_blocks_ = answer.num_free_blocks;
    KVConnector::Finished finished = connector_->request_finished(*request, answer.block_ids);
    for (EngineCoreOutput& output : outputs) {
      if (output.id != request->id || !output.finish_reason) continue;
      output.kv_transfer_params = std::move(finished.kv_transfer_params);
      if (output.prefill_stats)
        add_remote_prefill(output.kv_transfer_params, *output.prefill_stats);
    }
    if (finished.delay_free || request->kv_load == KVLoad::kInProgress) {
      request->holds_blocks_after_end = true;
      ++num_holding_after_end_;
    } else {
      forget(*request);
    }
  }
  co_return true;
}

void Scheduler::take_transfer_results(const KVConnectorOutput& report) {
  for (const RequestId id : report.finished_recving) {
    const auto known = requests_.find(id);
    if (known == requests_.end()) continue;
    RequestState& request = *known->second;
    if (request.status == RequestStatus::kWaitingForRemoteKVs)
      request.kv_load = KVLoad::kFinished;
    else if (request.holds_blocks_after_end)
      forget(request);
  }
  for (const RequestId id : report.finished_sending) {
    const auto known = requests_.find(id);
    if (known != requests_.end() && known->second->holds_blocks_after_end) forget(*known->second);
  }
  connector_->update_connector_output(report);
}

/// For those who load a request's KV while its prompt is being computed.
void Scheduler::add_early_params(EngineCoreOutputs& outputs) {
  for (auto& [id, params] : connector_->take_early_params()) {
    const auto known = requests_.find(id);
    if (known == requests_.end() || is_finished(known->second->status)) continue;
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.id = id;
    output.client_index = known->second->client_index;
    output.kv_transfer_params = std::move(params);
  }
}

// ---- fences -------------------------------------------------------------------------------------

/// Whether workers still run a step that includes this request: a transfer could write to its
/// blocks before that step is done.
bool Scheduler::must_defer_free(const RequestState& request) const {
  return defer_frees_ && request.last_fence > processed_fence_;
}

void Scheduler::free_blocks(RequestState& request) {
  // One that was preempted may end before it has blocks again.
  if (!std::exchange(request.has_blocks, false) || !must_defer_free(request))
    return tell_kv(KVCacheCommandKind::kFreeBlocks, request.id);
  tell_kv(KVCacheCommandKind::kDeferFree, request.id);
  deferred_fences_.push_back(fence_);
}

void Scheduler::pass_fence() {
  ++processed_fence_;
  std::int32_t num_due = 0;
  for (; !deferred_fences_.empty() && deferred_fences_.front() <= processed_fence_; ++num_due)
    deferred_fences_.pop_front();
  if (num_due > 0) tell_kv(KVCacheCommandKind::kReleaseDeferred, RequestId{}, num_due);
}

void Scheduler::count_kv_loads(SchedulerStats& stats) const {
  for (const RequestQueue* queue : {&holding_, &waiting_}) {
    for (const RequestState* request : queue->list()) {
      stats.num_kv_loads_to_start += request->kv_load == KVLoad::kToStart;
      stats.num_kv_loads_in_progress += request->kv_load == KVLoad::kInProgress;
      stats.num_kv_loads_waiting += request->kv_load == KVLoad::kFinished;
    }
  }
}

}  // namespace troupe
