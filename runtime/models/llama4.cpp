// Llama 4 (Meta, 2025), the language model: attention in chunks, layers in between whose q and k
// are not rotated and that see everything, and a mixture beside a shared expert in every n-th
// layer.

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

/// no_rope_layers is 0 for layers that are not rotated; without it every interval-th is not.
void read_unrotated(ConfigFields& text, ModelConfig& config) {
  const std::vector<double> given = text.numbers("no_rope_layers");
  const std::int64_t interval = text.integer("no_rope_layer_interval", 4, 1, kMaxConfigLayers);
  if (!given.empty() && std::cmp_less(given.size(), config.num_layers))
    text.fail(ErrorCode::kCorrupt, "no_rope_layers has " + std::to_string(given.size()) +
                                       " entries for " + std::to_string(config.num_layers) +
                                       " layers");
  for (std::size_t layer = 0; std::cmp_less(layer, config.num_layers); ++layer)
    config.is_unrotated.push_back(layer < given.size()
                                      ? given[layer] == 0
                                      : (static_cast<std::int64_t>(layer) + 1) % interval == 0);
}

void read_chunks(ConfigFields& text, ModelConfig& config) {
  std::vector<bool> is_chunked;
  for (const bool unrotated : config.is_unrotated) is_chunked.push_back(!unrotated);
  if (text.has("layer_types")) {
    const std::vector<std::string> types = text.texts("layer_types");
    if (std::cmp_not_equal(types.size(), config.num_layers))
      return text.fail(ErrorCode::kCorrupt, "layer_types has " + std::to_string(types.size()) +
                                                " entries for " +
                                                std::to_string(config.num_layers) + " layers");
    is_chunked.clear();
    for (const std::string& type : types) {
      is_chunked.push_back(type == "chunked_attention");
      if (!is_chunked.back() && type != "full_attention")
        text.fail(ErrorCode::kUnsupported, "layer_types has " + type + ", which is not supported");
    }
  }
  const bool has_none = text.contains("attention_chunk_size") && !text.has("attention_chunk_size");
  if (has_none && std::ranges::find(is_chunked, true) != is_chunked.end())
    text.fail(ErrorCode::kCorrupt,
              "attention_chunk_size is null, but there are layers with chunks");
  const auto size =
      static_cast<std::int32_t>(text.integer("attention_chunk_size", 8192, 1, INT32_MAX));
  for (const bool chunked : is_chunked) config.local_chunks.push_back(chunked ? size : 0);
}

/// moe_layers lists the layers with experts; without it every interleave_moe_layer_step-th has
/// them.
std::vector<bool> read_expert_layers(ConfigFields& text, const ModelConfig& config) {
  const std::int64_t step = text.integer("interleave_moe_layer_step", 1, 1, kMaxConfigLayers);
  const std::vector<double> given = text.numbers("moe_layers");
  std::vector<bool> layers;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    layers.push_back(text.has("moe_layers")
                         ? std::ranges::find(given, static_cast<double>(layer)) != given.end()
                         : (layer + 1) % step == 0);
  return layers;
}

void read_llama4_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 5120,
              .intermediate_size = 8192,
              .num_layers = 48,
              .num_heads = 40,
              .vocab_size = 202048,
              .num_kv_heads = 8,
              .head_dim = 128,
              .max_positions = 131072,
              .rms_norm_eps = 1e-5},
             config);
  check_activation(text, "hidden_act", "silu", config);
  read_unrotated(text, config);
  read_chunks(text, config);
  config.sliding_windows.assign(static_cast<std::size_t>(config.num_layers), 0);
  read_shared_rope(text, is_gguf, {.default_theta = 500000, .pairs_neighbours = true}, config);
  config.norms_rotated = text.boolean("use_qk_norm", true);
  if (text.boolean("attn_temperature_tuning", true))
    config.query_scaling = QueryScaling{.scale = text.number("attn_scale", 0.1),
                                        .interval = read_positive(text, "floor_scale", 8192)};
  ExpertsConfig experts =
      read_experts(text, {.key = "num_local_experts", .num_experts = 16, .num_chosen = 1});
  experts.intermediate_size = config.intermediate_size;
  experts.shared_size = config.intermediate_size;
  experts.is_sigmoid = true;
  experts.scales_input = true;
  experts.layers = read_expert_layers(text, config);
  config.experts = std::move(experts);
  config.intermediate_size = text.integer("intermediate_size_mlp", 16384, 1, kMaxConfigSize);
}

