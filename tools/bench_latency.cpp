// troupe bench latency: latency of one batch, measured repeatedly.
#include <cstdio>

#include "tools/bench.hpp"
#include "tools/bench/report.hpp"
#include "tools/progress.hpp"

namespace troupe::tools {
namespace {

constexpr std::string_view kBenchLatencyUsage =
    "bench latency [MODEL] [options]\n\n"
    "Runs one batch of random prompts several times and prints its latency. Prefix caching is off\n"
    "unless --enable-prefix-caching is given. For speculative decoding use repetitive prompts\n"
    "(--repeat-len) and greedy decoding (--temperature 0).";

struct LatencyOptions {
  std::int64_t input_len = 32;
  std::int64_t output_len = 128;
  std::int64_t repeat_len = 0;
  double temperature = 1;
  std::int64_t batch_size = 8;
  std::int64_t num_iters_warmup = 10;
  std::int64_t num_iters = 30;
  std::string output_json;
};

void bind(OptionSet& set, LatencyOptions& options) {
  set.section("bench")
      .add("input-len", options.input_len, "tokens per prompt", 1, 1 << 20)
      .add("output-len", options.output_len, "output tokens per prompt", 1, 1 << 20)
      .add("repeat-len", options.repeat_len,
           "prompts repeat their first tokens, this many; 0: no repetition", 0, 1 << 20)
      .add("temperature", options.temperature, "sampling temperature", 0, 100)
      .add("batch-size", options.batch_size, "number of prompts in the batch", 1, 1 << 16)
      .add("num-iters-warmup", options.num_iters_warmup, "number of warm-up iterations", 0, 1 << 20)
      .add("num-iters", options.num_iters, "number of measured iterations", 1, 1 << 20)
      .add("output-json", options.output_json, "file for the result as JSON");
}

}  // namespace

int bench_latency(Arguments arguments) {
  CommandLine line;
  LatencyOptions options;
  bind(line.set, options);
  line.options.log.log_level = "warning";
  line.options.engine.enable_prefix_caching = false;
  if (const auto done = read_command_line(line, arguments, kBenchLatencyUsage)) return *done;
  auto engine = OfflineEngine::start(line);
  if (!engine.ok()) return fail(engine.error());

  const RandomPromptOptions random = {.num_prompts = options.batch_size,
                                      .input_len = options.input_len,
                                      .output_len = options.output_len,
                                      .repeat_len = options.repeat_len};
  const std::vector<BenchPrompt> prompts =
      random_token_prompts(random, ordinary_tokens((*engine)->model().vocab_size));
  ProgressBar bar("measuring");
  std::vector<double> latencies;
  const std::int64_t num_iterations = options.num_iters_warmup + options.num_iters;
  for (std::int64_t i = 0; i < num_iterations; ++i) {
    const bool warm = i >= options.num_iters_warmup;
    const auto run = run_offline(
        **engine, prompts, [](std::size_t) {}, options.temperature);
    if (!run.ok()) return fail(run.error());
    if (warm) latencies.push_back(run->elapsed);
    bar.show(static_cast<double>(i + 1) / static_cast<double>(num_iterations),
             std::string(warm ? "iteration " : "warm-up ") +
                 std::to_string(warm ? i + 1 - options.num_iters_warmup : i + 1));
  }
  bar.finish();
  std::fputs(latency_table(latencies).c_str(), stdout);
  const auto written = write_result(options.output_json, latency_json(latencies));
  return written.ok() ? kExitOk : fail(written.error());
}

}  // namespace troupe::tools
