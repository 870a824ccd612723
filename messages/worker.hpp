#pragma once
// Messages of Supervisor and Executor to a Worker, other than steps.

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "messages/cache.hpp"
#include "messages/error.hpp"

namespace troupe {

/// How the workers of one engine share a model: the layers are split into stages, the matrices of
/// each stage into tensor-parallel shards. One rank per worker.
struct ParallelConfig {
  std::int32_t tensor_parallel_size = 1;
  std::int32_t pipeline_parallel_size = 1;
  std::int32_t rank = 0;  ///< stage * tensor_parallel_size + rank in the stage
  /// Expert parallelism: each rank of a stage holds whole experts instead of a shard of each.
  bool expert_parallel = false;
  std::int32_t rank_on_host = 0;
  std::int32_t ranks_on_host = 1;  ///< of all engines on the host, which share its cores and memory
  /// Where the ranks meet: "shm:NAME" on one host, "tcp:HOST:PORT" (of rank 0) between hosts. Empty
  /// with one rank. Each incarnation of the workers uses its own number.
  std::string rendezvous;
  /// Shared secret of this engine: ranks authenticate each other with it over TCP.
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
  /// The rank that samples and whose results are used: the first one of the last stage.
  [[nodiscard]] std::int32_t output_rank() const noexcept {
    return world_size() - tensor_parallel_size;
  }
};
TROUPE_MESSAGE(ParallelConfig, tensor_parallel_size, pipeline_parallel_size, rank, expert_parallel,
               rank_on_host, ranks_on_host, rendezvous, secret, incarnation, timeout_s)

/// Draft heads: layers whose inputs are the target model's hidden states.
enum class DraftHeadKind : std::uint8_t {
  kNone = 0,
  kEagle = 1,   ///< EAGLE (arXiv 2401.15077)
  kEagle3 = 2,  ///< EAGLE-3 (arXiv 2503.01840)
  kMtp = 3,     ///< multi-token prediction (arXiv 2412.19437, 2.2), in the model's own checkpoint
};

/// Speculative decoding: draft tokens are proposed by prompt lookup, from the suffixes of earlier
/// answers, by a draft model, or by a draft head, and verified in one step.
struct SpeculativeDecoding {
  std::int32_t num_draft_tokens = 0;  ///< most per request and step; 0: none
  /// Folder or GGUF file of the draft model, or folder of the draft head; empty: prompt lookup, or
  /// the model's folder for kMtp.
  std::string draft_model;
  DraftHeadKind draft_head = DraftHeadKind::kNone;
  std::string draft_quantization = "auto";  ///< as WorkerOptions::quantization, of that model
  std::int32_t draft_max_model_len = 0;     ///< 0: no limit of its own
  /// Prompt lookup: the last tokens, this many, must occur earlier in the request; the tokens that
  /// followed them there are the drafts.
  std::int32_t prompt_lookup_min = 0;
  std::int32_t prompt_lookup_max = 0;
  /// Suffix decoding instead of prompt lookup: the longest match; 0: off.
  std::int32_t suffix_max_depth = 0;
  std::int32_t suffix_max_cached_requests = 0;  ///< whose outputs are kept
  double suffix_max_spec_factor = 1;            ///< draft tokens per matched token
  double suffix_min_token_prob = 0;             ///< of all drafts being accepted
  bool adaptive = false;  ///< adapt the number of drafts to the acceptance rate
  bool operator==(const SpeculativeDecoding&) const = default;

