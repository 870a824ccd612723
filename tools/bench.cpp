// troupe bench: dispatches to the benchmarks, and shared code.
#include "tools/bench.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <unordered_set>

namespace troupe::tools {
namespace {

constexpr const char* kBenchUsage =
    "usage: troupe bench latency|throughput|serve [options]\n\n"
    "  latency      latency of one batch of requests\n"
    "  throughput   requests and tokens per second, with all requests submitted at once\n"
    "  serve        a running server under load: TTFT, TPOT, ITL, throughput\n\n"
    "Metrics are defined as in `vllm bench`. See `troupe bench latency --help` for the options.\n";

}  // namespace

int bench(Arguments arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "--help=all" ||
      arguments[0] == "-h") {
    std::fputs(kBenchUsage, arguments.empty() ? stderr : stdout);
    return arguments.empty() ? kExitUsage : kExitOk;
  }
  const Arguments rest = arguments.subspan(1);
  if (arguments[0] == "latency") return bench_latency(rest);
  if (arguments[0] == "throughput") return bench_throughput(rest);
  if (arguments[0] == "serve") return bench_serve(rest);
  return fail(invalid_argument("unknown benchmark '" + arguments[0] +
                               "': expected latency, throughput or serve"));
}

Result<void> write_result(const std::string& file, const std::string& text) {
  if (file.empty()) return {};
  std::ofstream stream(file, std::ios::binary);
  stream << text << std::flush;
  if (!stream) return Error{ErrorCode::kIo, "cannot write '" + file + "'"};
  return {};
}

Result<std::vector<BenchPrompt>> read_dataset(const std::string& file,
                                              std::int64_t default_output_len) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return Error{ErrorCode::kNotFound, "cannot read '" + file + "'"};
  auto prompts = read_prompts(stream, default_output_len);
  if (!prompts.ok()) return Error{prompts.error().code, file + ": " + prompts.error().message};
  if (prompts->empty()) return Error{ErrorCode::kCorrupt, file + ": no prompts in the file"};
  return prompts;
}

Result<OfflineRun> run_offline(OfflineEngine& engine, const std::vector<BenchPrompt>& prompts,
                               const std::function<void(std::size_t)>& on_progress,
                               double temperature) {
  std::vector<GenerateRequest> requests;
  for (const BenchPrompt& prompt : prompts) {
    GenerateRequest& request = requests.emplace_back();
    request.prompt = prompt.prompt;
    request.params.ignore_eos = true;
    request.params.temperature = static_cast<float>(temperature);
    request.params.max_tokens = static_cast<std::int32_t>(prompt.num_output_tokens);
    request.params.output_kind = OutputKind::kFinalOnly;
  }
  OfflineRun run;
  std::unordered_set<RequestId> running;
  const auto start = std::chrono::steady_clock::now();
  for (GenerateRequest& request : requests) running.insert(engine.submit(std::move(request)));
  while (!running.empty()) {
    for (const RequestOutput& output : engine.next().outputs) {
      if (!output.finished || running.erase(output.id) == 0) continue;
      if (output.error) return *output.error;
      run.num_prompt_tokens += static_cast<std::int64_t>(output.prompt_token_ids.size());
      for (const CompletionOutput& sample : output.outputs) {
        run.num_output_tokens += static_cast<std::int64_t>(sample.token_ids.size());
      }
      on_progress(prompts.size() - running.size());
    }
  }
  run.elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return run;
}

std::vector<TokenId> ordinary_tokens(std::int32_t vocab_size) {
  constexpr std::int32_t kNumControlTokens = 256;
  const std::int32_t first = std::min(kNumControlTokens, vocab_size / 2);
  std::vector<TokenId> ids(static_cast<std::size_t>(vocab_size - first));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

}  // namespace troupe::tools
