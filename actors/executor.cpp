// The Executor: one group of Workers that run each step together.
#include "actors/spawn.hpp"
#include "messages/type_ids.hpp"
#include "runtime/base/log.hpp"
#include "runtime/worker/worker_group.hpp"

namespace troupe {
namespace {

/// Owns the list of workers of one engine; one entry may stand for those of a host, where they are
/// in other processes. A step goes to all of them, also while they compute the
/// one before; its result is that of the output rank, once all have answered, and the first failure
/// is the step's. Which steps are open is the Scheduler's to know: it drops what answers none of
/// them. So do the workers with a GrammarOutput for a step that they do not have open.
struct ExecutorState {
  ExecutorState() = default;
  static inline const char* name = "executor";

  std::vector<StepRunnerActor> workers;
  std::optional<StepAnswers> answers;  ///< none with one worker: its answer is the step's
  std::uint32_t generation = 0;        ///< times that the workers have been told to meet
  SchedulerActor scheduler;            ///< whoever asked for the latest step
};

using Self = ExecutorActor::stateful_pointer<ExecutorState>;

/// One message for all of them.
template <class Message>
void send_to_workers(Self self, Message&& message) {
  const caf::message shared = caf::make_message(std::forward<Message>(message));
  for (const StepRunnerActor& worker : state(self).workers) send_shared(self, worker, shared);
}

void join_group(Self self) {
  ExecutorState& executor = state(self);
  const JoinGroup join{executor.generation++};
  for (const StepRunnerActor& worker : executor.workers) send(self, worker, join);
}

ExecutorActor::behavior_type executor_behavior(Self self,
                                               const std::vector<StepRunnerActor>& workers,
                                               const ParallelConfig& parallel) {
  state(self).workers = workers;
  if (parallel.world_size() > 1) {
    state(self).answers.emplace(parallel);
    // Workers outlive this actor: the next one counts on from elsewhere.
    state(self).generation = static_cast<std::uint32_t>(parallel.incarnation << 16);
    join_group(self);
  }
  return {
      [self](SchedulerOutput& output) {
        ExecutorState& executor = state(self);
        executor.scheduler = caf::actor_cast<SchedulerActor>(self->current_sender());
        if (executor.answers) executor.answers->begin(output.step);
        send_to_workers(self, std::move(output));
      },
      [self](GrammarOutput& grammar) { send_to_workers(self, std::move(grammar)); },
      [self](ModelRunnerOutput& output) {
        ExecutorState& executor = state(self);
        if (!executor.answers) return send(self, executor.scheduler, std::move(output));
        if (auto result = executor.answers->add(std::move(output)))
          send(self, executor.scheduler, std::move(*result));
      },
      [self](StepFailed& failure) {
        ExecutorState& executor = state(self);
        if (!executor.answers) return send(self, executor.scheduler, std::move(failure));
        if (!executor.answers->fail(failure.step)) return;  // another rank was first
        log_warning("a rank failed", kv("rank", failure.rank), kv("step", failure.step));
        send(self, executor.scheduler, std::move(failure));
        join_group(self);
      },
  };
}

}  // namespace

ExecutorActor spawn_executor(caf::actor_system& system, std::vector<StepRunnerActor> workers,
                             const ParallelConfig& parallel) {
  return system.spawn(executor_behavior, std::move(workers), parallel);
}

}  // namespace troupe
