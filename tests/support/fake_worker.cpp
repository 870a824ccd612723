#include "tests/support/fake_worker.hpp"

#include <unordered_map>

namespace troupe::testing {
namespace {

struct FakeWorkerState {
  FakeWorkerState() = default;
  static inline const char* name = "fake_worker";
  std::unordered_map<RequestId, std::int32_t> num_prompt_tokens;

  /// As the real one: a step that builds on one that failed fails as well.
  [[nodiscard]] StepAnswer execute(const SchedulerOutput& step, KVConnectorOutput& kv_report) {
    ModelRunnerOutput result{.step = step.step, .ids = step.scheduled_ids};
    result.kv_connector = std::exchange(kv_report, {});
    std::unordered_map<RequestId, std::pair<std::int32_t, std::int32_t>> computed_and_known;
    for (const RequestId id : step.preempted_ids) num_prompt_tokens.erase(id);
    for (const RequestId id : step.finished_ids) num_prompt_tokens.erase(id);
    for (const NewRequestData& request : step.new_requests) {
      num_prompt_tokens[request.id] = request.num_prompt_tokens;
      computed_and_known[request.id] = {request.num_computed_tokens,
                                        static_cast<std::int32_t>(request.token_ids.size())};
    }
    const CachedRequestData& cached = step.cached_requests;
    for (std::size_t i = 0; i < cached.ids.size(); ++i) {
      const auto known = num_prompt_tokens.find(cached.ids[i]);
      if (known == num_prompt_tokens.end())
        return StepFailed{step.step, {ErrorCode::kInternal, "unknown request"}};
      computed_and_known[cached.ids[i]] = {cached.num_computed_tokens[i],
                                           known->second + cached.num_output_tokens[i]};
    }
    for (std::size_t i = 0; i < step.scheduled_ids.size(); ++i) {
      const auto [computed, known] = computed_and_known.at(step.scheduled_ids[i]);
      const bool samples = computed + step.num_scheduled_tokens[i] == known;
      result.num_sampled.push_back(samples ? 1 : 0);
      if (samples) result.sampled_token_ids.push_back(fake_token(step.scheduled_ids[i], known));
    }
    return result;
  }
};

WorkerActor::behavior_type fake_worker(WorkerActor::stateful_pointer<FakeWorkerState> self,
                                       const std::shared_ptr<FakeWorkerLog>& log) {
  return {
      [](const LoadModel&) { return ModelLoaded{}; },
      [](const InitializeKVCache&) { return Status{}; },
      [](const JoinGroup&) {},
      [self, log](const SchedulerOutput& step) {
        const auto executor = caf::actor_cast<ExecutorActor>(self->current_sender());
        ++log->num_steps;
        ++log->num_taken, log->num_taken.notify_all();
        log->batch_sizes.push_back(step.scheduled_ids.size());
        log->finished_ids.insert(log->finished_ids.end(), step.finished_ids.begin(),
                                 step.finished_ids.end());
        if (log->keep_quiet) return;
        StepAnswer answer = StepFailed{step.step, {ErrorCode::kInternal, "made to fail"}};
        if (log->num_steps_to_fail > 0)
          --log->num_steps_to_fail;
        else
          answer = state(self).execute(step, log->kv_report);
        if (log->hold)
          log->held.push_back(std::move(answer));
        else
          std::visit([&](auto& message) { send(self, executor, std::move(message)); }, answer);
      },
  };
}

}  // namespace

WorkerActor spawn_fake_worker(caf::actor_system& system, std::shared_ptr<FakeWorkerLog> log) {
  return system.spawn(fake_worker, std::move(log));
}

void release_answer(const WorkerActor& worker, const ExecutorActor& executor, FakeWorkerLog& log) {
  std::visit([&](auto& message) { caf::send_as(worker, executor, std::move(message)); },
             log.held.front());
  log.held.pop_front();
}

}  // namespace troupe::testing
