// The Supervisor: spawns the actors of one engine in order, watches them, stops them in reverse
// order.
#include <unistd.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "actors/module.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cache/block_hash.hpp"
#include "runtime/cache/encoder_cache_manager.hpp"
#include "runtime/cache/kv_cache_config.hpp"
#include "runtime/cache/kv_cache_settings.hpp"
#include "runtime/http/server.hpp"
#include "runtime/kv_events/publisher.hpp"
#include "runtime/models/model_config.hpp"
#include "runtime/processors/input_processor.hpp"
#include "runtime/scheduler/scheduler_config.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "runtime/worker/worker_group.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kLoadDeadline = 1h;
constexpr auto kControlDeadline = 60s;
/// On CPU the cache takes no more than this, unless one request of max_model_len needs it.
constexpr std::int64_t kUsualCpuCacheBytes = std::int64_t{4} << 30;

struct SupervisorState {
  SupervisorState() = default;
  static inline const char* name = "supervisor";

  StartOptions start;
  std::shared_ptr<EngineHandles> handles;
  std::shared_ptr<const Tokenizer> tokenizer;
  GenerationConfig generation;
  SamplingDefaults sampling_defaults;
  ModelLoaded model;
  KVCacheConfig cache;

  ParallelConfig parallel;                   ///< of the workers
  std::vector<WorkerActor> workers;          ///< by rank
  std::vector<ModelLoaded> loaded;           ///< by rank
  std::size_t num_answered = 0;              ///< workers that have answered the current question
  std::vector<double> load_fractions;        ///< by rank
  KVEventPublisherActor kv_event_publisher;  ///< null: nobody follows the cache
  FrontendActor frontend;
  std::vector<std::pair<std::string, caf::actor>> children;  ///< in the order of spawning
  bool stopping = false;
  bool clean = true;
  caf::typed_response_promise<Started> started;
  caf::typed_response_promise<Stopped> stopped;
};

using Self = SupervisorActor::stateful_pointer<SupervisorState>;

/// Who spawns, watches.
template <class Handle>
Handle adopt(Self self, std::string name, Handle child) {
  self->monitor(child);
  state(self).children.emplace_back(std::move(name), caf::actor_cast<caf::actor>(child));
  return child;
}

void end_children(Self self) {
  SupervisorState& supervisor = state(self);
  supervisor.stopping = true;
  if (supervisor.children.empty()) {
    if (supervisor.stopped.pending()) supervisor.stopped.deliver(Stopped{supervisor.clean});
    self->quit();
    return;
  }
  // Its DOWN message goes on from here.
  caf::anon_send_exit(supervisor.children.back().second, caf::exit_reason::user_shutdown);
}

void refuse_start(Self self, Error error) {
  if (!state(self).started.pending()) return;  // refused before
  state(self).started.deliver(Started{.error = std::move(error)});
  end_children(self);
}

void on_down(Self self, const caf::down_msg& down) {
  SupervisorState& supervisor = state(self);
  auto& children = supervisor.children;
  const auto child = std::find_if(children.begin(), children.end(),
                                  [&](const auto& c) { return c.second.address() == down.source; });
  if (child == children.end()) return;
  const std::string name = child->first;
  children.erase(child);
  if (!supervisor.stopping) {
    const std::string reason = name + " ended: " + to_text(down.reason, self->system());
    log_error("actor died", kv("actor", name), kv("reason", reason));
    const bool first = std::exchange(supervisor.clean, false);
    if (supervisor.started.pending()) return refuse_start(self, {ErrorCode::kInternal, reason});
    if (supervisor.frontend) send(self, supervisor.frontend, EngineHealth{false, reason});
    if (first && supervisor.start.on_failure) supervisor.start.on_failure(reason);
    return;
  }
  end_children(self);
}

/// Tokens whose results may be outstanding at once.
std::int32_t max_in_flight_tokens(const EngineOptions& engine) {
  const SchedulerConfig config{
      .async_scheduling = engine.async_scheduling,
      .pipeline_parallel_size = static_cast<std::int32_t>(engine.pipeline_parallel_size)};
  return config.max_concurrent_batches() * static_cast<std::int32_t>(engine.max_num_batched_tokens);
}

