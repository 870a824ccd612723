#pragma once
// One engine of real actors around a fake worker, for tests of the actors and for the benchmark of
// their messages.

#include <memory>
#include <vector>

#include "actors/spawn.hpp"
#include "runtime/scheduler/ec_connector.hpp"
#include "runtime/scheduler/grammar.hpp"
#include "runtime/scheduler/kv_connector.hpp"
#include "runtime/scheduler/scheduler_config.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/fake_worker.hpp"

namespace troupe::testing {

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
