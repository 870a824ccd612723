// Bamba (IBM, Princeton, CMU, UIUC): layers of Mamba-2, a few of attention between them, and an MLP
// behind each.

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/mamba2_mixer.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/state_space_config.hpp"

namespace troupe {
namespace {

constexpr DecoderNames kBambaNames = {.final_norm = "final_layernorm"};

void read_bamba_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 4096,
              .intermediate_size = 14336,
              .num_layers = 32,
              .num_heads = 32,
              .vocab_size = 128000,
              .num_kv_heads = 8,
              .max_positions = 262144,
              .rms_norm_eps = 1e-5},
             config);
  check_activation(text, "hidden_act", "silu", config);
  config.mlp_bias = text.boolean("mlp_bias", false);
  read_shared_rope(text, is_gguf,
                   {.rotates_part = true, .default_part = 0.5, .overrides_part = true}, config);
  set_no_windows(text, config);
  StateSpaceConfig states =
      read_state_space(text, {}, config.hidden_size * read_expansion(text, "mamba_expand"));
  states.norm_eps = config.rms_norm_eps;
  states.layers.assign(static_cast<std::size_t>(config.num_layers), true);
  // Transformers passes over an index that no layer has.
  for (const std::int64_t layer : text.integers("attn_layer_indices"))
    if (layer >= 0 && layer < config.num_layers)
      states.layers[static_cast<std::size_t>(layer)] = false;
  config.state_space = std::move(states);
}

std::unique_ptr<const Mixer> load_mixer(WeightLoader& loader, const std::string& name,
                                        const ModelConfig& config, std::size_t layer,
                                        const std::shared_ptr<const RopeTables>& rope) {
  if (config.state_space->layers[layer])
    return std::make_unique<const Mamba2Mixer>(
        loader, name + ".mamba",
        Mamba2Options{.layer = layer,
                      .hidden_size = config.hidden_size,
                      .config = *config.state_space,
                      .canonical_shards = config.canonical_shards()});
  AttentionOptions attention = attention_options(config, layer, rope);
  attention.qkv_bias = config.attention_bias;
  attention.output_bias = config.attention_output_bias;
  return std::make_unique<const Attention>(loader, name + ".self_attn", attention);
}

std::unique_ptr<Model> make_bamba(const ModelConfig& config, Device& device, WeightLoader& loader) {
  const NormStyle norm{.eps = config.rms_norm_eps};
  const auto rope = loader.rope_tables(config.rope, config.head_dim, config.max_model_len);
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<DecoderLayer> layers;
  for (const std::size_t layer : layers_to_load(config, loader)) {
    const std::string name = prefix + std::to_string(layer);
    std::vector<NormedMixer> mixers;
    RmsNorm before_mixer(loader, name + ".input_layernorm", config.hidden_size, norm);
    mixers.push_back(
        {std::move(before_mixer), load_mixer(loader, name, config, layer, rope), std::nullopt});
    RmsNorm before_mlp(loader, name + ".pre_ff_layernorm", config.hidden_size, norm);
    mixers.push_back(
        {std::move(before_mlp),
         std::make_unique<const GatedMlp>(loader, name + ".feed_forward", config.hidden_size,
                                          config.intermediate_size, config.canonical_shards(),
                                          Activation::kSilu, config.mlp_bias),
         std::nullopt});
    layers.emplace_back(std::move(mixers));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = norm, .names = kBambaNames});
}

}  // namespace

extern const RegisteredArchitecture kBamba = {.name = "BambaForCausalLM",
                                              .model_type = "bamba",
                                              .read_config = read_bamba_config,
                                              .make = make_bamba};

}  // namespace troupe
