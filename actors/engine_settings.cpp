#include "actors/engine_settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "runtime/base/file.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/cache/block_hash.hpp"
#include "runtime/cache/kv_cache_config.hpp"
#include "runtime/config/adapter_options.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/config/ec_manager_config.hpp"
#include "runtime/config/group_roles.hpp"
#include "runtime/config/speculative_config.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/ec_transfer/factory.hpp"
#include "runtime/http/access_log.hpp"
#include "runtime/kv_transfer/blend_config.hpp"
#include "runtime/multimodal/media_io.hpp"
#include "runtime/multimodal/picture_cache.hpp"
#include "runtime/multimodal/picture_inputs.hpp"
#include "runtime/multimodal/speech_inputs.hpp"
#include "runtime/processors/picture_format.hpp"
#include "runtime/tokenizer/special_tokens.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/tool_parsers/tool_schemas.hpp"

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

/// Embeddings of pictures that the workers keep.
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

/// The model's tokens attend to the encoder's output for the request's input.
bool is_encoder_decoder(const ModelLoaded& model) {
  return std::ranges::any_of(model.kv_cache_specs, [](const LayerCacheSpec& layer) {
    return layer.spec.is<CrossAttentionSpec>();
  });
}

/// The name of its kind. Errors: those of the option.
Result<std::string> encoder_cache_manager(const EngineOptions& engine, const ModelLoaded& model) {
  ASSIGN_OR_RETURN(const std::string name, parse_ec_manager_config(engine.ec_manager_config));
  return choose_encoder_cache_manager(name, is_encoder_decoder(model));
}

