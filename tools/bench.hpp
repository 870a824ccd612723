#pragma once
// The benchmarks of `troupe bench`, and shared code.

#include <string>
#include <vector>

#include "tools/bench/prompts.hpp"
#include "tools/commands.hpp"
#include "tools/offline_engine.hpp"

namespace troupe::tools {

int bench_latency(Arguments arguments);
int bench_throughput(Arguments arguments);
int bench_serve(Arguments arguments);

/// Writes `text` to `file`; does nothing if the name is empty. Errors: kIo.
[[nodiscard]] Result<void> write_result(const std::string& file, const std::string& text);

/// Errors: kNotFound; those of read_prompts.
[[nodiscard]] Result<std::vector<BenchPrompt>> read_dataset(const std::string& file,
                                                            std::int64_t default_output_len);

struct OfflineRun {
  double elapsed = 0;  ///< seconds
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_output_tokens = 0;
};
/// Submits all prompts at once and waits for the last response: sampled at that temperature, each
/// with the full output length. `on_progress` is called with the number of responses. Error: the
/// first one of a request.
[[nodiscard]] Result<OfflineRun> run_offline(OfflineEngine& engine,
                                             const std::vector<BenchPrompt>& prompts,
                                             const std::function<void(std::size_t)>& on_progress,
                                             double temperature = 1);

/// Ids for random prompts: those of the vocabulary except for the first ones, where models have
/// their control tokens.
[[nodiscard]] std::vector<TokenId> ordinary_tokens(std::int32_t vocab_size);

}  // namespace troupe::tools
