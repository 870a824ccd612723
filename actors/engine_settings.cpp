#include "actors/engine_settings.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/cache/block_hash.hpp"
#include "runtime/cache/kv_cache_config.hpp"
#include "runtime/config/adapter_options.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/config/ec_manager_config.hpp"
#include "runtime/config/group_roles.hpp"
#include "runtime/config/speculative_config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/ec_transfer/factory.hpp"

namespace troupe {
namespace {

/// On CPU the cache takes no more than this, unless one request of max_model_len needs it.
constexpr std::int64_t kUsualCpuCacheBytes = std::int64_t{4} << 30;
/// A rank may wait for a long prefill of another one; the loss of a rank is detected at once.
constexpr double kPeerDeadlineS = 300;

SpeculativeDecoding speculative_decoding(const EngineOptions& engine) {
  return parse_speculative_config(engine.speculative_config, engine.tensor_parallel_size)
      .value();  // validated
}

/// Like vLLM not with drafts that are looked up, of which there are none in most steps: the next
/// one waits to see. A draft model or head makes as many as are wanted, and they stay with the
/// workers: the next step is planned with placeholders. But for a pipeline, whose first stage does
/// not know them.
bool plans_ahead(const EngineOptions& engine) {
  const SpeculativeDecoding speculative = speculative_decoding(engine);
  return engine.async_scheduling &&
         (speculative.num_draft_tokens == 0 ||
          (speculative.has_draft_layers() && engine.pipeline_parallel_size == 1));
}

/// What a draft head has at a position depends on the token behind it.
constexpr std::int32_t kDraftHeadLookahead = 1;

/// Longer jumps (a long name, or several) take another step.
constexpr std::int32_t kMaxProposedTokens = 32;

/// Embeddings of images that the workers keep.
std::int32_t encoder_cache_size(const EngineOptions& engine) {
  return static_cast<std::int32_t>(engine.encoder_cache_size > 0 ? engine.encoder_cache_size
                                                                 : engine.max_num_batched_tokens);
}

/// Tokens whose results may be outstanding at once.
std::int32_t max_in_flight_tokens(const EngineOptions& engine) {
  const SchedulerConfig config{
      .async_scheduling = plans_ahead(engine),
      .pipeline_parallel_size = static_cast<std::int32_t>(engine.pipeline_parallel_size)};
  return config.max_concurrent_batches() * static_cast<std::int32_t>(engine.max_num_batched_tokens);
}

/// For all layers, each with the heads of one rank: what the ranks of a pipeline have together.
std::int64_t cache_bytes(const EngineOptions& engine, const ModelLoaded& model) {
  const std::int64_t num_stages = engine.pipeline_parallel_size;
  if (engine.kv_cache_memory_bytes > 0) return engine.kv_cache_memory_bytes * num_stages;
  const double share =
      static_cast<double>(model.available_bytes * num_stages) * engine.gpu_memory_utilization;
  // Of what a GPU has left, nothing else makes use.
  if (model.device == "cuda") return static_cast<std::int64_t>(share);
  std::int64_t enough = kUsualCpuCacheBytes / engine.tensor_parallel_size;
  if (const auto groups = group_layers(model.layer_specs(), /*hybrid_groups=*/true)) {
    enough = std::max(
        enough, bytes_per_block(*groups) +
                    max_request_bytes(*groups, model.max_model_len,
                                      {.max_in_flight_tokens = max_in_flight_tokens(engine)}));
  }
  return std::min(static_cast<std::int64_t>(share), enough);
}

/// The name of its kind. Errors: those of the option.
Result<std::string> encoder_cache_manager(const EngineOptions& engine, const ModelLoaded& model) {
  ASSIGN_OR_RETURN(const std::string name, parse_ec_manager_config(engine.ec_manager_config));
  return choose_encoder_cache_manager(name, is_encoder_decoder(model));
}

/// Prompts are computed whole where that is not so.
bool chunks_prefills(const EngineOptions& engine, const ModelLoaded& model) {
  return engine.enable_chunked_prefill && !model.pooler.whole_texts && !is_encoder_decoder(model);
}

/// Errors: kUnsupported.
Result<void> check_encoder_decoder(const EngineOptions& engine, const ModelLoaded& model) {
  for (const auto& [option, value] :
       {std::pair("prefix-cache-snapshot", &engine.prefix_cache_snapshot),
        std::pair("kv-transfer-config", &engine.kv_transfer_config),
        std::pair("ec-transfer-config", &engine.ec_transfer_config)})
    if (!value->empty())
      return Error{ErrorCode::kUnsupported,
                   std::string(option) + " is not supported for " + model.architecture, option};
  return {};
}

/// Of models with layers that keep states. Errors: kInvalidArgument, kUnsupported.
Result<void> check_states(const EngineOptions& engine, const ModelLoaded& model) {
  if (!engine.prefix_cache_snapshot.empty())
    return Error{ErrorCode::kUnsupported,
                 "prefix-cache-snapshot: the states of " + model.architecture +
                     " are not kept, only keys and values of attention are",
                 "prefix-cache-snapshot"};
  if (!engine.kv_transfer_config.empty())
    return Error{ErrorCode::kUnsupported,
                 "kv-transfer-config: the states of " + model.architecture +
                     " are not transferred, only keys and values of attention are",
                 "kv-transfer-config"};
  const std::int32_t num_drafts = speculative_decoding(engine).num_draft_tokens;
  // Behind drafts the state at the end of a block is not in the block.
  if (num_drafts > 0 && caches_prefixes(engine, model) &&
      engine.prefix_cache_retention_interval != 0)
    return invalid_argument("prefix-cache-retention-interval is " +
                                std::to_string(engine.prefix_cache_retention_interval) +
                                "; with speculative-config, " + model.architecture +
                                " supports 0 only",
                            "prefix-cache-retention-interval");
  return {};
}

KVCacheLimits kv_cache_limits(const Options& options, const ModelLoaded& model) {
  const EngineOptions& engine = options.engine;
  KVCacheLimits limits = {.available_bytes = cache_bytes(engine, model),
                          .max_model_len = model.max_model_len,
                          .max_in_flight_tokens = max_in_flight_tokens(engine),
                          .max_encoder_tokens = model.max_item_embeds,
                          .shorten = options.model.max_model_len < 0};
  if (engine.num_gpu_blocks_override > 0) {
    limits.num_blocks_override = static_cast<std::int32_t>(engine.num_gpu_blocks_override);
  }
  return limits;
}

}  // namespace

bool is_encoder_decoder(const ModelLoaded& model) {
  return std::ranges::any_of(model.kv_cache_specs, [](const LayerCacheSpec& layer) {
    return layer.spec.is<CrossAttentionSpec>();
  });
}

bool caches_prefixes(const EngineOptions& engine, const ModelLoaded& model) {
  return engine.enable_prefix_caching && !model.pooler.whole_texts && !is_encoder_decoder(model);
}

ParallelConfig parallel_config(const EngineOptions& engine) {
  return {.tensor_parallel_size = static_cast<std::int32_t>(engine.tensor_parallel_size),
          .pipeline_parallel_size = static_cast<std::int32_t>(engine.pipeline_parallel_size),
          .expert_parallel = engine.enable_expert_parallel,
          .timeout_s = kPeerDeadlineS};
}

bool has_encoders(const Options& options) {
  return std::ranges::any_of(options.nodes, [](const ConfigEntry& entry) {
    return is_node_section(entry.section) && entry.key == "roles" &&
           std::ranges::find(entry.list, spec_of(Role::kEncoder).name) != entry.list.end();
  });
}

std::string ec_transfer_config(const Options& options) {
  if (!options.engine.ec_transfer_config.empty() || !has_encoders(options))
    return options.engine.ec_transfer_config;
  return std::string(R"({"ec_connector": ")") + kNetworkConnector +
         R"(", "ec_role": "ec_consumer"})";
}

