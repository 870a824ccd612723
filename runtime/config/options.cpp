#include "runtime/config/options.hpp"

#include <algorithm>
#include <iterator>

#include "runtime/base/ordered_json.hpp"
#include "runtime/config/adapter_options.hpp"
#include "runtime/config/config_file.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/config/ec_manager_config.hpp"
#include "runtime/config/group_roles.hpp"
#include "runtime/config/speculative_config.hpp"
#include "runtime/config/topology.hpp"

namespace troupe {
namespace {

constexpr std::string_view kEnvironmentPrefix = "TROUPE_";
constexpr std::string_view kConfigFile = "config-file";
constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;

/// The options of the short help.
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
  // In no section, since a file cannot include another.
  set.section("").add(
      std::string(kConfigFile), options.config_file,
      "configuration file with the same options in sections [model], [engine], ...; configs/ "
      "has examples");
  ModelOptions& model = options.model;
  set.section("model")
      .add("model", model.model,
           "folder of a Hugging Face model, a GGUF file, or a name on the Hugging Face Hub: "
           "OWNER/NAME, OWNER/NAME@REVISION, OWNER/NAME:FILE.gguf; default: the demo model")
      .add("mmproj", model.mmproj,
           "GGUF file of the image encoder for a GGUF model, or its name on the Hugging Face Hub; "
           "default: text only")
      .add("revision", model.revision,
           "branch, tag or commit of a model of the Hugging Face Hub; default: main")
      .add("download-dir", model.download_dir,
           "folder for models of the Hugging Face Hub; default: HF_HUB_CACHE, HF_HOME/hub or "
           "~/.cache/huggingface/hub")
      .add("served-model-name", model.served_model_name,
           "model name in the API; default: the path or name as given")
      .add("runner", model.runner,
           "generate text, or compute embeddings (pooling); auto: pooling for a folder with the "
           "modules.json of sentence-transformers",
           {"auto", "generate", "pooling"})
      .add("pooler-config", model.pooler_config,
           "JSON object with pooling_type (LAST, CLS, MEAN) and normalize; default: the folder's "
           "settings, else LAST and normalised")
      .add("dtype", model.dtype,
           "data type of weights and arithmetic; auto: that of the checkpoint, bfloat16 for GGUF "
           "files with quantised blocks; float16: weights and KV cache in float16, accumulation in "
           "float32; half and float are aliases of float16 and float32",
           {"auto", "bfloat16", "float16", "float32", "half", "float"})
      .add("quantization", model.quantization,
           "weight quantization: int8 and int4 quantise at load (the LM head to 8 bits); auto, or "
           "the checkpoint's own method: as the checkpoint stores them",
           {"auto", "int8", "int4", "gptq", "gptq_marlin", "awq", "awq_marlin",
            "compressed-tensors", "fp8", "gguf"})
      .alias("-q")
      .add(
          "packed-weights-dir", model.packed_weights_dir,
          "folder that caches weights as packed and quantised for this CPU: later starts and other "
          "workers map them; default: weights are packed at every start")
      .add("max-model-len", model.max_model_len,
           "maximum number of tokens of prompt and output; 0: the model's maximum; -1 or auto: as "
           "many of those as fit in the KV cache",
           -1, kMaxCount, {{"auto", -1}})
      .add("chat-template", model.chat_template,
           "file with a chat template that replaces the model's")
      .add("chat-template-content-format", model.chat_template_content_format,
           "format of message contents in the chat template", {"auto", "string", "openai"})
      .add("generation-config", model.generation_config,
           "default sampling parameters: auto reads the model's generation_config.json, vllm "
           "ignores it",
           {"auto", "vllm"})
      .add("override-generation-config", model.override_generation_config,
           "JSON object whose fields override the generation config")
      .add("seed", model.seed,
           "seed for sampling of requests without a seed of their own; 0: a random one");

