#pragma once
// All options of the engine, with vLLM's flag names. The defaults are the members' initialisers;
// the table in options.cpp adds section, range and help.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/config/option_set.hpp"

namespace troupe {

struct ModelOptions {
  std::string model;   ///< folder, GGUF file or name on the Hugging Face Hub; empty: the demo model
  std::string mmproj;  ///< GGUF file, or its name on the Hub; empty: none
  std::string revision;      ///< of a model of the Hub; empty: main
  std::string download_dir;  ///< empty: the cache of the Hub
  std::vector<std::string> served_model_name;
  std::string runner = "auto";
  std::string pooler_config;  ///< JSON object; empty: what the folder says
  std::string dtype = "auto";
  std::string quantization = "auto";
  std::string packed_weights_dir;
  std::int64_t max_model_len = 0;  ///< 0: the model's maximum; -1: as many as fit in the KV cache
  std::string chat_template;
  std::string chat_template_content_format = "auto";
  std::string generation_config = "auto";
  std::string override_generation_config;  ///< JSON object
  std::int64_t seed = 0;
};

inline constexpr std::string_view kDeviceNames[] = {"auto", "cpu", "cuda", "cuda-emulated"};

struct EngineOptions {
  std::int64_t block_size = 16;
  std::int64_t max_num_seqs = 128;
  std::int64_t max_num_batched_tokens = 2048;
  std::int64_t max_num_scheduled_tokens = 0;      ///< 0: as max_num_batched_tokens
  std::int64_t max_num_encoder_input_tokens = 0;  ///< the same
  std::int64_t encoder_cache_size = 0;            ///< the same
  std::string ec_manager_config;                  ///< JSON object
  std::int64_t encoder_step_ms = 20;
  bool disable_chunked_mm_input = false;
  std::int64_t long_prefill_token_threshold = 0;
  bool enable_chunked_prefill = true;
  bool enable_prefix_caching = true;
  std::string prefix_caching_hash_algo = "sha256_cbor";
  std::int64_t prefix_cache_retention_interval = 0;  ///< tokens; -1: everything
  std::string prefix_cache_snapshot;                 ///< a folder; empty: none
  std::int64_t prefix_cache_snapshot_bytes = std::int64_t{16} << 30;
  double max_pinned_cache_share = 0.25;
  bool kv_cache_metrics = false;
  double kv_cache_metrics_sample = 0.01;
  std::string scheduling_policy = "fcfs";
  std::int64_t max_queue_bypasses = 0;
  bool enable_priority_preemption = false;
  std::string preemption_victim = "last";
  bool async_scheduling = true;
  bool enable_jump_forward = false;
  double watermark = 0;
  std::int64_t num_gpu_blocks_override = 0;  ///< 0: derived from the memory
  std::int64_t kv_cache_memory_bytes = 0;    ///< 0: a fraction of the free memory
  double gpu_memory_utilization = 0.5;
  std::string kv_cache_dtype = "auto";
  std::int64_t max_logprobs = 20;
  std::int64_t stream_interval = 1;
  std::int64_t threads = 0;  ///< per worker; 0: the cores divided among the workers
  bool numa_bind = true;
  std::string device = "auto";
  std::string cpu_isa = "auto";
  std::int64_t tensor_parallel_size = 1;
  std::int64_t pipeline_parallel_size = 1;
  bool enable_expert_parallel = false;
  std::int64_t data_parallel_size = 1;
  std::vector<std::string> group_roles;  ///< of each group; empty: both
  std::int64_t disaggregation_threshold = 256;
  std::int64_t num_input_processors = 2;
  double max_input_time_s = 20;    ///< 0: no limit
  double session_ttl_s = 0;        ///< 0: blocks are not kept
  std::string kv_events_config;    ///< JSON object
  std::string speculative_config;  ///< JSON object
  std::string ec_transfer_config;  ///< JSON object
  std::string kv_transfer_config;  ///< JSON object
  bool enable_lora = false;
  std::vector<std::string> lora_modules;  ///< "name=path" or JSON objects
  std::int64_t max_loras = 1;
  std::int64_t max_lora_bypasses = 64;  ///< 0: any number
  std::int64_t max_lora_rank = 16;
  std::int64_t max_cpu_loras = 0;  ///< 0: max_loras
  std::string lora_dtype = "auto";
  std::string lora_directory;  ///< whose adapters are loaded as they come; empty: none
};

/// Images in requests.
struct MediaOptions {
  std::string limit_mm_per_prompt;  ///< JSON object; empty: no limit of its own
  std::string mm_processor_kwargs;  ///< JSON object, or empty
  std::string media_io_kwargs;      ///< JSON object, or empty
  std::string mm_hasher_algorithm = "blake3";
  double mm_processor_cache_gb = 4;
  std::string mm_processor_cache_type = "lru";
  std::int64_t mm_shm_cache_max_object_size_mb = 128;
  std::string allowed_local_media_path;  ///< empty: none
  std::vector<std::string> allowed_media_domains;
  double image_fetch_timeout_s = 5;  ///< of one image
};
/// What limit_mm_per_prompt says of images. Errors: kInvalidArgument, it is no such object.
[[nodiscard]] Result<std::int64_t> max_images_per_prompt(const MediaOptions& media);

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::int64_t port = 8000;
  std::string ssl_certfile;  ///< empty: plain HTTP
  std::string ssl_keyfile;   ///< empty: in ssl_certfile
  std::string ssl_ca_certs;
  std::int64_t ssl_cert_reqs = 0;  ///< certificates of clients: 0 none, 1 optional, 2 required
  std::string ssl_ciphers;
  std::vector<std::string> api_key;
  std::string api_key_file;                  ///< one key per line
  std::vector<std::string> allowed_origins;  ///< CORS
  bool allow_credentials = false;
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  std::vector<std::string> allowed_hosts;  ///< empty: by the listen address, if there is no key
  std::int64_t max_body_bytes = 32 << 20;
  std::int64_t max_header_bytes = 64 << 10;
  std::int64_t max_connections = 4096;
  double idle_timeout_s = 60;
  double write_timeout_s = 30;
  double body_timeout_s = 60;
  double sse_keep_alive_interval = 0;
  double shutdown_timeout = 0;
  std::int64_t max_num_queued_reqs = 0;  ///< 0: no limit
  std::int64_t max_request_samples = 1024;
  std::int64_t max_request_tokens = 1 << 20;
  std::int64_t max_echo_bytes = 4 << 20;
  std::int64_t max_answer_bytes = 64 << 20;
  double max_queue_time_s = 0;    ///< 0: no limit
  double max_request_time_s = 0;  ///< 0: no limit
  bool disable_uvicorn_access_log = false;
  std::string access_log;  ///< a file, or "-"; empty: none
  bool enable_request_id_headers = false;
  bool enable_server_load_tracking = false;
  bool disable_fastapi_docs = false;
  bool enable_prompt_tokens_details = false;
  bool enable_force_include_usage = false;
  bool trust_request_chat_template = false;
  std::string response_role = "assistant";
  std::string tool_call_parser = "auto";
  std::string tool_strict_level = "auto";
  std::string reasoning_parser = "auto";
  std::string reasoning_config;
  bool enable_auto_tool_choice = true;
  bool exclude_tools_when_tool_choice_none = false;
  bool resume = false;
  std::string resume_directory;  ///< empty: shared memory, by port
  std::int64_t resume_max_streams = 1024;
  std::int64_t resume_max_bytes = 64 << 20;
  double resume_ttl_s = 300;
  std::string otlp_traces_endpoint;  ///< empty: requests are not traced
  std::string otel_service_name = "troupe";
  std::string responses_db;  ///< empty: in memory
  std::int64_t max_stored_responses = 1000;
  std::int64_t max_stored_response_bytes = 256 << 20;
  std::string batch_directory;  ///< empty: no files and batches
  std::int64_t max_batch_file_bytes = 200 << 20;
  std::int64_t max_batch_directory_bytes = std::int64_t{10} << 30;
  std::int64_t max_batch_requests = 50000;
  std::int64_t max_batch_in_flight = 64;
  std::string admin_cache_directory;  ///< empty: no exports and imports of the prefix cache
  std::int64_t max_warm_prompts = 256;
  bool keep_alive = false;
  bool allow_runtime_lora_updating = false;
  bool server_dev_mode = false;
  std::int64_t dev_crash_token = -1;  ///< -1: none
  std::int64_t dev_crash_signal = 11;
  std::string dev_scheduler_log;  ///< a file; empty: none
};

