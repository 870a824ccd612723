// Gemma 2 (arXiv 2408.00118): norms before and after each block, a sliding window in every second
// layer, soft caps on attention scores and logits. Norm weights are stored minus one; embeddings
// are multiplied by sqrt(hidden_size).

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_gemma2_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf,
             {.hidden_size = 2304,
              .intermediate_size = 9216,
              .num_layers = 26,
              .num_heads = 8,
              .vocab_size = 256000,
              .num_kv_heads = 4,
              .head_dim = 256,
              .max_positions = 8192},
             config);
  check_activation(text, "hidden_activation", "gelu_pytorch_tanh", config);
  const std::int32_t window = read_window(text, 4096);
  std::vector<bool> windowed;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    windowed.push_back(layer % 2 == 0);
  set_layer_windows(text, window, std::move(windowed), config);
  read_shared_rope(text, is_gguf, 1e4, config);
  const float scale_base = read_positive(text, "query_pre_attn_scalar", 256);
  config.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(scale_base)));
  config.attention_softcap = read_softcap(text, "attn_logit_softcapping", 50);
  config.logit_softcap = read_softcap(text, "final_logit_softcapping", 30);
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  if (text.boolean("use_bidirectional_attention", false))
    text.fail(ErrorCode::kUnsupported, "use_bidirectional_attention is not supported");
}

std::unique_ptr<Model> make_gemma2(const ModelConfig& config, Device& device,
                                   WeightLoader& loader) {
  return make_pre_norm_decoder(config, device, loader,
                               {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_output_bias,
                                .norm_weight_offset = config.norm_weights_include_one ? 0.0f : 1.0f,
                                .activation = Activation::kGeluTanh,
                                .norm_names = {.after_attention = "post_attention_layernorm",
                                               .before_mlp = "pre_feedforward_layernorm",
                                               .after_mlp = "post_feedforward_layernorm"}});
}

void add_gemma2_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                            nlohmann::json& config) {
  config["sliding_window"] = metadata.integer(prefix + "attention.sliding_window", 4096);
  config["attn_logit_softcapping"] = metadata.number(prefix + "attn_logit_softcapping", 50);
  config["final_logit_softcapping"] = metadata.number(prefix + "final_logit_softcapping", 30);
  // llama.cpp's rule: the scale follows the head but in the 27B model.
  constexpr std::int64_t kLayersOf27B = 46;
  config["query_pre_attn_scalar"] =
      config["num_hidden_layers"] == kLayersOf27B
          ? config["hidden_size"].get<std::int64_t>() /
                std::max<std::int64_t>(1, config["num_attention_heads"].get<std::int64_t>())
          : config["head_dim"].get<std::int64_t>();
}

constexpr std::string_view kGemma2GgufKeys[] = {
    "attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"};
constexpr GgufRenaming kGemma2GgufTensors[] = {
    {"ffn_norm.", "pre_feedforward_layernorm."},
    {"post_attention_norm.", "post_attention_layernorm."},
    {"post_ffw_norm.", "post_feedforward_layernorm."}};
constexpr GgufArchitecture kGemma2Gguf = {.name = "gemma2",
                                          .keys = kGemma2GgufKeys,
                                          .tensors = kGemma2GgufTensors,
                                          .add_config = add_gemma2_gguf_config};

}  // namespace

extern const RegisteredArchitecture kGemma2 = {.name = "Gemma2ForCausalLM",
                                               .model_type = "gemma2",
                                               .ties_embeddings = true,
                                               .read_config = read_gemma2_config,
                                               .gguf = &kGemma2Gguf,
                                               .make = make_gemma2};

}  // namespace troupe
