// troupe bench throughput: submits all requests at once and waits for the last one.
#include <algorithm>
#include <cstdio>

#include "tools/bench.hpp"
#include "tools/bench/report.hpp"
#include "tools/progress.hpp"

namespace troupe::tools {
namespace {

constexpr std::string_view kBenchThroughputUsage =
    "bench throughput [MODEL] [options]\n\n"
    "Submits all prompts at once and prints requests and tokens per second. Prompts are random, "
    "or\n"
    "read from a file of lines {\"prompt\": \"text\", \"output_tokens\": 64}.";

struct ThroughputOptions {
  RandomPromptOptions random;
  std::string dataset;
  std::string output_json;
};

void bind(OptionSet& set, ThroughputOptions& options) {
  RandomPromptOptions& random = options.random;
  set.section("bench")
      .add("num-prompts", random.num_prompts, "number of prompts; with a dataset, its first ones",
           1, 1 << 24)
      .add("input-len", random.input_len, "tokens of a random prompt", 1, 1 << 20)
      .add("output-len", random.output_len, "output tokens per prompt", 1, 1 << 20)
      .add("random-prefix-len", random.prefix_len,
           "length of a common prefix of all prompts, in addition", 0, 1 << 20)
      .add("random-range-ratio", random.range_ratio, "relative variation of random lengths", 0,
           0.999)
      .add("dataset", options.dataset, "JSON lines file with prompts; default: random prompts")
      .add("output-json", options.output_json, "file for the result as JSON");
}

Result<std::vector<BenchPrompt>> make_prompts(const ThroughputOptions& options,
                                              std::int32_t vocab_size) {
  if (options.dataset.empty()) {
    return random_token_prompts(options.random, ordinary_tokens(vocab_size));
  }
  ASSIGN_OR_RETURN(auto prompts, read_dataset(options.dataset, options.random.output_len));
  prompts.resize(std::min(prompts.size(), static_cast<std::size_t>(options.random.num_prompts)));
  return prompts;
}

}  // namespace

int bench_throughput(Arguments arguments) {
  CommandLine line;
  ThroughputOptions options;
  bind(line.set, options);
  line.options.log.log_level = "warning";
  if (const auto done = read_command_line(line, arguments, kBenchThroughputUsage)) return *done;
  options.random.seed = static_cast<std::uint64_t>(line.options.model.seed);
  auto engine = OfflineEngine::start(line);
  if (!engine.ok()) return fail(engine.error());
  const auto prompts = make_prompts(options, (*engine)->model().vocab_size);
  if (!prompts.ok()) return fail(prompts.error());

  ProgressBar bar("measuring");
  const std::string total = std::to_string(prompts->size());
  const auto run = run_offline(**engine, *prompts, [&](std::size_t num_done) {
    bar.show(static_cast<double>(num_done) / static_cast<double>(prompts->size()),
             std::to_string(num_done) + " of " + total + " answered");
  });
  bar.finish();
  if (!run.ok()) return fail(run.error());
  const ThroughputReport report = {.elapsed = run->elapsed,
                                   .num_requests = static_cast<std::int64_t>(prompts->size()),
                                   .num_prompt_tokens = run->num_prompt_tokens,
                                   .num_output_tokens = run->num_output_tokens};
  std::fputs(throughput_table(report).c_str(), stdout);
  const auto written = write_result(options.output_json, throughput_json(report));
  return written.ok() ? kExitOk : fail(written.error());
}

}  // namespace troupe::tools
