// What the Supervisor asks other actors for the core, which gets the answers.
#include <algorithm>
#include <utility>

#include "actors/deadlines.hpp"
#include "actors/supervisor_state.hpp"
#include "runtime/base/clock.hpp"

namespace troupe::supervisor {
namespace {

/// Asks; `tell` passes the answer, or one with the error, to the core, whose commands are then
/// carried out.
template <class Answer, class Handle, class Tell, class Question>
void ask_for(Self self, const Handle& to, std::chrono::nanoseconds deadline,
             const std::string& what, Tell tell, Question&& question) {
  ask(self, to, deadline, std::forward<Question>(question))
      .then(
          [self, tell](Answer& answer) {
            tell(answer);
            carry_out(self);
          },
          [self, tell, what](const caf::error& error) {
            Answer answer;
            answer.error =
                Error{ErrorCode::kInternal, what + ": " + to_text(error, self->system())};
            tell(answer);
            carry_out(self);
          });
}

/// Asks a node for actors.
template <class OnSpawned, class... Question>
void ask_node(Self self, ActorId node, std::chrono::minutes deadline, const std::string& who,
              OnSpawned on_spawned, Question&&... question) {
  ask(self, actor_of<NodeActor>(self, node), deadline, std::forward<Question>(question)...)
      .then(
          [self, on_spawned](const Status& status, const ActorHandles& handles) {
            SpawnedActors spawned{.error = status.error, .actors = {}};
            const bool all_there = !handles.empty() && std::find(handles.begin(), handles.end(),
                                                                 nullptr) == handles.end();
            if (!spawned.error && !all_there)
              spawned.error = Error{ErrorCode::kInternal, "a node did not start an actor", ""};
            if (!spawned.error) spawned.actors = state(self).handles.add_all(handles);
            on_spawned(spawned);
            carry_out(self);
          },
          [self, on_spawned, who](const caf::error& error) {
            on_spawned(SpawnedActors{
                .error = Error{ErrorCode::kInternal,
                               who + " did not start: " + to_text(error, self->system())},
                .actors = {}});
            carry_out(self);
          });
}

/// The Executor has the same deadline and names the ranks, so its answer should come first.
void call_workers(Self self, ActorId executor, std::uint32_t group, std::uint32_t incarnation,
                  std::chrono::seconds deadline, WorkerMethod method) {
  const std::string what = std::string(name_of(method)) + ": the executor did not reply";
  ask_for<CollectiveRpcReply>(
      self, actor_of<ExecutorActor>(self, executor), deadline + kControlDeadline, what,
      [self, group, incarnation](CollectiveRpcReply& reply) {
        state(self).core->workers_replied(now_seconds(), group, incarnation, std::move(reply));
      },
      CollectiveRpc{std::move(method), static_cast<double>(deadline.count())});
}

}  // namespace

void run(Self self, const AskPrepare& what) {
  ask_for<Status>(
      self, actor_of<NodeActor>(self, what.actor), kControlDeadline,
      "node " + state(self).core->node(what.node).name + " is not ready",
      [self, what](const Status& status) {
        state(self).core->node_prepared(now_seconds(), what.node, what.visit, status);
      },
      what.question);
}

void run(Self self, const AskWorker& what) {
  ask_node(
      self, what.node, kControlDeadline, "worker " + std::to_string(what.question.rank),
      [self, what](const SpawnedActors& spawned) {
        state(self).core->worker_spawned(now_seconds(), what.incarnation, what.question, spawned);
      },
      what.question);
}

void run(Self self, const AskLoad& what) {
  call_workers(self, what.executor, what.group, what.incarnation, kLoadDeadline,
               LoadModel{worker_options(state(self).start.options, what.parallel), what.ranks});
}

void run(Self self, const AskWorkers& what) {
  call_workers(self, what.executor, what.group, what.incarnation,
               std::holds_alternative<WarmUp>(what.method) ? kLoadDeadline : kControlDeadline,
               what.method);
}

void run(Self self, const AskRole& what) {
  ask_node(
      self, what.node, what.question.role == Role::kEncoder ? kLoadDeadline : kControlDeadline,
      "the " + std::string(spec_of(what.question.role).name),
      [self, question = what.question](const SpawnedActors& spawned) {
        state(self).core->role_spawned(now_seconds(), question, spawned);
      },
      what.question, state(self).handles.get_all(what.peers));
}

void run(Self self, const AskListen& what) {
  ask_for<Listening>(
      self, actor_of<FrontendActor>(self, what.frontend), kControlDeadline,
      "the frontend did not open the port",
      [self, life = what.life](const Listening& listening) {
        state(self).core->port_opened(now_seconds(), life, listening);
      },
      Listen{});
}

}  // namespace troupe::supervisor