/// Of inputs that differ no block is worth caching: not one depends on the tokens alone.
bool caches_prefixes(const EngineOptions& engine, const ModelLoaded& model) {
  return engine.enable_prefix_caching && !model.pooler.whole_texts && !is_encoder_decoder(model);
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

/// The fields of vLLM's CacheConfig as its cache_config_info shows them (Python's texts), as far as
/// they mean something here.
Labels cache_config_labels(const EngineOptions& engine, const KVCacheConfig& cache) {
  const auto number_or_none = [](std::int64_t value) {
    return value == 0 ? "None" : std::to_string(value);
  };
  std::ostringstream share;
  share << engine.gpu_memory_utilization;
  return {{"block_size", std::to_string(engine.block_size)},
          {"cache_dtype", engine.kv_cache_dtype},
          {"enable_prefix_caching", engine.enable_prefix_caching ? "True" : "False"},
          {"gpu_memory_utilization", share.str()},
          {"kv_cache_memory_bytes", number_or_none(engine.kv_cache_memory_bytes)},
          {"num_gpu_blocks", std::to_string(cache.num_blocks)},
          {"num_gpu_blocks_override", number_or_none(engine.num_gpu_blocks_override)},
          {"prefix_caching_hash_algo", engine.prefix_caching_hash_algo}};
}

/// What conversations are rendered with.
struct ChatSetup {
  ChatFiles files;
  ChatRendererOptions options;
};

Result<ChatSetup> load_chat_setup(const ModelOptions& model) {
  ChatSetup chat;
  ASSIGN_OR_RETURN(chat.files, load_chat_files(model.model));
  if (!model.chat_template.empty()) {
    ASSIGN_OR_RETURN(chat.options.chat_template, read_file(model.chat_template));
  }
  if (model.chat_template_content_format == "string")
    chat.options.content_format = ContentFormat::kString;
  if (model.chat_template_content_format == "openai")
    chat.options.content_format = ContentFormat::kOpenAi;
  return chat;
}

/// Digest of what stands in a request's place where it says nothing itself.
std::string digest_of_defaults(const Options& options, const SamplingDefaults& sampling,
                               const ChatSetup& chat) {
  std::ostringstream text;
  text << std::hexfloat;
  const auto add = [&text](const std::string& name, const auto& value) {
    text << name.size() << ' ' << name << value << '\n';
  };
  const auto add_optional = [&add](const std::string& name, const auto& value) {
    if (value) add(name, *value);
  };
  add_optional("do_sample", sampling.do_sample);
  add_optional("temperature", sampling.temperature);
  add_optional("top_p", sampling.top_p);
  add_optional("top_k", sampling.top_k);
  add_optional("min_p", sampling.min_p);
  add_optional("repetition_penalty", sampling.repetition_penalty);
  add_optional("max_new_tokens", sampling.max_new_tokens);
  add("response_role", options.server.response_role);
  add("tool_call_parser", options.server.tool_call_parser);
  add("tool_strict_level", options.server.tool_strict_level);
  add("reasoning_parser", options.server.reasoning_parser);
  add("reasoning_config", options.server.reasoning_config);
  add("content_format", options.model.chat_template_content_format);
  add("chat_template", chat.options.chat_template);
  for (const auto& [name, source] : chat.files.templates) add(name, source);
  for (const auto& [name, token] : chat.files.special_tokens) add(name, token);
  return to_hex(xxh3_128(text.str()));
}

/// What a file says, without reading it; it may be absent.
std::string version_of(const std::filesystem::path& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  if (error) return {};
  const auto time = std::filesystem::last_write_time(file, error);
  return file.string() + ' ' + std::to_string(size) + ' ' +
         std::to_string(time.time_since_epoch().count()) + '\n';
}

/// Where an item's data goes through encoders, it is with the front end; the shared memory of a
/// host is of no use to an engine on another one.
std::string picture_cache_kind(const Options& options, const Topology& topology) {
  const std::string& kind = options.media.mm_processor_cache_type;
  const std::string front_end = "processor_only";
  const bool has_encoders = std::ranges::any_of(
      topology.nodes, [](const NodeConfig& node) { return node.has(Role::kEncoder); });
  if (has_encoders) return front_end;
  if (kind != "shm") return kind;
  for (std::int32_t group = 0; group < topology.size.num_groups; ++group)
    if (topology.node_of(Role::kInputProcessor, group).host !=
        topology.node_of(Role::kScheduler, group).host)
      return front_end;
  return kind;
}

/// Both sides come to the same result. Errors: those of options_topology.
Result<PictureCacheOptions> picture_cache_options(const Options& options) {
  ASSIGN_OR_RETURN(const Topology topology, options_topology(options));
  const MediaOptions& media = options.media;
  constexpr double kGiB = 1 << 30;
  constexpr std::size_t kMiB = 1 << 20;
  PictureCacheOptions cache{
      .kind = picture_cache_kind(options, topology),
      .max_bytes = static_cast<std::size_t>(media.mm_processor_cache_gb * kGiB),
      .max_object_bytes = static_cast<std::size_t>(media.mm_shm_cache_max_object_size_mb) * kMiB,
      .key = TROUPE_VERSION " " + options.model.model + '\n',
      .workers_share = !topology.spans_hosts()};
  for (const char* const file :
       {"preprocessor_config.json", "processor_config.json", "config.json"})
    cache.key += version_of(std::filesystem::path(options.model.model) / file);
  if (!options.model.mmproj.empty()) cache.key += version_of(options.model.mmproj);
  return cache;
}

/// For one image; vLLM's variable. Error: it is no number of seconds.
Result<double> image_fetch_timeout_s() {
  constexpr const char* kName = "VLLM_IMAGE_FETCH_TIMEOUT";
  const char* const value = std::getenv(kName);
  if (value == nullptr) return MediaLoaderOptions{}.timeout_s;
  const std::string_view text = value;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error == std::errc{} && end == text.data() + text.size() && seconds > 0 && seconds <= 3600)
    return seconds;
  return Error{ErrorCode::kInvalidArgument,
               std::string(kName) + " is '" + std::string(text) +
                   "', expected seconds, more than 0 and at most 3600"};
}

