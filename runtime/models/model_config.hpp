#pragma once
// config.json and generation_config.json of a Hugging Face model folder, in the layouts of
// transformers 4 and 5.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.hpp"
#include "messages/cache.hpp"
#include "messages/ids.hpp"
#include "messages/request.hpp"
#include "runtime/base/result.hpp"
#include "runtime/models/quantization_config.hpp"

namespace troupe {

enum class RopeKind : std::uint8_t {
  kDefault,
  kLinear,    ///< positions are divided by `factor`
  kDynamic,   ///< NTK-aware: the base grows beyond the original length
  kLlama3,    ///< long wavelengths are divided by `factor`, middle ones blended
  kYarn,      ///< arXiv 2309.00071
  kLongRope,  ///< arXiv 2402.13753: each frequency has a divisor, and another one in long contexts
  kProportional,  ///< frequencies are divided by `factor`, and those of the last pairs are 0
};

/// Rotary position embedding: rope_parameters of the new layout; rope_theta and rope_scaling of the
/// old one.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;
  double factor = 1;
  std::int64_t original_max_positions = 0;  ///< kDynamic, kLlama3, kYarn, kLongRope: trained length
  double low_freq_factor = 1;               ///< kLlama3
  double high_freq_factor = 4;              ///< kLlama3
  double beta_fast = 32;                    ///< kYarn
  double beta_slow = 1;                     ///< kYarn
  bool truncate = true;                     ///< kYarn: the blend starts and ends at whole indices
  /// kLongRope: of each frequency, where the model serves no more positions than it was trained on
  /// at first, and where it serves more. Chosen once, so that a token's keys do not depend on what
  /// follows it.
  std::vector<double> short_divisors;
  std::vector<double> long_divisors;
  double proportion = 1;             ///< kProportional: the share of pairs that are rotated
  double attention_factor = 1;       ///< cos and sin are multiplied by it
  double partial_rotary_factor = 1;  ///< the share of each head that is rotated
  bool pairs_neighbours = false;     ///< (2i, 2i + 1) are rotated together, not (i, i + half)
  std::vector<double> divisors;      ///< of each frequency besides; empty: none
  bool operator==(const RopeConfig&) const = default;

  /// Elements of a head that frequencies are made for.
  [[nodiscard]] std::int64_t frequency_dim(std::int64_t head_dim) const noexcept {
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  /// Elements of a head that are rotated: of an odd number one more, as in transformers.
  [[nodiscard]] std::int64_t rotary_dim(std::int64_t head_dim) const noexcept {
    const std::int64_t dim = frequency_dim(head_dim);
    return dim + dim % 2;
  }
};

/// Layers whose MLP is a mixture of experts.
struct ExpertsConfig {
  std::int64_t num_experts = 0;
  std::int64_t num_chosen = 0;         ///< for each token
  std::int64_t intermediate_size = 0;  ///< of one expert
  bool normalises_weights = false;     ///< of a token's experts: their sum is 1
  std::int64_t shared_size = 0;        ///< of the expert that all tokens go through; 0: none
  std::vector<bool> layers;            ///< which they are
  // ExpertRouting has more of these.
  bool is_sigmoid = false;
  bool scales_input = false;
  float weight_scale = 1;
  std::int64_t num_groups = 1;
  std::int64_t num_chosen_groups = 1;
  bool sums_two_best = false;
};

/// Multi-head latent attention (MLA, arXiv 2405.04434).
struct LatentConfig {
  std::int64_t q_rank = 0;  ///< of the latent that queries are made from; 0: there is none
  std::int64_t kv_rank = 0;
  std::int64_t plain_dim = 0;  ///< elements of a query and a key that are not rotated
  std::int64_t rotary_dim = 0;
  std::int64_t value_dim = 0;
  float norm_eps = 1e-6f;  ///< of the latents
};

/// The factor of the query at a position: 1 + scale ln(1 + floor((position + 1) / interval)) (Llama
/// 4; arXiv 2501.19399).
struct QueryScaling {
  double scale = 0;
  double interval = 1;
};

/// Layers with a selective state space (Mamba-2).
struct StateSpaceConfig {
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t state_size = 0;
  std::int64_t num_groups = 1;  ///< of heads that share their inputs' parameters
  std::int64_t conv_width = 4;
  bool conv_bias = true;
  bool in_bias = false;
  bool out_bias = false;
  bool has_norm = true;
  bool norm_before_gate = false;
  float norm_eps = 1e-5f;
  float min_dt = 0;  ///< time steps are kept within these
  float max_dt = std::numeric_limits<float>::infinity();
  std::vector<float> multipliers;  ///< of z, x, B, C and dt; empty: none
  std::vector<bool> layers;        ///< which they are

