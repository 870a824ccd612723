#include "runtime/processors/request_journal.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/guard.hpp"
#include "runtime/base/request_time.hpp"
#include "runtime/processors/final_output.hpp"
#include "runtime/processors/split_request.hpp"

namespace troupe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

double deadline(const GenerateRequest& request, double limit_s) {
  return limit_s > 0 ? request.arrival_time + limit_s : kNever;
}

/// A request with output has been scheduled.
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

std::size_t count_tokens(const GenerateRequest& request) {
  std::size_t count = 0;
  for (const EmittedSample& sample : request.emitted) count += sample.token_ids.size();
  return count;
}

}  // namespace

Result<void> RequestJournal::add(SubmitRequest submission) {
  GenerateRequest& request = submission.request;
  const std::size_t num_waiting = waiting_.size() + suspects_.size() - num_taken_back_;
  if (num_waiting >= kMaxWaiting) {
    return Error{ErrorCode::kOverloaded,
                 std::to_string(num_waiting) +
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
  const bool is_new = entries_
                          .emplace(id, Entry{.request = std::move(request),
                                             .placement = std::move(submission.placement),
                                             .sequence = sequence})
                          .second;
  CHECK(is_new, value(id));
  waiting_.emplace(sequence, id);
  return {};
}

std::vector<RequestJournal::Submission> RequestJournal::take_submissions(Coordinator& coordinator) {
  std::vector<Submission> submissions;
  choose_quarantine();
  if (quarantine_ && !quarantined_ && groups_[*quarantine_].num_requests == 0) {
    quarantined_ = suspects_.begin()->second;
    submissions.push_back(hand_out(suspects_, {.group = *quarantine_}));
    if (submissions.back().error) quarantined_.reset();
  }
  std::vector<Coordinator::Candidate> candidates;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].open && quarantine_ != group)
      candidates.push_back({group, groups_[group].num_samples});
  }
  if (candidates.empty()) return submissions;
  submissions.reserve(submissions.size() + waiting_.size());
  while (!waiting_.empty()) {
    const Entry& next = entries_.at(waiting_.begin()->second);
    const Coordinator::Route route = coordinator.route(
        next.request, next.placement, candidates,
        next.kv_transfer_params.empty() && may_split(next.request, next.placement));
    submissions.push_back(hand_out(waiting_, route));
    for (Coordinator::Candidate& candidate : candidates) {
      if (candidate.group == route.group)
        candidate.num_in_flight = groups_[route.group].num_samples;
    }
  }
  return submissions;
}

/// Chooses an empty group if there is one, else one that will return and be empty, else the one
/// with the fewest requests: they finish there, and it gets no others.
void RequestJournal::choose_quarantine() {
  if (!in_quarantine()) return quarantine_.reset();
  if (quarantine_ && groups_[*quarantine_].open) return;
  quarantine_.reset();
  bool one_returns = false;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    one_returns |= groups_[i].returns;
    if (!groups_[i].open) continue;
    if (!quarantine_ || groups_[i].num_requests < groups_[*quarantine_].num_requests)
      quarantine_ = i;
  }
  if (quarantine_ && groups_[*quarantine_].num_requests > 0 && one_returns) quarantine_.reset();
}

RequestJournal::Submission RequestJournal::hand_out(Queue& queue, Coordinator::Route route) {
  const auto found = entries_.find(queue.begin()->second);
  CHECK(found != entries_.end(), value(queue.begin()->second));
  const std::size_t group = route.group;
  Submission submission{.group = group, .request = {}, .again = found->second.taken_back};
  submission.error = guard([&] {
    const Entry& entry = found->second;
    submission.request = route.prefill_only ? prompt_of(entry.request) : entry.request;
    submission.placement = entry.placement;
    if (route.prefill_only) {
      submission.request.id = next_prompt_id_;
      submission.placement.kv_transfer_params = kHoldParams;
      prompts_.emplace(
          next_prompt_id_,
          Prompt{.request = found->first, .group = group, .num_samples = entry.request.params.n});
    }
    if (!entry.kv_transfer_params.empty())
      submission.placement.kv_transfer_params = entry.kv_transfer_params;
  });
  if (submission.error) {
    submission.request = {};
    submission.request.id = found->first;
    end(found);
    return submission;
  }
  queue.erase(queue.begin());
  Entry& entry = found->second;
  end_waiting(entry);
  entry.group = group;
  if (route.prefill_only)
    entry.prompt_id = std::exchange(next_prompt_id_, RequestId{value(next_prompt_id_) + 1});
  entry.kv_transfer_params.clear();  // blocks are loaded once
  entry.tokens_before = count_tokens(entry.request);
  ++groups_[group].num_requests;
  groups_[group].num_samples += entry.request.params.n;
  return submission;
}

