// Mamba-2 (arXiv 2405.21060): layers of state spaces, without attention or MLP.

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/mamba2_mixer.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/state_space_config.hpp"

namespace troupe {
namespace {

/// A state has no longest text; requests need some limit.
constexpr std::int64_t kMamba2MaxPositions = 1 << 20;
constexpr DecoderNames kMamba2Names = {.embedding = "embeddings", .final_norm = "norm_f"};

void read_mamba2_config(ConfigFields& text, bool /*is_gguf*/, ModelConfig& config) {
  config.hidden_size = text.integer("hidden_size", 4096, 1, kMaxConfigSize);
  config.num_layers = text.integer("num_hidden_layers", 64, 1, kMaxConfigLayers);
  config.vocab_size = text.integer("vocab_size", 32768, 1, kMaxConfigSize);
  config.rms_norm_eps = static_cast<float>(text.number("layer_norm_epsilon", 1e-5));
  config.max_model_len = kMamba2MaxPositions;
  check_activation(text, "hidden_act", "silu", config);
  // transformers divides the weights of out_proj that it has loaded; vLLM does not.
  if (text.boolean("rescale_prenorm_residual", false))
    text.fail(ErrorCode::kUnsupported,
              "rescale_prenorm_residual is true: engines disagree whether loaded weights are to be "
              "rescaled; false leaves them as they are");
  const std::int64_t inner_size = config.hidden_size * read_expansion(text, "expand");
  StateSpaceConfig states = read_state_space(text,
                                             {.num_heads = "num_heads",
                                              .head_dim = "head_dim",
                                              .state_size = "state_size",
                                              .num_groups = "n_groups",
                                              .conv_width = "conv_kernel",
                                              .conv_bias = "use_conv_bias",
                                              .bias = "use_bias",
                                              .default_groups = 8,
                                              .default_state_size = 128,
                                              .has_auto_head_dim = false},
                                             inner_size);
  states.norm_eps = config.rms_norm_eps;
  states.layers.assign(static_cast<std::size_t>(config.num_layers), true);
  // What ranks share are these heads; no head is rotated.
  config.num_heads = states.num_heads;
  config.num_kv_heads = states.num_heads;
  config.head_dim = 2;
  config.intermediate_size = inner_size;
  config.sliding_windows.assign(static_cast<std::size_t>(config.num_layers), 0);
  config.state_space = std::move(states);
}

std::unique_ptr<Model> make_mamba2(const ModelConfig& config, Device& device,
                                   WeightLoader& loader) {
  const NormStyle norm{.eps = config.rms_norm_eps};
  const std::string prefix = weight_prefix(loader, kMamba2Names) + "layers.";
  std::vector<DecoderLayer> layers;
  for (const std::size_t layer : layers_to_load(config, loader, kMamba2Names)) {
    const std::string name = prefix + std::to_string(layer);
    std::vector<NormedMixer> mixers;
    RmsNorm before(loader, name + ".norm", config.hidden_size, norm);
    mixers.push_back({std::move(before),
                      std::make_unique<const Mamba2Mixer>(
                          loader, name + ".mixer",
                          Mamba2Options{.layer = layer,
                                        .hidden_size = config.hidden_size,
                                        .config = *config.state_space,
                                        .canonical_shards = config.canonical_shards()}),
                      std::nullopt});
    layers.emplace_back(std::move(mixers));
  }
  return std::make_unique<DecoderModel>(config, device, loader, std::move(layers),
                                        DecoderOptions{.norm = norm, .names = kMamba2Names});
}

void add_mamba2_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                            nlohmann::json& config) {
  const GgufStateSpace states = read_gguf_state_space(metadata, prefix);
  const auto hidden_size = std::max<std::int64_t>(1, config["hidden_size"].get<std::int64_t>());
  config["expand"] = states.inner_size / hidden_size;
  config["num_heads"] = states.num_heads;
  config["head_dim"] = states.head_dim;
  config["state_size"] = states.state_size;
  config["n_groups"] = states.num_groups;
  config["conv_kernel"] = states.conv_width;
  config["use_conv_bias"] = config["mamba_conv_bias"];
  config["layer_norm_epsilon"] = config["rms_norm_eps"];
}

constexpr GgufRenaming kMamba2GgufTensors[] = {
    {"attn_norm.", "norm."},
    {"ssm_in.", "mixer.in_proj."},
    {"ssm_conv1d.", "mixer.conv1d.", GgufShape::kConvolution},
    {"ssm_dt.bias", "mixer.dt_bias"},
    {"ssm_a", "mixer.A", GgufShape::kVector},
    {"ssm_d", "mixer.D", GgufShape::kVector},
    {"ssm_norm.", "mixer.norm.", GgufShape::kVector},
    {"ssm_out.", "mixer.out_proj."}};
constexpr GgufRenaming kMamba2GgufOutside[] = {{"token_embd.", "model.embeddings."},
                                               {"output_norm.", "model.norm_f."}};
constexpr GgufArchitecture kMamba2Gguf = {.name = "mamba2",
                                          .keys = kGgufStateSpaceKeys,
                                          .tensors = kMamba2GgufTensors,
                                          .outside = kMamba2GgufOutside,
                                          .add_config = add_mamba2_gguf_config};

}  // namespace

extern const RegisteredArchitecture kMamba2 = {.name = "Mamba2ForCausalLM",
                                               .model_type = "mamba2",
                                               .read_config = read_mamba2_config,
                                               .gguf = &kMamba2Gguf,
                                               .make = make_mamba2};

}  // namespace troupe
