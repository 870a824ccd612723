#include "tests/support/engine_harness.hpp"

#include "runtime/cache/encoder_cache_manager.hpp"
#include "runtime/cache/kv_cache_settings.hpp"
#include "runtime/scheduler/ec_connector.hpp"
#include "runtime/scheduler/kv_connector.hpp"
#include "runtime/transport/step_rings.hpp"

namespace troupe::testing {
namespace {

struct FakeClientState {
  FakeClientState() = default;
  static inline const char* name = "fake_client";
};

/// `output_processor` is null if its requests pass a RequestRouter.
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

/// Has nothing to tokenize.
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

/// Counts what is asked and hands it on.
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

EngineHarness::EngineHarness(caf::actor_system& system, std::shared_ptr<const Tokenizer> tokenizer,
                             const HarnessOptions& options) {
  SchedulerConfig config;
  config.async_scheduling = options.async_scheduling;
  config.pipeline_parallel_size = options.pipeline_parallel_size;
  config.speculative = options.speculative;
  config.kv_transfer = {.consumer = true, .block_size = options.block_size};
  KVCacheSettings settings;
  settings.groups = {{.spec = {.block_size = options.block_size}, .layers = {0}}};
  settings.num_blocks = options.num_blocks;
  settings.max_model_len = options.max_model_len;
  settings.max_in_flight_tokens = config.max_concurrent_batches() * options.max_num_batched_tokens;
  config.num_blocks = options.num_blocks;
  config.max_model_len = options.max_model_len;
  config.max_num_seqs = options.max_num_seqs;
  if (options.ec_connector != nullptr) config.max_encoder_embeds = 64;
  config.max_num_batched_tokens = options.max_num_batched_tokens;

  worker_log->num_drafts = options.speculative.num_draft_tokens;
  worker = keep(spawn_fake_worker(system, worker_log));
  SchedulerPeers peers;
  const KVCacheManagerActor cache = keep(spawn_kv_cache_manager(system, settings));
  peers.kv_cache_manager = keep(system.spawn(counting_cache, cache, cache_log));
  WorkerActor runner = worker;
  if (options.through_rings) {
    const std::shared_ptr<StepRings> rings = StepRings::create({.ranks = {0}}).value();
    keep(spawn_remote_executor(system, rings->worker(0), worker).value());
    runner = keep(spawn_remote_workers(system, rings));
  }
  executor = keep(spawn_executor(system, {runner}));
  peers.executor = executor;
  output_processor = keep(spawn_output_processor(system, std::move(tokenizer)));
  peers.output_processor = output_processor;
  peers.kv_connector = options.kv_connector;
  peers.ec_connector = options.ec_connector;
  if (options.ec_connector != nullptr)
    peers.encoder_cache_manager =
        keep(spawn_encoder_cache_manager(system, {.capacity = config.max_encoder_embeds}));
  peers.grammar_compiler = options.grammar_compiler;
  scheduler = keep(spawn_scheduler(system, config, peers));
  client = keep(system.spawn(fake_client, frontend_log,
                             options.through_router ? OutputProcessorActor{} : output_processor));
  if (!options.through_router) return;
  router = keep(spawn_request_router(system, {}));
  const InputProcessorActor input = keep(system.spawn(fake_input, output_processor, scheduler));
  caf::anon_send(router, EngineReady{}, std::vector{input}, output_processor, scheduler);
}
EngineHarness::~EngineHarness() {
  for (const caf::actor& actor : actors)
    caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
}

void EngineHarness::add(RequestId id, std::vector<TokenId> prompt, std::int32_t max_tokens,
                        SamplingParams params, const RequestLimits& limits,
                        std::vector<MultiModalFeature> items) {
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.output_kind = OutputKind::kDelta;
  if (router) {
    GenerateRequest request{
        .id = id, .external_id = to_string(id), .prompt = TokensPrompt{prompt}, .params = params};
    request.limits = limits;
    return post_as(caf::actor_cast<caf::actor>(client), router,
                   SubmitRequest{.request = std::move(request)});
  }
  OutputRequest output{
      .id = id, .external_id = to_string(id), .prompt_token_ids = prompt, .params = params};
  EngineCoreRequest core{.id = id,
                         .external_id = to_string(id),
                         .prompt_token_ids = std::move(prompt),
                         .mm_features = std::move(items),
                         .params = params,
                         .limits = limits};
  post(output_processor, std::move(output));
  post(scheduler, EngineCoreRequests{{std::move(core)}});
}

void EngineHarness::abort(RequestId id) {
  if (router) return post_as(caf::actor_cast<caf::actor>(client), router, AbortRequests{{id}});
  post(output_processor, AbortRequests{{id}});
  post(scheduler, AbortRequests{{id}});
}

}  // namespace troupe::testing