KVCacheSettings cache_settings(const SupervisorState& supervisor) {
  const EngineOptions& engine = supervisor.start.options.engine;
  KVCacheSettings settings;
  settings.groups = supervisor.cache.groups;
  settings.num_blocks = supervisor.cache.num_blocks;
  settings.max_model_len = supervisor.model.max_model_len;
  settings.max_in_flight_tokens = max_in_flight_tokens(engine);
  settings.prefix_caching = engine.enable_prefix_caching;
  // The table of options admits the names of algorithms only.
  settings.hash_algorithm = parse_block_hash_algorithm(engine.prefix_caching_hash_algo).value();
  settings.watermark = engine.watermark;
  if (engine.prefix_cache_retention_interval < 0)
    settings.retention_interval.reset();
  else
    settings.retention_interval = static_cast<std::int32_t>(engine.prefix_cache_retention_interval);
  settings.events = static_cast<bool>(supervisor.kv_event_publisher);
  return settings;
}

SchedulerConfig scheduler_config(const SupervisorState& supervisor) {
  const EngineOptions& engine = supervisor.start.options.engine;
  SchedulerConfig config;
  config.num_blocks = supervisor.cache.num_blocks;
  config.max_model_len = supervisor.model.max_model_len;
  config.max_num_seqs = static_cast<std::int32_t>(engine.max_num_seqs);
  config.max_num_batched_tokens = static_cast<std::int32_t>(engine.max_num_batched_tokens);
  config.max_num_scheduled_tokens = static_cast<std::int32_t>(engine.max_num_scheduled_tokens);
  config.enable_chunked_prefill = engine.enable_chunked_prefill;
  config.long_prefill_token_threshold =
      static_cast<std::int32_t>(engine.long_prefill_token_threshold);
  if (engine.scheduling_policy == "priority") config.policy = SchedulingPolicy::kPriority;
  if (engine.scheduling_policy == "fair") config.policy = SchedulingPolicy::kFair;
  config.max_queue_bypasses = static_cast<std::int32_t>(engine.max_queue_bypasses);
  config.priority_preemption = engine.enable_priority_preemption;
  if (engine.preemption_victim == "least-work")
    config.preemption_victim = PreemptionVictim::kLeastWork;
  config.prefix_caching = engine.enable_prefix_caching;
  config.states = cache_settings(supervisor).state_positions();
  config.has_block_work =
      std::any_of(supervisor.cache.groups.begin(), supervisor.cache.groups.end(),
                  [](const KVCacheGroup& group) { return group.spec.kind == KVCacheKind::kMamba; });
  config.async_scheduling = engine.async_scheduling;
  config.pipeline_parallel_size = static_cast<std::int32_t>(engine.pipeline_parallel_size);
  return config;
}

/// The model's generation config as far as the options take it, and theirs over it.
Result<SamplingDefaults> sampling_defaults(const GenerationConfig& generation,
                                           const ModelOptions& options) {
  SamplingDefaults defaults;
  if (options.generation_config == "auto") {
    defaults = {.temperature = generation.temperature,
                .top_p = generation.top_p,
                .top_k = generation.top_k,
                .min_p = generation.min_p,
                .repetition_penalty = generation.repetition_penalty,
                .max_new_tokens = generation.max_new_tokens};
  }
  if (options.override_generation_config.empty()) return defaults;
  auto overridden = parse_sampling_defaults(options.override_generation_config, defaults);
  if (!overridden.ok()) {
    return invalid_argument("override-generation-config: " + overridden.error().message,
                            "override-generation-config");
  }
  return overridden;
}