Result<void> check_encoders(const Options& options) {
  ASSIGN_OR_RETURN(const ConnectorConfig config,
                   parse_connector_config(ConnectorKind::kEC, ec_transfer_config(options)));
  if (!config.is_enabled()) return {};
  const auto refused = [](const std::string& reason) {
    return invalid_argument("ec-transfer-config: " + reason, "ec-transfer-config");
  };
  ASSIGN_OR_RETURN(const ECConnectorKind* const kind, find_ec_connector(config));
  if (!has_encoders(options)) {
    if (config.connector == kNetworkConnector && config.module_path.empty())
      return refused(config.connector +
                     " fetches outputs from nodes with the role encoder, and "
                     "the topology has none");
    return {};
  }
  if (!config.is_consumer())
    return refused(
        "ec_role is ec_producer, so the workers load nothing of what the nodes with the "
        "role encoder make");
  if (kind->open_store == nullptr)
    return refused("ec_connector " + config.connector +
                   " has no store in which nodes with the role encoder could save their outputs");
  return {};
}

WorkerOptions worker_options(const Options& options, const ParallelConfig& parallel) {
  return {
      .model = options.model.model,
      .mmproj = options.model.mmproj,
      .runner = options.model.runner,
      .pooler_config = options.model.pooler_config,
      .dtype = options.model.dtype,
      .quantization = options.model.quantization,
      .packed_weights_dir = options.model.packed_weights_dir,
      .kv_cache_dtype = options.engine.kv_cache_dtype,
      .device = options.engine.device,
      .cpu_isa = options.engine.cpu_isa,
      .threads = static_cast<std::int32_t>(options.engine.threads),
      .numa_bind = options.engine.numa_bind,
      .block_size = static_cast<std::int32_t>(options.engine.block_size),
      // How long a request may be for the memory is known only when the model is loaded.
      .max_model_len =
          static_cast<std::int32_t>(std::max<std::int64_t>(0, options.model.max_model_len)),
      .max_num_seqs = static_cast<std::int32_t>(options.engine.max_num_seqs),
      .max_num_batched_tokens = static_cast<std::int32_t>(options.engine.max_num_batched_tokens),
      .encoder_cache_size = encoder_cache_size(options.engine),
      .ec_transfer_config = ec_transfer_config(options),
      .parallel = parallel,
      .speculative = speculative_decoding(options.engine),
      .adapters = parse_adapter_options(options.engine).value()};  // validated
}

