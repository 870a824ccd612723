// Encoder inputs: which items of a prompt a step needs encoded.

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "runtime/scheduler/step_plan.hpp"

namespace troupe {

bool Scheduler::encoder_window_has_items(const RequestState& request, std::int32_t num_computed,
                                         std::int32_t num_new) const {
  if (num_new <= 0) return false;
  const std::int32_t end = num_computed + num_new + config_.speculative.num_prefill_lookahead;
  return std::any_of(request.mm_features.begin(), request.mm_features.end(),
                     [&](const MultiModalFeature& item) {
                       return item.offset < end && item.offset + item.length > num_computed;
                     });
}

Task<EncoderInputsPlanned> Scheduler::plan_encoder_inputs(const RequestState& request,
                                                          std::int32_t num_new,
                                                          std::int32_t num_computed,
                                                          const Budget& budget) {
  CHECK(encoder_cache_ != nullptr, value(request.id));
  encoder_cache_touched_ = true;
  PlanEncoderInputs question{.updates = take_encoder_updates(),
                             .id = request.id,
                             .num_computed_tokens = num_computed,
                             .num_new_tokens = num_new,
                             .shift = config_.speculative.num_prefill_lookahead,
                             .max_new_tokens = std::max(num_new, most_tokens(budget)),
                             .budget = budget.encoder_embeds};
  if (ec_connector_ != nullptr) find_external_items(request, question);
  const std::vector<std::int32_t> lookups = question.pending_items;
  if (config_.encode_ahead) find_items_ahead(request, question);
  EncoderInputsPlanned answer = co_await encoder_cache_->plan(std::move(question));
  if (answer.mismatch)
    failures_.emplace_back(
        request.id,
        invalid_argument("one multimodal identifier is used for items of different sizes"));
  if (answer.is_pending()) {
    const bool is_lookup = std::ranges::find(lookups, answer.pending_item) != lookups.end();
    encoder_lookups_pending_ |= is_lookup;
    if (!is_lookup && !wanted_ahead_)
      wanted_ahead_ = {request.id, answer.pending_item, request.status == RequestStatus::kRunning};
  }
  co_return answer;
}

void Scheduler::commit_encoder_inputs(StepPlan& plan, ScheduledRequest& entry,
                                      const EncoderInputsPlanned& inputs) {
  const std::size_t num_hits =
      static_cast<std::size_t>(inputs.num_cached) + inputs.duplicates.size();
  encoder_stats_.queries += num_hits + inputs.items.size() + inputs.external_items.size();
  encoder_stats_.hits += num_hits;
  if (inputs.items.empty() && inputs.external_items.empty() && inputs.duplicates.empty()) return;
  entry.encoder_items = StepPlan::append(plan.encoder_items, inputs.items);
  entry.external_items = StepPlan::append(plan.external_items, inputs.external_items);
  entry.num_embeds = inputs.num_embeds;
  plan.budget.encoder_embeds -= inputs.num_embeds;
  for (const auto* items : {&inputs.items, &inputs.external_items, &inputs.duplicates})
    for (const std::int32_t item : *items)
      tell_encoder(EncoderCacheCommandKind::kAllocate, *entry.request, item);
}

// ---- items that are encoded ahead ---------------------------------------------------------------

/// Chooses the next item to encode ahead: the first one that is not cached. Items that this step
/// may reach are left to it, except one that has been encoded.
void Scheduler::find_items_ahead(const RequestState& request, PlanEncoderInputs& question) {
  const auto is_in = [](const std::vector<std::int32_t>& list, std::int32_t item) {
    return std::ranges::find(list, item) != list.end();
  };
  const std::int32_t begin = question.num_computed_tokens;
  const std::int32_t end = begin + question.max_new_tokens + question.shift;
  for (std::size_t i = 0; i < request.mm_features.size(); ++i) {
    const MultiModalFeature& item = request.mm_features[i];
    if (item.offset + item.length <= begin) continue;
    if (item.offset >= end) break;
    const auto index = static_cast<std::int32_t>(i);
    const bool is_ready = ahead_ && ahead_->is_encoded && ahead_->identifier == item.identifier;
    ahead_is_reached_ |= is_ready;
    if (!is_ready && !is_in(question.external_items, index) &&
        !is_in(question.pending_items, index))
      question.pending_items.push_back(index);
  }
}

/// For the step being planned. The workers have space for one such output. It waits for the step
/// that needs it, but is replaced if a request that holds blocks waits for another one, or if no
/// request has reached it.
void Scheduler::plan_encode_ahead(const StepPlan& plan, SchedulerOutput& output) {
  const auto wanted = std::exchange(wanted_ahead_, std::nullopt);
  const bool is_reached = std::exchange(ahead_is_reached_, false);
  if (ahead_) {
    const auto uses_it = [&](const ScheduledRequest& entry) {
      return std::ranges::any_of(entry.encoder_items.of(plan.encoder_items), [&](std::int32_t i) {
        return entry.request->mm_features[static_cast<std::size_t>(i)].identifier ==
               ahead_->identifier;
      });
    };
    const bool is_used = std::ranges::any_of(plan.scheduled, uses_it);
    const bool gives_way = ahead_->is_encoded && wanted && (wanted->is_running || !is_reached);
    if (is_used || gives_way || request(ahead_->request) == nullptr) ahead_.reset();
  }
  if (!ahead_ && wanted) {
    const RequestState& owner = *requests_.at(wanted->request);
    const MultiModalFeature& item = owner.mm_features[static_cast<std::size_t>(wanted->item)];
    ahead_ = {.request = owner.id, .identifier = item.identifier};
    output.encode_ahead = item;
  } else if (ahead_ && !ahead_->is_encoded) {
    output.encode_ahead.emplace();
    output.encode_ahead->identifier = ahead_->identifier;
  }
  if (output.encode_ahead) output.encode_ahead_ms = config_.encode_ahead_ms;
}

// ---- EC connector -------------------------------------------------------------------------------

/// Which of the items that the step may reach the connector has.
void Scheduler::find_external_items(const RequestState& request, PlanEncoderInputs& question) {
  const std::int32_t begin = question.num_computed_tokens;
  const std::int32_t end = begin + question.max_new_tokens + question.shift;
  for (std::size_t i = 0; i < request.mm_features.size(); ++i) {
    const MultiModalFeature& item = request.mm_features[i];
    if (item.offset + item.length <= begin) continue;
    if (item.offset >= end) break;
    const std::optional<bool> has = ec_connector_->has_cache_item(item, now_);
    if (!has)
      question.pending_items.push_back(static_cast<std::int32_t>(i));
    else if (*has)
      question.external_items.push_back(static_cast<std::int32_t>(i));
  }
}

/// What the connector has of them is known, with luck, when the request is admitted.
void Scheduler::add_item_users(std::span<const MultiModalFeature> items) {
  if (ec_connector_ == nullptr) return;
  for (const MultiModalFeature& item : items) {
    ++item_users_[item.identifier];
    static_cast<void>(ec_connector_->has_cache_item(item, now_));
  }
}

/// The request has finished.
void Scheduler::release_items(const RequestState& request) {
  if (ec_connector_ == nullptr) return tell_encoder(EncoderCacheCommandKind::kForget, request);
  std::vector<std::string> identifiers;
  for (const MultiModalFeature& item : request.mm_features) identifiers.push_back(item.identifier);
  if (ec_connector_->request_finished(request))
    delayed_releases_.emplace(request.id, std::move(identifiers));
  else
    release_items(request.id, identifiers);
}

void Scheduler::release_items(RequestId id, std::span<const std::string> identifiers) {
  encoder_updates_.commands.push_back({EncoderCacheCommandKind::kForget, id, 0});
  for (const std::string& identifier : identifiers) {
    const auto users = item_users_.find(identifier);
    CHECK(users != item_users_.end(), value(id), identifier);
    if (--users->second > 0) continue;
    item_users_.erase(users);
    ec_connector_->release(identifier);
  }
}

void Scheduler::start_encoder_loads(const StepPlan& plan) {
  for (const ScheduledRequest& entry : plan.scheduled) {
    for (const std::int32_t item : entry.external_items.of(plan.external_items))
      ec_connector_->update_state_after_alloc(
          *entry.request, entry.request->mm_features[static_cast<std::size_t>(item)]);
    const auto num_external = static_cast<std::int32_t>(entry.external_items.size);
    encoder_transfer_stats_.num_hits += num_external;
    encoder_transfer_stats_.num_queries +=
        num_external + static_cast<std::int32_t>(entry.encoder_items.size);
  }
}

void Scheduler::take_encoder_report(const ECConnectorOutput& report) {
  for (const std::string& identifier : report.encoded_ahead)
    if (ahead_ && ahead_->identifier == identifier) ahead_->is_encoded = true;
  if (ec_connector_ == nullptr) return;
  encoder_transfer_stats_.num_failed += static_cast<std::int32_t>(report.failed.size());
  encoder_transfer_stats_.num_saved += static_cast<std::int32_t>(report.saved.size());
  encoder_transfer_stats_.num_fetched +=
      static_cast<std::int32_t>(std::ranges::count_if(report.fetched, [&](const auto& fetched) {
        return std::ranges::find(report.failed, fetched) == report.failed.end();
      }));
  ec_connector_->update_connector_output(report);
  for (const RequestId id : report.finished_sending) {
    const auto delayed = delayed_releases_.extract(id);
    if (!delayed.empty()) release_items(id, delayed.mapped());
  }
}

}  // namespace troupe
