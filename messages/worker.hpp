#pragma once
// Supervisor and Executor to Worker: its life outside the steps.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "messages/cache.hpp"
#include "messages/error.hpp"

namespace troupe {

/// How the workers of one engine share a model: the layers are cut into stages, the matrices of
/// each stage into tensor-parallel slices. One rank per worker.
struct ParallelConfig {
  std::int32_t tensor_parallel_size = 1;
  std::int32_t pipeline_parallel_size = 1;
  std::int32_t rank = 0;  ///< stage * tensor_parallel_size + rank in the stage
  std::int32_t rank_on_host = 0;
  std::int32_t ranks_on_host = 1;  ///< of all engines there; they share its cores and its memory
  /// Where the ranks meet: "shm:NAME" on one host, "tcp:HOST:PORT" (of rank 0) between hosts. Empty
  /// with one rank. Every incarnation of the workers meets under its own number.
  std::string rendezvous;
  /// Of this engine: ranks that meet over TCP show each other that they know it.
  std::string secret;
  std::uint64_t incarnation = 0;
  double timeout_s = 60;  ///< how long a rank waits for another one
  bool operator==(const ParallelConfig&) const = default;

  [[nodiscard]] std::int32_t world_size() const noexcept {
    return tensor_parallel_size * pipeline_parallel_size;
  }
  [[nodiscard]] std::int32_t stage() const noexcept { return rank / tensor_parallel_size; }
  [[nodiscard]] bool is_first_stage() const noexcept { return stage() == 0; }
  [[nodiscard]] bool is_last_stage() const noexcept {
    return stage() == pipeline_parallel_size - 1;
  }
  [[nodiscard]] std::int32_t tensor_rank() const noexcept { return rank % tensor_parallel_size; }
  /// The rank that samples, and whose results count: the first one of the last stage.
  [[nodiscard]] std::int32_t output_rank() const noexcept {
    return world_size() - tensor_parallel_size;
  }
};
TROUPE_MESSAGE(ParallelConfig, tensor_parallel_size, pipeline_parallel_size, rank, rank_on_host,
               ranks_on_host, rendezvous, secret, incarnation, timeout_s)

/// Several tokens per step where they can be guessed: drafts are taken from the request's own
/// tokens, and those that the model would have said count.
struct SpeculativeDecoding {
  std::int32_t num_draft_tokens = 0;  ///< most per request and step; 0: none
  /// Folder or GGUF file of a smaller model that drafts; empty: drafts are looked up.
  std::string draft_model;
  std::string draft_quantization = "auto";  ///< as WorkerOptions::quantization, of that model
  std::int32_t draft_max_model_len = 0;     ///< 0: no limit of its own
  /// How many of its last tokens must occur earlier in a request: the drafts are what came then.
  std::int32_t prompt_lookup_min = 0;
  std::int32_t prompt_lookup_max = 0;
  bool operator==(const SpeculativeDecoding&) const = default;
};
TROUPE_MESSAGE(SpeculativeDecoding, num_draft_tokens, draft_model, draft_quantization,
               draft_max_model_len, prompt_lookup_min, prompt_lookup_max)

/// What a worker loads, and how.
struct WorkerOptions {
  std::string model;                    ///< folder, or GGUF file
  std::string dtype = "auto";           ///< auto, bfloat16, float32
  std::string quantization = "auto";    ///< auto, int8, int4, or a checkpoint's method
  std::string packed_weights_dir;       ///< where weights are kept as packed; empty: nowhere
  std::string kv_cache_dtype = "auto";  ///< auto, bfloat16, float32, fp8, fp8_e4m3, int8
  std::string cpu_isa = "auto";
  std::int32_t threads = 0;  ///< 0: the cores, shared out among the ranks on this host
  bool numa_bind = true;  ///< each rank to the cores and the memory of its share of the NUMA nodes
  std::int32_t block_size = 16;
  std::int32_t max_model_len = 0;  ///< 0: the model's own
  std::int32_t max_num_seqs = 0;
  std::int32_t max_num_batched_tokens = 0;
  ParallelConfig parallel;
  SpeculativeDecoding speculative;
  bool operator==(const WorkerOptions&) const = default;
};
TROUPE_MESSAGE(WorkerOptions, model, dtype, quantization, packed_weights_dir, kv_cache_dtype,
               cpu_isa, threads, numa_bind, block_size, max_model_len, max_num_seqs,
               max_num_batched_tokens, parallel, speculative)

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
  std::int32_t rank = 0;
  std::string architecture;
  std::string dtype;
  std::string cpu_isa;
  std::int32_t max_model_len = 0;
  std::int32_t vocab_size = 0;
  /// Parts in which row-parallel layers are reduced (WeightSpec::k_shards): the most workers that
  /// may share a layer and still compute the same bits as one.
  std::int32_t canonical_shards = 0;
  std::vector<LayerCacheSpec> kv_cache_specs;  ///< of this rank's layers; joined: of all, in order
  std::int64_t weight_bytes = 0;
  std::int64_t available_bytes = 0;  ///< of the device, for the KV cache
  std::optional<Error> error;

  /// Pre: joined, so that layer i is the i-th.
  [[nodiscard]] std::vector<KVCacheSpec> layer_specs() const {
    std::vector<KVCacheSpec> specs;
    for (const LayerCacheSpec& layer : kv_cache_specs) specs.push_back(layer.spec);
    return specs;
  }
  bool operator==(const ModelLoaded&) const = default;
};
TROUPE_MESSAGE(ModelLoaded, rank, architecture, dtype, cpu_isa, max_model_len, vocab_size,
               canonical_shards, kv_cache_specs, weight_bytes, available_bytes, error)

/// Supervisor -> Worker: take the memory, and serve this incarnation of the engine: whatever an
/// earlier one had left is forgotten. Answered with Status.
struct InitializeKVCache {
  KVCacheConfig config;
  std::uint32_t incarnation = 0;
  bool operator==(const InitializeKVCache&) const = default;
};
TROUPE_MESSAGE(InitializeKVCache, config, incarnation)

/// Done, or why not.
struct Status {
  std::optional<Error> error;
  bool operator==(const Status&) const = default;
};
TROUPE_MESSAGE(Status, error)

/// Executor -> Worker, only with several ranks: meet the others. First before the first step, then
/// after each failed one, as the group does not outlive a failure. `generation` counts these within
/// an incarnation.
struct JoinGroup {
  std::uint32_t generation = 0;
  bool operator==(const JoinGroup&) const = default;
};
TROUPE_MESSAGE(JoinGroup, generation)

/// To the process of a worker, from the engine's on the same host: where its steps come from, and
/// where its answers go (runtime/transport/step_rings.hpp). Every incarnation has rings of its own.
struct WorkerRings {
  std::string calls;  ///< name of the ring that all workers of the host read
  std::uint32_t reader = 0;
  std::string answers;  ///< name of the ring that this worker writes
  std::int32_t rank = 0;
  std::uint64_t incarnation = 0;
  bool operator==(const WorkerRings&) const = default;
};
TROUPE_MESSAGE(WorkerRings, calls, reader, answers, rank, incarnation)

/// Worker -> Executor -> Scheduler: the step gave no result; nothing of it counts.
struct StepFailed {
  std::uint64_t step = 0;
  Error error;
  std::int32_t rank = 0;  ///< of the worker that failed
  bool operator==(const StepFailed&) const = default;
};
TROUPE_MESSAGE(StepFailed, step, error, rank)

}  // namespace troupe
