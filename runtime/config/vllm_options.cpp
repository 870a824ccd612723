#include "runtime/config/vllm_options.hpp"

#include <algorithm>

namespace troupe {
namespace {

using enum VllmOption::Kind;

constexpr std::string_view kNoCode = "custom code is not supported";
constexpr std::string_view kNoGraphs = "graphs are neither captured nor compiled";
constexpr std::string_view kRequestLog = "prompts and outputs are never logged";
constexpr std::string_view kOneServer = "one process serves all connections";
constexpr std::string_view kTopology = "the topology is set in --config-file (troupe topology)";
constexpr std::string_view kKernels = "kernels are selected for the device at start";
constexpr std::string_view kSteps = "the scheduler does not need it";
constexpr std::string_view kNoSwap = "preempted requests are recomputed, nothing is swapped";
constexpr std::string_view kGrammars = "there is one engine of grammars";
constexpr std::string_view kRequestGrammars = "requests set it in structured_outputs";
constexpr std::string_view kNotOffered = "it is not supported";
constexpr std::string_view kOwnConfig = "config.json determines it";
constexpr std::string_view kRunner = "runner decides what the model does";

constexpr VllmOption kOptions[] = {
    {"trust-remote-code", kFlag, kNoCode},
    {"allow-deprecated-quantization", kFlag, "the quantization method is read from the checkpoint"},
    {"enforce-eager", kFlag, kNoGraphs},
    {"max-seq-len-to-capture", kValue, kNoGraphs},
    {"max-context-len-to-capture", kValue, kNoGraphs},
    {"cuda-graph-sizes", kValues, kNoGraphs},
    {"cudagraph-capture-sizes", kValues, kNoGraphs},
    {"max-cudagraph-capture-size", kValue, kNoGraphs},
    {"compilation-config", kValue, kNoGraphs},
    {"optimization-level", kValue, kNoGraphs},
    {"performance-mode", kValue, kKernels},
    {"attention-backend", kValue, kKernels},
    {"mm-encoder-attn-backend", kValue, kKernels},
    {"moe-backend", kValue, kKernels},
    {"all2all-backend", kValue, kKernels},
    {"kernel-config", kValue, kKernels},
    {"enable-flashinfer-autotune", kFlag, kKernels},
    {"disable-custom-all-reduce", kFlag, kKernels},
    {"disable-cascade-attn", kFlag, kKernels},
    {"disable-nccl-for-dp-synchronization", kFlag, kKernels},
    {"calculate-kv-scales", kFlag, "keys and values in 8 bits have a scale for each token"},
    {"model-impl", kValue, "there is one implementation of each model", "auto|vllm"},
    {"code-revision", kValue, kNoCode},
    {"tokenizer-revision", kValue, "the tokenizer is that of the model's revision"},
    {"hf-token", kValue, "the environment variable HF_TOKEN sets the token"},
    {"ignore-patterns", kValues, "only the files that are loaded are downloaded"},
    {"use-tqdm-on-load", kFlag, "progress is always shown"},
    {"load-format", kValue, "the format is detected from the files",
     "auto|safetensors|fastsafetensors|instanttensor|hf|gguf"},
    {"safetensors-load-strategy", kValue, "the format is detected from the files"},
    {"max-parallel-loading-workers", kValue, "weights are loaded in parallel"},
    {"tokenizer-mode", kValue, "the model folder determines the tokenizer", "auto|hf|fast|slow"},
    {"task", kValue, kRunner, "auto|generate|embed|embedding"},
    {"convert", kValue, kRunner, "auto|none|embed"},
    {"logprobs-mode", kValue, "log-probabilities are always raw_logprobs", "raw_logprobs"},
    {"disable-log-requests", kFlag, kRequestLog},
    {"enable-log-requests", kFlag, kRequestLog},
    {"enable-log-outputs", kFlag, kRequestLog},
    {"enable-log-deltas", kFlag, kRequestLog},
    {"max-log-len", kValue, kRequestLog},
    {"disable-log-stats", kFlag, "--log-stats-interval-s 0 turns statistics off"},
    {"uvicorn-log-level", kValue, "--log-level sets the log level"},
    {"disable-access-log-for-endpoints", kValue,
     "--disable-uvicorn-access-log applies to all endpoints"},
    {"enable-offline-docs", kFlag, "/docs needs nothing from elsewhere"},
    {"api-server-count", kValue, kOneServer},
    {"disable-frontend-multiprocessing", kFlag, kOneServer},
    {"h11-max-incomplete-event-size", kValue, "--max-header-bytes is the limit"},
    {"h11-max-header-count", kValue, "--max-header-bytes is the limit"},
    {"distributed-executor-backend", kValue, kTopology, "mp|uni|ray"},
    {"worker-use-ray", kFlag, kTopology},
    {"engine-use-ray", kFlag, kTopology},
    {"ray-workers-use-nsight", kFlag, kTopology},
    {"data-parallel-backend", kValue, kTopology, "mp|ray"},
    {"decode-context-parallel-size", kValue, kNotOffered, "1"},
    {"prefill-context-parallel-size", kValue, kNotOffered, "1"},
    {"enable-dbo", kFlag, kSteps},
    {"use-v2-block-manager", kFlag, "there is one KV cache manager"},
    {"disable-hybrid-kv-cache-manager", kFlag, "there is one KV cache manager"},
    {"num-scheduler-steps", kValue, kSteps},
    {"multi-step-stream-outputs", kValue, "--stream-interval sets it"},
    {"scheduler-delay-factor", kValue, kSteps},
    {"max-num-partial-prefills", kValue, kSteps},
    {"max-long-partial-prefills", kValue, kSteps},
    {"disable-async-output-proc", kFlag, kSteps},
    {"num-lookahead-slots", kValue, "--speculative-config sets it"},
    {"swap-space", kValue, kNoSwap},
    {"preemption-mode", kValue, kNoSwap},
    {"cpu-offload-gb", kValue, "weights are in host memory already"},
    {"kv-offloading-size", kValue, "--kv-transfer-config sets it"},
    {"kv-offloading-backend", kValue, "--kv-transfer-config sets it"},
    {"mm-encoder-tp-mode", kValue, "each rank encodes whole images", "data|weights"},
    {"disable-mm-preprocessor-cache", kRefused, "--mm-processor-cache-gb 0 does it"},
    {"interleave-mm-strings", kFlag, "the chat template places the images"},
    {"skip-mm-profiling", kFlag, "buffers are sized before the first step"},
    {"language-model-only", kRefused, "--limit-mm-per-prompt '{\"image\": 0}' refuses images"},
    {"trust-request-mm-kwargs", kFlag, "mm_processor_kwargs are checked and may be sent"},
    {"guided-decoding-backend", kValue, kGrammars},
    {"guided-decoding-disable-fallback", kFlag, kGrammars},

    {"guided-decoding-disable-any-whitespace", kRefused, kRequestGrammars},
    {"guided-decoding-disable-additional-properties", kRefused, kRequestGrammars},
    {"structured-outputs-config", kRefused, kRequestGrammars},
    {"tool-parser-plugin", kRefused, kNoCode},
    {"reasoning-parser-plugin", kRefused, kNoCode},
    {"enable-reasoning", kFlag, "the reasoning parser follows from the chat template"},
    {"fully-sharded-loras", kFlag, "each worker has of every adapter what its shard needs"},
    {"lora-target-modules", kRefused, "adapters are loaded whole or not at all"},
    {"default-mm-loras", kRefused, kNotOffered},
    {"enable-tower-connector-lora", kRefused, kNotOffered},
    {"enable-prompt-adapter", kRefused, "prompt adapters are not supported"},
    {"enable-ssl-refresh", kFlag, "certificates are read again when their files change"},
    {"tokenizer", kRefused, "the tokenizer is read from the model folder"},
    {"skip-tokenizer-init", kRefused, "the tokenizer is read from the model folder"},
    {"hf-config-path", kRefused, kOwnConfig},
    {"hf-overrides", kRefused, kOwnConfig},
    {"rope-scaling", kRefused, kOwnConfig},
    {"rope-theta", kRefused, kOwnConfig},
    {"disable-sliding-window", kRefused, kOwnConfig},
    {"config-format", kRefused, kOwnConfig},
    {"default-chat-template-kwargs", kRefused, "requests set chat_template_kwargs"},
    {"logits-processors", kRefused, kNoCode},
    {"logits-processor-pattern", kRefused, kNoCode},
    {"scheduler-cls", kRefused, kNoCode},
    {"worker-cls", kRefused, kNoCode},
    {"worker-extension-cls", kRefused, kNoCode},
    {"middleware", kRefused, kNoCode},
    {"override-pooler-config", kRefused, "it is pooler-config now"},
    {"enable-prompt-embeds", kRefused, kNotOffered},
    {"enable-mm-embeds", kRefused, kNotOffered},
    {"enable-sleep-mode", kRefused, kNotOffered},
    {"enable-tokenizer-info-endpoint", kRefused, kNotOffered},
    {"enable-per-request-metrics", kRefused, kNotOffered},
    {"return-tokens-as-token-ids", kRefused, kNotOffered},
    {"max-num-queued-tokens", kRefused, "--max-num-queued-reqs limits the queue"},
    {"fingerprint-mode", kRefused, kNotOffered},
    {"uds", kRefused, "only TCP ports are supported (--port)"},
    {"root-path", kRefused, kNotOffered},
    {"collect-detailed-traces", kRefused, "there is one span for a request"},
    {"nnodes", kRefused, kTopology},
    {"node-rank", kRefused, kTopology},
    {"master-addr", kRefused, kTopology},
    {"master-port", kRefused, kTopology},
    {"headless", kRefused, kTopology},
    {"data-parallel-size-local", kRefused, kTopology},
    {"data-parallel-address", kRefused, kTopology},
    {"data-parallel-rpc-port", kRefused, kTopology},
    {"data-parallel-rank", kRefused, kTopology},
    {"data-parallel-start-rank", kRefused, kTopology},
    {"data-parallel-hybrid-lb", kRefused, kTopology},
    {"data-parallel-external-lb", kRefused, kTopology},
    {"config", kRefused, "use --config-file with Troupe's format (configs/)"},
};

}  // namespace

std::span<const VllmOption> vllm_options() noexcept { return kOptions; }

const VllmOption* find_vllm_option(std::string_view name) noexcept {
  const auto* found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                   [&](const VllmOption& option) { return option.name == name; });
  return found == std::end(kOptions) ? nullptr : found;
}

bool is_harmless(const VllmOption& option, std::string_view text) noexcept {
  std::string_view rest = option.values;
  if (rest.empty()) return true;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('|'), rest.size());
    if (rest.substr(0, end) == text) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

}  // namespace troupe
