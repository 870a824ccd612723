// The workers of this host that run in other processes, as their Executor sees them: one actor and
// a ring.
#include <deque>
#include <thread>

#include "actors/spawn.hpp"
#include "messages/type_ids.hpp"
#include "runtime/base/log.hpp"
#include "runtime/transport/step_rings.hpp"

namespace troupe {
namespace remote_workers {
namespace {

using namespace std::chrono_literals;

/// For a full ring. Workers read their rings also while they compute, so a ring that stays full
/// belongs to a stopped one.
constexpr auto kSendDeadline = 5s;
/// More than can be open at once. The Executor has the open ones.
constexpr std::size_t kMaxRecentSteps = 64;

/// Owns the engine's end of the rings. One thread per worker posts its answers to the Executor, in
/// the order of the ring. The loss of any worker ends the actor, since the group cannot work
/// without it; steps without an answer have failed then.
struct RemoteWorkersState {
  RemoteWorkersState() = default;
  ~RemoteWorkersState() {
    if (rings) rings->close();
    for (std::thread& reader : readers) reader.join();
  }
  static inline const char* name = "remote_workers";

  std::shared_ptr<StepRings> rings;
  StepSinkActor executor;  ///< the sender of steps; null before the first message
  std::deque<std::uint64_t> recent_steps;
  std::vector<std::thread> readers;
};

using Self = WorkerActor::stateful_pointer<RemoteWorkersState>;

void read_answers(StepRings& rings, std::size_t i, const StepSinkActor& executor,
                  const caf::actor& workers) {
  for (;;) {
    auto answer = rings.receive(i, Deadline::max());
    if (!answer.ok()) {
      post_exit(workers, exit_reason_of(answer.error().message));
      return;
    }
    if (*answer) std::visit([&](auto& message) { post(executor, std::move(message)); }, **answer);
  }
}

/// Answers go to the sender of the first message.
void know_executor(Self self) {
  RemoteWorkersState& workers = state(self);
  if (workers.executor) return;
  workers.executor = caf::actor_cast<StepSinkActor>(self->current_sender());
  for (std::size_t i = 0; i < workers.rings->num_workers(); ++i) {
    workers.readers.emplace_back(
        [rings = workers.rings, i, executor = workers.executor,
         own = caf::actor_cast<caf::actor>(self)] { read_answers(*rings, i, executor, own); });
  }
}

void fail_recent_steps(Self self, const std::string& reason) {
  RemoteWorkersState& workers = state(self);
  for (const std::uint64_t step : workers.recent_steps) {
    send(self, workers.executor,
         StepFailed{step, {ErrorCode::kUnavailable, reason}, workers.rings->rank(0)});
  }
  workers.recent_steps.clear();
}

/// The rings cannot be used after an error: some workers have received a step and others not.
template <class Message>
void send_to_all(Self self, const Message& message) {
  RemoteWorkersState& workers = state(self);
  const auto sent = workers.rings->send(message, std::chrono::steady_clock::now() + kSendDeadline);
  if (sent.ok()) return;
  log_error("workers do not take their steps", kv("error", sent.error().message));
  fail_recent_steps(self, sent.error().message);
  self->quit(exit_reason_of(sent.error().message));
}

WorkerActor::behavior_type remote_workers_behavior(Self self,
                                                   const std::shared_ptr<StepRings>& rings) {
  state(self).rings = rings;
  self->set_exit_handler([self](caf::exit_msg& exit) {
    if (exit.reason != caf::exit_reason::user_shutdown)
      fail_recent_steps(self, to_text(exit.reason, self->system()));
    self->quit(std::move(exit.reason));
  });
  return {
      [self](const WorkerRpc& rpc) {
        know_executor(self);
        send_to_all(self, rpc);
      },
      [self](const JoinGroup& join) {
        know_executor(self);
        send_to_all(self, join);
      },
      [self](const SchedulerOutput& step) {
        know_executor(self);
        auto& recent = state(self).recent_steps;
        recent.push_back(step.step);
        if (recent.size() > kMaxRecentSteps) recent.pop_front();
        send_to_all(self, step);
      },
      [self](const GrammarOutput& grammar) { send_to_all(self, grammar); },
  };
}

}  // namespace
}  // namespace remote_workers

WorkerActor spawn_remote_workers(caf::actor_system& system, std::shared_ptr<StepRings> rings) {
  return system.spawn<caf::detached>(remote_workers::remote_workers_behavior, std::move(rings));
}

}  // namespace troupe