/// Pre: the model takes pictures. Errors: of the model's folder, and of the options.
Result<std::shared_ptr<const PictureInputs>> load_picture_inputs(const Options& options,
                                                                 const ModelLoaded& model,
                                                                 const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const ModelConfig config,
                   load_model_config(options.model.model, options.model.mmproj));
  CHECK(config.image_tokens.has_value());
  ASSIGN_OR_RETURN(PictureFormat format, picture_format(*config.image_tokens, tokenizer));
  const MediaOptions& media = options.media;
  ASSIGN_OR_RETURN(const std::int64_t max_pictures, max_pictures_per_prompt(media));
  ASSIGN_OR_RETURN(const PictureCacheOptions cache_options, picture_cache_options(options));
  if (cache_options.kind != media.mm_processor_cache_type)
    log_info("pictures are kept in the front end",
             kv("mm_processor_cache_type", cache_options.kind));
  ASSIGN_OR_RETURN(std::shared_ptr<PictureCache> cache, make_picture_cache(cache_options));
  ASSIGN_OR_RETURN(const double timeout_s, image_fetch_timeout_s());
  return PictureInputs::load(
      options.model.mmproj.empty() ? options.model.model : options.model.mmproj, std::move(format),
      {.loader = {.local_folder = media.allowed_local_media_path,
                  .domains = media.allowed_media_domains,
                  .timeout_s = timeout_s},
       .max_pictures = static_cast<std::size_t>(max_pictures),
       .max_tokens = model.max_model_len,
       .model_id = options.model.model,
       .processor_kwargs = media.mm_processor_kwargs,
       .media_io_kwargs = media.media_io_kwargs,
       .hash_algorithm =
           parse_media_hash_algorithm(media.mm_hasher_algorithm).value(),  // validated
       .cache = std::move(cache)});
}

/// Errors: those of the chat templates.
Result<std::string> engine_name(const Options& options, const SamplingDefaults& sampling,
                                const ModelLoaded& model) {
  ASSIGN_OR_RETURN(const ChatSetup chat, load_chat_setup(options.model));
  std::ostringstream name;
  name << options.model.model << ' ' << options.model.mmproj << ' ' << TROUPE_VERSION << ' '
       << model.dtype << ' ' << options.model.quantization << ' ' << options.engine.kv_cache_dtype
       << ' ' << model.device << ' ' << model.cpu_isa << ' ' << model.canonical_shards << ' '
       << model.max_model_len << ' ' << digest_of_defaults(options, sampling, chat);
  return name.str();
}

/// Those of the options and of the file that they name.
Result<std::vector<ApiKey>> api_keys(const ServerOptions& server) {
  std::vector<ApiKey> keys;
  for (const std::string& key : server.api_key) keys.push_back({.key = key});
  if (server.api_key_file.empty()) return keys;
  ASSIGN_OR_RETURN(const std::vector<ApiKey> more, read_api_key_file(server.api_key_file));
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

}  // namespace

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
        "beside max-num-seqs requests that generate there is no room for a picture in a "
        "step: it waits until fewer do",
        kv("max_num_batched_tokens", engine.max_num_batched_tokens),
        kv("max_num_seqs", engine.max_num_seqs), kv("picture_tokens", model.max_item_embeds));
  if (model.max_item_embeds <= engine.max_num_batched_tokens) return {};
  return invalid_argument("max-num-batched-tokens is " +
                              std::to_string(engine.max_num_batched_tokens) + ", a picture has " +
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
        .block_size = kv_cache_settings(engine, model, cache).scheduler_block_size()};
  if (engine.enable_lora) config.max_loras = static_cast<std::int32_t>(engine.max_loras);
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

