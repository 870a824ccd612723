// troupe bench latency: how long one batch takes, over and over.
#include <cstdio>

#include "tools/bench.hpp"
#include "tools/bench/report.hpp"
#include "tools/progress.hpp"

namespace troupe::tools {
namespace {

constexpr std::string_view kUsage =
    "bench latency [MODEL] [options]\n\n"
    "Runs one batch of random prompts to its end, several times, and prints the seconds it takes.\n"
    "Prefix caching is off unless --enable-prefix-caching asks for it. For speculative decoding\n"
    "there are repetitive prompts (--repeat-len), and answers without chance (--temperature 0).";

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
      .add("input-len", options.input_len, "tokens of each prompt", 1, 1 << 20)
      .add("output-len", options.output_len, "tokens of each answer", 1, 1 << 20)
      .add("repeat-len", options.repeat_len,
           "a prompt says its first so many tokens over and over; 0: it does not", 0, 1 << 20)
      .add("temperature", options.temperature, "of the answers", 0, 100)
      .add("batch-size", options.batch_size, "prompts that run together", 1, 1 << 16)
      .add("num-iters-warmup", options.num_iters_warmup, "iterations that are not measured", 0,
           1 << 20)
      .add("num-iters", options.num_iters, "iterations that are measured", 1, 1 << 20)
      .add("output-json", options.output_json, "file for the result as JSON");
}

}  // namespace

int bench_latency(Arguments arguments) {
  CommandLine line;
  LatencyOptions options;
  bind(line.set, options);
  line.options.log.log_level = "warning";
  line.options.engine.enable_prefix_caching = false;
  if (const auto done = read_command_line(line, arguments, kUsage)) return *done;
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
