// Structured output: requests wait for their grammars, which advance with sampled tokens; what is
// not known to be allowed is no draft.

#include <algorithm>

#include "runtime/base/check.hpp"
#include "runtime/scheduler/scheduler.hpp"

namespace troupe {
namespace {

/// The number of leading `drafts` that the grammar accepts. Its state is unchanged.
std::size_t num_accepted_drafts(Grammar& grammar, std::span<const TokenId> drafts) {
  std::size_t n = 0;
  while (n < drafts.size() && drafts[n] >= 0 && grammar.accept(drafts[n])) ++n;
  grammar.rollback(n);
  return n;
}

}  // namespace

void Scheduler::set_grammar(RequestId id, Result<std::unique_ptr<Grammar>> grammar) {
  const auto known = requests_.find(id);
  if (known == requests_.end() || is_finished(known->second->status)) return;
  RequestState& request = *known->second;
  if (grammar.ok()) {
    CHECK(grammar.value() != nullptr, value(id));
    request.grammar = std::move(grammar.value());
    // A resubmitted request continues after its earlier output.
    for (auto i = static_cast<std::size_t>(request.num_prompt_tokens); i < request.token_ids.size();
         ++i)
      static_cast<void>(request.grammar->accept(request.token_ids[i]));
  } else {
    request.grammar_error = grammar.error();
  }
}

/// A request whose grammar cannot be compiled is failed by the next update.
bool Scheduler::waits_for_grammar(RequestState& request) {
  if (request.status != RequestStatus::kWaitingForGrammar) return false;
  if (request.grammar_error && !std::exchange(request.grammar_error_reported, true))
    failures_.emplace_back(request.id, *request.grammar_error);
  if (request.grammar == nullptr) return true;
  request.status = RequestStatus::kWaiting;
  return false;
}

/// A token that the grammar rejects ends the request; this happens only if a sampler did not apply
/// the bitmask.
void Scheduler::advance_grammar(RequestState& request, std::span<const TokenId> kept) {
  if (request.grammar == nullptr) return;
  for (const TokenId token : kept) {
    if (request.grammar->accept(token)) continue;
    request.status = RequestStatus::kFinishedError;
    request.resumable = false;
    return;
  }
}

void Scheduler::update_draft_token_ids(
    std::span<const std::pair<RequestId, std::vector<TokenId>>> draft_token_ids) {
  if (config_.async_scheduling) return;
  for (const auto& [id, drafts] : draft_token_ids) {
    const auto known = requests_.find(id);
    if (known == requests_.end() || is_finished(known->second->status)) continue;
    RequestState& request = *known->second;
    // The tokens in flight have other drafts. These were made before a preemption.
    if (request.is_prefill_chunk || request.num_in_flight_tokens > 0) {
      request.draft_token_ids.clear();
      continue;
    }
    request.draft_token_ids = drafts;
    if (request.grammar != nullptr)
      request.draft_token_ids.resize(num_accepted_drafts(*request.grammar, drafts));
  }
}

void Scheduler::update_draft_token_ids_in_output(
    SchedulerOutput& step,
    std::span<const std::pair<RequestId, std::vector<TokenId>>> draft_token_ids) const {
  std::size_t begin = 0;
  step.num_invalid_draft_tokens.clear();
  for (std::size_t i = 0; i < step.num_draft_tokens.size(); ++i) {
    const auto scheduled = std::span(step.draft_token_ids)
                               .subspan(begin, static_cast<std::size_t>(step.num_draft_tokens[i]));
    begin += scheduled.size();
    const RequestState* const state = request(step.scheduled_ids[i]);
    const auto drafts =
        std::find_if(draft_token_ids.begin(), draft_token_ids.end(),
                     [&](const auto& entry) { return entry.first == step.scheduled_ids[i]; });
    if (scheduled.empty() || state == nullptr || is_finished(state->status) ||
        drafts == draft_token_ids.end())
      continue;
    std::size_t size = std::min(scheduled.size(), drafts->second.size());
    if (state->grammar != nullptr)
      size = num_accepted_drafts(*state->grammar, std::span(drafts->second).first(size));
    std::copy_n(drafts->second.begin(), size, scheduled.begin());
    std::fill(scheduled.begin() + static_cast<std::ptrdiff_t>(size), scheduled.end(), -1);
    if (size < scheduled.size())
      step.num_invalid_draft_tokens.emplace_back(
          state->id, static_cast<std::int32_t>(scheduled.size() - size));
  }
}

void Scheduler::set_proposals(std::vector<GrammarProposal> proposals) {
  for (GrammarProposal& proposal : proposals) {
    const auto known = requests_.find(proposal.id);
    if (known != requests_.end() && known->second->sequence == proposal.sequence)
      known->second->proposal = std::move(proposal);
  }
}

/// Tokens in flight are taken to be those that were proposed in their places: if they are not, the
/// drafts are not accepted.
void Scheduler::draft_proposal(RequestState& request) const {
  GrammarProposal& proposal = request.proposal;
  if (proposal.tokens.empty() || config_.max_proposed_tokens == 0) return;
  const std::span<const TokenId> tokens = proposal.tokens;
  const auto num_known = static_cast<std::size_t>(request.num_tokens());
  const auto next = num_known + static_cast<std::size_t>(request.num_output_placeholders);
  bool is_true = proposal.num_tokens <= num_known && next < proposal.num_tokens + tokens.size();
  for (std::size_t i = proposal.num_tokens; is_true && i < num_known; ++i)
    is_true = request.token_ids[i] == tokens[i - proposal.num_tokens];
  // A model that goes its own way where it may is left to it.
  constexpr std::int32_t kPatience = 16;
  if (!is_true || request.num_rejected_proposals > kPatience + request.num_accepted_proposals) {
    proposal.tokens.clear();
    return;
  }
  const auto drafts = tokens.subspan(next - proposal.num_tokens);
  request.draft_token_ids.assign(drafts.begin(), drafts.end());
}

std::optional<GrammarStep> Scheduler::grammar_step(const SchedulerOutput& step) const {
  if (!step.has_structured_output_requests) return std::nullopt;
  GrammarStep structured{.step = step.step, .requests = {}};
  // Where the arithmetic of many requests fills the step, tokens in one step cost what they cost in
  // several, and what does not come true is lost.
  constexpr std::size_t kMaxRequestsWithProposals = 8;
  const bool has_room = step.scheduled_ids.size() <= kMaxRequestsWithProposals;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < step.scheduled_ids.size(); ++i) {
    const auto num_drafts =
        step.num_draft_tokens.empty() ? 0 : static_cast<std::size_t>(step.num_draft_tokens[i]);
    const auto drafts = std::span(step.draft_token_ids).subspan(begin, num_drafts);
    begin += num_drafts;
    const RequestState* const state = request(step.scheduled_ids[i]);
    if (state == nullptr || is_finished(state->status) || state->grammar == nullptr ||
        state->is_prefill_chunk)
      continue;
    structured.requests.push_back(
        {.id = state->id,
         .sequence = state->sequence,
         .words_per_row = state->grammar->words_per_row(),
         .masker = state->grammar->masker(),
         .drafts = {drafts.begin(), drafts.end()},
         .num_tokens = static_cast<std::size_t>(state->num_tokens()),
         .max_proposed_tokens =
             has_room ? static_cast<std::size_t>(config_.max_proposed_tokens) : 0});
  }
  if (structured.requests.empty()) return std::nullopt;
  return structured;
}

