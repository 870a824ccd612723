// Phi-3, Phi-3.5 and Phi-4 (arXiv 2404.14219): Llama, with q, k and v in one matrix, gate and up in
// another, heads that may be rotated in part, and LongRoPE for long contexts.

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_phi3_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.max_positions = 4096, .rms_norm_eps = 1e-5}, config);
  check_activation(text, "hidden_act", "silu", config);
  set_equal_windows(text, text.has("sliding_window") ? read_window(text, 0) : 0, config);
  read_shared_rope(
      text, is_gguf,
      {.rotates_part = true, .scales_by_longrope_alone = true, .default_original = 4096}, config);
}

std::unique_ptr<Model> make_phi3(const ModelConfig& config, Device& device, WeightLoader& loader) {
  return make_pre_norm_decoder(
      config, device, loader,
      {.attention_names = {.qkv = "qkv_proj"}, .mlp_names = {.gate_up = "gate_up_proj"}});
}

/// A window that is 0 is none.
void add_phi3_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                          nlohmann::json& config) {
  const std::int64_t window = metadata.integer(prefix + "attention.sliding_window", 0);
  if (window != 0) config["sliding_window"] = window;
}

constexpr std::string_view kPhi3GgufKeys[] = {"attention.sliding_window"};
constexpr GgufRenaming kPhi3GgufTensors[] = {{"attn_qkv.", "self_attn.qkv_proj."},
                                             {"ffn_up.", "mlp.gate_up_proj."}};
constexpr GgufArchitecture kPhi3Gguf = {.name = "phi3",
                                        .rotates_part = true,
                                        .has_long_rope = true,
                                        .keys = kPhi3GgufKeys,
                                        .tensors = kPhi3GgufTensors,
                                        .add_config = add_phi3_gguf_config};

}  // namespace

extern const RegisteredArchitecture kPhi3 = {.name = "Phi3ForCausalLM",
                                             .model_type = "phi3",
                                             .read_config = read_phi3_config,
                                             .gguf = &kPhi3Gguf,
                                             .make = make_phi3};

}  // namespace troupe
