// The Executor: one group of Workers that run each step together.
#include <map>

#include "actors/spawn.hpp"
#include "messages/type_ids.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/worker/worker_group.hpp"

namespace troupe {
namespace executor {
namespace {

/// Owns the list of workers of one engine; an entry may be the proxy for the workers of a host in
/// other processes. A step is sent to all of them, also while they compute the previous one; its
/// result is that of the output rank, once all have answered, and the first failure fails the step.
/// The Scheduler keeps the open steps, and drops answers to others; likewise the workers drop a
/// GrammarOutput for a step that is not open.
///
/// Other methods of all workers are called by CollectiveRpc, in the order of steps and calls; the
/// replies are returned in rank order, all of them or the first failure.
struct ExecutorState {
  ExecutorState() = default;
  static inline const char* name = "executor";

  std::vector<WorkerActor> workers;
  std::optional<StepAnswers> answers;  ///< none with one worker: its answer is the step's
  std::uint32_t generation = 0;        ///< number of JoinGroup messages
  SchedulerActor scheduler;            ///< the sender of the latest step

  /// Waits for the results of a call.
  struct Caller {
    caf::typed_response_promise<CollectiveRpcReply> promise;
    double timeout_s = 0;
    bool joins = false;  ///< the ranks join their group after it
  };
  std::optional<CollectiveCalls> calls;
  std::map<std::uint64_t, Caller> callers;  ///< by call
  SupervisorActor progress_listener;        ///< the sender of the latest call
};

using Self = ExecutorActor::stateful_pointer<ExecutorState>;

/// One message for all of them.
template <class Message>
void send_to_workers(Self self, Message&& message) {
  const caf::message shared = caf::make_message(std::forward<Message>(message));
  for (const WorkerActor& worker : state(self).workers) send_shared(self, worker, shared);
}

void join_group(Self self) {
  ExecutorState& executor = state(self);
  const JoinGroup join{executor.generation++};
  for (const WorkerActor& worker : executor.workers) send(self, worker, join);
}

caf::result<CollectiveRpcReply> call_workers(Self self, CollectiveRpc& rpc) {
  ExecutorState& executor = state(self);
  // Before the promise, which takes the sender.
  executor.progress_listener = caf::actor_cast<SupervisorActor>(self->current_sender());
  const std::uint64_t call = executor.calls->begin(name_of(rpc.method));
  auto promise = self->make_response_promise<CollectiveRpcReply>();
  executor.callers[call] = {
      .promise = promise,
      .timeout_s = rpc.timeout_s,
      .joins = executor.answers && std::holds_alternative<InitializeKVCache>(rpc.method)};
  const ExecutorActor me = self;
  send_after(self, from_seconds(rpc.timeout_s), me, RpcDeadline{call});
  send_to_workers(self, WorkerRpc{call, std::move(rpc.method)});
  return promise;
}

/// Does nothing while the call is open, or if it has ended.
void end_call(Self self, std::uint64_t call, std::optional<CollectiveRpcReply> reply) {
  if (!reply) return;
  auto caller = state(self).callers.extract(call);
  if (!reply->error && caller.mapped().joins) join_group(self);
  caller.mapped().promise.deliver(std::move(*reply));
}

ExecutorActor::behavior_type executor_behavior(Self self, const std::vector<WorkerActor>& workers,
                                               const ParallelConfig& parallel) {
  state(self).workers = workers;
  state(self).calls.emplace(parallel.world_size());
  if (parallel.world_size() > 1) {
    state(self).answers.emplace(parallel);
    // Workers outlive this actor: the next one starts with other numbers.
    state(self).generation = static_cast<std::uint32_t>(parallel.incarnation << 16);
  }
  return {
      [self](CollectiveRpc& rpc) { return call_workers(self, rpc); },
      [self](WorkerRpcReply& reply) {
        const std::uint64_t call = reply.call;
        end_call(self, call, state(self).calls->add(std::move(reply)));
      },
      [self](LoadProgress& progress) {
        if (state(self).progress_listener)
          send(self, state(self).progress_listener, std::move(progress));
      },
      [self](const RpcDeadline& deadline) {
        const auto caller = state(self).callers.find(deadline.call);
        if (caller == state(self).callers.end()) return;
        end_call(self, deadline.call,
                 state(self).calls->expire(deadline.call, caller->second.timeout_s));
      },
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
}  // namespace executor

ExecutorActor spawn_executor(caf::actor_system& system, std::vector<WorkerActor> workers,
                             const ParallelConfig& parallel) {
  return system.spawn(executor::executor_behavior, std::move(workers), parallel);
}

}  // namespace troupe