Result<SamplingDefaults> sampling_defaults(const GenerationConfig& generation,
                                           const ModelOptions& options) {
  SamplingDefaults defaults;
  if (options.generation_config == "auto") {
    defaults = {.do_sample = generation.do_sample,
                .temperature = generation.temperature,
                .top_p = generation.top_p,
                .top_k = generation.top_k,
                .min_p = generation.min_p,
                .repetition_penalty = generation.repetition_penalty,
                .max_new_tokens = generation.max_new_tokens};
  }
  if (!options.override_generation_config.empty()) {
    const auto given = parse_sampling_defaults(options.override_generation_config, {});
    if (!given.ok()) {
      return invalid_argument("override-generation-config: " + given.error().message,
                              "override-generation-config");
    }
    ASSIGN_OR_RETURN(defaults,
                     parse_sampling_defaults(options.override_generation_config, defaults));
    // A temperature that the operator names is meant, whatever the folder says of sampling.
    if (given->temperature && !given->do_sample) defaults.do_sample.reset();
  }
  // As its author means it (Hugging Face's generate); vLLM takes no notice.
  if (defaults.do_sample == false) defaults.temperature = 0;
  return defaults;
}

namespace {

Result<void> read_reasoning_config(const std::string& text, AnswerDefaults& answers) {
  constexpr std::string_view kOption = "reasoning-config";
  if (text.empty()) return {};
  const auto wrong = [&](const std::string& what) {
    return invalid_argument(std::string(kOption) + ": " + what, std::string(kOption));
  };
  const auto parsed = parse_json_object(text, kOption);
  if (!parsed.ok()) return wrong(parsed.error().message);
  for (const auto& [key, value] : parsed->items()) {
    if (key != "reasoning_start_str" && key != "reasoning_end_str")
      return wrong(key + " is not known, only reasoning_start_str and reasoning_end_str");
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      return wrong(key + " must be a string that is not empty");
  }
  if (!answers.reasoning) return wrong("the model's reasoning is not parsed (reasoning-parser)");
  answers.budget_begin = parsed->value("reasoning_start_str", "");
  answers.budget_end = parsed->value("reasoning_end_str", "");
  if (!answers.budget_end.empty() &&
      answers.budget_end.find(answers.reasoning->end) == std::string::npos)
    return wrong("reasoning_end_str must have " + std::string(answers.reasoning->end) +
                 ", which ends the reasoning");
  return {};
}

}  // namespace

Result<AnswerDefaults> answer_defaults(const Options& options) {
  AnswerDefaults answers{.exclude_tools_for_none =
                             options.server.exclude_tools_when_tool_choice_none};
  const std::string& tools = options.server.tool_call_parser;
  const std::string& reasoning = options.server.reasoning_parser;
  if (tools != "auto" && tools != "none") {
    answers.tools = find_tool_format(tools);
    if (answers.tools == nullptr)
      return invalid_argument("tool-call-parser " + tools + " is unknown", "tool-call-parser");
  }
  if (reasoning != "auto" && reasoning != "none") {
    const ReasoningFormat* const format = find_reasoning_format(reasoning);
    if (format == nullptr)
      return invalid_argument("reasoning-parser " + reasoning + " is unknown", "reasoning-parser");
    answers.reasoning = *format;
  }
  if (tools == "auto" || reasoning == "auto") {
    ASSIGN_OR_RETURN(const ChatSetup chat, load_chat_setup(options.model));
    std::string source = chat.options.chat_template;
    if (source.empty()) {
      for (const auto& [name, text] : chat.files.templates) source += text;
    }
    if (tools == "auto") answers.tools = detect_tool_format(source);
    if (reasoning == "auto") answers.reasoning = detect_reasoning_format(source);
  }
  if (!options.server.enable_auto_tool_choice) answers.tools = nullptr;
  if (answers.tools != nullptr || answers.reasoning) {
    ASSIGN_OR_RETURN(const auto special, load_special_tokens(options.model.model));
    if (answers.tools != nullptr) answers.tools = format_with(*answers.tools, special);
    if (answers.reasoning) note_special_tokens(*answers.reasoning, special);
  }
  RETURN_IF_ERROR(read_reasoning_config(options.server.reasoning_config, answers));
  const auto level = find_tool_strict_level(options.server.tool_strict_level);
  if (!level)
    return invalid_argument("tool-strict-level " + options.server.tool_strict_level +
                                " is none of auto, function, parameter",
                            "tool-strict-level");
  answers.strict_level = *level;
  if (*level != ToolStrictLevel::kAuto) {
    // Of any function; names of parameters may be in the way later.
    constexpr std::string_view kSample = R"([{"type":"function","function":{"name":"f"}}])";
    std::optional<std::string> tag;
    if (answers.tools != nullptr) {
      ASSIGN_OR_RETURN(tag, calls_tag(*answers.tools, kSample, {.strict_level = *level}));
    }
    if (!tag)
      return invalid_argument("tool-strict-level " + options.server.tool_strict_level +
                                  " cannot be held with " +
                                  (answers.tools == nullptr
                                       ? "a model whose calls are not parsed"
                                       : "calls in the format " + std::string(answers.tools->name)),
                              "tool-strict-level");
  }
  return answers;
}

