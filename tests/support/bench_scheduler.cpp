// The Scheduler's own time per decode step, with the KV cache in the same program.

#include <benchmark/benchmark.h>

#include <vector>

#include "runtime/scheduler/scheduler.hpp"
#include "tests/support/local_ports.hpp"

namespace troupe {
namespace {

constexpr std::int32_t kBlockSize = 16;

void schedule_and_update(benchmark::State& state) {
  const auto num_running = static_cast<std::int32_t>(state.range(0));
  constexpr std::int32_t kMaxLen = 1 << 20;
  KVCacheSettings settings;
  settings.groups = {KVCacheGroup{.spec = {.block_size = kBlockSize}}};
  settings.num_blocks = 1 << 20;
  settings.max_model_len = kMaxLen;
  KVCacheManager manager(settings);
  LocalKVCache port(manager);
  SchedulerConfig config;
  config.max_model_len = kMaxLen;
  config.max_num_seqs = num_running;
  config.max_num_batched_tokens = num_running * 64;
  Scheduler scheduler(config, port, nullptr);
  for (std::int32_t i = 0; i < num_running; ++i) {
    EngineCoreRequest request;
    request.id = RequestId{static_cast<std::uint64_t>(i) + 1};
    request.params.max_tokens = kMaxLen;
    for (TokenId token = 0; token < 64; ++token)
      request.prompt_token_ids.edit().push_back(token + i);
    if (!scheduler.add_request(std::move(request), 0).ok()) state.SkipWithError("not added");
  }
  const auto step = [&] {
    const SchedulerOutput output = run_now(scheduler.schedule(0));
    ModelRunnerOutput result;
    result.ids = output.scheduled_ids;
    result.num_sampled.assign(result.ids.size(), 1);
    result.sampled_token_ids.assign(result.ids.size(), 7);
    benchmark::DoNotOptimize(run_now(scheduler.update_from_output(output, result, 0)));
  };
  step();
  port.num_round_trips = 0;
  for (auto _ : state) step();
  state.counters["round_trips_per_step"] =
      benchmark::Counter(port.num_round_trips, benchmark::Counter::kAvgIterations);
}
BENCHMARK(schedule_and_update)->Arg(1)->Arg(64)->Arg(256)->Arg(1024)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace troupe

BENCHMARK_MAIN();