/// Stacked by experts, and transposed: gates are the first columns of one matrix, `up` the others.
MlpParts llama4_expert_parts(const WeightLoader& loader, const std::string& name,
                             const ExpertsOptions& options, std::int64_t expert) {
  if (loader.has(name + ".experts.0.gate_proj.weight"))  // as GGUF files are read
    return named_expert_parts(loader, name, options, expert);
  const std::int64_t hidden = options.expert.hidden_size;
  const std::int64_t inner = options.expert.intermediate_size;
  const auto part = [&](const char* matrix, std::int64_t num_rows, std::int64_t num_cols,
                        std::int64_t stored_rows, std::int64_t first) {
    WeightLoader::Part stored{name + ".experts." + matrix, num_rows, {0, num_rows}};
    stored.layout = WeightLoader::Layout{.shape = {options.num_experts, num_cols, stored_rows},
                                         .first = expert * num_cols * stored_rows + first,
                                         .row_stride = 1,
                                         .col_stride = stored_rows,
                                         .has_suffix = false};
    return stored;
  };
  return {part("gate_up_proj", inner, hidden, 2 * inner, 0),
          part("gate_up_proj", inner, hidden, 2 * inner, inner),
          part("down_proj", hidden, inner, hidden, 0)};
}

std::unique_ptr<Model> make_llama4(const ModelConfig& config, Device& device,
                                   WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_output_bias,
                                .mlp_name = "feed_forward",
                                .experts_name = "feed_forward",
                                .expert_parts = llama4_expert_parts,
                                .expert_stack = ExpertStack::kTransposed,
                                .router_name = "router"});
}

/// llama.cpp knows chunks, temperatures and the layers without rotation itself, and takes any other
/// number of experts than that of the larger model for one with norms.
void add_llama4_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                            nlohmann::json& config) {
  constexpr std::int64_t kExpertsWithoutNorm = 128;
  config["num_local_experts"] = config["num_experts"];
  config["use_qk_norm"] = config["num_experts"] != kExpertsWithoutNorm;
  config["intermediate_size_mlp"] = config["intermediate_size"];
  config["intermediate_size"] =
      metadata.integer(prefix + "expert_feed_forward_length", std::nullopt);
  config["interleave_moe_layer_step"] =
      metadata.integer(prefix + "interleave_moe_layer_step", std::nullopt);
  if (metadata.is_number(prefix + "attention.sliding_window", 0))
    metadata.fail(ErrorCode::kUnsupported, "metadata \"" + prefix +
                                               "attention.sliding_window\" is 0: files of models "
                                               "without chunks are not supported");
}

constexpr std::string_view kLlama4GgufKeys[] = {"expert_feed_forward_length",
                                                "interleave_moe_layer_step"};
constexpr GgufRenaming kLlama4GgufTensors[] = {
    {"ffn_gate_inp.", "feed_forward.router."},
    {"ffn_gate_exps.", "feed_forward.experts.*.gate_proj."},
    {"ffn_up_exps.", "feed_forward.experts.*.up_proj."},
    {"ffn_down_exps.", "feed_forward.experts.*.down_proj."},
    {"ffn_gate_shexp.", "feed_forward.shared_expert.gate_proj."},
    {"ffn_up_shexp.", "feed_forward.shared_expert.up_proj."},
    {"ffn_down_shexp.", "feed_forward.shared_expert.down_proj."},
    {"ffn_gate.", "feed_forward.gate_proj."},
    {"ffn_up.", "feed_forward.up_proj."},
    {"ffn_down.", "feed_forward.down_proj."}};
constexpr GgufArchitecture kLlama4Gguf = {.name = "llama4",
                                          .has_experts = true,
                                          .rope_theta = 500000,
                                          .has_rope_divisors = true,
                                          .keys = kLlama4GgufKeys,
                                          .tensors = kLlama4GgufTensors,
                                          .add_config = add_llama4_gguf_config};

}  // namespace

extern const RegisteredArchitecture kLlama4 = {.name = "Llama4ForCausalLM",
                                               .model_type = "llama4_text",
                                               .read_config = read_llama4_config,
                                               .gguf = &kLlama4Gguf,
                                               .make = make_llama4};

}  // namespace troupe
