#pragma once
// Supervisor and Executor to Worker: its life outside the steps.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "messages/cache.hpp"
#include "messages/error.hpp"

namespace troupe {

/// What a worker loads, and how.
struct WorkerOptions {
  std::string model;           ///< folder
  std::string dtype = "auto";  ///< auto, bfloat16, float32
  std::string kv_cache_dtype = "auto";
  std::string cpu_isa = "auto";
  std::int32_t threads = 0;  ///< 0: one per core
  std::int32_t block_size = 16;
  std::int32_t max_model_len = 0;  ///< 0: the model's own
  std::int32_t max_num_seqs = 0;
  std::int32_t max_num_batched_tokens = 0;
  bool operator==(const WorkerOptions&) const = default;
};
TROUPE_MESSAGE(WorkerOptions, model, dtype, kv_cache_dtype, cpu_isa, threads, block_size,
               max_model_len, max_num_seqs, max_num_batched_tokens)

struct LoadModel {
  WorkerOptions options;
  bool operator==(const LoadModel&) const = default;
};
TROUPE_MESSAGE(LoadModel, options)

/// Worker -> Supervisor while it loads.
struct LoadProgress {
  std::int32_t rank = 0;
  double fraction = 0;
  std::string what;
  bool operator==(const LoadProgress&) const = default;
};
TROUPE_MESSAGE(LoadProgress, rank, fraction, what)

/// The answer to LoadModel.
struct ModelLoaded {
  std::string architecture;
  std::string dtype;
  std::string cpu_isa;
  std::int32_t max_model_len = 0;
  std::int32_t vocab_size = 0;
  std::vector<KVCacheSpec> kv_cache_specs;  ///< one per attention layer
  std::int64_t weight_bytes = 0;
  std::int64_t available_bytes = 0;  ///< of the device, for the KV cache
  std::optional<Error> error;
  bool operator==(const ModelLoaded&) const = default;
};
TROUPE_MESSAGE(ModelLoaded, architecture, dtype, cpu_isa, max_model_len, vocab_size, kv_cache_specs,
               weight_bytes, available_bytes, error)

/// Supervisor -> Worker: take the memory. Answered with Status.
struct InitializeKVCache {
  KVCacheConfig config;
  bool operator==(const InitializeKVCache&) const = default;
};
TROUPE_MESSAGE(InitializeKVCache, config)

/// Done, or why not.
struct Status {
  std::optional<Error> error;
  bool operator==(const Status&) const = default;
};
TROUPE_MESSAGE(Status, error)

/// Worker -> Executor -> Scheduler: the step gave no result; nothing of it counts.
struct StepFailed {
  std::uint64_t step = 0;
  Error error;
  bool operator==(const StepFailed&) const = default;
};
TROUPE_MESSAGE(StepFailed, step, error)

}  // namespace troupe
