// The host's time per decode step besides the model: planning it, its message, the worker's
// batch, and taking the result in. None of it may grow with the length of the contexts.
//
// Usage: bench_step [options of Google Benchmark]; the arguments of a row are the running requests
// and the tokens that each has when the first step begins, or up to 511 more: requests of equal
// lengths would all get their new blocks in the same steps, one of 16.

#include <benchmark/benchmark.h>

#include <ctime>
#include <vector>

#include "messages/wire.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "runtime/worker/input_batch.hpp"
#include "tests/support/local_ports.hpp"

namespace troupe {
namespace {

constexpr std::int32_t kBlockSize = 16;
constexpr std::int64_t kVocabSize = 151936;
constexpr std::int32_t kNumSteps = 512;
/// The first step copies the prompts, which Scheduler and KVCacheManager share until then.
constexpr std::int32_t kNumWarmUpSteps = 2;
constexpr std::int32_t kMaxMoreTokens = 512;

/// A Scheduler and the batch of its worker, with all requests past their prompts.
class Engine {
 public:
  Engine(std::int32_t num_running, std::int32_t num_tokens)
      : manager_(settings(num_running, num_tokens + kMaxMoreTokens + kNumSteps + 2 * kBlockSize)),
        port_(manager_),
        scheduler_(config(num_running, num_tokens), port_, nullptr) {
    for (std::int32_t i = 0; i < num_running; ++i) {
      EngineCoreRequest request;
      request.id = RequestId{static_cast<std::uint64_t>(i) + 1};
      request.params.max_tokens = kMaxLen;
      const TokenId length = num_tokens + i * 37 % kMaxMoreTokens;
      for (TokenId token = 0; token < length; ++token)
        request.prompt_token_ids.edit().push_back((token + i) % 1000);
      CHECK(scheduler_.add_request(std::move(request), 0).ok());
    }
    run_step();
    CHECK(std::ssize(batch_.rows()) == num_running, batch_.rows().size());
    for (std::int32_t i = 0; i < kNumWarmUpSteps; ++i) run_step();
  }

  void schedule() { step_ = run_now(scheduler_.schedule(0)); }
  void encode() { wire::encode(step_, message_); }
  void decode() { CHECK(wire::decode(message_.data(), message_.size(), arrived_)); }
  void fill_batch() {
    batch_.update(arrived_);
    batch_.build(kVocabSize, nullptr);
    benchmark::DoNotOptimize(batch_.forward_batch());
  }
  void update() {
    ModelRunnerOutput result;
    result.ids = step_.scheduled_ids;
    result.num_sampled.assign(result.ids.size(), 1);
    result.sampled_token_ids.assign(result.ids.size(), 7);
    for (const InputBatch::Row& row : batch_.rows()) InputBatch::append_token(*row.request, 7);
    benchmark::DoNotOptimize(
        run_now(scheduler_.update_from_output(std::move(step_), std::move(result), 0)));
  }
  void run_step() {
    schedule();
    encode();
    decode();
    fill_batch();
    update();
  }
  [[nodiscard]] std::size_t message_bytes() const noexcept { return message_.size(); }

 private:
  static constexpr std::int32_t kMaxLen = 1 << 20;

  static KVCacheSettings settings(std::int32_t num_running, std::int32_t num_tokens) {
    KVCacheSettings settings;
    settings.groups = {KVCacheGroup{.spec = {.block_size = kBlockSize}}};
    settings.num_blocks = num_running * (num_tokens / kBlockSize + 1) + 1;
    settings.max_model_len = kMaxLen;
    return settings;
  }
  static SchedulerConfig config(std::int32_t num_running, std::int32_t num_tokens) {
    SchedulerConfig config;
    config.max_model_len = kMaxLen;
    config.max_num_seqs = num_running;
    config.max_num_batched_tokens = num_running * (num_tokens + kMaxMoreTokens);
    return config;
  }
  KVCacheManager manager_;
  LocalKVCache port_;
  Scheduler scheduler_;
  InputBatch batch_{{kBlockSize}};
  SchedulerOutput step_;
  SchedulerOutput arrived_;
  std::vector<char> message_;
};

/// Of this thread: what else the machine does is not counted.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void decode_step(benchmark::State& state) {
  Engine engine(static_cast<std::int32_t>(state.range(0)),
                static_cast<std::int32_t>(state.range(1)));
  struct Part {
    const char* name;
    void (Engine::*run)();
    double seconds = 0;
  };
  Part parts[] = {{"schedule_us", &Engine::schedule},
                  {"encode_us", &Engine::encode},
                  {"decode_us", &Engine::decode},
                  {"batch_us", &Engine::fill_batch},
                  {"update_us", &Engine::update}};
  std::size_t num_bytes = 0;
  for (auto _ : state) {
    double step_seconds = 0;
    for (Part& part : parts) {
      const double start = cpu_seconds();
      (engine.*part.run)();
      const double elapsed = cpu_seconds() - start;
      part.seconds += elapsed;
      step_seconds += elapsed;
    }
    num_bytes += engine.message_bytes();
    state.SetIterationTime(step_seconds);
  }
  const auto num_steps = static_cast<double>(state.iterations());
  for (const Part& part : parts) state.counters[part.name] = part.seconds * 1e6 / num_steps;
  state.counters["message_bytes"] = static_cast<double>(num_bytes) / num_steps;
}
BENCHMARK(decode_step)
    ->ArgsProduct({{1, 64, 256}, {1024, 32768}})
    ->Iterations(kNumSteps)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace troupe

BENCHMARK_MAIN();
