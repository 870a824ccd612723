#include "runtime/config/options.hpp"

#include <algorithm>
#include <iterator>

#include "runtime/config/config_file.hpp"
#include "runtime/config/speculative_config.hpp"
#include "runtime/config/topology.hpp"

namespace troupe {
namespace {

constexpr std::string_view kEnvironmentPrefix = "TROUPE_";
constexpr std::string_view kConfigFile = "config-file";
constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;

/// What most people set, of all that can be.
constexpr std::string_view kShortHelp[] = {"config-file",
                                           "served-model-name",
                                           "dtype",
                                           "quantization",
                                           "max-model-len",
                                           "chat-template",
                                           "generation-config",
                                           "seed",
                                           "max-num-seqs",
                                           "max-num-batched-tokens",
                                           "enable-prefix-caching",
                                           "kv-cache-memory-bytes",
                                           "kv-cache-dtype",
                                           "threads",
                                           "tensor-parallel-size",
                                           "data-parallel-size",
                                           "speculative-config",
                                           "host",
                                           "port",
                                           "api-key",
                                           "allowed-origins",
                                           "max-num-queued-reqs",
                                           "shutdown-timeout",
                                           "log-level"};

}  // namespace

void bind_options(OptionSet& set, Options& options) {
  // In no section: a file does not name another.
  set.section("").add(std::string(kConfigFile), options.config_file,
                      "file with the same keys, in sections [model], [engine], ...; configs/ has "
                      "some");
  ModelOptions& model = options.model;
  set.section("model")
      .add("model", model.model,
           "folder of a Hugging Face model, or a GGUF file; none: the demo model")
      .add("served-model-name", model.served_model_name,
           "name in the API; none: the folder as given")
      .add("dtype", model.dtype,
           "arithmetic; auto: as the checkpoint is stored, bfloat16 where a GGUF file has "
           "integer-quantised blocks; with float16 weights and KV cache are in it, sums in "
           "float32; half and "
           "float are other names",
           {"auto", "bfloat16", "float16", "float32", "half", "float"})
      .add("quantization", model.quantization,
           "weights in 8 or 4 bits, made at load (the head in 8); auto, or the checkpoint's own "
           "method: as the checkpoint has them",
           {"auto", "int8", "int4", "gptq", "gptq_marlin", "awq", "awq_marlin",
            "compressed-tensors", "fp8", "gguf"})
      .add("packed-weights-dir", model.packed_weights_dir,
           "folder that keeps weights as they were packed (and quantised) for this CPU: the next "
           "start maps them, as do other workers; none: they are packed at every start")
      .add("max-model-len", model.max_model_len,
           "most tokens of prompt and output together; 0: the model's own; -1 or auto: as many of "
           "these as the KV cache has room for",
           -1, kMaxCount, {{"auto", -1}})
      .add("chat-template", model.chat_template,
           "file with a chat template that replaces the model's")
      .add("chat-template-content-format", model.chat_template_content_format,
           "how message contents reach the template", {"auto", "string", "openai"})
      .add("generation-config", model.generation_config,
           "sampling defaults: auto reads the model's generation_config.json, vllm uses none of it",
           {"auto", "vllm"})
      .add("override-generation-config", model.override_generation_config,
           "JSON object laid over the generation config")
      .add("seed", model.seed,
           "seeds the draws of requests that bring no seed; 0: from the system");

  EngineOptions& engine = options.engine;
  set.section("engine")
      .add("block-size", engine.block_size, "tokens in a KV cache block", 1, 1024)
      .add("max-num-seqs", engine.max_num_seqs, "most requests that run at once", 1, 1 << 16)
      .add("max-num-batched-tokens", engine.max_num_batched_tokens, "most tokens in a step", 1,
           kMaxCount)
      .add("max-num-scheduled-tokens", engine.max_num_scheduled_tokens,
           "token budget of the scheduler; 0: max-num-batched-tokens", 0, kMaxCount)
      .add("long-prefill-token-threshold", engine.long_prefill_token_threshold,
           "longest piece of a prompt in a step while others run; 0: no limit", 0, kMaxCount)
      .add("enable-chunked-prefill", engine.enable_chunked_prefill, "split long prompts over steps")
      .add("enable-prefix-caching", engine.enable_prefix_caching,
           "reuse the KV cache of equal prefixes")
      .add("prefix-caching-hash-algo", engine.prefix_caching_hash_algo, "hash of cached blocks",
           {"sha256", "sha256_cbor", "xxhash", "xxhash_cbor"})
      .add("prefix-cache-retention-interval", engine.prefix_cache_retention_interval,
           "sliding-window layers keep what a hit needs at the ends of prompts, and at every so "
           "many tokens; 0: not at these; -1: everywhere",
           -1, kMaxCount)
      .add("kv-cache-metrics", engine.kv_cache_metrics,
           "show how long KV cache blocks live, lie idle and take to be hit again, in /metrics")
      .add("kv-cache-metrics-sample", engine.kv_cache_metrics_sample,
           "share of the blocks that kv-cache-metrics observes", 1e-6, 1)
      .add("scheduling-policy", engine.scheduling_policy,
           "order of waiting requests; fair: the API key served the fewest tokens first",
           {"fcfs", "priority", "fair"})
      .add("max-queue-bypasses", engine.max_queue_bypasses,
           "how many later requests may pass one that lacks free blocks; 0: none", 0, kMaxCount)
      .add("enable-priority-preemption", engine.enable_priority_preemption,
           "with scheduling-policy priority: waiting requests displace less urgent ones that run")
      .add("preemption-victim", engine.preemption_victim,
           "who gives way when blocks run out: the last to come, or who loses the least work",
           {"last", "least-work"})
      .add("async-scheduling", engine.async_scheduling,
           "plan a step while the one before is computed")
      .add("watermark", engine.watermark,
           "share of the blocks kept free when requests are admitted", 0, 1)
      .add("num-gpu-blocks-override", engine.num_gpu_blocks_override,
           "KV cache blocks; 0: from the memory", 0, kMaxCount)
      .add("kv-cache-memory-bytes", engine.kv_cache_memory_bytes,
           "memory of each worker for the KV cache; 0: gpu-memory-utilization of what is free", 0)
      .add(
          "gpu-memory-utilization", engine.gpu_memory_utilization,
          "share of the device's free memory that the KV cache may take; on CPU 4 GiB, or what one "
          "request needs, are enough",
          0.01, 1)
      .add("kv-cache-dtype", engine.kv_cache_dtype,
           "KV cache elements; auto follows dtype, and is fp8 where the checkpoint has an fp8 "
           "kv_cache_scheme; fp8 is fp8_e4m3; those of 8 bits have a scale for each token and head",
           {"auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "int8"})
      .add("max-logprobs", engine.max_logprobs,
           "most log-probabilities a request may ask for; -1: no limit", -1, kMaxCount)
      .add("stream-interval", engine.stream_interval, "tokens between two chunks of a stream", 1,
           1 << 16)
      .add("threads", engine.threads,
           "threads of each worker that compute; 0: the cores, shared out, but for one where there "
           "are 16 or more",
           0, 1024)
      .add("numa-bind", engine.numa_bind,
           "where a host has several NUMA nodes, bind each worker to the cores of its share of "
           "them; a worker that has several puts its memory on them in turns")
      .add("cpu-isa", engine.cpu_isa, "instruction set",
           {"auto", "scalar", "avx2", "avx512", "amx"})
      .add("tensor-parallel-size", engine.tensor_parallel_size,
           "workers that share each layer: its attention heads, the rows and columns of its "
           "matrices",
           1, 64)
      .alias("-tp")
      .add("pipeline-parallel-size", engine.pipeline_parallel_size,
           "stages that the layers are cut into; they work at the same time on different steps", 1,
           64)
      .alias("-pp")
      .add("data-parallel-size", engine.data_parallel_size,
           "groups that serve side by side, each with all of the model and a KV cache of its own",
           1, 64)
      .alias("-dp")
      .add("num-input-processors", engine.num_input_processors,
           "threads that render and tokenise prompts; one is kept for short ones", 2, 64)
      .add("max-input-time-s", engine.max_input_time_s,
           "seconds that rendering and tokenising a prompt may take, then it gets 400; 0: no limit",
           0, 86400)
      .add("speculative-config", engine.speculative_config,
           "JSON object: guess tokens and compute them in one step; with num_speculative_tokens "
           "and method ngram (from those that the request has; prompt_lookup_min, "
           "prompt_lookup_max) or draft_model (by a smaller model: model, and its quantization)")
      .add("kv-events-config", engine.kv_events_config,
           "JSON object: publish what the prefix cache holds, over ZeroMQ; with "
           "enable_kv_cache_events, endpoint, replay_endpoint, topic, buffer_steps, hwm, "
           "max_queue_size");

  ServerOptions& server = options.server;
  set.section("server")
      .add("host", server.host, "address to listen on; 0.0.0.0 for all")
      .add("port", server.port, "port to listen on; 0: any", 0, 65535)
      .add(
          "api-key", server.api_key,
          "key that clients must send as a bearer token; other users of this host can read command "
          "lines: api-key-file keeps it from them")
      .add("api-key-file", server.api_key_file,
           "file with a key in each line, beside those of api-key; read again at SIGHUP")
      .add("allowed-origins", server.allowed_origins, "origins for CORS")
      .add("allowed-hosts", server.allowed_hosts,
           "names of this server that clients may call it by (the Host of a request), *.NAME for "
           "all below it, * for any; none: without api-key and on loopback the names and addresses "
           "of this host alone, without api-key elsewhere addresses, this host's name, and names "
           "that no public DNS has (without a dot, or below local, internal, svc, home.arpa)")
      .add("max-body-bytes", server.max_body_bytes,
           "largest request body, unpacked; in chunks also the largest that is around them",
           1 << 10, std::int64_t{4} << 30)
      .add("max-header-bytes", server.max_header_bytes, "largest request header", 1 << 10, 16 << 20)
      .add("max-connections", server.max_connections, "most open connections", 1, 1 << 20)
      .add("idle-timeout-s", server.idle_timeout_s, "seconds until an idle connection is closed",
           0.1, 86400)
      .add("body-timeout-s", server.body_timeout_s,
           "seconds until the body of a request must be there, and one more for each 16 KiB of it "
           "that have come",
           0.1, 86400)
      .add("write-timeout-s", server.write_timeout_s, "seconds that a client may not read", 0.1,
           86400)
      .add("sse-keep-alive-interval", server.sse_keep_alive_interval,
           "seconds between comment lines on a silent stream; 0: none", 0, 86400)
      .add("shutdown-timeout", server.shutdown_timeout,
           "seconds that running requests get to finish on shutdown", 0, 86400)
      .add("max-num-queued-reqs", server.max_num_queued_reqs,
           "samples (n of each prompt) in the engine before further requests get 503; one that has "
           "more by itself gets 400; 0: no limit",
           0, kMaxCount)
      .add("max-request-samples", server.max_request_samples,
           "most samples of one request: n of each of its prompts", 1, 1 << 20)
      .add("max-request-tokens", server.max_request_tokens,
           "most tokens of one request: of each sample, those of its prompt and max_tokens; one "
           "sample may always have as many as fit",
           1, std::int64_t{1} << 40)
      .add("max-echo-bytes", server.max_echo_bytes,
           "most bytes of an answer that repeat its prompts: echo, prompt_logprobs, "
           "return_token_ids and return_prompt_text, in every sample",
           1 << 10, std::int64_t{1} << 40)
      .add("max-answer-bytes", server.max_answer_bytes,
           "most bytes of an answer that the client has not taken: text, token ids and "
           "log-probabilities",
           1 << 16, std::int64_t{1} << 40)
      .add("max-queue-time-s", server.max_queue_time_s,
           "seconds that a request may wait until it is scheduled, then it gets 503; 0: no limit",
           0, 86400)
      .add("max-request-time-s", server.max_request_time_s,
           "seconds that a request may take; what is there by then is its answer; 0: no limit", 0,
           86400)
      .add("disable-uvicorn-access-log", server.disable_uvicorn_access_log,
           "no line in the log for each request")
      .add("enable-request-id-headers", server.enable_request_id_headers, "send X-Request-Id back")
      .add("enable-prompt-tokens-details", server.enable_prompt_tokens_details,
           "report cached tokens in usage")
      .add("enable-force-include-usage", server.enable_force_include_usage,
           "streams end with usage unasked")
      .add("trust-request-chat-template", server.trust_request_chat_template,
           "requests may bring a chat template of their own")
      .add("response-role", server.response_role, "role of the answers")
      .add("resume", server.resume,
           "keep the requests of streams, so that one that broke off, also with its Frontend, can "
           "be "
           "gone on with: GET /v1/streams/ID?starting_after=EVENT")
      .add("resume-directory", server.resume_directory,
           "where they are kept; empty: in shared memory, in a folder for the port")
      .add("resume-max-streams", server.resume_max_streams, "most requests that are kept", 1,
           1 << 20)
      .add("resume-max-bytes", server.resume_max_bytes, "most bytes of all of them", 1 << 10,
           std::int64_t{1} << 40)
      .add("resume-ttl-s", server.resume_ttl_s, "seconds for which they are kept after their end",
           1, 86400)
      .add("server-dev-mode", server.server_dev_mode,
           "offer /pause, /resume, /is_paused, /reset_prefix_cache, /reset_encoder_cache and "
           "/reset_mm_cache; not for production")
      .add("dev-crash-token", server.dev_crash_token,
           "with server-dev-mode: a worker dies of any prompt with this token id, to see what "
           "becomes "
           "of the others; -1: none",
           -1, kMaxCount)
      .add("dev-crash-signal", server.dev_crash_signal,
           "by this signal: 11 is a crash, 9 what a lack of memory does", 1, 31);

  set.section("log")
      .add("log-level", options.log.log_level, "what is logged",
           {"trace", "debug", "info", "warning", "error", "off"})
      .add("log-stats-interval-s", options.log.log_stats_interval_s,
           "seconds between lines of statistics; 0: none", 0, 86400);

  TopologyOptions& topology = options.topology;
  set.section("topology")
      .add("supervisor-host", topology.supervisor_host,
           "address of the supervisor for the nodes of a topology; nodes of other hosts need one "
           "that they can reach")
      .add("supervisor-port", topology.supervisor_port, "its port; 0: any", 0, 65535)
      .add(
          "node-timeout-s", topology.node_timeout_s,
          "seconds of silence after which a node counts as gone and is restarted; it may take five "
          "times as long to begin and to reach the others",
          0.5, 3600)
      .add("step-timeout-s", topology.step_timeout_s,
           "seconds after which a worker that has not ended its step counts as stuck", 1, 86400)
      .add("tls-certificate", topology.tls_certificate,
           "PEM file: this host's certificate; nodes then speak TLS 1.3 and reject peers "
           "without a certificate from tls-ca")
      .add("tls-key", topology.tls_key, "PEM file: the key of tls-certificate")
      .add("tls-ca", topology.tls_ca,
           "PEM file: certificate authority of this system alone; peers with a certificate from it "
           "are accepted")
      .add("cluster-secret-file", topology.cluster_secret_file,
           "instead of TLS: file whose first line all nodes know, on every host the same, of 16 "
           "characters at least; nodes that do not know it are refused, but what nodes say to each "
           "other is not encrypted")
      .add("insecure", topology.insecure,
           "nodes of other hosts come without TLS or a secret: whoever can connect to "
           "supervisor-port can do anything with the engine");

  set.short_help(kShortHelp);
}

bool is_loopback(std::string_view host) noexcept {
  return host.starts_with("127.") || host == "localhost" || host == "::1";
}

Result<void> validate(const Options& options) {
  const EngineOptions& engine = options.engine;
  if (engine.max_num_batched_tokens < engine.max_num_seqs) {
    return invalid_argument(
        "max-num-batched-tokens is " + std::to_string(engine.max_num_batched_tokens) +
            ", it must be at least max-num-seqs, " + std::to_string(engine.max_num_seqs),
        "max-num-batched-tokens");
  }
  if (options.server.dev_crash_token >= 0 && !options.server.server_dev_mode)
    return invalid_argument("dev-crash-token needs server-dev-mode", "dev-crash-token");
  if (engine.data_parallel_size > 1 && options.model.max_model_len < 0) {
    return invalid_argument("max-model-len is auto, but data-parallel-size is " +
                                std::to_string(engine.data_parallel_size) +
                                ": groups could find different lengths",
                            "max-model-len");
  }
  if (engine.enable_priority_preemption && engine.scheduling_policy != "priority") {
    return invalid_argument("enable-priority-preemption needs scheduling-policy priority, it is " +
                                engine.scheduling_policy,
                            "enable-priority-preemption");
  }
  ASSIGN_OR_RETURN(
      const SpeculativeDecoding speculative,
      parse_speculative_config(engine.speculative_config, engine.tensor_parallel_size));
  if (!speculative.draft_model.empty() && engine.pipeline_parallel_size > 1) {
    return invalid_argument(
        "speculative-config with a draft model needs pipeline-parallel-size 1, it is " +
            std::to_string(engine.pipeline_parallel_size) +
            ": the draft model is not cut into stages",
        "speculative-config");
  }
  if (!speculative.draft_model.empty() && engine.max_num_batched_tokens <= kDraftModelSlots) {
    return invalid_argument(
        "max-num-batched-tokens is " + std::to_string(engine.max_num_batched_tokens) +
            ", with a draft model it must be at least " + std::to_string(kDraftModelSlots + 1),
        "max-num-batched-tokens");
  }
  return check_prompts_fit(engine, options.model.max_model_len);
}

Result<void> check_prompts_fit(const EngineOptions& engine, std::int64_t max_model_len) {
  if (engine.enable_chunked_prefill || max_model_len <= engine.max_num_batched_tokens) return {};
  return invalid_argument("without chunked prefill max-num-batched-tokens, " +
                              std::to_string(engine.max_num_batched_tokens) +
                              ", must be at least max-model-len, " + std::to_string(max_model_len),
                          "max-num-batched-tokens");
}

Result<std::vector<std::string>> load_options(OptionSet& set, Options& options,
                                              std::span<const std::string> arguments,
                                              std::span<const std::string> environment,
                                              std::vector<ConfigEntry>& caf_entries) {
  const auto from_environment = set.parse_environment(environment, kEnvironmentPrefix);
  ASSIGN_OR_RETURN(const OptionSet::CommandLineArguments command_line,
                   set.parse_command_line(arguments));
  std::string file;
  for (const auto* source : {&from_environment, &command_line.assignments}) {
    for (const OptionSet::Assignment& each : *source)
      if (each.option->name == kConfigFile) file = each.text;
  }
  if (!file.empty()) {
    ASSIGN_OR_RETURN(const std::vector<ConfigEntry> entries, read_config_file(file));
    std::vector<ConfigEntry> ours;
    for (const ConfigEntry& entry : entries) {
      const bool is_caf = std::find(std::begin(kCafSections), std::end(kCafSections),
                                    entry.section) != std::end(kCafSections);
      auto& to = is_caf ? caf_entries : is_node_section(entry.section) ? options.nodes : ours;
      to.push_back(entry);
    }
    RETURN_IF_ERROR(set.read_file(ours, file));
  }
  RETURN_IF_ERROR(set.apply(from_environment));
  RETURN_IF_ERROR(set.apply(command_line.assignments));
  return command_line.positionals;
}

}  // namespace troupe