  [[nodiscard]] bool has_draft_head() const noexcept { return draft_head != DraftHeadKind::kNone; }
  /// Whether the drafter (a model or a head) has layers in the KV cache.
  [[nodiscard]] bool has_draft_layers() const noexcept {
    return has_draft_head() || !draft_model.empty();
  }
};
TROUPE_MESSAGE(SpeculativeDecoding, num_draft_tokens, draft_model, draft_quantization,
               draft_max_model_len, prompt_lookup_min, prompt_lookup_max, suffix_max_depth,
               suffix_max_cached_requests, suffix_max_spec_factor, suffix_min_token_prob, adaptive,
               draft_head)

/// LoRA adapters that a worker may load.
struct AdapterOptions {
  bool enabled = false;
  std::int32_t max_rank = 16;
  std::int32_t max_in_step = 1;      ///< different ones
  std::int32_t max_loaded = 1;       ///< evicted least recently used first
  std::string dtype = "auto";        ///< auto (the model's), bfloat16, float16, float32
  std::vector<LoraRequest> modules;  ///< loaded with the model, by name and path
  bool operator==(const AdapterOptions&) const = default;
};
TROUPE_MESSAGE(AdapterOptions, enabled, max_rank, max_in_step, max_loaded, dtype, modules)

/// What a worker loads, and with which options.
struct WorkerOptions {
  std::string model;                    ///< folder, or GGUF file
  std::string mmproj;                   ///< GGUF file of the model's encoder; empty: none
  std::string runner = "auto";          ///< auto, generate, pooling
  std::string pooler_config;            ///< JSON object that overrides the folder's pooling config
  std::string dtype = "auto";           ///< auto, bfloat16, float32
  std::string quantization = "auto";    ///< auto, int8, int4, or a checkpoint's method
  std::string packed_weights_dir;       ///< cache of packed weights; empty: none
  std::string kv_cache_dtype = "auto";  ///< auto, bfloat16, float32, fp8, fp8_e4m3, int8
  std::string device = "auto";          ///< auto, cpu, cuda, cuda-emulated
  std::string cpu_isa = "auto";
  std::int32_t threads = 0;  ///< 0: the cores divided among the ranks on this host
  bool numa_bind = true;     ///< bind each rank to the cores and memory of its NUMA nodes
  std::int32_t block_size = 16;
  std::int32_t max_model_len = 0;  ///< 0: the model's own
  std::int32_t max_num_seqs = 0;
  std::int32_t max_num_batched_tokens = 0;
  std::int32_t encoder_cache_size = 0;  ///< embeddings of images; at least those of one item
  std::string ec_transfer_config;       ///< JSON object; empty: no EC transfer
  ParallelConfig parallel;
  SpeculativeDecoding speculative;
  AdapterOptions adapters;
  bool operator==(const WorkerOptions&) const = default;
};
TROUPE_MESSAGE(WorkerOptions, model, mmproj, runner, pooler_config, dtype, quantization,
               packed_weights_dir, kv_cache_dtype, device, cpu_isa, threads, numa_bind, block_size,
               max_model_len, max_num_seqs, max_num_batched_tokens, encoder_cache_size, parallel,
               speculative, ec_transfer_config, adapters)

/// How the hidden states of a text's tokens are pooled into one vector.
enum class PoolingType : std::uint8_t {
  kNone = 0,  ///< a generative model
  kLast = 1,  ///< the last token's
  kCls = 2,   ///< the first token's
  kMean = 3   ///< the mean of all
};
[[nodiscard]] constexpr const char* to_string(PoolingType type) noexcept {
  constexpr const char* kNames[] = {"NONE", "LAST", "CLS", "MEAN"};
  return kNames[static_cast<std::size_t>(type)];
}

struct PoolerConfig {
  PoolingType type = PoolingType::kNone;
  bool normalize = true;     ///< unless overridden by a request
  bool whole_texts = false;  ///< no chunked prefill: a text is one step
  /// The class names of a classifier, which computes one logit for each. Otherwise empty.
  std::vector<std::string> labels;
  ClassActivation activation = ClassActivation::kNone;        ///< unless overridden by a request
  ClassActivation score_activation = ClassActivation::kNone;  ///< the same, of pairs' scores
  bool operator==(const PoolerConfig&) const = default;

  [[nodiscard]] bool classifies() const noexcept { return !labels.empty(); }
};
TROUPE_MESSAGE(PoolerConfig, type, normalize, whole_texts, labels, activation, score_activation)

/// Where a rank runs.
struct RankPlacement {
  std::string device;  ///< configured for its node; empty: WorkerOptions::device
  std::int32_t rank_on_host = 0;
  std::int32_t ranks_on_host = 1;
  bool operator==(const RankPlacement&) const = default;
};
TROUPE_MESSAGE(RankPlacement, device, rank_on_host, ranks_on_host)

/// Load the weights; returns ModelLoaded. Each rank completes the options by its own placement.
struct LoadModel {
  WorkerOptions options;
  std::vector<RankPlacement> ranks;