/// Of a prompt that a group computes for another one. True: its client has nothing to receive.
bool RequestJournal::take_prefill(Entries::iterator entry, RequestOutput& output) {
  if (!output.finished) {
    if (!output.kv_transfer_params.empty() && !entry->second.aborted)
      answer_early(entry, std::move(output.kv_transfer_params));
    return true;
  }
  const bool has_failed = output.error || output.outputs.empty();
  const auto reason = has_failed ? std::nullopt : output.outputs.front().finish_reason;
  const bool is_done = reason == FinishReason::kLength || reason == FinishReason::kStop;
  if (!is_done || entry->second.aborted) {
    if (is_done) output = final_output(entry->second.request, FinishReason::kAbort);
    return false;
  }
  take_back(entry->second);
  // Without any, the next group computes the prompt: this one has had its turn.
  entry->second.kv_transfer_params =
      output.kv_transfer_params.empty() ? "{}" : std::move(output.kv_transfer_params);
  waiting_.emplace(entry->second.sequence, entry->first);
  return true;
}

/// The group goes on computing, which counts as a request of it.
void RequestJournal::answer_early(Entries::iterator entry, std::string kv_transfer_params) {
  const RequestId prompt_id = *entry->second.prompt_id;
  Prompt prompt = prompts_.at(prompt_id);
  prompt.is_early = true;
  take_back(entry->second);
  ++groups_[prompt.group].num_requests;
  groups_[prompt.group].num_samples += prompt.num_samples;
  prompts_.emplace(prompt_id, prompt);
  entry->second.early_id = prompt_id;
  entry->second.kv_transfer_params = std::move(kv_transfer_params);
  waiting_.emplace(entry->second.sequence, entry->first);
}

void RequestJournal::end_early(Prompts::iterator prompt) {
  Group& group = groups_[prompt->second.group];
  --group.num_requests;
  group.num_samples -= prompt->second.num_samples;
  prompts_.erase(prompt);
}

std::vector<RequestJournal::Failure> RequestJournal::record(RequestOutputs& outputs) {
  std::vector<Failure> failures;
  std::erase_if(outputs.outputs, [this](RequestOutput& output) {
    const auto prompt = prompts_.find(output.id);
    if (prompt == prompts_.end()) return false;
    if (prompt->second.is_early) {
      if (output.finished) end_early(prompt);
      return true;
    }
    output.id = prompt->second.request;
    return take_prefill(entries_.find(output.id), output);
  });
  for (const RequestOutput& output : outputs.outputs) {
    const auto entry = entries_.find(output.id);
    if (entry == entries_.end()) continue;
    if (output.finished) {
      end(entry);
      continue;
    }
    auto error = guard([&] {
      for (const CompletionOutput& sample : output.outputs) note(entry->second, sample);
    });
    if (error) failures.push_back({output.id, *std::move(error)});
  }
  return failures;
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
  if (entry.early_id) {
    const auto prompt = prompts_.find(*entry.early_id);
    if (prompt != prompts_.end())
      aborted.to_engine.emplace_back(ToEngine{prompt->second.group, {{prompt->first}}});
  }
  if (!entry.group) return end_with(found, std::nullopt, FinishReason::kAbort, aborted.ended);
  entry.aborted = true;
  AbortRequests& samples = aborted.to_engine.emplace_back(ToEngine{*entry.group, {}}).samples;
  if (entry.prompt_id) return samples.ids.push_back(*entry.prompt_id);
  for (std::int32_t i = 0; i < entry.request.params.n; ++i) {
    samples.ids.push_back(RequestId{value(id) + static_cast<std::uint64_t>(i)});
  }
}

void RequestJournal::group_ready(std::size_t group) {
  groups_[group].open = true;
  groups_[group].returns = false;
}