struct LogOptions {
  std::string log_level = "info";
  double log_stats_interval_s = 10;
};

/// The Supervisor's address, as seen by the nodes of a topology, and their authentication.
struct TopologyOptions {
  std::string supervisor_host = "127.0.0.1";
  std::int64_t supervisor_port = 0;  ///< 0: any
  double node_timeout_s = 4;         ///< a node that is silent for so long is gone
  double supervisor_timeout_s = 60;  ///< so long do nodes run without a Supervisor
  double step_timeout_s = 300;       ///< a worker that takes longer for a step is stuck
  std::string tls_certificate;       ///< of this host; empty: no TLS between nodes
  std::string tls_key;
  std::string tls_ca;               ///< signs the certificates of accepted peers
  std::string cluster_secret_file;  ///< instead of TLS: shared secret of all nodes
  bool insecure = false;            ///< accept nodes of other hosts without either
};

struct Options {
  ModelOptions model;
  EngineOptions engine;
  MediaOptions media;
  ServerOptions server;
  LogOptions log;
  TopologyOptions topology;
  std::vector<ConfigEntry> nodes;  ///< the file's [node.NAME] sections, for parse_topology
  std::string config_file;         ///< as given; empty: none
  /// Reloads the options from their sources; null: there are none.
  std::function<Result<Options>()> read_again;
};

/// Binds every option; `options` must outlive the set.
void bind_options(OptionSet& set, Options& options);

/// The values of all options, by section: JSON, or text as `troupe config` prints it. Keys are not
/// shown.
[[nodiscard]] std::string describe_options(const Options& options, bool as_json);

/// Sections of a configuration file that CAF reads itself.
inline constexpr std::string_view kCafSections[] = {"scheduler", "middleman", "openssl", "logger"};

/// Applies file (if any), then environment, then command line to `options`, to which `set` is
/// bound. Returns the positional arguments. Errors: kInvalidArgument naming the key, kNotFound for
/// the file.
[[nodiscard]] Result<std::vector<std::string>> load_options(
    OptionSet& set, Options& options, std::span<const std::string> arguments,
    std::span<const std::string> environment, std::vector<ConfigEntry>& caf_entries);
/// Whether only processes of this host can reach the address.
[[nodiscard]] bool is_loopback(std::string_view host) noexcept;

/// Checks combinations of options. Errors: kInvalidArgument naming the key, its value and the
/// limit.
[[nodiscard]] Result<void> validate(const Options& options);
/// Error: chunked prefill is off, and a prompt of max_model_len tokens does not fit in one step.
[[nodiscard]] Result<void> check_prompts_fit(const EngineOptions& engine,
                                             std::int64_t max_model_len);

}  // namespace troupe
