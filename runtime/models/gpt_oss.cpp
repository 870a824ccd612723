// gpt-oss (arXiv 2508.10925): attention with sinks, a sliding window in every second layer, and in
// every layer experts with biases and a clamped gate, whose weights are bf16 or MXFP4.

#include <cmath>
#include <string>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

/// What the class assumes where config.json says nothing of a rotation but its base.
void set_default_rope(ModelConfig& config) {
  config.rope.kind = RopeKind::kYarn;
  config.rope.factor = 32;
  config.rope.original_max_positions = 4096;
  config.rope.truncate = false;
  config.rope.attention_factor = 0.1 * std::log(config.rope.factor) + 1;
  config.sliding_rope = config.rope;
}

void read_gpt_oss_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 2880,
              .intermediate_size = 2880,
              .num_layers = 36,
              .num_heads = 64,
              .vocab_size = 201088,
              .num_kv_heads = 8,
              .head_dim = 64,
              .max_positions = 131072,
              .rms_norm_eps = 1e-5},
             config);
  config.attention_bias = text.boolean("attention_bias", true);
  if (!is_gguf) config.attention_output_bias = config.attention_bias;
  std::vector<bool> windowed;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    windowed.push_back(layer % 2 == 0);
  set_layer_windows(text, read_window(text, 128), std::move(windowed), config);
  read_shared_rope(text, is_gguf, 150000, config);
  if (!text.has("rope_parameters") && !text.has("rope_scaling")) set_default_rope(config);
  config.swish_clamp = {.alpha = read_positive(text, "swiglu_alpha", 1.702),
                        .limit = read_positive(text, "swiglu_limit", 7)};
  ExpertsConfig experts = read_experts(text, {.key = "num_local_experts",
                                              .other_key = "num_experts",
                                              .num_experts = 128,
                                              .num_chosen = 4});
  experts.intermediate_size = config.intermediate_size;
  experts.normalises_weights = true;
  experts.layers.assign(static_cast<std::size_t>(config.num_layers), true);
  config.experts = std::move(experts);
}

/// Stacked by experts: gate and up as every second column of one matrix, which is stored
/// [hidden_size, 2 intermediate_size] if it is wide, and by its rows in blocks of MXFP4.
MlpParts gpt_oss_expert_parts(const WeightLoader& loader, const std::string& name,
                              const ExpertsOptions& options, std::int64_t expert) {
  if (loader.has(name + ".experts.0.gate_proj.weight"))  // as GGUF files are read
    return named_expert_parts(loader, name, options, expert);
  const std::int64_t num_experts = options.num_experts;
  const std::int64_t hidden = options.expert.hidden_size;
  const std::int64_t inner = options.expert.intermediate_size;
  const auto part = [&](const char* matrix, std::int64_t num_rows, std::int64_t num_cols,
                        std::int64_t first, std::int64_t step) {
    WeightLoader::Part stored{name + ".experts." + matrix, num_rows, {0, num_rows}};
    const std::int64_t stored_rows = num_rows * step;
    stored.bias_layout = WeightLoader::Layout{.shape = {num_experts, stored_rows},
                                              .first = expert * stored_rows + first,
                                              .row_stride = step,
                                              .has_suffix = false};
    if (loader.has(stored.name + "_blocks"))
      stored.blocks = WeightLoader::MxBlocks{.shape = {num_experts, stored_rows},
                                             .first_row = expert * stored_rows + first,
                                             .row_stride = step};
    else
      stored.layout = WeightLoader::Layout{.shape = {num_experts, num_cols, stored_rows},
                                           .first = expert * num_cols * stored_rows + first,
                                           .row_stride = step,
                                           .col_stride = stored_rows,
                                           .has_suffix = false};
    return stored;
  };
  return {part("gate_up_proj", inner, hidden, 0, 2), part("gate_up_proj", inner, hidden, 1, 2),
          part("down_proj", hidden, inner, 0, 1)};
}

std::unique_ptr<Model> make_gpt_oss(const ModelConfig& config, Device& device,
                                    WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_output_bias,
                                .has_sinks = true,
                                .activation = Activation::kClampedSwish,
                                .expert_parts = gpt_oss_expert_parts,
                                .expert_stack = ExpertStack::kInterleaved,
                                .router_name = "router",
                                .router_bias = true,
                                .expert_bias = true});
}

/// llama.cpp knows the gate's constants itself. Its blend of frequencies begins and ends at whole
/// indices, the model's does not.
void add_gpt_oss_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                             nlohmann::json& config) {
  config["intermediate_size"] = metadata.integer(prefix + "expert_feed_forward_length",
                                                 config["intermediate_size"].get<std::int64_t>());
  config["sliding_window"] = metadata.integer(prefix + "attention.sliding_window", std::nullopt);
  config["rope_parameters"]["truncate"] = false;
}

constexpr std::string_view kGptOssGgufKeys[] = {"expert_feed_forward_length",
                                                "attention.sliding_window"};
constexpr GgufRenaming kGptOssGgufTensors[] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"post_attention_norm.", "post_attention_layernorm."},
    {"ffn_gate_inp.", "mlp.router."},
    {"ffn_gate_exps.", "mlp.experts.*.gate_proj."},
    {"ffn_up_exps.", "mlp.experts.*.up_proj."},
    {"ffn_down_exps.", "mlp.experts.*.down_proj."}};
constexpr GgufArchitecture kGptOssGguf = {.name = "gpt-oss",
                                          .has_experts = true,
                                          .rope_theta = 150000,
                                          .keys = kGptOssGgufKeys,
                                          .tensors = kGptOssGgufTensors,
                                          .add_config = add_gpt_oss_gguf_config};

}  // namespace

extern const RegisteredArchitecture kGptOss = {.name = "GptOssForCausalLM",
                                               .model_type = "gpt_oss",
                                               .read_config = read_gpt_oss_config,
                                               .gguf = &kGptOssGguf,
                                               .make = make_gpt_oss};

}  // namespace troupe
