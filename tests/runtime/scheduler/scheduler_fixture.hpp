#pragma once
// A Scheduler with its KV cache, and a model that samples the same token for ever.

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/scheduler/scheduler.hpp"
#include "tests/support/local_ports.hpp"

namespace troupe {

struct SchedulerFixture {
  static constexpr std::int32_t kBlockSize = 4;

  explicit SchedulerFixture(SchedulerConfig wanted, std::int32_t num_usable_blocks = 100)
      : config(std::move(wanted)) {
    KVCacheSettings settings;
    settings.groups = {KVCacheGroup{.spec = {.block_size = kBlockSize}}};
    settings.num_blocks = config.num_blocks = num_usable_blocks + 1;
    settings.max_model_len = config.max_model_len;
    settings.prefix_caching = config.prefix_caching;
    settings.max_in_flight_tokens = 2 * config.max_num_batched_tokens;
    manager = std::make_unique<KVCacheManager>(settings);
    port = std::make_unique<LocalKVCache>(*manager);
    scheduler = std::make_unique<Scheduler>(config, *port, nullptr);
  }
  static SchedulerConfig small() {
    return {.max_model_len = 64, .max_num_seqs = 4, .max_num_batched_tokens = 64};
  }

  /// A request whose prompt shares no block with another's.
  EngineCoreRequest request(std::int32_t num_prompt_tokens, std::int32_t max_tokens) {
    EngineCoreRequest request;
    request.id = RequestId{++last_id};
    request.arrival_time = static_cast<double>(last_id);
    request.params.max_tokens = max_tokens;
    for (std::int32_t i = 0; i < num_prompt_tokens; ++i)
      request.prompt_token_ids.edit().push_back(static_cast<TokenId>(last_id * 100) + i);
    return request;
  }
  RequestId add(EngineCoreRequest request) {
    const RequestId id = request.id;
    CHECK(scheduler->add_request(std::move(request), now).ok());
    return id;
  }

  /// One whole step; what it scheduled.
  SchedulerOutput step() {
    now += 1;
    SchedulerOutput planned = run_now(scheduler->schedule(now));
    ModelRunnerOutput result;
    result.ids = planned.scheduled_ids;
    for (const RequestId id : result.ids) {
      const RequestState* state = scheduler->request(id);
      const bool samples = state->num_computed_tokens == state->num_tokens();
      result.num_sampled.push_back(samples ? 1 : 0);
      if (samples) result.sampled_token_ids.push_back(7);
    }
    take(run_now(scheduler->update_from_output(planned, result, now)));
    return planned;
  }
  void take(EngineCoreOutputs outputs) {
    for (EngineCoreOutput& output : outputs.outputs) {
      num_tokens[output.id] += output.new_token_ids.size();
      if (output.finish_reason) ended.emplace(output.id, std::move(output));
    }
  }
  [[nodiscard]] bool running(RequestId id) const {
    const RequestState* state = scheduler->request(id);
    return state != nullptr && state->status == RequestStatus::kRunning;
  }
  /// Every block that is not free belongs to a request that is known.
  [[nodiscard]] bool all_blocks_free() {
    scheduler->flush();
    return manager->pool().num_free_blocks() == manager->pool().num_blocks() - 1;
  }

  SchedulerConfig config;
  std::unique_ptr<KVCacheManager> manager;
  std::unique_ptr<LocalKVCache> port;
  std::unique_ptr<Scheduler> scheduler;
  std::uint64_t last_id = 0;
  double now = 1000;
  std::map<RequestId, std::size_t> num_tokens;
  std::map<RequestId, EngineCoreOutput> ended;
};

}  // namespace troupe