ServerDefaults request_defaults(const Options& options, const SamplingDefaults& sampling,
                                const AnswerDefaults& answers, const ModelLoaded& model) {
  ServerDefaults defaults;
  defaults.sampling = sampling;
  defaults.max_model_len = model.max_model_len;
  defaults.vocab_size = model.vocab_size;
  defaults.pooler = model.pooler;
  defaults.hidden_size = model.hidden_size;
  defaults.max_logprobs = static_cast<std::int32_t>(options.engine.max_logprobs);
  defaults.stream_interval = static_cast<std::int32_t>(options.engine.stream_interval);
  defaults.by_priority = options.engine.scheduling_policy == "priority";
  defaults.data_parallel_size = static_cast<std::int32_t>(options.engine.data_parallel_size);
  defaults.limits = {.max_queue_time_s = options.server.max_queue_time_s,
                     .max_request_time_s = options.server.max_request_time_s};
  defaults.size = {.max_samples = options.server.max_request_samples,
                   .max_tokens = options.server.max_request_tokens,
                   .max_echo_bytes = options.server.max_echo_bytes,
                   .max_answer_bytes = options.server.max_answer_bytes};
  defaults.trust_request_chat_template = options.server.trust_request_chat_template;
  defaults.response_role = options.server.response_role;
  defaults.answers = answers;
  return defaults;
}

Result<ServerConfig> server_config(const Options& options, const SamplingDefaults& sampling,
                                   const AnswerDefaults& answers, const ModelLoaded& model,
                                   const KVCacheConfig& cache) {
  ServerConfig config;
  config.options = options.server;
  config.log_stats_interval_s = options.log.log_stats_interval_s;
  ServiceConfig& service = config.service;
  service.model_names = options.model.served_model_name;
  if (service.model_names.empty()) service.model_names = {options.model.model};
  service.model_root = options.model.model;
  service.enable_lora = options.engine.enable_lora;
  service.allow_lora_updates = options.server.allow_runtime_lora_updating;
  service.version = TROUPE_VERSION;
  if (options.server.resume) {
    ASSIGN_OR_RETURN(service.engine_name, engine_name(options, sampling, model));
  }
  ASSIGN_OR_RETURN(service.api_keys, api_keys(options.server));
  service.read_api_keys = [server = options.server,
                           read_again =
                               options.read_again]() mutable -> Result<std::vector<ApiKey>> {
    if (read_again) {
      ASSIGN_OR_RETURN(Options options, read_again());
      server = std::move(options.server);
    }
    return api_keys(server);
  };
  ASSIGN_OR_RETURN(service.cors, CorsPolicy::create(options.server));
  service.allowed_hosts = AllowedHosts(options.server);
  service.max_body_bytes = static_cast<std::uint64_t>(options.server.max_body_bytes);
  if (!options.server.access_log.empty()) {
    ASSIGN_OR_RETURN(service.access_log, AccessLog::open(options.server.access_log));
  }
  service.log_requests = !options.server.disable_uvicorn_access_log;
  service.enable_request_id_headers = options.server.enable_request_id_headers;
  service.enable_prompt_tokens_details = options.server.enable_prompt_tokens_details;
  service.enable_force_include_usage = options.server.enable_force_include_usage;
  service.max_num_queued_reqs = options.server.max_num_queued_reqs;
  service.dev_mode = options.server.server_dev_mode;
  service.enable_server_load_tracking = options.server.enable_server_load_tracking;
  service.disable_docs = options.server.disable_fastapi_docs;
  service.options_text = describe_options(options, /*as_json=*/false);
  service.options_json = describe_options(options, /*as_json=*/true);
  service.open_admin = is_loopback(options.server.host);
  if (const std::string& folder = options.server.admin_cache_directory; !folder.empty())
    service.admin_cache_directory = std::filesystem::absolute(folder).lexically_normal().string();
  service.max_warm_prompts = static_cast<std::size_t>(options.server.max_warm_prompts);
  service.defaults = request_defaults(options, sampling, answers, model);
  config.cache_config = cache_config_labels(options.engine, cache);
  config.max_adapters = static_cast<std::int32_t>(options.engine.max_loras);
  return config;
}

