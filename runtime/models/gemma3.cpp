// Gemma 3, the language model (arXiv 2503.19786): norms before and after each block, norms on q and
// k, and local layers with a rotary base of their own between global ones. Norm weights are stored
// minus one; embeddings are multiplied by sqrt(hidden_size).

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/gemma3_tower.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/rope_config.hpp"
#include "runtime/models/vision_config.hpp"

namespace troupe {
namespace {

using nlohmann::json;

void read_gemma3_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 2304,
              .intermediate_size = 9216,
              .num_layers = 26,
              .num_heads = 8,
              .vocab_size = 262208,
              .num_kv_heads = 4,
              .head_dim = 256,
              .max_positions = 131072},
             config);
  check_activation(text, "hidden_activation", "gelu_pytorch_tanh", config);
  const std::int32_t window = read_window(text, 4096);
  const std::int64_t pattern = text.integer("sliding_window_pattern", 6, 1, kMaxConfigLayers);
  set_layer_windows(text, window, windows_by_pattern(config.num_layers, pattern), config);
  // Local layers rotate by a base of their own.
  config.rope = parse_layer_rope(text,
                                 {.type = "full_attention",
                                  .theta_key = "rope_theta",
                                  .default_theta = 1e6,
                                  .takes_scaling = true},
                                 config.max_model_len);
  config.sliding_rope = parse_layer_rope(
      text,
      {.type = "sliding_attention", .theta_key = "rope_local_base_freq", .default_theta = 1e4},
      config.max_model_len);
  const double scale_base = text.number("query_pre_attn_scalar", 256);
  if (!(scale_base > 0)) text.fail(ErrorCode::kCorrupt, "query_pre_attn_scalar is not positive");
  config.attention_scale = static_cast<float>(1 / std::sqrt(scale_base));
  if (text.has("final_logit_softcapping"))
    config.logit_softcap = read_softcap(text, "final_logit_softcapping", 0);
  if (text.boolean("use_bidirectional_attention", false))
    text.fail(ErrorCode::kUnsupported, "use_bidirectional_attention is not supported");
}

DecoderLayer load_layer(WeightLoader& loader, const std::string& name, const ModelConfig& config,
                        const AttentionOptions& attention) {
  const auto norm = [&](const std::string& suffix) {
    return RmsNorm(loader, name + suffix, config.hidden_size, attention.norm);
  };
  RmsNorm input_norm = norm(".input_layernorm");
  auto attend = std::make_unique<const Attention>(loader, name + ".self_attn", attention);
  auto mlp = std::make_unique<const GatedMlp>(loader, name + ".mlp", config.hidden_size,
                                              config.intermediate_size, config.canonical_shards(),
                                              Activation::kGeluTanh, false);
  std::vector<NormedMixer> mixers;
  mixers.push_back({std::move(input_norm), std::move(attend), norm(".post_attention_layernorm")});
  mixers.push_back(
      {norm(".pre_feedforward_layernorm"), std::move(mlp), norm(".post_feedforward_layernorm")});
  return DecoderLayer(std::move(mixers));
}

constexpr std::string_view kTextTypes[] = {"gemma3_text"};

/// Beside an encoder, transformers leaves the cap of logits out and vLLM does not.
void read_config_with_vision(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_gemma3_config(text, is_gguf, config);
  if (config.logit_softcap != 0)
    text.fail(ErrorCode::kUnsupported, "final_logit_softcapping is not supported");
}

void read_vision(ConfigFields& root, ConfigFields& vision, ModelConfig& config) {
  config.vision = read_siglip_config(vision);
  const auto token = [&](const std::string& name, std::int64_t otherwise) {
    return read_token(root, name, otherwise, config.vocab_size);
  };
  config.image_tokens = {.marks = ImageTokens::Marks{.begin = token("boi_token", 255999),
                                                     .end = token("eoi_token", 256000)},
                         .soft = token("image_token", 262144),
                         .per_image = root.integer("mm_tokens_per_image", 256, 1, kMaxConfigSize)};
  check_gemma3_pooling(root, *config.vision, config.image_tokens->per_image);
}

std::unique_ptr<Model> make_gemma3(const ModelConfig& config, Device& device,
                                   WeightLoader& loader) {
  auto tower = load_gemma3_tower(config, device, loader);
  const NormStyle norm{.eps = config.rms_norm_eps,
                       .weight_offset = config.norm_weights_include_one ? 0.0f : 1.0f};
  const auto global_rope = loader.rope_tables(config.rope, config.head_dim, config.max_model_len);
  const auto local_rope =
      loader.rope_tables(config.sliding_rope, config.head_dim, config.max_model_len);
  const std::string prefix = weight_prefix(loader) + "layers.";
  std::vector<DecoderLayer> layers;
  for (const std::size_t i : layers_to_load(config, loader)) {
    AttentionOptions attention =
        attention_options(config, i, config.sliding_windows[i] > 0 ? local_rope : global_rope);
    attention.qk_norm = true;
    attention.norm = norm;
    attention.qkv_bias = config.attention_bias;
    attention.output_bias = config.attention_output_bias;
    layers.push_back(load_layer(loader, prefix + std::to_string(i), config, attention));
  }
  return std::make_unique<DecoderModel>(
      config, device, loader, std::move(layers),
      DecoderOptions{.norm = norm,
                     .embedding_scale = std::sqrt(static_cast<float>(config.hidden_size)),
                     .logit_softcap = config.logit_softcap,
                     .two_way_items = true},
      std::move(tower));
}

