// Questions to the groups on behalf of others: rendering, the caches, pausing, adapters.
#include <algorithm>
#include <functional>

#include "actors/deadlines.hpp"
#include "actors/router_state.hpp"
#include "runtime/base/guard.hpp"
#include "runtime/base/log.hpp"

namespace troupe::router {
namespace {

constexpr std::size_t kMaxRenders = 1024;  ///< unanswered
constexpr int kMaxRenderTries = 3;

void try_render(Self self, RequestId id) {
  RouterState& router = state(self);
  PendingRender& render = router.renders.at(id);
  ++render.num_tries;
  render.group = router.any_group(value(id));
  ask(self, router.groups[*render.group]->input_processor(value(id)), render.request)
      .then(
          [self, id](RenderReply& reply) {
            auto pending = state(self).renders.extract(id);
            if (pending.empty()) return;
            state(self).book.remove(id);
            pending.mapped().promise.deliver(std::move(reply));
          },
          [](const caf::error&) {});  // another group will be asked
}

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

std::vector<SchedulerActor> schedulers_of(const RouterState& router, bool ready_only) {
  std::vector<SchedulerActor> schedulers;
  for (const std::optional<EngineLink>& link : router.groups)
    if (link && (link->ready || !ready_only)) schedulers.push_back(link->scheduler);
  return schedulers;
}

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

/// Tells the Frontends which adapters requests may name.
void report_adapters(Self self) {
  report(self, {.healthy = state(self).healthy, .adapters = state(self).adapters.list()});
}

/// Asks the Schedulers; `done` gets the error of one of them, else the first list.
template <class Question>
void ask_adapters(Self self, const std::vector<SchedulerActor>& schedulers,
                  const Question& question, std::function<void(AdapterReply)> done) {
  const auto gathered = std::make_shared<Gathered<AdapterReply>>();
  gathered->done = [done = std::move(done)](Gathered<AdapterReply>& all) {
    AdapterReply joined{.adapters = {}, .error = std::move(all.error)};
    for (AdapterReply& reply : all.take_answers()) {
      if (!joined.error) joined.error = std::move(reply.error);
      if (joined.adapters.empty()) joined.adapters = std::move(reply.adapters);
    }
    done(std::move(joined));
  };
  for (const SchedulerActor& scheduler : schedulers) ask_one(self, scheduler, question, gathered);
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

caf::result<RenderReply> take_render(Self self, RenderRequest& request) {
  RouterState& router = state(self);
  if (router.failure) return RenderReply{.error = router.failure};
  if (router.renders.size() >= kMaxRenders) {
    return RenderReply{
        .error = Error{ErrorCode::kOverloaded, std::to_string(kMaxRenders) +
                                                   " requests wait for an input processor, "
                                                   "which is the limit"}};
  }
  const auto client = sender_of(self);
  if (value(request.id) == 0 || !client) {
    request.id = router.book.allocate(1);
  } else {
    const auto id = router.book.add(*client, request.id, 1, false);
    if (!id.ok()) return RenderReply{.error = id.error()};
    request.id = *id;
  }
  const RequestId id = request.id;
  auto promise = self->make_response_promise<RenderReply>();
  auto thrown = guard([&] {
    router.renders.emplace(id, PendingRender{std::move(request), promise});
    if (router.has_ready_group()) try_render(self, id);
  });
  if (thrown) {
    router.renders.erase(id);
    router.book.remove(id);
    promise.deliver(RenderReply{.error = std::move(thrown)});
  }
  return promise;
}

void end_render(Self self, RequestId id, const Error& error) {
  RouterState& router = state(self);
  auto ended = router.renders.extract(id);
  if (ended.empty()) return;
  router.book.remove(id);
  PendingRender& render = ended.mapped();
  if (render.group && router.groups[*render.group]) {
    send(self, router.groups[*render.group]->input_processor(value(id)), AbortRequests{{id}});
  }
  render.promise.deliver(RenderReply{.error = error});
}

void end_renders(Self self, const Error& error) {
  while (!state(self).renders.empty()) end_render(self, state(self).renders.begin()->first, error);
}

void try_waiting_renders(Self self) {
  RouterState& router = state(self);
  if (!router.has_ready_group()) return;
  for (auto next = router.renders.begin(); next != router.renders.end();) {
    const auto current = next++;
    if (current->second.group) continue;
    if (current->second.num_tries < kMaxRenderTries) {
      try_render(self, current->first);
      continue;
    }
    auto ended = router.renders.extract(current);
    router.book.remove(ended.key());
    ended.mapped().promise.deliver(
        RenderReply{.error = Error{ErrorCode::kInternal,
                                   "the engine was lost " + std::to_string(kMaxRenderTries) +
                                       " times before it answered this request"}});
  }
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

void match_adapters(Self self, const SchedulerActor& scheduler) {
  ask_adapters(self, {scheduler}, ListAdapters{}, [self, scheduler](const AdapterReply& reply) {
    if (reply.error)
      return log_warning("a group did not list its adapters", kv("error", reply.error->message));
    const AdapterRegistry::Difference difference = state(self).adapters.match(reply.adapters);
    for (const LoraRequest& missing : difference.to_load) {
      ask_adapters(self, {scheduler}, LoadAdapter{.name = missing.name, .path = missing.path},
                   [missing](const AdapterReply& loaded) {
                     if (loaded.error)
                       log_warning("an adapter could not be loaded again",
                                   kv("adapter", missing.name), kv("error", loaded.error->message));
                   });
    }
    for (const std::string& name : difference.to_unload)
      ask_adapters(self, {scheduler}, UnloadAdapter{name}, [](const AdapterReply&) {});
    report_adapters(self);
  });
}

caf::result<AdapterReply> load_adapter(Self self, const LoadAdapter& what) {
  RouterState& router = state(self);
  if (auto refusal = router.adapters.check_load(what))
    return AdapterReply{.adapters = {}, .error = std::move(refusal)};
  const std::vector<SchedulerActor> schedulers = schedulers_of(router, /*ready_only=*/true);
  if (!router.enable_adapters || schedulers.empty())
    return AdapterReply{
        .adapters = {},
        .error = router.enable_adapters
                     ? Error{ErrorCode::kUnavailable, "the engine is not ready"}
                     : Error{ErrorCode::kUnsupported, "adapters are not enabled, see enable-lora"}};
  auto promise = self->make_response_promise<AdapterReply>();
  ask_adapters(self, schedulers, what, [self, promise, what](AdapterReply reply) mutable {
    RouterState& now = state(self);
    if (!reply.error && reply.adapters.size() == 1) {
      reply.adapters = {now.adapters.add(std::move(reply.adapters.front()))};
      report_adapters(self);
    } else if (!now.adapters.find(what.name)) {
      // Another group may have loaded it.
      ask_adapters(self, schedulers_of(now, /*ready_only=*/true), UnloadAdapter{what.name},
                   [](const AdapterReply&) {});
    }
    promise.deliver(std::move(reply));
  });
  return promise;
}

caf::result<AdapterReply> unload_adapter(Self self, const UnloadAdapter& what) {
  RouterState& router = state(self);
  if (!router.adapters.remove(what.name))
    return AdapterReply{.adapters = {}, .error = unknown_adapter(what.name)};
  report_adapters(self);
  ask_adapters(self, schedulers_of(router, /*ready_only=*/true), what, [](const AdapterReply&) {});
  return AdapterReply{};
}

caf::result<CollectiveRpcReply> call_workers(Self self, const CollectiveRpc& what) {
  const std::vector<SchedulerActor> schedulers = schedulers_of(state(self), /*ready_only=*/true);
  if (schedulers.empty())
    return CollectiveRpcReply{.results = {},
                              .error = Error{ErrorCode::kUnavailable, "the engine is not ready"}};
  auto promise = self->make_response_promise<CollectiveRpcReply>();
  const auto gathered = std::make_shared<Gathered<CollectiveRpcReply>>();
  gathered->done = [promise](Gathered<CollectiveRpcReply>& all) mutable {
    CollectiveRpcReply joined{.results = {}, .error = std::move(all.error)};
    for (CollectiveRpcReply& reply : all.take_answers()) {
      if (!joined.error) joined.error = std::move(reply.error);
      joined.results.insert(joined.results.end(), reply.results.begin(), reply.results.end());
    }
    if (joined.error) joined.results.clear();
    promise.deliver(std::move(joined));
  };
  for (const SchedulerActor& scheduler : schedulers) ask_one(self, scheduler, what, gathered);
  return promise;
}

}  // namespace troupe::router