Result<KVCacheConfig> kv_cache_config(const Options& options, const ModelLoaded& model) {
  std::vector<KVCacheSpec> layers = model.layer_specs();
  if (is_encoder_decoder(model)) RETURN_IF_ERROR(check_encoder_decoder(options.engine, model));
  if (std::ranges::any_of(layers, &KVCacheSpec::is<MambaSpec>))
    RETURN_IF_ERROR(check_states(options.engine, model));
  plan_states(layers, {.prefix_caching = caches_prefixes(options.engine, model),
                       .num_draft_tokens = speculative_decoding(options.engine).num_draft_tokens,
                       .max_model_len = model.max_model_len});
  ASSIGN_OR_RETURN(KVCacheConfig config,
                   make_kv_cache_config(layers, kv_cache_limits(options, model)));
  if (!speculative_decoding(options.engine).has_draft_head()) return config;
  const std::int32_t first = static_cast<std::int32_t>(layers.size()) - model.num_draft_layers;
  for (KVCacheGroup& group : config.groups)
    group.eagle = std::ranges::any_of(group.layers, [&](auto layer) { return layer >= first; });
  return config;
}

Result<std::int32_t> max_model_len(const Options& options, const ModelLoaded& model,
                                   const KVCacheConfig& cache) {
  const KVCacheLimits limits = kv_cache_limits(options, model);
  const std::int32_t length = limits.shorten ? longest_request(cache, limits) : model.max_model_len;
  EngineOptions engine = options.engine;
  engine.enable_chunked_prefill = chunks_prefills(engine, model);
  RETURN_IF_ERROR(check_prompts_fit(engine, length));
  return length;
}

KVCacheSettings kv_cache_settings(const EngineOptions& engine, const ModelLoaded& model,
                                  const KVCacheConfig& cache) {
  KVCacheSettings settings;
  settings.groups = cache.groups;
  settings.num_blocks = cache.num_blocks;
  settings.max_model_len = model.max_model_len;
  settings.max_in_flight_tokens = max_in_flight_tokens(engine);
  settings.prefix_caching = caches_prefixes(engine, model);
  // The table of options admits the names of algorithms only.
  settings.hash_algorithm = parse_block_hash_algorithm(engine.prefix_caching_hash_algo).value();
  settings.watermark = engine.watermark;
  settings.max_pinned_blocks =
      static_cast<std::int32_t>(engine.max_pinned_cache_share * cache.num_blocks);
  if (engine.prefix_cache_retention_interval < 0)
    settings.retention_interval.reset();
  else
    settings.retention_interval = static_cast<std::int32_t>(engine.prefix_cache_retention_interval);
  if (engine.kv_cache_metrics) settings.metrics_sample_rate = engine.kv_cache_metrics_sample;
  settings.eagle_block_drop = speculative_decoding(engine).has_draft_head();
  if (settings.eagle_block_drop) settings.num_prefill_lookahead = kDraftHeadLookahead;
  settings.kv_connector = !kv_transfer_config(engine).empty();
  return settings;
}

EncoderCacheSettings encoder_cache_settings(const EngineOptions& engine, const ModelLoaded& model) {
  if (model.max_item_embeds == 0) return {.capacity = 0};
  return {.capacity = std::max(encoder_cache_size(engine), model.max_item_embeds),
          .split_items = !engine.disable_chunked_mm_input,
          .whole_runs = model.two_way_items,
          .manager = encoder_cache_manager(engine, model).value()};  // validated
}