Result<std::shared_ptr<const InputProcessor>> make_input_processor(
    const Options& options, const ModelLoaded& model, const GenerationConfig& generation,
    std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<GrammarCache> grammars) {
  ASSIGN_OR_RETURN(ChatSetup chat, load_chat_setup(options.model));
  RETURN_IF_ERROR(parse_media_io_kwargs(options.media.media_io_kwargs, {}));
  std::shared_ptr<const PictureInputs> pictures;
  std::shared_ptr<const SpeechInputs> speech;
  if (is_encoder_decoder(model)) {
    ASSIGN_OR_RETURN(speech, SpeechInputs::load(options.model.model, model.max_item_embeds,
                                                [tokenizer](std::string_view token) {
                                                  return tokenizer->token_to_id(token);
                                                }));
  } else if (model.max_item_embeds > 0) {
    ASSIGN_OR_RETURN(pictures, load_picture_inputs(options, model, *tokenizer));
    chat.options.image_placeholder = pictures->format().placeholder;
  }
  ASSIGN_OR_RETURN(std::shared_ptr<ChatRenderer> renderer,
                   ChatRenderer::create(std::move(chat.files), chat.options));
  InputProcessorOptions limits;
  limits.max_model_len = model.max_model_len;
  limits.vocab_size = model.vocab_size;
  limits.eos_token_ids = generation.eos_token_ids;
  limits.max_logprobs = static_cast<std::int32_t>(options.engine.max_logprobs);
  limits.max_num_samples = static_cast<std::int32_t>(options.server.max_request_samples);
  limits.max_request_tokens = options.server.max_request_tokens;
  limits.max_input_time_s = options.engine.max_input_time_s;
  limits.grammars = std::move(grammars);
  limits.pictures = std::move(pictures);
  limits.speech = std::move(speech);
  ASSIGN_OR_RETURN(const ConnectorConfig transfer,
                   parse_connector_config(ConnectorKind::kKV, kv_transfer_config(options.engine)));
  limits.separator = blend_separator(transfer);
  limits.is_pooling = model.pooler.type != PoolingType::kNone;
  limits.pins_prefixes =
      caches_prefixes(options.engine, model) && options.engine.max_pinned_cache_share > 0;
  return std::make_shared<const InputProcessor>(std::move(tokenizer), std::move(renderer), limits);
}

Result<std::shared_ptr<ItemCache>> make_engine_item_cache(const Options& options,
                                                          const ModelLoaded& model) {
  if (model.max_item_embeds == 0 || is_encoder_decoder(model)) return std::shared_ptr<ItemCache>();
  ASSIGN_OR_RETURN(const PictureCacheOptions cache, picture_cache_options(options));
  return make_item_cache(cache);
}

std::uint64_t first_seed(const ModelOptions& model) {
  if (model.seed != 0) return static_cast<std::uint64_t>(model.seed);
  return random_bits();
}

}  // namespace troupe