void RequestJournal::count_loss(Entry& entry, LossCause cause, bool was_alone) {
  const int weight = was_alone && entry.is_suspect() ? 4 : 2;
  if (cause == LossCause::kCrashed) ++entry.num_crashes;
  const std::size_t progress = count_tokens(entry.request) - entry.tokens_before;
  if (progress >= kMinProgress) {
    entry.kill_score = entry.num_kills = 0;
  } else if (cause == LossCause::kKilled) {
    entry.kill_score += progress == 0 ? weight : 1;
    ++entry.num_kills;
  }
}

RequestJournal::Lost RequestJournal::group_lost(std::size_t group, LossCause cause, bool returns) {
  groups_[group].open = false;
  groups_[group].returns = returns;
  Lost lost;
  const bool was_alone = groups_[group].num_requests == 1;
  for (auto next = prompts_.begin(); next != prompts_.end();) {
    const auto current = next++;
    if (current->second.is_early && current->second.group == group) end_early(current);
  }
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto current = next++;
    Entry& entry = current->second;
    if (entry.group != group) continue;
    take_back(entry);
    count_loss(entry, cause, was_alone);
    if (entry.aborted) {
      end_with(current, std::nullopt, FinishReason::kAbort, lost.ended);
    } else if (cause == LossCause::kKilled && was_alone && entry.kill_score >= kMaxKills) {
      end_with(current,
               Error{ErrorCode::kInternal,
                     "the engine was killed " + std::to_string(entry.num_kills) +
                         " times in a row as soon as it ran this request, the last time with "
                         "nothing else: it may take more memory than there is",
                     ""},
               std::nullopt, lost.ended);
    } else if (cause == LossCause::kCrashed && was_alone && entry.num_crashes >= kMaxCrashes) {
      end_with(current,
               Error{ErrorCode::kInternal,
                     "the engine crashed " + std::to_string(entry.num_crashes) +
                         " times while it ran this request, the last time with nothing else",
                     ""},
               std::nullopt, lost.ended);
    } else {
      Queue& queue = entry.is_suspect() ? suspects_ : waiting_;
      queue.emplace(entry.sequence, current->first);
      entry.taken_back = true;
      ++num_taken_back_;
      ++lost.num_resubmissions;
    }
  }
  return lost;
}

void RequestJournal::take_back(Entry& entry) {
  Group& group = groups_[*entry.group];
  --group.num_requests;
  group.num_samples -= entry.request.params.n;
  entry.group.reset();
  if (entry.prompt_id) prompts_.erase(*entry.prompt_id);
  entry.prompt_id.reset();
  if (quarantined_ == entry.request.id) quarantined_.reset();
}

void RequestJournal::end_waiting(Entry& entry) {
  num_taken_back_ -= entry.taken_back;
  entry.taken_back = false;
}

RequestOutputs RequestJournal::fail_all(const Error& error) {
  RequestOutputs ended;
  while (!entries_.empty()) end_with(entries_.begin(), error, std::nullopt, ended);
  return ended;
}

RequestOutputs RequestJournal::expire(double now) {
  RequestOutputs ended;
  if (!has_waiting()) return ended;
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto current = next++;
    const GenerateRequest& request = current->second.request;
    if (current->second.group) continue;
    const double age_s = now - request.arrival_time;
    if (queue_deadline(request) <= now) {
      end_with(current, queue_time_error(age_s, request.limits), std::nullopt, ended);
    } else if (request_deadline(request) > now) {
      continue;
    } else if (has_tokens(request)) {  // they are its output
      end_with(current, std::nullopt, FinishReason::kTimeout, ended);
    } else {
      end_with(current, request_time_error(age_s, request.limits), std::nullopt, ended);
    }
  }
  return ended;
}

double RequestJournal::next_deadline() const {
  double next = kNever;
  if (!has_waiting()) return next;
  for (const auto& [id, entry] : entries_) {
    if (entry.group) continue;
    next = std::min({next, queue_deadline(entry.request), request_deadline(entry.request)});
  }
  return next;
}

void RequestJournal::end(Entries::iterator entry) {
  if (entry->second.group) take_back(entry->second);
  end_waiting(entry->second);
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