  [[nodiscard]] WorkerOptions options_of(std::int32_t rank) const {
    WorkerOptions own = options;
    own.parallel.rank = rank;
    const auto index = static_cast<std::size_t>(rank);
    if (index >= ranks.size()) return own;
    if (!ranks[index].device.empty()) own.device = ranks[index].device;
    own.parallel.rank_on_host = ranks[index].rank_on_host;
    own.parallel.ranks_on_host = ranks[index].ranks_on_host;
    return own;
  }
  bool operator==(const LoadModel&) const = default;
};
TROUPE_MESSAGE(LoadModel, options, ranks)

/// Worker -> Executor -> Supervisor while it loads.
struct LoadProgress {
  std::int32_t rank = 0;
  double fraction = 0;
  std::string what;
  bool operator==(const LoadProgress&) const = default;
};
TROUPE_MESSAGE(LoadProgress, rank, fraction, what)

/// The result of LoadModel.
struct ModelLoaded {
  std::int32_t rank = 0;
  std::string architecture;
  std::string dtype;
  std::string device;
  std::string cpu_isa;  ///< of device cpu; else empty
  std::int32_t max_model_len = 0;
  std::int32_t vocab_size = 0;
  std::int32_t hidden_size = 0;
  PoolerConfig pooler;
  /// Number of parts in which row-parallel layers are reduced (WeightSpec::k_shards): the maximum
  /// number of workers that can share a layer and compute the same bits as one.
  std::int32_t canonical_shards = 0;
  std::int32_t max_item_embeds = 0;  ///< of one image; 0: a text-only model
  std::string encoder_key;           ///< identifies type and format of the encoder's weights
  bool two_way_items = false;        ///< bidirectional attention among the tokens of an image
  std::vector<LayerCacheSpec> kv_cache_specs;  ///< of this rank's layers; merged: of all, in order
  std::int32_t num_draft_layers = 0;           ///< of all ranks: the drafter's layers come last
  std::int64_t weight_bytes = 0;
  std::int64_t available_bytes = 0;  ///< of the device, for the KV cache

