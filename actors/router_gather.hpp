#pragma once
// The same question to several actors of the engine's groups.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/deadlines.hpp"
#include "actors/router_state.hpp"

namespace troupe::router {

/// The answers of several actors to the same question, in the order of the questions.
template <class Answer>
struct Gathered {
  std::vector<std::optional<Answer>> answers;
  std::size_t num_missing = 0;
  std::optional<Error> error;  ///< of an actor that has ended, or did not reply in time
  std::function<void(Gathered&)> done;

  void one_less() {
    if (--num_missing == 0) done(*this);
  }
  [[nodiscard]] std::vector<Answer> take_answers() {
    std::vector<Answer> present;
    for (std::optional<Answer>& answer : answers)
      if (answer) present.push_back(*std::move(answer));
    return present;
  }
};

/// The handlers have one type per type of answer, as CAF instantiates much code for each type.
template <class Answer, class Handle, class Question>
void ask_one(Self self, const Handle& actor, const Question& question,
             const std::shared_ptr<Gathered<Answer>>& gathered) {
  const std::size_t index = gathered->answers.size();
  gathered->answers.emplace_back();
  ++gathered->num_missing;
  RouterState& router = state(self);
  const std::uint64_t number = router.num_questions++;
  const std::function<void(std::string)> on_lost = [gathered](std::string reason) {
    gathered->error = Error{ErrorCode::kUnavailable, "a group was lost: " + std::move(reason)};
    gathered->one_less();
  };
  router.questions[number] = {actor.address(), on_lost};
  const std::function<void(Answer&)> on_answer = [self, number, gathered, index](Answer& answer) {
    if (state(self).questions.erase(number) == 0) return;
    gathered->answers[index] = std::move(answer);
    gathered->one_less();
  };
  const std::function<void(const caf::error&)> on_error = [self, number,
                                                           on_lost](const caf::error& error) {
    if (state(self).questions.erase(number) > 0) on_lost(to_text(error, self->system()));
  };
  ask(self, actor, kPauseDeadline, question).then(on_answer, on_error);
}

/// Of all groups, or of those that are ready.
inline std::vector<SchedulerActor> schedulers_of(const RouterState& router, bool ready_only) {
  std::vector<SchedulerActor> schedulers;
  for (const std::optional<EngineLink>& link : router.groups)
    if (link && (link->ready || !ready_only)) schedulers.push_back(link->scheduler);
  return schedulers;
}

}  // namespace troupe::router