void add_gemma3_gguf_config(GgufMetadata& metadata, const std::string& prefix, json& config) {
  const std::int64_t window = metadata.integer(prefix + "attention.sliding_window", 0);
  if (window != 0) config["sliding_window"] = window;
  // Each so many layers the last is global: with 1, all are.
  if (!add_layer_types(metadata, prefix, window != 0, config))
    config["sliding_window_pattern"] =
        window == 0 ? 1 : metadata.integer(prefix + "attention.sliding_window_pattern", 6);
  const double cap = metadata.number(prefix + "final_logit_softcapping", 0);
  if (cap != 0) config["final_logit_softcapping"] = cap;
  config["rope_local_base_freq"] = metadata.number(prefix + "rope.freq_base_swa", 10000);
  // llama.cpp's rule: the scale follows the head but in the 27B model.
  constexpr std::int64_t kLayersOf27B = 62;
  const auto head_dim = config["head_dim"].get<std::int64_t>();
  config["query_pre_attn_scalar"] =
      config["num_hidden_layers"] == kLayersOf27B
          ? config["hidden_size"].get<std::int64_t>() /
                std::max<std::int64_t>(1, config["num_attention_heads"].get<std::int64_t>())
          : head_dim;
  config["rope_parameters"] = {{"full_attention", config["rope_parameters"]}};
}

/// The id of the last token that `is_wanted`; nothing: there is none.
template <class F>
std::optional<std::int64_t> last_token(const std::vector<std::string>& tokens, F is_wanted) {
  const auto found = std::ranges::find_if(tokens.rbegin(), tokens.rend(), is_wanted);
  if (found == tokens.rend()) return std::nullopt;
  return tokens.rend() - found - 1;
}

constexpr std::int64_t kMaxPatchesPerSide = 1 << 12;

void add_projector_config(GgufMetadata& mmproj, GgufMetadata& text, json& config) {
  const std::int64_t width = mmproj.integer("clip.vision.projection_dim", std::nullopt);
  if (width != config["hidden_size"].get<std::int64_t>())
    mmproj.fail(ErrorCode::kCorrupt, "clip.vision.projection_dim is " + std::to_string(width) +
                                         ", the language model's embeddings have " +
                                         config["hidden_size"].dump());
  const std::int64_t size = mmproj.integer("clip.vision.image_size", std::nullopt);
  const std::int64_t patch = mmproj.integer("clip.vision.patch_size", std::nullopt);
  const std::int64_t scale = mmproj.integer("clip.vision.projector.scale_factor", 4);
  const std::int64_t side = patch < 1 ? 0 : size / patch;
  if (side < 1 || side > kMaxPatchesPerSide || scale < 1 || side % scale != 0)
    return mmproj.fail(ErrorCode::kUnsupported,
                       "clip.vision.image_size is " + std::to_string(size) + ", patch_size is " +
                           std::to_string(patch) + ", projector.scale_factor is " +
                           std::to_string(scale) + ": the patches make no squares");
  config["mm_tokens_per_image"] = (side / scale) * (side / scale);

  const std::vector<std::string> tokens = text.texts("tokenizer.ggml.tokens");
  const auto named = [&](std::string_view name) {
    return last_token(tokens, [&](const std::string& token) { return token == name; });
  };
  // Files have cut off the vocabulary before the last one, whose embedding no one reads: any other
  // token that no text has will do.
  auto soft = named("<image_soft_token>");
  if (!soft)
    soft =
        last_token(tokens, [](const std::string& token) { return token.starts_with("<unused"); });
  const auto begin = named("<start_of_image>");
  const auto end = named("<end_of_image>");
  if (!begin || !end || !soft)
    return text.fail(ErrorCode::kUnsupported,
                     "the vocabulary has no <start_of_image>, <end_of_image> or <unused> token");
  config["boi_token_index"] = *begin;
  config["eoi_token_index"] = *end;
  config["image_token_index"] = *soft;
}

constexpr std::string_view kGemma3GgufKeys[] = {"attention.sliding_window",
                                                "attention.sliding_window_pattern",
                                                "final_logit_softcapping", "rope.freq_base_swa"};
constexpr GgufRenaming kGemma3GgufTensors[] = {
    {"ffn_norm.", "pre_feedforward_layernorm."},
    {"post_attention_norm.", "post_attention_layernorm."},
    {"post_ffw_norm.", "post_feedforward_layernorm."}};
constexpr GgufRenaming kProjectorTensors[] = {
    {"mm.input_projection.weight", "model.multi_modal_projector.mm_input_projection_weight"},
    {"mm.soft_emb_norm.weight", "model.multi_modal_projector.mm_soft_emb_norm.weight"}};
constexpr GgufProjector kProjector = {
    .type = "gemma3", .tensors = kProjectorTensors, .add_config = add_projector_config};
constexpr GgufArchitecture kGemma3Gguf = {.name = "gemma3",
                                          .rope_theta = 1e6,
                                          .keys = kGemma3GgufKeys,
                                          .tensors = kGemma3GgufTensors,
                                          .add_config = add_gemma3_gguf_config,
                                          .projector = &kProjector};

}  // namespace

extern const RegisteredArchitecture kGemma3Text = {.name = "Gemma3ForCausalLM",
                                                   .model_type = "gemma3_text",
                                                   .ties_embeddings = true,
                                                   .read_config = read_gemma3_config,
                                                   .read_vision = read_vision,
                                                   .gguf = &kGemma3Gguf,
                                                   .make = make_gemma3,
                                                   .load_tower = load_gemma3_tower};

extern const RegisteredArchitecture kGemma3 = {.name = "Gemma3ForConditionalGeneration",
                                               .model_type = "gemma3",
                                               .text_model_types = kTextTypes,
                                               .ties_embeddings = true,
                                               .read_config = read_config_with_vision,
                                               .read_vision = read_vision,
                                               .make = make_gemma3,
                                               .load_tower = load_gemma3_tower};

}  // namespace troupe