  /// Pre: merged, so that layer i is the i-th.
  [[nodiscard]] std::vector<KVCacheSpec> layer_specs() const {
    std::vector<KVCacheSpec> specs;
    for (const LayerCacheSpec& layer : kv_cache_specs) specs.push_back(layer.spec);
    return specs;
  }
  bool operator==(const ModelLoaded&) const = default;
};
TROUPE_MESSAGE(ModelLoaded, rank, architecture, dtype, device, cpu_isa, max_model_len, vocab_size,
               hidden_size, pooler, canonical_shards, max_item_embeds, two_way_items,
               kv_cache_specs, weight_bytes, available_bytes, encoder_key, num_draft_layers)

/// Allocate the KV cache and serve this incarnation of the engine; state of earlier ones is
/// discarded.
struct InitializeKVCache {
  KVCacheConfig config;
  std::uint32_t incarnation = 0;
  bool operator==(const InitializeKVCache&) const = default;
};
TROUPE_MESSAGE(InitializeKVCache, config, incarnation)

/// Run dummy steps, so that the first request finds weights and buffers in memory.
struct WarmUp {
  bool operator==(const WarmUp&) const = default;
};
TROUPE_MESSAGE(WarmUp)

/// A client -> RequestRouter -> Schedulers -> Executors -> Workers: load an adapter from a folder.
/// Answered with AdapterReply.
struct LoadAdapter {
  std::string name;
  std::string path;
  bool load_inplace = false;  ///< replace the adapter of this name; otherwise there must be none
  bool operator==(const LoadAdapter&) const = default;
};
TROUPE_MESSAGE(LoadAdapter, name, path, load_inplace)

/// Routed likewise: new requests cannot use this adapter any more; running ones finish with it.
struct UnloadAdapter {
  std::string name;
  bool operator==(const UnloadAdapter&) const = default;
};
TROUPE_MESSAGE(UnloadAdapter, name)

/// Routed likewise: list the loaded adapters.
struct ListAdapters {
  bool operator==(const ListAdapters&) const = default;
};
TROUPE_MESSAGE(ListAdapters)

/// The methods of CollectiveRpc: called on all workers of an engine, besides steps.
using WorkerMethod =
    std::variant<LoadModel, InitializeKVCache, WarmUp, LoadAdapter, UnloadAdapter, ListAdapters>;
[[nodiscard]] inline const char* name_of(const WorkerMethod& method) noexcept {
  constexpr const char* kNames[] = {"load_model",   "initialize_kv_cache", "warm_up",
                                    "load_adapter", "unload_adapter",      "list_adapters"};
  static_assert(std::size(kNames) == std::variant_size_v<WorkerMethod>);
  return kNames[method.index()];
}
struct AdapterList {
  std::vector<LoraRequest> adapters;  ///< of LoadAdapter: the loaded one
  bool operator==(const AdapterList&) const = default;
};
TROUPE_MESSAGE(AdapterList, adapters)

/// The result of a method; monostate: none.
using WorkerResult = std::variant<std::monostate, ModelLoaded, AdapterList>;

/// Answers LoadAdapter, UnloadAdapter and ListAdapters.
struct AdapterReply {
  std::vector<LoraRequest> adapters;
  std::optional<Error> error;
  bool operator==(const AdapterReply&) const = default;
};
TROUPE_MESSAGE(AdapterReply, adapters, error)

/// -> Executor: run a method on every worker. Answered with CollectiveRpcReply.
struct CollectiveRpc {
  WorkerMethod method;
  double timeout_s = 0;
  bool operator==(const CollectiveRpc&) const = default;
};
TROUPE_MESSAGE(CollectiveRpc, method, timeout_s)

struct CollectiveRpcReply {
  std::vector<WorkerResult> results;  ///< by group and rank; empty if there is an error
  std::optional<Error> error;  ///< names the rank that failed first, or those that did not reply
  bool operator==(const CollectiveRpcReply&) const = default;
};
TROUPE_MESSAGE(CollectiveRpcReply, results, error)

/// Executor -> Worker. Answered with WorkerRpcReply, to the sender.
struct WorkerRpc {
  std::uint64_t call = 0;  ///< counts those of the Executor
  WorkerMethod method;
  bool operator==(const WorkerRpc&) const = default;
};
TROUPE_MESSAGE(WorkerRpc, call, method)

struct WorkerRpcReply {
  std::uint64_t call = 0;
  std::int32_t rank = 0;
  WorkerResult result;
  std::optional<Error> error;
  bool operator==(const WorkerRpcReply&) const = default;
};
TROUPE_MESSAGE(WorkerRpcReply, call, rank, result, error)

/// The Executor to itself: the deadline of a call has passed.
struct RpcDeadline {
  std::uint64_t call = 0;
  bool operator==(const RpcDeadline&) const = default;
};
TROUPE_MESSAGE(RpcDeadline, call)

/// Success, or the error.
struct Status {
  std::optional<Error> error;
  bool operator==(const Status&) const = default;
};
TROUPE_MESSAGE(Status, error)

/// Executor -> Worker, only with several ranks: join the group of ranks. Sent when all have their
/// KV cache and after each failed step, since a failure ends the group. `generation` counts these
/// within an incarnation.
struct JoinGroup {
  std::uint32_t generation = 0;
  bool operator==(const JoinGroup&) const = default;
};
TROUPE_MESSAGE(JoinGroup, generation)

/// From the engine's process to that of a worker on the same host: the ring of its steps and the
/// ring of its replies (runtime/transport/step_rings.hpp). Each incarnation has its own rings.
struct WorkerRings {
  std::string calls;  ///< name of the ring that all workers of the host read
  std::uint32_t reader = 0;
  std::string answers;  ///< name of the ring that this worker writes
  std::int32_t rank = 0;
  std::uint64_t incarnation = 0;
  bool operator==(const WorkerRings&) const = default;
};
TROUPE_MESSAGE(WorkerRings, calls, reader, answers, rank, incarnation)

/// Worker -> Executor -> Scheduler: the step failed; none of its results count.
struct StepFailed {
  std::uint64_t step = 0;
  Error error;
  std::int32_t rank = 0;  ///< of the worker that failed
  bool operator==(const StepFailed&) const = default;
};
TROUPE_MESSAGE(StepFailed, step, error, rank)

}  // namespace troupe
