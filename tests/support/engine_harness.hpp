#pragma once
// One engine of real actors around a fake worker, for tests of the actors and for the benchmark of
// their messages.

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/spawn.hpp"
#include "runtime/scheduler/ec_connector.hpp"
#include "runtime/scheduler/grammar.hpp"
#include "runtime/scheduler/kv_connector.hpp"
#include "runtime/scheduler/scheduler_config.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/support/fake_worker.hpp"

namespace troupe::testing {

/// What the client has received, by request.
struct FrontendLog {
  std::unordered_map<RequestId, std::vector<TokenId>> token_ids;
  std::unordered_map<RequestId, std::string> text;
  std::unordered_map<RequestId, int> num_finished;
  std::unordered_map<RequestId, FinishReason> finish_reasons;
  std::unordered_map<RequestId, Error> errors;
  std::unordered_map<RequestId, std::int32_t> num_cached_tokens;  ///< of the prompt
  SchedulerStats stats;                                           ///< the latest
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

struct HarnessOptions {
  std::int32_t num_blocks = 100;
  std::int32_t block_size = 16;
  std::int32_t max_model_len = 2048;
  std::int32_t max_num_batched_tokens = 2048;
  std::int32_t max_num_seqs = 128;
  bool async_scheduling = false;
  std::int32_t pipeline_parallel_size = 1;  ///< stages, as far as the Scheduler knows
  SpeculativeConfig speculative;            ///< the worker makes its drafts
  bool through_rings = false;               ///< the worker sits behind rings, as in another process
  bool through_router = false;  ///< the client's requests pass a RequestRouter, and so do outputs
  std::shared_ptr<KVConnector> kv_connector;          ///< null: KV stays here
  std::shared_ptr<ECConnector> ec_connector;          ///< null: there are no images either
  std::shared_ptr<GrammarCompiler> grammar_compiler;  ///< null: no structured requests
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
  RequestClientActor client;
  RequestRouterActor router;  ///< null: the client has its place

  EngineHarness(caf::actor_system& system, std::shared_ptr<const Tokenizer> tokenizer,
                const HarnessOptions& options);
  ~EngineHarness();
  EngineHarness(const EngineHarness&) = delete;
  EngineHarness& operator=(const EngineHarness&) = delete;

  /// A request as an InputProcessor would hand it over.
  void add(RequestId id, std::vector<TokenId> prompt, std::int32_t max_tokens,
           SamplingParams params = {}, const RequestLimits& limits = {},
           std::vector<MultiModalFeature> items = {});
  /// As a client that leaves.
  void abort(RequestId id);

 private:
  template <class Handle>
  Handle keep(Handle handle) {
    actors.push_back(caf::actor_cast<caf::actor>(handle));
    return handle;
  }
};

}  // namespace troupe::testing
