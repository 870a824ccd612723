#include "actors/server_settings.hpp"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <utility>

#include "actors/engine_settings.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/secret.hpp"
#include "runtime/cache/kv_cache_config.hpp"
#include "runtime/config/adapter_options.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/config/group_roles.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/http/access_log.hpp"
#include "runtime/kv_transfer/blend_config.hpp"
#include "runtime/multimodal/image_inputs.hpp"
#include "runtime/multimodal/media_io.hpp"
#include "runtime/multimodal/processor_cache.hpp"
#include "runtime/multimodal/speech_inputs.hpp"
#include "runtime/processors/image_token_format.hpp"
#include "runtime/tokenizer/special_tokens.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/tool_parsers/tool_schemas.hpp"

namespace troupe {
namespace {

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
std::string processor_cache_kind(const Options& options, const Topology& topology) {
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
Result<ProcessorCacheOptions> processor_cache_options(const Options& options) {
  ASSIGN_OR_RETURN(const Topology topology, options_topology(options));
  const MediaOptions& media = options.media;
  constexpr double kGiB = 1 << 30;
  constexpr std::size_t kMiB = 1 << 20;
  ProcessorCacheOptions cache{
      .kind = processor_cache_kind(options, topology),
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

/// Pre: the model takes images. Errors: of the model's folder, and of the options.
Result<std::shared_ptr<const ImageInputs>> load_image_inputs(const Options& options,
                                                             const ModelLoaded& model,
                                                             const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const ModelConfig config,
                   load_model_config(options.model.model, options.model.mmproj));
  CHECK(config.image_tokens.has_value());
  ASSIGN_OR_RETURN(ImageTokenFormat format, image_token_format(*config.image_tokens, tokenizer));
  const MediaOptions& media = options.media;
  ASSIGN_OR_RETURN(const std::int64_t max_images, max_images_per_prompt(media));
  ASSIGN_OR_RETURN(const ProcessorCacheOptions cache_options, processor_cache_options(options));
  if (cache_options.kind != media.mm_processor_cache_type)
    log_info("images are kept in the front end", kv("mm_processor_cache_type", cache_options.kind));
  ASSIGN_OR_RETURN(std::shared_ptr<ProcessorCache> cache, make_processor_cache(cache_options));
  return ImageInputs::load(
      options.model.mmproj.empty() ? options.model.model : options.model.mmproj, std::move(format),
      {.loader = {.local_folder = media.allowed_local_media_path,
                  .domains = media.allowed_media_domains,
                  .timeout_s = media.image_fetch_timeout_s},
       .max_images = static_cast<std::size_t>(max_images),
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
  defaults.architecture = model.architecture;
  defaults.takes_images = model.max_item_embeds > 0;
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
  std::shared_ptr<const ImageInputs> images;
  std::shared_ptr<const SpeechInputs> speech;
  if (is_encoder_decoder(model)) {
    ASSIGN_OR_RETURN(speech, SpeechInputs::load(options.model.model, model.max_item_embeds,
                                                [tokenizer](std::string_view token) {
                                                  return tokenizer->token_to_id(token);
                                                }));
  } else if (model.max_item_embeds > 0) {
    ASSIGN_OR_RETURN(images, load_image_inputs(options, model, *tokenizer));
    chat.options.image_placeholder = images->format().placeholder;
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
  limits.images = std::move(images);
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
  ASSIGN_OR_RETURN(const ProcessorCacheOptions cache, processor_cache_options(options));
  return make_item_cache(cache);
}

std::uint64_t first_seed(const ModelOptions& model) {
  if (model.seed != 0) return static_cast<std::uint64_t>(model.seed);
  return random_bits();
}

}  // namespace troupe
