// Structured output in the loop of the Scheduler: grammars are compiled and masks filled elsewhere.
#include <utility>

#include "actors/scheduler_state.hpp"

namespace troupe {

void compile_grammar(SchedulerSelf self, const RequestState& request) {
  SchedulerState& scheduler = state(self);
  if (scheduler.peers.grammar_compiler == nullptr) {
    const Error error{ErrorCode::kUnsupported, "structured output is not available",
                      "structured_outputs"};
    return scheduler.core->set_grammar(request.id, error);
  }
  PendingGrammar& pending = scheduler.grammars[request.id];
  if (pending.grammar && pending.sequence == request.sequence)
    return;  // the next chunk of its session
  pending = {request.sequence, std::make_shared<std::optional<Result<std::unique_ptr<Grammar>>>>()};
  scheduler.peers.grammar_compiler->compile(
      request.params,
      [me = SchedulerActor(self), compiled = GrammarCompiled{request.id, request.sequence},
       place = pending.grammar](Result<std::unique_ptr<Grammar>> grammar) {
        *place = std::move(grammar);
        post(me, compiled);
      });
}

void take(SchedulerSelf self, GrammarCompiled& compiled) {
  log_other(self, "grammar compiled");
  SchedulerState& scheduler = state(self);
  const auto pending = scheduler.grammars.find(compiled.id);
  if (pending == scheduler.grammars.end() || pending->second.sequence != compiled.sequence) return;
  const auto grammar = std::move(pending->second.grammar);
  scheduler.grammars.erase(pending);
  const RequestState* const request = scheduler.core->request(compiled.id);
  if (request != nullptr && request->sequence == compiled.sequence)
    scheduler.core->set_grammar(compiled.id, std::move(grammar->value()));
}

void send_masks(SchedulerSelf self, GrammarOutput masks) {
  masks.incarnation = state(self).incarnation;
  send(self, state(self).peers.executor, std::move(masks));
}

void fill_masks_of(SchedulerSelf self, const SchedulerOutput& step) {
  SchedulerState& scheduler = state(self);
  std::optional<GrammarStep> structured = scheduler.core->grammar_step(step);
  if (!structured) return send_masks(self, GrammarOutput{.step = step.step});
  const auto place = std::make_shared<std::optional<GrammarMasks>>();
  scheduler.masks.emplace(step.step, place);
  scheduler.peers.grammar_compiler->fill(
      *std::move(structured),
      [me = SchedulerActor(self), filled = GrammarFilled{step.step}, place](GrammarMasks masks) {
        *place = std::move(masks);
        post(me, filled);
      });
}

void take(SchedulerSelf self, GrammarFilled& filled) {
  SchedulerState& scheduler = state(self);
  auto pending = scheduler.masks.extract(filled.step);
  if (pending.empty()) return;  // the step has failed
  GrammarMasks masks = *std::move(*pending.mapped());
  send(self, scheduler.peers.output_processor,
       scheduler.core->end_structured(masks, now_seconds()));
  scheduler.core->set_proposals(std::move(masks.proposals));
  send_masks(self, std::move(masks.output));
}

void take(SchedulerSelf self, PendingProposals& pending) {
  state(self).core->set_proposals(std::move(pending.proposals));
}

}  // namespace troupe
