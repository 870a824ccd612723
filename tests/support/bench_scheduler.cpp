// The Scheduler's own time per decode step, with the KV cache in the same program, and that of the
// block pool's operations.

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
    for (TokenId token = 0; token < 64; ++token) request.prompt_token_ids.push_back(token + i);
    if (!scheduler.add_request(std::move(request), 0).ok()) state.SkipWithError("not added");
  }
  const auto step = [&] {
    const SchedulerOutput output = run_now(scheduler.schedule(0));
    ModelRunnerOutput result;
    result.ids = output.scheduled_ids;
    result.num_sampled.assign(result.ids.size(), 1);
    result.sampled_token_ids.assign(result.ids.size(), 7);
    benchmark::DoNotOptimize(scheduler.update_from_output(output, result, 0));
  };
  step();
  port.num_round_trips = 0;
  for (auto _ : state) step();
  state.counters["round_trips_per_step"] =
      benchmark::Counter(port.num_round_trips, benchmark::Counter::kAvgIterations);
}
BENCHMARK(schedule_and_update)->Arg(1)->Arg(64)->Arg(256)->Arg(1024)->Unit(benchmark::kMicrosecond);

/// One block: taken, named, freed to the queue's end, found, touched and freed again.
void block_life(benchmark::State& state) {
  BlockPool pool(1 << 20, false);
  std::vector<BlockId> blocks;
  BlockKey key;
  std::uint64_t n = 0;
  for (auto _ : state) {
    blocks.clear();
    pool.take(1, blocks);
    const std::uint64_t mixed = ++n * 0x9e3779b97f4a7c15u;
    std::memcpy(key.hash.bytes.data(), &mixed, sizeof mixed);
    pool.set_content(blocks[0], key, kBlockSize);
    pool.free(blocks);
    pool.touch(pool.find(key.hash, 0));
    pool.free(blocks);
  }
}
BENCHMARK(block_life);

void hash_prompt(benchmark::State& state) {
  const BlockHasher hasher(BlockHashAlgorithm::kSha256Cbor, kBlockSize);
  KVCacheRequest request;
  for (TokenId token = 0; token < 16384; ++token) request.token_ids.push_back(token * 7);
  std::vector<BlockHash> hashes;
  for (auto _ : state) {
    hashes.clear();
    hasher.extend(request, hashes);
  }
  state.counters["tokens"] = benchmark::Counter(static_cast<double>(state.iterations()) * 16384,
                                                benchmark::Counter::kIsRate);
}
BENCHMARK(hash_prompt)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace troupe

BENCHMARK_MAIN();
