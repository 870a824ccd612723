#include "runtime/processors/request_journal.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/request_time.hpp"

namespace troupe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

double deadline(const GenerateRequest& request, double limit_s) {
  return limit_s > 0 ? request.arrival_time + limit_s : kNever;
}

/// Who has been given something has been scheduled.
double queue_deadline(const GenerateRequest& request) {
  return request.emitted.empty() ? deadline(request, request.limits.max_queue_time_s) : kNever;
}

double request_deadline(const GenerateRequest& request) {
  return deadline(request, request.limits.max_request_time_s);
}

bool has_tokens(const GenerateRequest& request) {
  return std::any_of(request.emitted.begin(), request.emitted.end(),
                     [](const EmittedSample& sample) { return !sample.token_ids.empty(); });
}

/// Ends here, without the engine: every sample that has not ended does so for `reason`.
RequestOutput final_output(const GenerateRequest& request, std::optional<FinishReason> reason) {
  RequestOutput output;
  output.id = request.id;
  output.finished = true;
  for (std::int32_t i = 0; reason && i < request.params.n; ++i) {
    const EmittedSample* const emitted =
        request.emitted.empty() ? nullptr : &request.emitted[static_cast<std::size_t>(i)];
    if (emitted != nullptr && emitted->finished) continue;
    CompletionOutput& sample = output.outputs.emplace_back();
    sample.index = i;
    sample.finish_reason = reason;
    if (emitted != nullptr) sample.cumulative_logprob = emitted->cumulative_logprob;
  }
  return output;
}

}  // namespace

Result<void> RequestJournal::add(GenerateRequest request) {
  if (waiting_.size() >= kMaxWaiting) {
    return Error{ErrorCode::kOverloaded,
                 std::to_string(waiting_.size()) +
                     " requests wait for the engine to be replaced, the limit is " +
                     std::to_string(kMaxWaiting),
                 ""};
  }
  if (request.params.output_kind == OutputKind::kFinalOnly) {
    request.params.output_kind = OutputKind::kDelta;
    request.params.stream_interval = kFinalOnlyInterval;
  }
  const RequestId id = request.id;
  const std::uint64_t sequence = next_sequence_++;
  const bool is_new =
      entries_.emplace(id, Entry{.request = std::move(request), .sequence = sequence}).second;
  CHECK(is_new, value(id));
  waiting_.emplace(sequence, id);
  return {};
}

std::vector<GenerateRequest> RequestJournal::take_submissions() {
  std::vector<GenerateRequest> submissions;
  if (!has_engine_) return submissions;
  if (in_quarantine()) {
    if (quarantined_) return submissions;
    CHECK(num_in_engine_ == 0, num_in_engine_);
    quarantined_ = suspects_.begin()->second;
    submissions.push_back(hand_out(suspects_, suspects_.begin()));
    return submissions;
  }
  submissions.reserve(waiting_.size());
  while (!waiting_.empty()) submissions.push_back(hand_out(waiting_, waiting_.begin()));
  return submissions;
}

GenerateRequest RequestJournal::hand_out(Queue& queue, Queue::iterator next) {
  Entry& entry = entries_.at(next->second);
  queue.erase(next);
  entry.in_engine = true;
  ++num_in_engine_;
  return entry.request;
}

void RequestJournal::record(const RequestOutputs& outputs) {
  for (const RequestOutput& output : outputs.outputs) {
    const auto entry = entries_.find(output.id);
    if (entry == entries_.end()) continue;
    if (output.finished) {
      end(entry);
      continue;
    }
    for (const CompletionOutput& sample : output.outputs) note(entry->second, sample);
  }
}

void RequestJournal::note(Entry& entry, const CompletionOutput& output) {
  const auto num_samples = static_cast<std::size_t>(entry.request.params.n);
  const auto index = static_cast<std::size_t>(output.index);
  CHECK(index < num_samples, output.index, num_samples);
  entry.request.emitted.resize(num_samples);
  EmittedSample& emitted = entry.request.emitted[index];
  if (entry.request.params.output_kind == OutputKind::kCumulative) emitted.token_ids.clear();
  emitted.token_ids.insert(emitted.token_ids.end(), output.token_ids.begin(),
                           output.token_ids.end());
  emitted.cumulative_logprob = output.cumulative_logprob;
  emitted.finished = output.finish_reason.has_value();
}