  /// Of ModelConfig::canonical_shards(), those that heads and groups can be divided in.
  [[nodiscard]] std::int32_t canonical_shards(std::int32_t shards) const noexcept;
};

/// Falcon-H1's multipliers of what goes into a block and of what comes out of it.
struct FalconMultipliers {
  float attention_in = 1;
  float attention_out = 1;
  float states_in = 1;
  float states_out = 1;
  float mlp_gate = 1;
  float mlp_down = 1;
};

/// A vision encoder: a transformer over square patches.
struct VisionConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_channels = 3;
  std::int64_t image_size = 0;  ///< pixels of a side
  std::int64_t patch_size = 0;  ///< pixels of a side
  float layer_norm_eps = 1e-6f;
  Gelu activation = Gelu::kTanh;
  std::int64_t num_used_layers = 0;  ///< of num_layers: what is taken stands behind the last
  bool norms_output = true;          ///< what is taken, by the norm behind all layers
  bool has_class_token = false;      ///< a learned row stands before the patches
  bool has_patch_bias = true;
  bool norms_input = false;  ///< before the first layer

  [[nodiscard]] std::int64_t patches_per_side() const noexcept { return image_size / patch_size; }
  [[nodiscard]] std::int64_t num_patches() const noexcept {
    return patches_per_side() * patches_per_side();
  }
  /// Of its hidden states.
  [[nodiscard]] std::int64_t num_rows() const noexcept {
    return num_patches() + (has_class_token ? 1 : 0);
  }
};

/// An encoder of sounds: two convolutions and a transformer.
struct SpeechConfig {
  std::int64_t num_mels = 0;
  std::int64_t num_rows = 0;  ///< of its hidden states: of half as many as frames
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t intermediate_size = 0;
  float layer_norm_eps = 1e-5f;
  Gelu activation = Gelu::kErf;
};

/// From an encoder's hidden states to a decoder's embeddings: two layers, an activation between.
struct ProjectorConfig {
  Gelu activation = Gelu::kErf;
  bool has_bias = true;
};

/// How an image stands in a prompt: per_image times soft, and where there are marks, between
/// these.
struct ImageTokens {
  struct Marks {
    TokenId begin = 0;
    TokenId end = 0;
  };
  std::optional<Marks> marks;
  TokenId soft = 0;
  std::int64_t per_image = 0;
};

/// What a checkpoint was made for, by the name of its class.
enum class ModelTask : std::uint8_t {
  kDefault,  ///< a decoder generates text, an encoder gives embeddings
  kEmbed,    ///< a decoder without a head
  kClassify
};

