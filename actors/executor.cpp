// The Executor: one group of Workers that run each step together.
#include "actors/spawn.hpp"
#include "messages/type_ids.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

/// Owns the list of workers of one engine. A step goes to all of them, also while they compute the
/// one before; the answer of rank 0 is the step's result, because all ranks sample the same tokens.
/// Which steps are open is the Scheduler's to know: it drops what answers none of them.
struct ExecutorState {
  ExecutorState() = default;
  static inline const char* name = "executor";

  std::vector<WorkerActor> workers;
  SchedulerActor scheduler;  ///< whoever asked for the latest step
};

ExecutorActor::behavior_type executor_behavior(ExecutorActor::stateful_pointer<ExecutorState> self,
                                               const std::vector<WorkerActor>& workers) {
  state(self).workers = workers;
  return {
      [self](SchedulerOutput& output) {
        ExecutorState& executor = state(self);
        executor.scheduler = caf::actor_cast<SchedulerActor>(self->current_sender());
        const caf::message shared = caf::make_message(std::move(output));
        for (const WorkerActor& worker : executor.workers) send_shared(self, worker, shared);
      },
      [self](ModelRunnerOutput& output) {
        if (self->current_sender() == state(self).workers.front())
          send(self, state(self).scheduler, std::move(output));
      },
      [self](StepFailed& failure) { send(self, state(self).scheduler, std::move(failure)); },
  };
}

}  // namespace

ExecutorActor spawn_executor(caf::actor_system& system, std::vector<WorkerActor> workers) {
  return system.spawn(executor_behavior, std::move(workers));
}

}  // namespace troupe
