// The proxy of the Executor for a Worker in another process of its host: it reads calls and steps
// from a ring, and writes answers to another.
#include <thread>

#include "actors/spawn.hpp"
#include "messages/type_ids.hpp"
#include "runtime/base/log.hpp"
#include "runtime/transport/step_rings.hpp"

namespace troupe {
namespace remote_executor {
namespace {

using namespace std::chrono_literals;

/// For a full ring. The engine reads it continuously.
constexpr auto kSendDeadline = 5s;

/// Owns the worker's end of the rings. A thread sends the worker its steps in the name of this
/// actor, which gets the answers. It ends with the worker, and with the engine's end of the rings.
struct RemoteExecutorState {
  RemoteExecutorState() = default;
  ~RemoteExecutorState() {
    if (rings) rings->close();
    if (reader.joinable()) reader.join();
  }
  static inline const char* name = "remote_executor";

  std::shared_ptr<WorkerStepRings> rings;
  std::thread reader;
};

using Self = StepSinkActor::stateful_pointer<RemoteExecutorState>;

void read_calls(WorkerStepRings& rings, const StepSinkActor& executor, const WorkerActor& worker) {
  for (;;) {
    auto call = rings.receive(Deadline::max());
    if (!call.ok()) {
      post_exit(executor, exit_reason_of(call.error().message));
      return;
    }
    if (*call)
      std::visit([&](auto& message) { post_as(executor, worker, std::move(message)); }, **call);
  }
}

template <class Message>
void answer(Self self, const Message& message) {
  const auto sent =
      state(self).rings->send(message, std::chrono::steady_clock::now() + kSendDeadline);
  if (sent.ok()) return;
  log_error("the engine does not take answers", kv("rank", state(self).rings->rank()),
            kv("error", sent.error().message));
  self->quit(exit_reason_of(sent.error().message));
}

StepSinkActor::behavior_type remote_executor_behavior(Self self,
                                                      const std::shared_ptr<WorkerStepRings>& rings,
                                                      const WorkerActor& worker) {
  RemoteExecutorState& executor = state(self);
  executor.rings = rings;
  self->monitor(worker);
  self->set_down_handler([self](caf::down_msg& down) { self->quit(std::move(down.reason)); });
  executor.reader = std::thread([rings, own = caf::actor_cast<StepSinkActor>(self), worker] {
    read_calls(*rings, own, worker);
  });
  return {
      [self](const WorkerRpcReply& reply) { answer(self, reply); },
      [self](const LoadProgress& progress) { answer(self, progress); },
      [self](const ModelRunnerOutput& output) { answer(self, output); },
      [self](const StepFailed& failure) { answer(self, failure); },
  };
}

}  // namespace
}  // namespace remote_executor

Result<StepSinkActor> spawn_remote_executor(caf::actor_system& system, const WorkerRings& names,
                                            const WorkerActor& worker) {
  ASSIGN_OR_RETURN(std::shared_ptr<WorkerStepRings> rings, WorkerStepRings::open(names));
  return system.spawn<caf::detached>(remote_executor::remote_executor_behavior, std::move(rings),
                                     worker);
}

}  // namespace troupe