/// What bodies of requests are completed with and checked against.
ServerDefaults request_defaults(const SupervisorState& supervisor) {
  const Options& options = supervisor.start.options;
  ServerDefaults defaults;
  defaults.sampling = supervisor.sampling_defaults;
  defaults.max_model_len = supervisor.model.max_model_len;
  defaults.vocab_size = supervisor.model.vocab_size;
  defaults.max_logprobs = static_cast<std::int32_t>(options.engine.max_logprobs);
  defaults.stream_interval = static_cast<std::int32_t>(options.engine.stream_interval);
  defaults.limits = {.max_queue_time_s = options.server.max_queue_time_s,
                     .max_request_time_s = options.server.max_request_time_s};
  defaults.trust_request_chat_template = options.server.trust_request_chat_template;
  defaults.response_role = options.server.response_role;
  return defaults;
}

/// The fields of vLLM's CacheConfig as its cache_config_info shows them (Python's texts), as far as
/// they mean something here.
Labels cache_config_labels(const SupervisorState& supervisor) {
  const EngineOptions& engine = supervisor.start.options.engine;
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
          {"num_gpu_blocks", std::to_string(supervisor.cache.num_blocks)},
          {"num_gpu_blocks_override", number_or_none(engine.num_gpu_blocks_override)},
          {"prefix_caching_hash_algo", engine.prefix_caching_hash_algo}};
}

ServerConfig server_config(const SupervisorState& supervisor) {
  const Options& options = supervisor.start.options;
  ServerConfig config;
  config.options = options.server;
  config.log_stats_interval_s = options.log.log_stats_interval_s;
  ServiceConfig& service = config.service;
  service.model_names = options.model.served_model_name;
  if (service.model_names.empty()) service.model_names = {options.model.model};
  service.model_root = options.model.model;
  service.version = TROUPE_VERSION;
  service.api_keys = options.server.api_key;
  service.allowed_origins = options.server.allowed_origins;
  service.enable_request_id_headers = options.server.enable_request_id_headers;
  service.enable_prompt_tokens_details = options.server.enable_prompt_tokens_details;
  service.enable_force_include_usage = options.server.enable_force_include_usage;
  service.max_num_queued_reqs = options.server.max_num_queued_reqs;
  service.dev_mode = options.server.server_dev_mode;
  service.defaults = supervisor.handles->request_defaults;
  config.cache_config = cache_config_labels(supervisor);
  return config;
}

Result<std::shared_ptr<const InputProcessor>> make_input_processor(
    const SupervisorState& supervisor) {
  const ModelOptions& model = supervisor.start.options.model;
  ASSIGN_OR_RETURN(ChatFiles files, load_chat_files(model.model));
  ChatRendererOptions chat;
  if (!model.chat_template.empty()) {
    ASSIGN_OR_RETURN(chat.chat_template, read_file(model.chat_template));
  }
  if (model.chat_template_content_format == "string") chat.content_format = ContentFormat::kString;
  if (model.chat_template_content_format == "openai") chat.content_format = ContentFormat::kOpenAi;
  ASSIGN_OR_RETURN(std::shared_ptr<ChatRenderer> renderer,
                   ChatRenderer::create(std::move(files), chat));
  InputProcessorOptions options;
  options.max_model_len = supervisor.model.max_model_len;
  options.vocab_size = supervisor.model.vocab_size;
  options.eos_token_ids = supervisor.generation.eos_token_ids;
  options.max_logprobs = static_cast<std::int32_t>(supervisor.start.options.engine.max_logprobs);
  return std::make_shared<const InputProcessor>(supervisor.tokenizer, std::move(renderer), options);
}

std::int64_t cache_bytes(const SupervisorState& supervisor) {
  const EngineOptions& engine = supervisor.start.options.engine;
  if (engine.kv_cache_memory_bytes > 0) return engine.kv_cache_memory_bytes;
  const double share =
      static_cast<double>(supervisor.model.available_bytes) * engine.gpu_memory_utilization;
  std::int64_t enough = kUsualCpuCacheBytes;
  if (const auto groups = group_layers(supervisor.model.kv_cache_specs, /*hybrid_groups=*/true)) {
    enough = std::max(
        enough, bytes_per_block(*groups) +
                    max_request_bytes(*groups, supervisor.model.max_model_len,
                                      {.max_in_flight_tokens = max_in_flight_tokens(engine)}));
  }
  return std::min(static_cast<std::int64_t>(share), enough);
}

