// Questions to the groups on behalf of others: the caches, pausing.
#include <algorithm>

#include "actors/router_gather.hpp"

namespace troupe::router {
namespace {

/// Asks the Schedulers of all groups; when each has answered, or has ended, `join` makes one answer
/// of theirs, which `promise` gets. Returned, so that other actors can be asked, too.
template <class Answer, class Question>
std::shared_ptr<Gathered<Answer>> ask_groups(Self self, const Question& question,
                                             caf::typed_response_promise<Answer> promise,
                                             Answer (*join)(const std::vector<Answer>&)) {
  const std::vector<SchedulerActor> schedulers = schedulers_of(state(self), /*ready_only=*/false);
  if (schedulers.empty()) promise.deliver(exit_reason_of("no group is ready"));
  const auto gathered = std::make_shared<Gathered<Answer>>();
  gathered->done = [promise, join](Gathered<Answer>& all) mutable {
    const std::vector<Answer> answers = all.take_answers();
    if (answers.empty()) {
      promise.deliver(exit_reason_of("all groups were lost"));
    } else {
      promise.deliver(join(answers));
    }
  };
  for (const SchedulerActor& scheduler : schedulers) ask_one(self, scheduler, question, gathered);
  return gathered;
}

template <class Answer, class Question>
caf::result<Answer> answer_of_groups(Self self, const Question& question,
                                     Answer (*join)(const std::vector<Answer>&)) {
  auto promise = self->make_response_promise<Answer>();
  ask_groups(self, question, promise, join);
  return promise;
}

CachesReset join_resets(const std::vector<CachesReset>& resets) {
  return {std::all_of(resets.begin(), resets.end(), [](const auto& reset) { return reset.ok; })};
}

CacheMoved join_moves(const std::vector<CacheMoved>& moves) {
  CacheMoved all;
  for (const CacheMoved& moved : moves) {
    all.num_blocks += moved.num_blocks;
    if (!all.error) all.error = moved.error;
  }
  return all;
}

PauseStatus join_pauses(const std::vector<PauseStatus>& pauses) {
  return {
      std::all_of(pauses.begin(), pauses.end(), [](const auto& status) { return status.paused; })};
}

}  // namespace

void end_questions(Self self, const EngineLink& engine, const std::string& reason) {
  std::map<std::uint64_t, OpenQuestion>& questions = state(self).questions;
  std::vector<OpenQuestion> lost;
  for (auto it = questions.begin(); it != questions.end();) {
    const bool is_of_engine =
        it->second.actor == engine.scheduler.address() ||
        std::ranges::any_of(engine.input_processors, [&](const InputProcessorActor& actor) {
          return it->second.actor == actor.address();
        });
    if (is_of_engine) lost.push_back(std::move(it->second));
    it = is_of_engine ? questions.erase(it) : std::next(it);
  }
  // They may ask others.
  for (const OpenQuestion& question : lost) question.on_lost(reason);
}

caf::result<CachesReset> reset_caches(Self self, const ResetCaches& what) {
  auto promise = self->make_response_promise<CachesReset>();
  const auto gathered = ask_groups(self, what, promise, join_resets);
  for (const std::optional<EngineLink>& link : state(self).groups) {
    if (!link || !what.mm_cache) continue;
    for (const InputProcessorActor& actor : link->input_processors)
      ask_one(self, actor, what, gathered);
  }
  return promise;
}

caf::result<CacheMoved> move_cache(Self self, const MoveCache& what) {
  return answer_of_groups(self, what, join_moves);
}

caf::result<PauseStatus> pause(Self self, const PauseScheduler& what) {
  state(self).paused = what.mode;
  return answer_of_groups(self, what, join_pauses);
}

caf::result<PauseStatus> resume(Self self, const ResumeScheduler& what) {
  state(self).paused.reset();
  return answer_of_groups(self, what, join_pauses);
}

caf::result<PauseStatus> ask_paused(Self self, const AskPaused& what) {
  return answer_of_groups(self, what, join_pauses);
}

void pause_again(Self self, const EngineLink& engine) {
  // Requests that an abort ended are not in a new engine.
  const PauseMode mode =
      state(self).paused == PauseMode::kKeep ? PauseMode::kKeep : PauseMode::kWait;
  const auto gathered = std::make_shared<Gathered<PauseStatus>>();
  gathered->done = [](const auto&) {};
  ask_one(self, engine.scheduler, PauseScheduler{.mode = mode}, gathered);
}

}  // namespace troupe::router
