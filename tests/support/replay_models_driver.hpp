#pragma once
// Drives a ModelRunner as a scheduler would, in every way that a scheduler may: alone or batched,
// in chunks, on shared prefix blocks, with preemptions.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "runtime/worker/model_runner.hpp"

namespace troupe {

/// A model folder on a runner, with a cache of `num_blocks` blocks whose ids are handed out in a
/// shuffled order.
struct DrivenRunner {
  std::unique_ptr<ModelRunner> runner;
  KVCacheConfig cache;
  /// The runner's own drafts are used, and there are slots for so many.
  std::int32_t num_draft_tokens = 0;
  bool encoder_decoder = false;  ///< a job's item is what its tokens attend to
  std::int64_t num_drafted = 0;
  std::int64_t num_accepted = 0;
  std::int64_t num_stopped_passes = 0;  ///< of the draft model, in steps in which it is stopped
};
struct DriverModelOptions {
  std::string folder;
  std::string dtype = "float32";
  std::string quantization = "auto";
  std::string packed_weights_dir;
  std::string kv_cache_dtype = "auto";
  SpeculativeDecoding speculative = {};
  std::string device = "cpu";
  std::string isa = "auto";
  std::int32_t threads = 2;
  std::int32_t block_size = 16;
  std::int32_t num_blocks = 1024;
  AdapterOptions adapters = {};
};
/// Names of the instruction sets that this CPU has.
std::vector<std::string> available_isas();
/// Throws std::runtime_error with the error's text.
DrivenRunner load_driven_runner(const DriverModelOptions& options);

/// Layers of equal specs in one group each; states are not cached.
KVCacheConfig plan_cache(std::vector<KVCacheSpec> specs, std::int32_t num_blocks);

struct DriverJob {
  std::vector<TokenId> prompt;
  SamplingParams params;
  std::int32_t num_outputs = 0;
  std::vector<MultiModalFeature> items;  ///< by ascending offset
  std::optional<LoraRequest> lora = std::nullopt;
};
struct DriverResult {
  std::vector<TokenId> tokens;
  LogprobRows logprobs;
  LogprobRows prompt_logprobs;
  std::vector<Error> errors;
  bool operator==(const DriverResult&) const = default;
};

struct DriverSchedule {
  std::int32_t token_budget = 2048;  ///< of one step
  std::size_t max_running = 64;      ///< 1: one request after the other
  std::int32_t preempt_every = 0;    ///< every so many steps a running request loses its blocks
  bool share_prefix = false;         ///< full blocks of an equal prefix are used again
  /// Each step is planned as if the result of the one before were not known: the runner's drafts
  /// have placeholders, and all drafts of the step before count as accepted.
  bool plan_ahead = false;
  std::int32_t draft_every = 1;  ///< steps; behind the others the runner makes no drafts
  /// In steps [stop_begin, stop_end) the runner makes no drafts, and its draft model is stopped.
  std::uint64_t stop_begin = 0;
  std::uint64_t stop_end = 0;
  /// Job by job what will be said: up to three drafts a step are taken from there, some of them
  /// spoilt. Null: no drafts.
  const std::vector<DriverResult>* oracle = nullptr;
};

/// Runs all jobs to their end; result i is job i's.
std::vector<DriverResult> drive(DrivenRunner& runner, std::span<const DriverJob> jobs,
                                const DriverSchedule& schedule);

/// The model's greedy answers to a few fixed prompts, with logprobs of answers and prompts.
std::vector<DriverResult> drive_greedily(const DriverModelOptions& options);

}  // namespace troupe