  EngineOptions& engine = options.engine;
  set.section("engine")
      .add("block-size", engine.block_size, "tokens per KV cache block", 1, 1024)
      .add("max-num-seqs", engine.max_num_seqs,
           "maximum number of sequences that run at the same time", 1, 1 << 16)
      .add("max-num-batched-tokens", engine.max_num_batched_tokens,
           "maximum number of tokens per step", 1, kMaxCount)
      .add("max-num-encoder-input-tokens", engine.max_num_encoder_input_tokens,
           "image embeddings that a step may encode, at least those of one image; 0: "
           "max-num-batched-tokens",
           0, kMaxCount)
      .add("encoder-cache-size", engine.encoder_cache_size,
           "capacity of the encoder cache in image embeddings, at least those of one image; 0: "
           "max-num-batched-tokens",
           0, kMaxCount)
      .add("ec-manager-config", engine.ec_manager_config,
           "JSON object: which manager the encoder cache has, {\"encoder_cache_manager_cls\": "
           "NAME}; EncoderCacheManager evicts the unused image that was released first, "
           "LruEncoderCacheManager the least recently used one, LfuEncoderCacheManager the least "
           "frequently used one")
      .add("encoder-step-ms", engine.encoder_step_ms,
           "images are encoded in slices of this many milliseconds between steps, so that other "
           "requests are not delayed longer; 0: whole, in the step that needs them, as in vLLM",
           0, 3'600'000)
      .add("disable-chunked-mm-input", engine.disable_chunked_mm_input,
           "compute the tokens of an image in one step, for any model")
      .add("max-num-scheduled-tokens", engine.max_num_scheduled_tokens,
           "token budget of the scheduler per step; 0: max-num-batched-tokens", 0, kMaxCount)
      .add("long-prefill-token-threshold", engine.long_prefill_token_threshold,
           "maximum prefill chunk of a request while other requests run; 0: no limit", 0, kMaxCount)
      .add("enable-chunked-prefill", engine.enable_chunked_prefill,
           "split the prefill of long prompts over several steps")
      .add("enable-prefix-caching", engine.enable_prefix_caching,
           "reuse KV cache blocks of common prefixes")
      .add("prefix-caching-hash-algo", engine.prefix_caching_hash_algo,
           "hash function of cached blocks", {"sha256", "sha256_cbor", "xxhash", "xxhash_cbor"})
      .add("prefix-cache-retention-interval", engine.prefix_cache_retention_interval,
           "sliding-window layers retain the blocks that a prefix hit needs at the ends of prompts "
           "and every N tokens; 0: only at the ends of prompts; -1: everywhere",
           -1, kMaxCount)
      .add("prefix-cache-snapshot", engine.prefix_cache_snapshot,
           "folder that stores the blocks of the prefix cache as files: a restarted server reads "
           "those that it needs, also after kill -9")
      .add("prefix-cache-snapshot-bytes", engine.prefix_cache_snapshot_bytes,
           "maximum size of these files, for each group; the least recently used are evicted",
           1 << 20, std::int64_t{1} << 50)
      .add("max-pinned-cache-share", engine.max_pinned_cache_share,
           "fraction of the KV cache that prefixes with cache_control may pin until their TTL "
           "expires; 0: cache_control is ignored",
           0, 0.9)
      .add("kv-cache-metrics", engine.kv_cache_metrics,
           "add lifetime, idle time and reuse gap of KV cache blocks to /metrics")
      .add("kv-cache-metrics-sample", engine.kv_cache_metrics_sample,
           "fraction of the blocks that kv-cache-metrics samples", 1e-6, 1)
      .add("scheduling-policy", engine.scheduling_policy,
           "order of the waiting queue; fair: the API key that was served the fewest tokens first",
           {"fcfs", "priority", "fair"})
      .add("max-queue-bypasses", engine.max_queue_bypasses,
           "how many later requests may overtake one that waits for free blocks; 0: none", 0,
           kMaxCount)
      .add("enable-priority-preemption", engine.enable_priority_preemption,
           "with scheduling-policy priority: waiting requests preempt less urgent running ones")
      .add("preemption-victim", engine.preemption_victim,
           "request to preempt when blocks run out: the latest one, or the one with the fewest "
           "computed tokens",
           {"last", "least-work"})
      .add("async-scheduling", engine.async_scheduling,
           "schedule the next step while the current one runs")
      .add("enable-jump-forward", engine.enable_jump_forward,
           "compute text that a grammar leaves no choice of in one step, with the tokens that the "
           "tokenizer gives it; in one step only while at most 8 requests run, not for models with "
           "state layers and not with speculative-config")
      .add("watermark", engine.watermark,
           "fraction of the blocks kept free when requests are admitted", 0, 1)
      .add("num-gpu-blocks-override", engine.num_gpu_blocks_override,
           "number of KV cache blocks; 0: derived from the available memory", 0, kMaxCount)
      .add("kv-cache-memory-bytes", engine.kv_cache_memory_bytes,
           "KV cache memory per worker; 0: gpu-memory-utilization of the free memory", 0)
      .add("gpu-memory-utilization", engine.gpu_memory_utilization,
           "fraction of the device's free memory for the KV cache; on CPU at most 4 GiB, or what "
           "one request of max-model-len needs",
           0.01, 1)
      .add("kv-cache-dtype", engine.kv_cache_dtype,
           "data type of the KV cache; auto: dtype, or fp8 if the checkpoint has an fp8 "
           "kv_cache_scheme; fp8 is fp8_e4m3; 8-bit types have one scale per token and head",
           {"auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "int8"})
      .add("max-logprobs", engine.max_logprobs,
           "maximum number of log-probabilities per token in a request; -1: no limit", -1,
           kMaxCount)
      .add("stream-interval", engine.stream_interval, "tokens per chunk of a stream", 1, 1 << 16)
      .add("threads", engine.threads,
           "compute threads per worker; 0: all cores divided among the workers (one core is left "
           "free on hosts with 16 or more)",
           0, 1024)
      .add("numa-bind", engine.numa_bind,
           "on hosts with several NUMA nodes, bind each worker to the cores of its nodes; a worker "
           "with several nodes interleaves its memory")
      .add("device", engine.device,
           "where workers compute; auto: cuda if this build has its kernels and there is a GPU, "
           "else cpu; cuda-emulated runs the CUDA kernels on the CPU, for tests: slow",
           std::vector<std::string>(std::begin(kDeviceNames), std::end(kDeviceNames)))
      .add("cpu-isa", engine.cpu_isa, "instruction set",
           {"auto", "scalar", "avx2", "avx512", "amx"})
      .add("tensor-parallel-size", engine.tensor_parallel_size,
           "number of tensor-parallel workers: attention heads and matrices of each layer are "
           "sharded over them",
           1, 64)
      .alias("-tp")
      .add("pipeline-parallel-size", engine.pipeline_parallel_size,
           "number of pipeline stages: each has some of the layers, and they work on different "
           "steps at the same time",
           1, 64)
      .alias("-pp")
      .add("enable-expert-parallel", engine.enable_expert_parallel,
           "each tensor-parallel worker has some of the experts as a whole, not a shard of each")
      .alias("-ep")
      .add(
          "data-parallel-size", engine.data_parallel_size,
          "number of data-parallel engine replicas, each with the whole model and its own KV cache",
          1, 64)
      .alias("-dp")
      .add("group-roles", engine.group_roles,
           "role of each data-parallel group: prefill computes long prompts, decode generates from "
           "them, both does either; default: both")
      .add(
          "disaggregation-threshold", engine.disaggregation_threshold,
          "minimum number of tokens, estimated as 4 bytes of text each, of a prompt that a prefill "
          "group computes; tokens that the decode group is likely to have cached do not count",
          0, kMaxCount)
      .add("num-input-processors", engine.num_input_processors,
           "threads that render and tokenize prompts; one is reserved for short ones", 2, 64)
      .add("max-input-time-s", engine.max_input_time_s,
           "maximum seconds for rendering and tokenizing a prompt; then the request gets 400; 0: "
           "no limit",
           0, 86400)
      .add(
          "speculative-config", engine.speculative_config,
          "JSON object for speculative decoding: num_speculative_tokens, and method ngram (prompt "
          "lookup: prompt_lookup_min, prompt_lookup_max), suffix (suffixes of earlier answers: "
          "suffix_decoding_max_tree_depth, _max_cached_requests, _max_spec_factor, "
          "_min_token_prob), draft_model (model, quantization), eagle or eagle3 (model: the head's "
          "folder; quantization) or mtp (of DeepSeek-V3); adaptive: fewer drafts where they do not "
          "come true and where many requests run, true by default")
      .alias("-sc")
      .add("ec-transfer-config", engine.ec_transfer_config,
           "JSON object: encoder outputs are loaded from other engines and saved for them; "
           "fields: ec_connector, ec_role (ec_producer, ec_consumer, ec_both), ec_buffer_size, "
           "ec_connector_extra_config, ec_connector_module_path")
      .add("kv-transfer-config", engine.kv_transfer_config,
           "JSON object: blocks of the KV cache are kept elsewhere and loaded instead of being "
           "computed; fields: kv_connector (OffloadingConnector: host memory and files; "
           "FileConnector: files; ExampleConnector: vLLM's files of whole prompts; "
           "LMCacheConnectorV1: as LMCache; PeerConnector: other engines; MultiConnector: several "
           "of them; BlendConnector: pieces of prompts at any place; DecodeBenchConnector: noise), "
           "kv_role (kv_producer, kv_consumer, kv_both), kv_load_failure_policy (recompute, fail), "
           "kv_connector_extra_config, kv_connector_module_path")
      .add("session-ttl-s", engine.session_ttl_s,
           "seconds for which the KV cache keeps the blocks of a session's last request "
           "(session_id, X-Session-ID), unless their space is needed; 0: they may be evicted at "
           "once",
           0, 86400)
      .add("enable-lora", engine.enable_lora, "requests may name LoRA adapters as their model")
      .add("lora-modules", engine.lora_modules,
           "adapters that are loaded at start: name=path, or JSON objects with name and path; a "
           "path is a folder saved by PEFT")
      .several()
      .add("max-loras", engine.max_loras, "maximum number of different adapters in a step", 1,
           kMaxCount)
      .add("max-lora-bypasses", engine.max_lora_bypasses,
           "how many later requests with adapters may overtake one whose adapter is not among the "
           "max-loras of the running requests; 0: any number, as in vLLM",
           0, kMaxCount)
      .add("max-lora-rank", engine.max_lora_rank,
           "maximum rank of an adapter: 1, 8, 16, 32, 64, 128, 256, 320 or 512", 1, 512)
      .add("max-cpu-loras", engine.max_cpu_loras,
           "maximum number of adapters in a worker's memory; the least recently used are evicted "
           "and "
           "reloaded on demand; 0: max-loras",
           0, kMaxCount)
      .add("lora-dtype", engine.lora_dtype,
           "data type of adapters; auto: bfloat16 for a model in bfloat16, else float32",
           {"auto", "bfloat16", "float32"})
      .add("lora-directory", engine.lora_directory,
           "folder with a subfolder for each adapter, by name: new ones are loaded, removed ones "
           "unloaded")
      .add("kv-events-config", engine.kv_events_config,
           "JSON object: publish KV cache events over ZeroMQ; fields: "
           "enable_kv_cache_events, endpoint, replay_endpoint, topic, buffer_steps, hwm, "
           "max_queue_size");

  MediaOptions& media = options.media;
  set.section("media")
      .add("limit-mm-per-prompt", media.limit_mm_per_prompt,
           "JSON object with the maximum number of items per prompt: {\"image\": 4}; default: 999")
      .add("mm-processor-kwargs", media.mm_processor_kwargs,
           "JSON object that overrides fields of preprocessor_config.json; a request's own "
           "mm_processor_kwargs override these")
      .add("mm-hasher-algorithm", media.mm_hasher_algorithm, "hash function of images' identifiers",
           {"blake3", "sha256", "sha512"})
      .add("mm-processor-cache-gb", media.mm_processor_cache_gb,
           "size in GiB of the cache of processed images; 0: none", 0, 1 << 20)
      .add("mm-processor-cache-type", media.mm_processor_cache_type,
           "where processed images are cached: lru in the engine, shm in memory shared by the "
           "processes of a host, processor_only in the front end, which is also used with nodes of "
           "the role encoder, and instead of shm between hosts",
           {"lru", "shm", "processor_only"})
      .add("mm-shm-cache-max-object-size-mb", media.mm_shm_cache_max_object_size_mb,
           "maximum size in MiB of a processed image in the shm cache", 1, 1 << 20)
      .add("media-io-kwargs", media.media_io_kwargs,
           "JSON object with options for decoding media, by kind: {\"image\": "
           "{\"rgba_background_color\": [255, 255, 255]}}; a request's own media_io_kwargs are "
           "merged into it")
      .add("allowed-local-media-path", media.allowed_local_media_path,
           "folder whose files requests may name as file: URLs; default: none")
      .add("allowed-media-domains", media.allowed_media_domains,
           "host that requests may name in http: and https: URLs of images; private addresses must "
           "be listed as such; default: none")
      .add("image-fetch-timeout-s", media.image_fetch_timeout_s,
           "maximum duration in seconds of fetching an image from another host", 0.001, 3600)
      .variable("VLLM_IMAGE_FETCH_TIMEOUT");

  ServerOptions& server = options.server;
  set.section("server")
      .add("host", server.host, "address to listen on; 0.0.0.0 for all")
      .add("port", server.port, "port to listen on; 0: any free port", 0, 65535)
      .add("ssl-certfile", server.ssl_certfile,
           "PEM file with the certificate for HTTPS, followed by intermediate ones; it is reloaded "
           "when it changes; default: plain HTTP")
      .add("ssl-keyfile", server.ssl_keyfile,
           "PEM file with the key of ssl-certfile; default: in the same file")
      .add("ssl-ca-certs", server.ssl_ca_certs,
           "PEM file with the certificate authorities for client certificates")
      .add("ssl-cert-reqs", server.ssl_cert_reqs,
           "client certificates: 0 none, 1 verified if sent, 2 required", 0, 2)
      .add("ssl-ciphers", server.ssl_ciphers,
           "ciphers for TLS 1.2, in OpenSSL's notation; default: OpenSSL's")
      .add("api-key", server.api_key,
           "API key that clients must send as a bearer token; command lines are visible to other "
           "users of the host, prefer api-key-file")
      .variable("VLLM_API_KEY")
      .add("api-key-file", server.api_key_file,
           "file with one API key per line, in addition to api-key; optionally followed by its "
           "name in the log, and limits beyond which requests get 429: name=NAME "
           "requests-per-minute=N tokens-per-minute=N max-concurrent-requests=N; SIGHUP reloads it")
      .add("allowed-origins", server.allowed_origins,
           "origins of web pages that may call the server from a browser (CORS), such as "
           "https://example.com; *: all; this list and the next two may be JSON arrays too")
      .add("allow-credentials", server.allow_credentials,
           "browsers may send cookies and credentials with these requests")
      .add("allowed-methods", server.allowed_methods, "methods that web pages may use; *: all")
      .add("allowed-headers", server.allowed_headers,
           "headers that web pages may send; *: all that they request")
      .add("allowed-hosts", server.allowed_hosts,
           "accepted values of the Host header; *.NAME: all subdomains, *: any; default without "
           "api-key: on loopback the names and addresses of this host, elsewhere IP addresses, "
           "this host's name and private names (without a dot, or under local, internal, svc, "
           "home.arpa); with api-key: any")
      .add("max-body-bytes", server.max_body_bytes,
           "maximum size of a request body after decompression; for chunked bodies also of the "
           "chunk framing",
           1 << 10, std::int64_t{4} << 30)
      .add("max-header-bytes", server.max_header_bytes, "maximum size of the request headers",
           1 << 10, 16 << 20)
      .add("max-connections", server.max_connections, "maximum number of open connections", 1,
           1 << 20)
      .add("idle-timeout-s", server.idle_timeout_s, "seconds until an idle connection is closed",
           0.1, 86400)
      .add("body-timeout-s", server.body_timeout_s,
           "seconds within which a request body must arrive, plus one for each 16 KiB received",
           0.1, 86400)
      .add("write-timeout-s", server.write_timeout_s,
           "seconds until a connection is closed whose client does not read", 0.1, 86400)
      .add("sse-keep-alive-interval", server.sse_keep_alive_interval,
           "seconds between SSE comments on an idle stream; 0: none", 0, 86400)
      .add("shutdown-timeout", server.shutdown_timeout,
           "seconds that running requests have to finish on shutdown", 0, 86400)
      .add("max-num-queued-reqs", server.max_num_queued_reqs,
           "maximum number of samples (n per prompt) in the engine; further requests get 503, one "
           "that exceeds it alone gets 400; 0: no limit",
           0, kMaxCount)
      .add("max-request-samples", server.max_request_samples,
           "maximum number of samples of one request (n per prompt)", 1, 1 << 20)
      .add("max-request-tokens", server.max_request_tokens,
           "maximum number of tokens of one request: prompt and max_tokens of each sample; a "
           "single sample is limited by max-model-len only",
           1, std::int64_t{1} << 40)
      .add("max-echo-bytes", server.max_echo_bytes,
           "maximum number of bytes of a response that repeat its prompts: echo, prompt_logprobs, "
           "return_token_ids and return_prompt_text, summed over samples",
           1 << 10, std::int64_t{1} << 40)
      .add("max-answer-bytes", server.max_answer_bytes,
           "maximum number of buffered bytes of a response that the client has not read: text, "
           "token ids and log-probabilities",
           1 << 16, std::int64_t{1} << 40)
      .add("max-queue-time-s", server.max_queue_time_s,
           "seconds that a request may wait in the queue; then it gets 503; 0: no limit", 0, 86400)
      .add("max-request-time-s", server.max_request_time_s,
           "seconds that a request may take; then it ends with what it has generated; 0: no limit",
           0, 86400)
      .add("disable-uvicorn-access-log", server.disable_uvicorn_access_log,
           "do not log each request")
      .add("access-log", server.access_log,
           "file for a JSON object per request; -: standard output; a new file is created after a "
           "rename, as by logrotate")
      .add("enable-request-id-headers", server.enable_request_id_headers,
           "return X-Request-Id in responses")
      .add("enable-server-load-tracking", server.enable_server_load_tracking,
           "count the requests in the engine for /load, which returns 0 otherwise")
      .add("disable-fastapi-docs", server.disable_fastapi_docs, "no /openapi.json and /docs")
      .add("enable-prompt-tokens-details", server.enable_prompt_tokens_details,
           "report cached prompt tokens in usage")
      .add("enable-force-include-usage", server.enable_force_include_usage,
           "streams end with usage even if the request does not ask for it")
      .add("trust-request-chat-template", server.trust_request_chat_template,
           "accept chat templates in requests")
      .add("response-role", server.response_role, "role of generated messages")
      .add("tool-call-parser", server.tool_call_parser,
           "format of the model's tool calls: auto (by the chat template), none, or one of "
           "hermes, llama3_json, llama4_pythonic, pythonic, mistral, qwen3_coder, deepseek_v3, "
           "deepseek_v31, deepseek_v32, glm45, kimi_k2, granite, phi4_mini_json, functiongemma, "
           "openai, minimax_m2, seed_oss, nemotron_json, jamba, internlm, lfm2")
      .add(
          "tool-strict-level", server.tool_strict_level,
          "how a grammar constrains calls once they begin: auto (forced calls and those of strict "
          "functions to the schema), function (all calls to the format and the names of functions) "
          "or parameter (all calls to the schemas)")
      .add("reasoning-parser", server.reasoning_parser,
           "format of the model's reasoning: auto (by the chat template), none, or one of "
           "deepseek_r1, deepseek_v3, qwen3, glm45, kimi_k2, minimax_m2, seed_oss, mistral, "
           "granite, openai_gptoss")
      .add(
          "reasoning-config", server.reasoning_config,
          "JSON object for thinking_token_budget of requests: reasoning_end_str is generated where "
          "the budget is spent (default: the marker that ends reasoning, which it has to have), "
          "reasoning_start_str begins what is counted")
      .add("enable-auto-tool-choice", server.enable_auto_tool_choice,
           "parse tool calls if a request has tools and does not force a call")
      .add("exclude-tools-when-tool-choice-none", server.exclude_tools_when_tool_choice_none,
           "tool_choice none hides the tools from the chat template")
      .add("otlp-traces-endpoint", server.otlp_traces_endpoint,
           "URL of an OpenTelemetry collector, such as http://localhost:4318/v1/traces: a span for "
           "each request is sent there (OTLP over HTTP, JSON), as a child of the client's "
           "traceparent; default: none")
      .add("otel-service-name", server.otel_service_name, "service.name of the spans")
      .add("responses-db", server.responses_db,
           "SQLite file for the responses of /v1/responses, so that a restarted server still has "
           "them; default: in memory")
      .add("max-stored-responses", server.max_stored_responses,
           "maximum number of stored responses, the oldest are removed; 0: do not store responses",
           0, 1 << 30)
      .add("max-stored-response-bytes", server.max_stored_response_bytes,
           "maximum size of all stored responses with their conversations", 1 << 20,
           std::int64_t{1} << 50)
      .add("admin-cache-directory", server.admin_cache_directory,
           "folder of /admin/cache/export and import, on each host with workers; default: these "
           "routes are disabled")
      .add("max-warm-prompts", server.max_warm_prompts,
           "maximum number of prompts of a request to /admin/cache/warm", 1, 1 << 16)
      .add("batch-directory", server.batch_directory,
           "folder for /v1/files and /v1/batches: uploaded files, results and pending requests, "
           "which a restarted server continues; default: these routes are disabled")
      .add("max-batch-file-bytes", server.max_batch_file_bytes, "maximum size of an uploaded file",
           1 << 10, std::int64_t{1} << 40)
      .add("max-batch-directory-bytes", server.max_batch_directory_bytes,
           "maximum size of all files; further uploads get 413", 1 << 20, std::int64_t{1} << 50)
      .add("max-batch-requests", server.max_batch_requests, "maximum number of requests of a batch",
           1, 1 << 24)
      .add("max-batch-in-flight", server.max_batch_in_flight,
           "requests of all batches that are sent to the engine at once", 1, 1 << 16)
      .add("resume", server.resume,
           "make streams resumable after a lost connection or a killed Frontend: GET "
           "/v1/streams/ID?starting_after=EVENT")
      .add("resume-directory", server.resume_directory,
           "folder for resumable streams; default: shared memory, per port")
      .add("resume-max-streams", server.resume_max_streams, "maximum number of resumable streams",
           1, 1 << 20)
      .add("resume-max-bytes", server.resume_max_bytes, "maximum size of all resumable streams",
           1 << 10, std::int64_t{1} << 40)
      .add("resume-ttl-s", server.resume_ttl_s,
           "seconds for which a finished stream stays resumable", 1, 86400)
      .add("keep-alive", server.keep_alive,
           "run the Supervisor in a child process, and restart it whenever a signal ends it")
      .add(
          "allow-runtime-lora-updating", server.allow_runtime_lora_updating,
          "enable /v1/load_lora_adapter and /v1/unload_lora_adapter, where clients name folders on "
          "the server")
      .variable("VLLM_ALLOW_RUNTIME_LORA_UPDATING")
      .add("server-dev-mode", server.server_dev_mode,
           "enable /pause, /resume, /is_paused, /reset_prefix_cache, /reset_encoder_cache, "
           "/reset_mm_cache, /server_info and /collective_rpc; not for production")
      .variable("VLLM_SERVER_DEV_MODE")
      .add("dev-crash-token", server.dev_crash_token,
           "with server-dev-mode: a worker crashes on any prompt with this token id, to test "
           "recovery; -1: none",
           -1, kMaxCount)
      .add("dev-crash-signal", server.dev_crash_signal,
           "signal of that crash: 11 for a segmentation fault, 9 for the OOM killer", 1, 31)
      .add("dev-scheduler-log", server.dev_scheduler_log,
           "with server-dev-mode: a file for the scheduler's decisions, prompts included, as a "
           "trace that can be replayed; of groups behind the first one, with .NUMBER appended");

  set.section("log")
      .add("log-level", options.log.log_level, "lowest level that is logged",
           {"trace", "debug", "info", "warning", "error", "off"})
      .add("log-stats-interval-s", options.log.log_stats_interval_s,
           "seconds between log lines with statistics; 0: none", 0, 86400)
      .variable("VLLM_LOG_STATS_INTERVAL");

  TopologyOptions& topology = options.topology;
  set.section("topology")
      .add("supervisor-host", topology.supervisor_host,
           "address of the Supervisor for the nodes of a topology; must be reachable from the "
           "other hosts")
      .add("supervisor-port", topology.supervisor_port, "port of the Supervisor; 0: any free port",
           0, 65535)
      .add("node-timeout-s", topology.node_timeout_s,
           "seconds without a heartbeat after which a node is considered dead and is restarted; "
           "starting and connecting may take five times as long",
           0.5, 3600)
      .add("supervisor-timeout-s", topology.supervisor_timeout_s,
           "seconds for which nodes keep serving after the Supervisor's process has died, and try "
           "to join the next one; 0: they end with it",
           0, 86400)
      .add("step-timeout-s", topology.step_timeout_s,
           "seconds after which a worker that has not finished its step is considered stuck", 1,
           86400)
      .add("tls-certificate", topology.tls_certificate,
           "PEM file: certificate of this host; nodes then use mutual TLS 1.3 and reject peers "
           "without a certificate from tls-ca")
      .add("tls-key", topology.tls_key, "PEM file: private key of tls-certificate")
      .add("tls-ca", topology.tls_ca,
           "PEM file: certificate authority that signs the peers' certificates; use one for this "
           "system alone")
      .add(
          "cluster-secret-file", topology.cluster_secret_file,
          "instead of TLS: file whose first line is a shared secret of at least 16 characters, the "
          "same on every host; nodes without it are rejected; traffic is not encrypted")
      .add("insecure", topology.insecure,
           "accept nodes of other hosts without TLS or a secret: anyone who can connect to "
           "supervisor-port controls the engine");

  set.short_help(kShortHelp);
}

std::string describe_options(const Options& options, bool as_json) {
  constexpr std::string_view kSecret = "api-key";
  Options copy = options;
  OptionSet set;
  bind_options(set, copy);
  std::string text;
  nlohmann::ordered_json sections = nlohmann::ordered_json::object();
  for (const OptionSet::Option& option : set.options()) {
    const std::string section = option.section.empty() ? "file" : option.section;
    const bool is_secret = option.name == kSecret;
    text += section + "." + option.name + " = " + (is_secret ? "(not shown)" : option.get()) + "\n";
    auto& value = sections[section][option.name];
    if (is_secret) {
      value = "(not shown)";
    } else if (option.is_list) {
      value = option.get_list();
    } else if (option.is_flag || option.type == "INT" || option.type == "FLOAT") {
      value = nlohmann::ordered_json::parse(option.get(), nullptr, /*allow_exceptions=*/false);
    } else {
      value = option.get();
    }
  }
  if (!as_json) return text;
  return sections.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
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
  const ServerOptions& server = options.server;
  if (std::ranges::find(server.api_key, "") != server.api_key.end())
    return invalid_argument("api-key is empty; a server without keys has no such option",
                            "api-key");
  const bool wants_https =
      !server.ssl_keyfile.empty() || !server.ssl_ca_certs.empty() || server.ssl_cert_reqs > 0;
  if (wants_https && server.ssl_certfile.empty())
    return invalid_argument("ssl-keyfile, ssl-ca-certs and ssl-cert-reqs need ssl-certfile",
                            "ssl-certfile");
  if (server.ssl_cert_reqs > 0 && server.ssl_ca_certs.empty())
    return invalid_argument(
        "ssl-cert-reqs is " + std::to_string(server.ssl_cert_reqs) + ", which needs ssl-ca-certs",
        "ssl-ca-certs");
  if (const std::string& url = server.otlp_traces_endpoint;
      !url.empty() && !url.starts_with("http://") && !url.starts_with("https://")) {
    return invalid_argument(
        "otlp-traces-endpoint is " + url + ", it must begin with http:// or https://",
        "otlp-traces-endpoint");
  }
  if (options.server.dev_crash_token >= 0 && !options.server.server_dev_mode)
    return invalid_argument("dev-crash-token needs server-dev-mode", "dev-crash-token");
  if (!options.server.dev_scheduler_log.empty() && !options.server.server_dev_mode)
    return invalid_argument("dev-scheduler-log needs server-dev-mode", "dev-scheduler-log");
  if (engine.data_parallel_size > 1 && options.model.max_model_len < 0) {
    return invalid_argument("max-model-len is auto, but data-parallel-size is " +
                                std::to_string(engine.data_parallel_size) +
                                ": groups could compute different lengths",
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
  if (speculative.has_draft_layers() && !speculative.has_draft_head() &&
      engine.max_num_batched_tokens <= kDraftModelSlots) {
    return invalid_argument(
        "max-num-batched-tokens is " + std::to_string(engine.max_num_batched_tokens) +
            ", with a draft model it must be at least " + std::to_string(kDraftModelSlots + 1),
        "max-num-batched-tokens");
  }
  ASSIGN_OR_RETURN(const AdapterOptions adapters, parse_adapter_options(engine));
  for (const LoraRequest& module : adapters.modules)
    if (std::ranges::find(options.model.served_model_name, module.name) !=
        options.model.served_model_name.end())
      return invalid_argument("lora-modules: " + module.name + " is the name of the base model",
                              "lora-modules");
  RETURN_IF_ERROR(max_images_per_prompt(options.media));
  RETURN_IF_ERROR(parse_connector_config(ConnectorKind::kEC, engine.ec_transfer_config));
  RETURN_IF_ERROR(parse_ec_manager_config(engine.ec_manager_config));
  ASSIGN_OR_RETURN(const ConnectorConfig kv_transfer,
                   parse_connector_config(ConnectorKind::kKV, kv_transfer_config(engine)));
  RETURN_IF_ERROR(group_roles(engine));
  if (!engine.prefix_cache_snapshot.empty() && !engine.enable_prefix_caching)
    return invalid_argument("prefix-cache-snapshot requires enable-prefix-caching",
                            "prefix-cache-snapshot");
  if (kv_transfer.is_enabled() && !engine.enable_prefix_caching)
    return invalid_argument("kv-transfer-config: blocks have no keys without enable-prefix-caching",
                            "kv-transfer-config");
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