namespace {

void allow_everything_behind(const GrammarEnd& end, GrammarOutput& output) {
  const auto width = static_cast<std::ptrdiff_t>(output.words_per_row);
  auto row = output.bitmask.begin();
  for (std::size_t i = 0; i < output.ids.size(); ++i) {
    const auto next = row + output.num_rows[i] * width;
    if (output.ids[i] == end.id)
      std::fill(row + static_cast<std::ptrdiff_t>(end.num_tokens) * width, next, -1);
    row = next;
  }
}

}  // namespace

EngineCoreOutputs Scheduler::end_structured(GrammarMasks& masks, double now) {
  now_ = now;
  EngineCoreOutputs outputs{.engine_index = config_.engine_index, .time = now};
  for (const GrammarEnd& end : masks.ended) {
    allow_everything_behind(end, masks.output);
    const auto known = requests_.find(end.id);
    if (known == requests_.end() || known->second->sequence != end.sequence ||
        is_finished(known->second->status))
      continue;
    RequestState& request = *known->second;
    if (end.num_tokens > 0) {
      request.grammar_end = end;
      continue;
    }
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.id = end.id;
    output.client_index = request.client_index;
    output.finish_reason = end.error ? FinishReason::kError : FinishReason::kStop;
    output.events = std::exchange(request.events, {});
    output.error = end.error;
    finish(request, end.error ? RequestStatus::kFinishedError : RequestStatus::kFinishedStopped);
  }
  outputs.finished_requests = std::exchange(finished_by_client_, {});
  outputs.stats = take_stats(/*num_scheduled_tokens=*/0);
  return outputs;
}

}  // namespace troupe
