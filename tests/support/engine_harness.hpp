#pragma once
// One engine of real actors around a fake worker, for tests of the actors and for the benchmark of
// their messages.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/spawn.hpp"
#include "runtime/cache/kv_cache_settings.hpp"
#include "runtime/scheduler/kv_connector.hpp"
#include "runtime/scheduler/scheduler_config.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/transport/step_rings.hpp"
#include "tests/support/fake_worker.hpp"

namespace troupe::testing {

/// What the fake frontend has received, by request.
struct FrontendLog {
  std::map<RequestId, std::vector<TokenId>> token_ids;
  std::map<RequestId, std::string> text;
  std::map<RequestId, int> num_finished;
  std::map<RequestId, Error> errors;
  std::map<RequestId, std::int32_t> num_cached_tokens;  ///< of the prompt
  SchedulerStats stats;                                 ///< the latest
  std::size_t num_messages = 0;
  std::atomic<std::size_t> num_ended{
      0};  ///< requests; notified, so that another thread can wait for them

  void wait_for(std::size_t count) const {
    for (std::size_t ended = num_ended; ended < count; ended = num_ended) num_ended.wait(ended);
  }
};

/// Questions that reached the KVCacheManager.
struct CacheLog {
  std::size_t num_questions = 0;
  std::size_t num_updates = 0;
};

struct FakeFrontendState {
  FakeFrontendState() = default;
  static inline const char* name = "fake_frontend";
};

inline FrontendActor::behavior_type fake_frontend(
    FrontendActor::stateful_pointer<FakeFrontendState> self,
    const std::shared_ptr<FrontendLog>& log, const OutputProcessorActor& output_processor) {
  ask(self, output_processor, Subscribe{}).then([](const Status&) {});
  return {
      [](const Listen&) { return Listening{}; },
      [](const GenerateRequest&) {},
      [](const AbortRequests&) {},
      [](const RenderRequest&) { return RenderReply{}; },
      [](const ResetCaches&) { return CachesReset{}; },
      [](const PauseScheduler&) { return PauseStatus{}; },
      [](const ResumeScheduler&) { return PauseStatus{}; },
      [](const AskPaused&) { return PauseStatus{}; },
      [log](const RequestOutputs& outputs) {
        ++log->num_messages;
        log->stats = outputs.stats.scheduler;
        for (const RequestOutput& output : outputs.outputs) {
          for (const CompletionOutput& sample : output.outputs) {
            auto& tokens = log->token_ids[output.id];
            tokens.insert(tokens.end(), sample.token_ids.begin(), sample.token_ids.end());
            log->text[output.id] += sample.text;
          }
          log->num_finished[output.id] += output.finished ? 1 : 0;
          if (output.error) log->errors[output.id] = *output.error;
          if (output.prefill_stats)
            log->num_cached_tokens[output.id] = output.prefill_stats->num_cached_tokens;
          if (output.finished) ++log->num_ended, log->num_ended.notify_all();
        }
      },
      [](const EngineLost&) {},
      [](const EngineReplaced&, const std::vector<InputProcessorActor>&,
         const OutputProcessorActor&, const SchedulerActor&) {},
      [](const EngineHealth&) {},
      [](const Drain&) { return Drained{}; },
      [](const DrainProgress&) {},
      [](const WakeUp&) {},
      [](const LogStats&) {},
  };
}

struct CountingCacheState {
  CountingCacheState() = default;
  static inline const char* name = "counting_cache";
};

/// Counts what is asked and hands it on.
inline KVCacheManagerActor::behavior_type counting_cache(
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
      [=](TakeBlockWork& question) {
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
  };
}

struct HarnessOptions {
  std::int32_t num_blocks = 100;
  std::int32_t block_size = 16;
  std::int32_t max_model_len = 2048;
  std::int32_t max_num_batched_tokens = 2048;
  std::int32_t max_num_seqs = 128;
  bool async_scheduling = false;
  bool through_rings = false;  ///< the worker sits behind rings, as in another process
  std::shared_ptr<KVConnector> kv_connector;  ///< null: KV stays here
};

struct EngineHarness {
  std::shared_ptr<FakeWorkerLog> worker_log = std::make_shared<FakeWorkerLog>();
  std::shared_ptr<CacheLog> cache_log = std::make_shared<CacheLog>();
  std::shared_ptr<FrontendLog> frontend_log = std::make_shared<FrontendLog>();
  std::vector<caf::actor> actors;
  WorkerActor worker;
  ExecutorActor executor;
  OutputProcessorActor output_processor;
  SchedulerActor scheduler;
  FrontendActor frontend;

  EngineHarness(caf::actor_system& system, std::shared_ptr<const Tokenizer> tokenizer,
                const HarnessOptions& options) {
    SchedulerConfig config;
    config.async_scheduling = options.async_scheduling;
    config.kv_transfer = {.consumer = true, .block_size = options.block_size};
    KVCacheSettings settings;
    settings.groups = {{.spec = {.block_size = options.block_size}, .layers = {0}}};
    settings.num_blocks = options.num_blocks;
    settings.max_model_len = options.max_model_len;
    settings.max_in_flight_tokens =
        config.max_concurrent_batches() * options.max_num_batched_tokens;
    config.num_blocks = options.num_blocks;
    config.max_model_len = options.max_model_len;
    config.max_num_seqs = options.max_num_seqs;
    config.max_num_batched_tokens = options.max_num_batched_tokens;

    worker = keep(system.spawn(fake_worker, worker_log));
    SchedulerPeers peers;
    const KVCacheManagerActor cache = keep(spawn_kv_cache_manager(system, settings));
    peers.kv_cache_manager = keep(system.spawn(counting_cache, cache, cache_log));
    StepRunnerActor runner = worker;
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
    scheduler = keep(spawn_scheduler(system, config, peers));
    frontend = keep(system.spawn(fake_frontend, frontend_log, output_processor));
  }
  ~EngineHarness() {
    for (const caf::actor& actor : actors)
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  }
  EngineHarness(const EngineHarness&) = delete;
  EngineHarness& operator=(const EngineHarness&) = delete;

  /// A request as an InputProcessor would hand it over.
  void add(RequestId id, std::vector<TokenId> prompt, std::int32_t max_tokens,
           SamplingParams params = {}, const RequestLimits& limits = {}) {
    params.temperature = 0;
    params.max_tokens = max_tokens;
    params.output_kind = OutputKind::kDelta;
    OutputRequest output{
        .id = id, .external_id = to_string(id), .prompt_token_ids = prompt, .params = params};
    EngineCoreRequest core{.id = id,
                           .external_id = to_string(id),
                           .prompt_token_ids = std::move(prompt),
                           .params = params,
                           .limits = limits};
    post(output_processor, std::move(output));
    post(scheduler, std::move(core));
  }
  /// As a client that leaves.
  void abort(RequestId id) {
    post(output_processor, AbortRequests{{id}});
    post(scheduler, AbortRequests{{id}});
  }

 private:
  template <class Handle>
  Handle keep(Handle handle) {
    actors.push_back(caf::actor_cast<caf::actor>(handle));
    return handle;
  }
};

}  // namespace troupe::testing
