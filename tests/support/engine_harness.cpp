#include "tests/support/engine_harness.hpp"

#include "runtime/cache/encoder_cache_manager.hpp"
#include "runtime/cache/kv_cache_settings.hpp"
#include "runtime/scheduler/ec_connector.hpp"
#include "runtime/scheduler/kv_connector.hpp"
#include "runtime/transport/step_rings.hpp"

namespace troupe::testing {
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
  peers.kv_cache_manager = keep(spawn_counting_cache(system, cache, cache_log));
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
  client = keep(spawn_fake_client(
      system, frontend_log, options.through_router ? OutputProcessorActor{} : output_processor));
  if (!options.through_router) return;
  router = keep(spawn_request_router(system, {}));
  const InputProcessorActor input = keep(spawn_fake_input(system, output_processor, scheduler));
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
