// Granite 3 (IBM): Llama, with multipliers of embeddings, attention scores, what blocks add to the
// residual stream, and logits.

#include "runtime/base/json.hpp"
#include "runtime/models/decoder_config.hpp"
#include "runtime/models/granite_config.hpp"
#include "runtime/models/pre_norm_decoder.hpp"
#include "runtime/models/registry.hpp"

namespace troupe {
namespace {

void read_granite_config(ConfigFields& text, bool is_gguf, ModelConfig& config) {
  read_sizes(text, is_gguf, {.max_positions = 2048}, config);
  check_activation(text, "hidden_act", "silu", config);
  config.mlp_bias = text.boolean("mlp_bias", false);
  read_shared_rope(text, is_gguf, 1e4, config);
  set_no_windows(text, config);
  read_granite_multipliers(text, config);
}

std::unique_ptr<Model> make_granite(const ModelConfig& config, Device& device,
                                    WeightLoader& loader) {
  return make_pre_norm_decoder(
      config, device, loader,
      {.qkv_bias = config.attention_bias, .output_bias = config.attention_output_bias});
}

void add_granite_gguf_config(GgufMetadata& metadata, const std::string& prefix,
                             nlohmann::json& config) {
  add_granite_multipliers(metadata, prefix, config);
  // Of files of Granite 4 without state spaces, whose MLP is called an expert that all share.
  config["intermediate_size"] = metadata.integer(prefix + "expert_shared_feed_forward_length",
                                                 config["intermediate_size"].get<std::int64_t>());
  if (!rotates_granite_heads(metadata, prefix))
    metadata.fail(ErrorCode::kUnsupported, "metadata \"" + prefix +
                                               "rope.scaling.finetuned\" is false, which is not "
                                               "supported");
}

/// Granite 4 without state spaces has their sizes all the same.
constexpr std::string_view kKeys[] = {"attention.scale",
                                      "embedding_scale",
                                      "residual_scale",
                                      "logit_scale",
                                      "expert_shared_feed_forward_length",
                                      "ssm.conv_kernel",
                                      "ssm.inner_size",
                                      "ssm.state_size",
                                      "ssm.time_step_rank",
                                      "ssm.group_count"};
constexpr GgufArchitecture kGraniteGguf = {.name = "granite",
                                           .interleaves_heads = true,
                                           .has_rope_divisors = true,
                                           .keys = kKeys,
                                           .add_config = add_granite_gguf_config};

}  // namespace

extern const RegisteredArchitecture kGranite = {.name = "GraniteForCausalLM",
                                                .model_type = "granite",
                                                .read_config = read_granite_config,
                                                .gguf = &kGraniteGguf,
                                                .make = make_granite};

}  // namespace troupe
