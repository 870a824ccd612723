#include "tests/support/fake_actors.hpp"

#include <utility>
#include <variant>

namespace troupe::testing {
namespace {

struct FakeClientState {
  FakeClientState() = default;
  static inline const char* name = "fake_client";
};

RequestClientActor::behavior_type fake_client(
    RequestClientActor::stateful_pointer<FakeClientState> self,
    const std::shared_ptr<FrontendLog>& log, const OutputProcessorActor& output_processor) {
  if (output_processor) ask(self, output_processor, Subscribe{}).then([](const Status&) {});
  return {
      [log](const RequestOutputs& outputs) {
        ++log->num_messages;
        if (outputs.stats.scheduler) log->stats = *outputs.stats.scheduler;
        for (const RequestOutput& output : outputs.outputs) {
          for (const CompletionOutput& sample : output.outputs) {
            auto& tokens = log->token_ids[output.id];
            tokens.insert(tokens.end(), sample.token_ids.begin(), sample.token_ids.end());
            log->text[output.id] += sample.text;
            if (sample.finish_reason) log->finish_reasons[output.id] = *sample.finish_reason;
          }
          if (output.finished) ++log->num_finished[output.id];
          if (output.error) log->errors[output.id] = *output.error;
          if (output.prefill_stats)
            log->num_cached_tokens[output.id] = output.prefill_stats->num_cached_tokens;
          if (output.finished) ++log->num_ended, log->num_ended.notify_all();
        }
      },
  };
}

struct FakeInputState {
  FakeInputState() = default;
  static inline const char* name = "fake_input";
};

InputProcessorActor::behavior_type fake_input(
    InputProcessorActor::stateful_pointer<FakeInputState> self,
    const OutputProcessorActor& output_processor, const SchedulerActor& scheduler) {
  return {
      [=](SubmitRequest& submission) {
        GenerateRequest& request = submission.request;
        const auto& prompt = std::get<TokensPrompt>(request.prompt).token_ids;
        ask(self, output_processor,
            OutputRequest{.id = request.id,
                          .external_id = request.external_id,
                          .prompt_token_ids = prompt,
                          .params = request.params})
            .then([](const Status&) {}, [](const caf::error&) {});
        send(self, scheduler,
             EngineCoreRequests{{EngineCoreRequest{.id = request.id,
                                                   .external_id = request.external_id,
                                                   .prompt_token_ids = prompt,
                                                   .params = request.params,
                                                   .limits = request.limits}}});
      },
      [=](const AbortRequests& abort) {
        send(self, output_processor, abort);
        send(self, scheduler, abort);
      },
      [](const RenderRequest&) { return RenderReply{}; },
      [](const ResetCaches&) { return CachesReset{true}; },
  };
}

struct CountingCacheState {
  CountingCacheState() = default;
  static inline const char* name = "counting_cache";
};

KVCacheManagerActor::behavior_type counting_cache(
    KVCacheManagerActor::stateful_pointer<CountingCacheState> self, const KVCacheManagerActor& next,
    const std::shared_ptr<CacheLog>& log) {
  return {
      [=](KVCacheUpdates& updates) {
        ++log->num_updates;
        send(self, next, std::move(updates));
      },
      [=](AllocateSlots& question) {
        return ++log->num_questions, self->delegate(next, std::move(question));
      },
      [=](LookupPrefix& question) {
        return ++log->num_questions, self->delegate(next, std::move(question));
      },
      [=](AdmitRequest& question) {
        return ++log->num_questions, self->delegate(next, std::move(question));
      },
      [=](GetBlockOps& question) {
        return ++log->num_questions, self->delegate(next, std::move(question));
      },
      [=](ReadBlockTable& question) {
        return ++log->num_questions, self->delegate(next, std::move(question));
      },
      [=](FindInvalidBlocks& question) {
        return ++log->num_questions, self->delegate(next, std::move(question));
      },
      [=](ResetPrefixCache& question) {
        return ++log->num_questions, self->delegate(next, std::move(question));
      },
      [=](KVEventBatch& events) { send(self, next, std::move(events)); },
  };
}

}  // namespace

RequestClientActor spawn_fake_client(caf::actor_system& system, std::shared_ptr<FrontendLog> log,
                                     const OutputProcessorActor& output_processor) {
  return system.spawn(fake_client, std::move(log), output_processor);
}

InputProcessorActor spawn_fake_input(caf::actor_system& system,
                                     const OutputProcessorActor& output_processor,
                                     const SchedulerActor& scheduler) {
  return system.spawn(fake_input, output_processor, scheduler);
}

KVCacheManagerActor spawn_counting_cache(caf::actor_system& system, const KVCacheManagerActor& next,
                                         std::shared_ptr<CacheLog> log) {
  return system.spawn(counting_cache, next, std::move(log));
}

}  // namespace troupe::testing