/// What a model's config.json says, with the defaults of its architecture filled in.
struct ModelConfig {
  std::string architecture;  ///< "LlamaForCausalLM", ...
  ModelTask task = ModelTask::kDefault;
  std::vector<std::string> labels;  ///< of the classes, where the task is to classify
  ClassActivation class_activation = ClassActivation::kNone;
  ClassActivation score_activation = ClassActivation::kNone;  ///< where a pair is scored
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_model_len = 0;  ///< positions the model was made for, scaling included
  float rms_norm_eps = 1e-6f;
  float layer_norm_eps = 1e-12f;     ///< of encoders
  std::int64_t num_token_types = 0;  ///< of encoders
  std::int64_t max_positions = 0;    ///< learned ones, of encoders
  std::int64_t first_position = 0;   ///< of these, that of the first token
  bool tie_word_embeddings = false;
  bool attention_bias = false;         ///< of q, k and v
  bool attention_output_bias = false;  ///< GGUF files may have one without the other
  bool mlp_bias = false;
  bool qk_norm = false;  ///< of each head; where families have it in some models
  /// Per layer: tokens a query sees, itself included; 0: all.
  std::vector<std::int32_t> sliding_windows;
  std::vector<std::int32_t> local_chunks;  ///< per layer: AttentionArgs::local_chunk; empty: none
  RopeConfig rope;
  RopeConfig
      sliding_rope;  ///< of the layers with a window; equals `rope` but in Gemma 3 and OLMo 3
  /// Gemma stores its norms' weights minus one, GGUF files as they are.
  bool norm_weights_include_one = false;
  float attention_scale = 0;
  float attention_softcap = 0;     ///< AttentionArgs::logit_softcap
  std::vector<bool> is_unrotated;  ///< per layer: its q and k are not rotated; empty: all are
  bool norms_rotated = false;      ///< RopeAndWriteKvArgs::norms_rotated, in layers that rotate
  std::optional<QueryScaling> query_scaling;  ///< of the layers that do not rotate
  std::optional<LatentConfig> latent;         ///< of all layers; none: q, k and v are projected
  SwishClamp swish_clamp;                     ///< Activation::kClampedSwish
  float embedding_scale = 1;
  float residual_scale = 1;  ///< of what a block adds to the residual stream
  float logit_scale = 1;
  float logit_softcap = 0;     ///< c > 0: logits become c tanh(logit / c)
  std::optional<DType> dtype;  ///< what the checkpoint says it stores: f32, bf16, f16
  std::optional<ExpertsConfig> experts;
  std::optional<StateSpaceConfig> state_space;
  std::optional<FalconMultipliers> falcon;
  std::optional<VisionConfig> vision;        ///< none: it has no vision encoder
  std::optional<SpeechConfig> speech;        ///< of those that write down what they hear
  std::optional<ProjectorConfig> projector;  ///< of those that have one of this kind
  std::optional<ImageTokens> image_tokens;   ///< where there is `vision`
  QuantizationConfig quantization;
  std::vector<TokenId> eos_token_ids;

  /// Parts in which row-parallel layers are reduced, with any number of workers: 4 where heads and
  /// intermediate sizes can be divided so, else 2, else 1. State spaces may have fewer.
  [[nodiscard]] std::int32_t canonical_shards() const noexcept;
};

/// A config.json of an architecture that the registry has, read as transformers 5 does: what it
/// ignores is ignored, and what would change the result and is not supported is an error.
/// `is_gguf`: written by gguf_config_json, which has some more to say. Errors: kCorrupt (a field's
/// name and value), kUnsupported (architecture or setting).
Result<ModelConfig> parse_model_config(std::string_view json_text, bool is_gguf = false);
/// config.json of a model folder, or what a GGUF file says in its place, and `mmproj`, the GGUF
/// file of its vision encoder; empty: none. Errors: also kNotFound, kIo, and kInvalidArgument
/// (such a file with a folder, or with a family that takes no images).
Result<ModelConfig> load_model_config(const std::filesystem::path& model,
                                      const std::filesystem::path& mmproj = {});

/// The sampling defaults that a model's authors chose.
struct GenerationConfig {
  std::vector<TokenId> eos_token_ids;
  std::optional<TokenId> bos_token_id;
  std::optional<TokenId> pad_token_id;
  std::optional<bool> do_sample;  ///< false: greedy, whatever else stands there
  std::optional<float> temperature;
  std::optional<std::int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<std::int32_t> max_new_tokens;
};

/// Errors: kCorrupt.
Result<GenerationConfig> parse_generation_config(std::string_view json_text);
/// `folder`/generation_config.json, or of a GGUF file; without that file, a GenerationConfig of
/// nothing.
Result<GenerationConfig> load_generation_config(const std::filesystem::path& folder);

}  // namespace troupe