std::uint64_t first_seed(const ModelOptions& model) {
  if (model.seed != 0) return static_cast<std::uint64_t>(model.seed);
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

/// The workers are threads of this process; no two engines meet under one name.
ParallelConfig parallel_config(const EngineOptions& engine) {
  ParallelConfig parallel{
      .tensor_parallel_size = static_cast<std::int32_t>(engine.tensor_parallel_size),
      .pipeline_parallel_size = static_cast<std::int32_t>(engine.pipeline_parallel_size)};
  parallel.ranks_on_host = parallel.world_size();
  if (parallel.world_size() == 1) return parallel;
  std::random_device device;
  parallel.rendezvous =
      "shm:troupe-" + std::to_string(getpid()) + "-" + std::to_string(std::uint32_t{device()});
  return parallel;
}

WorkerOptions worker_options(const Options& options, const ParallelConfig& parallel) {
  return {
      .model = options.model.model,
      .dtype = options.model.dtype,
      .kv_cache_dtype = options.engine.kv_cache_dtype,
      .cpu_isa = options.engine.cpu_isa,
      .threads = static_cast<std::int32_t>(options.engine.threads),
      .block_size = static_cast<std::int32_t>(options.engine.block_size),
      .max_model_len = static_cast<std::int32_t>(options.model.max_model_len),
      .max_num_seqs = static_cast<std::int32_t>(options.engine.max_num_seqs),
      .max_num_batched_tokens = static_cast<std::int32_t>(options.engine.max_num_batched_tokens),
      .parallel = parallel};
}

/// Last: the engine's actors around the worker that is ready, the way in, and the port.
Result<void> spawn_engine(Self self) {
  SupervisorState& supervisor = state(self);
  RETURN_IF_ERROR(cache_settings(supervisor).check());
  caf::actor_system& system = self->system();
  const EngineOptions& engine = supervisor.start.options.engine;
  ASSIGN_OR_RETURN(const auto input_core, make_input_processor(supervisor));

  SchedulerPeers peers;
  peers.executor =
      adopt(self, "executor",
            spawn_executor(system, {supervisor.workers.begin(), supervisor.workers.end()},
                           supervisor.parallel));
  peers.kv_cache_manager = adopt(
      self, "kv cache manager",
      spawn_kv_cache_manager(system, cache_settings(supervisor), supervisor.kv_event_publisher));
  peers.encoder_cache_manager =
      adopt(self, "encoder cache manager",
            spawn_encoder_cache_manager(
                system, {.capacity = static_cast<std::int32_t>(engine.max_num_batched_tokens),
                         .eviction = engine.encoder_cache_eviction == "lru"
                                         ? EncoderCacheEviction::kLru
                                         : EncoderCacheEviction::kFifo}));
  peers.output_processor =
      adopt(self, "output processor", spawn_output_processor(system, supervisor.tokenizer));
  const SchedulerActor scheduler =
      adopt(self, "scheduler", spawn_scheduler(system, scheduler_config(supervisor), peers));

  EngineHandles& handles = *supervisor.handles;
  handles.request_defaults = request_defaults(supervisor);
  handles.scheduler = scheduler;
  handles.output_processor = peers.output_processor;
  for (std::int64_t i = 0; i < engine.num_input_processors; ++i) {
    handles.input_processors.push_back(
        adopt(self, "input processor",
              spawn_input_processor(system, input_core, peers.output_processor, scheduler)));
  }
  if (!supervisor.start.serve_http) return {};
  supervisor.frontend =
      adopt(self, "frontend",
            spawn_frontend(system, server_config(supervisor), handles.input_processors,
                           peers.output_processor, scheduler,
                           first_seed(supervisor.start.options.model)));
  return {};
}

void report_started(Self self, std::uint16_t port) {
  SupervisorState& supervisor = state(self);
  const ModelLoaded& model = supervisor.model;
  log_info("engine ready", kv("architecture", model.architecture), kv("dtype", model.dtype),
           kv("cpu_isa", model.cpu_isa), kv("max_model_len", model.max_model_len),
           kv("canonical_shards", model.canonical_shards), kv("workers", supervisor.workers.size()),
           kv("weight_mib", model.weight_bytes >> 20),
           kv("kv_blocks", supervisor.cache.num_blocks - 1),
           kv("kv_groups", supervisor.cache.groups.size()));
  supervisor.started.deliver(
      Started{.model = model, .num_blocks = supervisor.cache.num_blocks, .port = port});
}

void on_cache_ready(Self self, const Status& status) {
  SupervisorState& supervisor = state(self);
  if (status.error) return refuse_start(self, *status.error);
  if (++supervisor.num_answered < supervisor.workers.size()) return;
  if (auto spawned = spawn_engine(self); !spawned.ok()) return refuse_start(self, spawned.error());
  if (!supervisor.frontend) return report_started(self, 0);
  ask(self, supervisor.frontend, kControlDeadline, Listen{})
      .then(
          [self](const Listening& listening) {
            if (listening.error) return refuse_start(self, *listening.error);
            report_started(self, listening.port);
          },
          [self](const caf::error& error) {
            refuse_start(self, {ErrorCode::kInternal, "the frontend did not open the port: " +
                                                          to_text(error, self->system())});
          });
}

void on_model_loaded(Self self, ModelLoaded& model) {
  SupervisorState& supervisor = state(self);
  if (model.error) return refuse_start(self, *model.error);
  const auto rank = static_cast<std::size_t>(model.rank);
  supervisor.loaded.at(rank) = std::move(model);
  if (++supervisor.num_answered < supervisor.workers.size()) return;
  auto joined = join_loaded(supervisor.loaded);
  if (!joined.ok()) return refuse_start(self, joined.error());
  supervisor.model = std::move(joined).value();
  const EngineOptions& engine = supervisor.start.options.engine;
  KVCacheLimits limits = {.available_bytes = cache_bytes(supervisor),
                          .max_model_len = supervisor.model.max_model_len,
                          .max_in_flight_tokens = max_in_flight_tokens(engine)};
  if (engine.num_gpu_blocks_override > 0) {
    limits.num_blocks_override = static_cast<std::int32_t>(engine.num_gpu_blocks_override);
  }
  auto config = make_kv_cache_config(supervisor.model.kv_cache_specs, limits);
  if (!config.ok()) return refuse_start(self, config.error());
  supervisor.cache = std::move(config).value();
  supervisor.num_answered = 0;
  for (const WorkerActor& worker : supervisor.workers) {
    ask(self, worker, kControlDeadline, InitializeKVCache{supervisor.cache})
        .then([self](const Status& status) { on_cache_ready(self, status); },
              [self](const caf::error& error) {
                refuse_start(self, {ErrorCode::kInternal, "the worker took no KV cache: " +
                                                              to_text(error, self->system())});
              });
  }
}

/// Subscribers may connect while the model loads.
Result<void> start_kv_events(Self self) {
  SupervisorState& supervisor = state(self);
  const EngineOptions& engine = supervisor.start.options.engine;
  ASSIGN_OR_RETURN(const KVEventsConfig config, parse_kv_events_config(engine.kv_events_config));
  if (!config.publishes()) return {};
  if (!engine.enable_prefix_caching) {
    return invalid_argument("kv-events-config: there are no events without enable-prefix-caching",
                            "kv-events-config");
  }
  const BlockHasher hasher(parse_block_hash_algorithm(engine.prefix_caching_hash_algo).value(), 1);
  ASSIGN_OR_RETURN(std::shared_ptr<KVEventPublisher> core,
                   KVEventPublisher::start(config, {.int_block_hashes = config.use_int_block_hashes,
                                                    .hash_bytes = hasher.hash_size()}));
  log_info("kv events", kv("endpoint", core->endpoint()),
           kv("replay_endpoint", core->replay_endpoint()), kv("topic", config.topic));
  supervisor.kv_event_publisher =
      adopt(self, "kv event publisher", spawn_kv_event_publisher(self->system(), std::move(core)));
  return {};
}

void load_workers(Self self) {
  SupervisorState& supervisor = state(self);
  supervisor.parallel = parallel_config(supervisor.start.options.engine);
  WorkerOptions options = worker_options(supervisor.start.options, supervisor.parallel);
  const std::int32_t num_workers = options.parallel.world_size();
  supervisor.loaded.resize(static_cast<std::size_t>(num_workers));
  supervisor.load_fractions.resize(static_cast<std::size_t>(num_workers));
  for (std::int32_t rank = 0; rank < num_workers; ++rank) {
    supervisor.workers.push_back(adopt(self, "worker", spawn_worker(self->system(), rank)));
    options.parallel.rank = rank;
    ask(self, supervisor.workers.back(), kLoadDeadline, LoadModel{options})
        .then([self](ModelLoaded& model) { on_model_loaded(self, model); },
              [self](const caf::error& error) {
                refuse_start(self, {ErrorCode::kInternal,
                                    "the worker did not load: " + to_text(error, self->system())});
              });
  }
}

/// The share that all of them have loaded.
void on_progress(Self self, LoadProgress progress) {
  SupervisorState& supervisor = state(self);
  if (!supervisor.start.on_progress) return;
  std::vector<double>& fractions = supervisor.load_fractions;
  fractions.at(static_cast<std::size_t>(progress.rank)) = progress.fraction;
  progress.fraction = *std::min_element(fractions.begin(), fractions.end());
  supervisor.start.on_progress(progress);
}

/// Options and generation config first, as they are quick to be wrong. Then the worker: it loads
/// while this actor reads the tokenizer.
void start(Self self) {
  SupervisorState& supervisor = state(self);
  const ModelOptions& options = supervisor.start.options.model;
  auto generation = load_generation_config(options.model);
  if (!generation.ok()) return refuse_start(self, generation.error());
  supervisor.generation = std::move(generation).value();
  auto defaults = sampling_defaults(supervisor.generation, options);
  if (!defaults.ok()) return refuse_start(self, defaults.error());
  supervisor.sampling_defaults = std::move(defaults).value();
  if (auto events = start_kv_events(self); !events.ok()) return refuse_start(self, events.error());

  load_workers(self);
  auto tokenizer = Tokenizer::load(options.model);
  if (!tokenizer.ok()) return refuse_start(self, tokenizer.error());
  supervisor.tokenizer = std::move(tokenizer).value();
}

void stop(Self self, double drain_timeout_s) {
  SupervisorState& supervisor = state(self);
  if (!supervisor.frontend) return end_children(self);
  const auto deadline = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(drain_timeout_s) + kControlDeadline);
  ask(self, supervisor.frontend, deadline, Drain{drain_timeout_s})
      .then(
          [self](const Drained& drained) {
            log_info("drained", kv("aborted", drained.num_aborted));
            end_children(self);
          },
          [self](const caf::error& error) {
            log_warning("not drained", kv("error", to_text(error, self->system())));
            end_children(self);
          });
}

SupervisorActor::behavior_type supervisor_behavior(Self self, const StartOptions& options,
                                                   const std::shared_ptr<EngineHandles>& handles) {
  state(self).start = options;
  state(self).handles = handles;
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  return {
      [self](const Start&) -> caf::result<Started> {
        state(self).started = self->make_response_promise<Started>();
        start(self);
        return state(self).started;
      },
      [self](const Stop& message) -> caf::result<Stopped> {
        state(self).stopped = self->make_response_promise<Stopped>();
        stop(self, message.drain_timeout_s);
        return state(self).stopped;
      },
      [self](const LoadProgress& progress) { on_progress(self, progress); },
  };
}

}  // namespace

SupervisorActor spawn_supervisor(caf::actor_system& system, const StartOptions& options,
                                 std::shared_ptr<EngineHandles> handles) {
  return system.spawn<caf::detached>(supervisor_behavior, options, std::move(handles));
}

}  // namespace troupe