Result<void> check_items(const EngineOptions& engine, const ModelLoaded& model) {
  RETURN_IF_ERROR(encoder_cache_manager(engine, model));
  if (!model.two_way_items && !engine.disable_chunked_mm_input) return {};
  const std::int64_t room = engine.max_num_batched_tokens - (engine.max_num_seqs - 1);
  if (model.max_item_embeds > room && model.max_item_embeds > 0)
    log_warning(
        "max-num-batched-tokens is too small for an image beside max-num-seqs decoding requests: "
        "images wait until fewer run",
        kv("max_num_batched_tokens", engine.max_num_batched_tokens),
        kv("max_num_seqs", engine.max_num_seqs), kv("image_tokens", model.max_item_embeds));
  if (model.max_item_embeds <= engine.max_num_batched_tokens) return {};
  return invalid_argument("max-num-batched-tokens is " +
                              std::to_string(engine.max_num_batched_tokens) + ", an image has " +
                              std::to_string(model.max_item_embeds) +
                              " tokens, which are computed in one step",
                          "max-num-batched-tokens");
}

SchedulerConfig scheduler_config(const EngineOptions& engine, const ModelLoaded& model,
                                 const KVCacheConfig& cache) {
  SchedulerConfig config;
  config.num_blocks = cache.num_blocks;
  config.max_model_len = model.max_model_len;
  config.max_num_seqs = static_cast<std::int32_t>(engine.max_num_seqs);
  config.max_num_batched_tokens = static_cast<std::int32_t>(engine.max_num_batched_tokens);
  config.max_num_scheduled_tokens = static_cast<std::int32_t>(engine.max_num_scheduled_tokens);
  config.enable_chunked_prefill = chunks_prefills(engine, model);
  config.encoder_decoder = is_encoder_decoder(model);
  config.pooling = model.pooler.type != PoolingType::kNone;
  config.long_prefill_token_threshold =
      static_cast<std::int32_t>(engine.long_prefill_token_threshold);
  if (engine.scheduling_policy == "priority") config.policy = SchedulingPolicy::kPriority;
  if (engine.scheduling_policy == "fair") config.policy = SchedulingPolicy::kFair;
  config.max_queue_bypasses = static_cast<std::int32_t>(engine.max_queue_bypasses);
  config.priority_preemption = engine.enable_priority_preemption;
  if (engine.preemption_victim == "least-work")
    config.preemption_victim = PreemptionVictim::kLeastWork;
  config.prefix_caching = caches_prefixes(engine, model);
  config.states = kv_cache_settings(engine, model, cache).state_positions();
  config.has_block_ops =
      std::any_of(cache.groups.begin(), cache.groups.end(),
                  [](const KVCacheGroup& group) { return group.spec.is<MambaSpec>(); });
  // What is wrong with it the validation of the options has told.
  const auto transfer = parse_connector_config(ConnectorKind::kKV, kv_transfer_config(engine));
  if (transfer.ok() && transfer->is_enabled())
    config.kv_transfer = {
        .consumer = transfer->is_consumer(),
        .recompute_failed_loads = transfer->recompute_failed_loads,
        .block_size = kv_cache_settings(engine, model, cache).scheduler_block_size(),
        .num_groups = static_cast<std::int32_t>(cache.groups.size())};
  if (engine.enable_lora) {
    config.max_loras = static_cast<std::int32_t>(engine.max_loras);
    config.max_lora_bypasses = static_cast<std::int32_t>(engine.max_lora_bypasses);
  }
  config.session_ttl_s = engine.session_ttl_s;
  config.async_scheduling = plans_ahead(engine);
  const SpeculativeDecoding speculative = speculative_decoding(engine);
  config.speculative.num_draft_tokens = speculative.num_draft_tokens;
  config.speculative.adaptive = speculative.adaptive;
  // Both keep keys and values of what they guess.
  if (speculative.has_draft_layers())
    config.speculative.num_lookahead_tokens = speculative.num_draft_tokens;
  if (speculative.has_draft_head())
    config.speculative.num_prefill_lookahead = kDraftHeadLookahead;
  else if (speculative.has_draft_layers())
    config.speculative.draft_slots = kDraftModelSlots;
  if (engine.enable_jump_forward && speculative.num_draft_tokens == 0 && !config.has_block_ops)
    config.max_proposed_tokens = kMaxProposedTokens;
  config.pipeline_parallel_size = static_cast<std::int32_t>(engine.pipeline_parallel_size);
  if (model.max_item_embeds > 0) {
    const std::int64_t most = engine.max_num_encoder_input_tokens > 0
                                  ? engine.max_num_encoder_input_tokens
                                  : engine.max_num_batched_tokens;
    config.max_encoder_embeds = std::max(static_cast<std::int32_t>(most), model.max_item_embeds);
    config.encode_ahead = engine.encoder_step_ms > 0 && !config.encoder_decoder;
    config.encode_ahead_ms = static_cast<std::int32_t>(engine.encoder_step_ms);
  }
  return config;
}

}  // namespace troupe