RequestJournal::Aborted RequestJournal::abort(std::span<const RequestId> ids) {
  Aborted aborted;
  for (const RequestId id : ids) abort_one(id, aborted);
  return aborted;
}

RequestJournal::Aborted RequestJournal::abort_all() {
  std::vector<RequestId> ids;
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  return abort(ids);
}

void RequestJournal::abort_one(RequestId id, Aborted& aborted) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (waits(entry)) return end_with(found, std::nullopt, FinishReason::kAbort, aborted.ended);
  entry.aborted = true;
  AbortRequests& samples = aborted.to_engine.emplace_back();
  for (std::int32_t i = 0; i < entry.request.params.n; ++i) {
    samples.ids.push_back(RequestId{value(id) + static_cast<std::uint64_t>(i)});
  }
}

RequestJournal::Replaced RequestJournal::engine_replaced(bool crashed) {
  has_engine_ = false;
  Replaced replaced;
  const bool was_alone = num_in_engine_ == 1;
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto current = next++;
    Entry& entry = current->second;
    if (!entry.in_engine) continue;
    take_back(entry);
    entry.num_crashes += crashed;
    if (entry.aborted) {
      end_with(current, std::nullopt, FinishReason::kAbort, replaced.ended);
    } else if (crashed && was_alone && entry.num_crashes >= kMaxCrashes) {
      end_with(current,
               Error{ErrorCode::kInternal,
                     "the engine crashed " + std::to_string(entry.num_crashes) +
                         " times while it ran this request, the last time with nothing else",
                     ""},
               std::nullopt, replaced.ended);
    } else {
      Queue& queue = entry.num_crashes >= kSuspectCrashes ? suspects_ : waiting_;
      queue.emplace(entry.sequence, current->first);
      ++replaced.num_resubmissions;
    }
  }
  return replaced;
}

void RequestJournal::take_back(Entry& entry) {
  entry.in_engine = false;
  --num_in_engine_;
  if (quarantined_ == entry.request.id) quarantined_.reset();
}

RequestOutputs RequestJournal::fail_all(const Error& error) {
  RequestOutputs ended;
  while (!entries_.empty()) end_with(entries_.begin(), error, std::nullopt, ended);
  return ended;
}

RequestOutputs RequestJournal::expire(double now) {
  RequestOutputs ended;
  if (has_engine_ && num_in_engine_ == entries_.size()) return ended;
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto current = next++;
    const GenerateRequest& request = current->second.request;
    if (!waits(current->second)) continue;
    const double age_s = now - request.arrival_time;
    if (queue_deadline(request) <= now) {
      end_with(current, queue_time_error(age_s, request.limits), std::nullopt, ended);
    } else if (request_deadline(request) > now) {
      continue;
    } else if (has_tokens(request)) {  // which are its answer
      end_with(current, std::nullopt, FinishReason::kTimeout, ended);
    } else {
      end_with(current, request_time_error(age_s, request.limits), std::nullopt, ended);
    }
  }
  return ended;
}

double RequestJournal::next_deadline() const {
  double next = kNever;
  if (has_engine_ && num_in_engine_ == entries_.size()) return next;
  for (const auto& [id, entry] : entries_) {
    if (!waits(entry)) continue;
    next = std::min({next, queue_deadline(entry.request), request_deadline(entry.request)});
  }
  return next;
}

void RequestJournal::end(Entries::iterator entry) {
  if (entry->second.in_engine) take_back(entry->second);
  waiting_.erase(entry->second.sequence);
  suspects_.erase(entry->second.sequence);
  entries_.erase(entry);
}

void RequestJournal::end_with(Entries::iterator entry, std::optional<Error> error,
                              std::optional<FinishReason> reason, RequestOutputs& ended) {
  RequestOutput& output = ended.outputs.emplace_back(final_output(entry->second.request, reason));
  output.error = std::move(error);
  end(entry);
}

}  // namespace troupe
