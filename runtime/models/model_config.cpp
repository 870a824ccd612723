#include "runtime/models/model_config.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/ops.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/models/config_fields.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/rope_config.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::string_view kFile = "config.json";
constexpr std::int64_t kMaxSize = 1 << 24;  // of one dimension
constexpr std::int64_t kMaxLayers = 1 << 12;
constexpr std::int64_t kMaxPositions = 1 << 28;

/// What a family's configuration class assumes where config.json is silent. Sizes without a default
/// must be given.
struct Defaults {
  std::optional<std::int64_t> hidden_size, intermediate_size, num_layers, num_heads, vocab_size;
  std::optional<std::int64_t> num_kv_heads;  ///< none: num_heads
  std::optional<std::int64_t> head_dim;      ///< none: hidden_size / num_heads
  std::int64_t max_positions;
  double theta;
  bool tie_word_embeddings = false;
  std::string_view activation = "silu";
};

Defaults defaults_of(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama:
      return {.max_positions = 2048, .theta = 1e4};
    case ModelFamily::kQwen2:
      return {.max_positions = 32768, .theta = 1e4};
    case ModelFamily::kQwen3:
      return {.head_dim = 128, .max_positions = 32768, .theta = 1e4};
    case ModelFamily::kMistral:
      return {.num_kv_heads = 8, .max_positions = 131072, .theta = 1e4};
    case ModelFamily::kGemma3:
      break;
  }
  return {.hidden_size = 2304,
          .intermediate_size = 9216,
          .num_layers = 26,
          .num_heads = 8,
          .vocab_size = 262208,
          .num_kv_heads = 4,
          .head_dim = 256,
          .max_positions = 131072,
          .theta = 1e6,
          .tie_word_embeddings = true,
          .activation = "gelu_pytorch_tanh"};
}

Result<const RegisteredArchitecture*> find_architecture(ConfigFields& root) {
  const std::vector<std::string> names = root.texts("architectures");
  if (root.error()) return *root.error();
  std::string supported;
  for (const RegisteredArchitecture& known : registered_architectures()) {
    if (std::ranges::find(names, known.name) != names.end()) return &known;
    supported += (supported.empty() ? "" : ", ") + std::string(known.name);
  }
  return Error{ErrorCode::kUnsupported, names.empty()
                                            ? std::string(kFile) + ": architectures is missing"
                                            : "architecture " + names.front() +
                                                  " is not supported; supported are " + supported};
}

std::optional<DType> parse_dtype(ConfigFields& root, ConfigFields& text) {
  std::string name = text.text("dtype", text.text("torch_dtype", ""));
  name = root.text("dtype", root.text("torch_dtype", name));
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name == "float32") return DType::kF32;
  if (!name.empty()) root.fail(ErrorCode::kUnsupported, "dtype " + name + " is not supported");
  return std::nullopt;
}

void parse_sizes(ConfigFields& text, ModelFamily family, ModelConfig& config) {
  const Defaults defaults = defaults_of(family);
  const auto size = [&](std::string_view key, std::optional<std::int64_t> otherwise) {
    return text.integer(key, otherwise, 1, kMaxSize);
  };
  config.hidden_size = size("hidden_size", defaults.hidden_size);
  config.intermediate_size = size("intermediate_size", defaults.intermediate_size);
  config.num_layers = text.integer("num_hidden_layers", defaults.num_layers, 1, kMaxLayers);
  config.num_heads = size("num_attention_heads", defaults.num_heads);
  config.num_kv_heads =
      size("num_key_value_heads", defaults.num_kv_heads.value_or(config.num_heads));
  config.head_dim = size("head_dim", defaults.head_dim.value_or(std::max<std::int64_t>(
                                         1, config.hidden_size / config.num_heads)));
  if (config.head_dim > kMaxHeadDim)
    text.fail(ErrorCode::kUnsupported, "head_dim is " + std::to_string(config.head_dim) +
                                           ", at most " + std::to_string(kMaxHeadDim) +
                                           " is supported");
  config.vocab_size = size("vocab_size", defaults.vocab_size);
  config.max_model_len =
      text.integer("max_position_embeddings", defaults.max_positions, 1, kMaxPositions);
  config.rms_norm_eps = static_cast<float>(text.number("rms_norm_eps", 1e-6));
  config.attention_bias = text.boolean("attention_bias", false);
  config.mlp_bias = text.boolean("mlp_bias", false);
  if (config.num_heads % config.num_kv_heads != 0)
    text.fail(ErrorCode::kCorrupt, "num_attention_heads is " + std::to_string(config.num_heads) +
                                       ", not a multiple of num_key_value_heads, " +
                                       std::to_string(config.num_kv_heads));
  const std::string activation = text.text(
      family == ModelFamily::kGemma3 ? "hidden_activation" : "hidden_act", defaults.activation);
  if (activation != defaults.activation)
    text.fail(ErrorCode::kUnsupported,
              "activation " + activation + " is not supported for " + config.architecture);
}

/// The window of the family's windowed layers; 0 if it has none.
std::int32_t parse_window(ConfigFields& text, ModelFamily family) {
  const auto window = [&](std::int64_t otherwise) {
    return static_cast<std::int32_t>(text.integer("sliding_window", otherwise, 1, kMaxPositions));
  };
  switch (family) {
    case ModelFamily::kLlama:
      return 0;
    case ModelFamily::kMistral:
      // Its class has a window by default; null says that there is none.
      return text.contains("sliding_window") && !text.has("sliding_window") ? 0 : window(4096);
    case ModelFamily::kQwen2:
    case ModelFamily::kQwen3:
      return text.boolean("use_sliding_window", false) ? window(4096) : 0;
    case ModelFamily::kGemma3:
      return window(4096);
  }
  return 0;
}

/// Which layers have the window: layer_types says it, or else the family's own rule.
void parse_windows(ConfigFields& text, ModelFamily family, ModelConfig& config) {
  const std::int32_t window = parse_window(text, family);
  const auto num_layers = static_cast<std::size_t>(config.num_layers);
  config.sliding_windows.assign(num_layers, 0);
  if (window == 0) return;
  if (const std::vector<std::string> types = text.texts("layer_types"); !types.empty()) {
    if (types.size() != num_layers)
      return text.fail(ErrorCode::kCorrupt, "layer_types has " + std::to_string(types.size()) +
                                                " entries for " + std::to_string(num_layers) +
                                                " layers");
    for (std::size_t i = 0; i < num_layers; ++i) {
      if (types[i] == "sliding_attention")
        config.sliding_windows[i] = window;
      else if (types[i] != "full_attention")
        text.fail(ErrorCode::kUnsupported, "layer type " + types[i] + " is not supported");
    }
    return;
  }
  // Gemma 3: every pattern-th layer is global. Qwen: the layers from max_window_layers on.
  const std::int64_t pattern =
      text.integer("sliding_window_pattern",
                   text.integer("_sliding_window_pattern", 6, 1, kMaxLayers), 1, kMaxLayers);
  const std::int64_t first_window = text.integer("max_window_layers", 28, 0, kMaxLayers);
  for (std::size_t i = 0; i < num_layers; ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    const bool full = family == ModelFamily::kGemma3    ? (layer + 1) % pattern == 0
                      : family == ModelFamily::kMistral ? false
                                                        : layer < first_window;
    config.sliding_windows[i] = full ? 0 : window;
  }
}

/// Gemma 3 rotates its local layers by a base of their own.
void parse_ropes(ConfigFields& text, ModelFamily family, ModelConfig& config) {
  const double theta = defaults_of(family).theta;
  const std::int64_t trained = config.max_model_len;
  if (family == ModelFamily::kGemma3) {
    const double local_theta = text.number("rope_local_base_freq", 1e4);
    config.rope = parse_rope(text, "full_attention", theta, trained);
    config.sliding_rope = RopeConfig{.theta = local_theta};
    if (const json* parameters = text.object("rope_parameters");
        parameters != nullptr && parameters->contains("sliding_attention"))
      config.sliding_rope = parse_rope(text, "sliding_attention", local_theta, trained);
    return;
  }
  config.rope = config.sliding_rope = parse_rope(text, "", theta, trained);
  // A scaled model was made for more positions than it was trained on at first; where the length
  // in config.json is the trained one, the factor extends it.
  if (config.rope.kind == RopeKind::kLinear || config.rope.kind == RopeKind::kDynamic)
    config.max_model_len =
        static_cast<std::int64_t>(static_cast<double>(trained) * config.rope.factor);
  if (config.rope.kind == RopeKind::kYarn)
    config.max_model_len = std::max(
        trained, static_cast<std::int64_t>(static_cast<double>(config.rope.original_max_positions) *
                                           config.rope.factor));
  config.max_model_len = std::min(config.max_model_len, kMaxPositions);
}

void parse_attention(ConfigFields& text, ModelFamily family, ModelConfig& config) {
  double scale_base = static_cast<double>(config.head_dim);
  if (family == ModelFamily::kGemma3) {
    scale_base = text.number("query_pre_attn_scalar", 256);
    config.attention_logit_softcap = static_cast<float>(text.number("attn_logit_softcapping", 0));
    if (text.number("final_logit_softcapping", 0) != 0)
      text.fail(ErrorCode::kUnsupported, "final_logit_softcapping is not supported");
    if (text.boolean("use_bidirectional_attention", false))
      text.fail(ErrorCode::kUnsupported, "use_bidirectional_attention is not supported");
  }
  if (!(scale_base > 0))
    return text.fail(ErrorCode::kCorrupt, "query_pre_attn_scalar is not positive");
  config.attention_scale = static_cast<float>(1 / std::sqrt(scale_base));
}

template <class T>
std::optional<T> optional_number(ConfigFields& fields, std::string_view key) {
  if (!fields.has(key)) return std::nullopt;
  return static_cast<T>(fields.number(key, 0));
}
template <class T>
std::optional<T> optional_integer(ConfigFields& fields, std::string_view key, std::int64_t min) {
  if (!fields.has(key)) return std::nullopt;
  return static_cast<T>(fields.integer(key, 0, min, INT32_MAX));
}

}  // namespace

std::int32_t ModelConfig::canonical_shards() const noexcept {
  std::int32_t shards = 4;
  while (num_heads % shards != 0 || intermediate_size % shards != 0) shards /= 2;
  return shards;
}

Result<ModelConfig> parse_model_config(std::string_view json_text) {
  ASSIGN_OR_RETURN(const json parsed, parse_json_object(json_text, kFile));
  ConfigFields root(parsed, std::string(kFile));
  ModelConfig config;
  ASSIGN_OR_RETURN(const RegisteredArchitecture* const architecture, find_architecture(root));
  config.architecture = architecture->name;
  const ModelFamily family = architecture->family;
  const json* nested = root.object("text_config");
  ConfigFields text(nested != nullptr ? *nested : parsed,
                    nested != nullptr ? std::string(kFile) + ": text_config" : std::string(kFile));
  config.quantization = parse_quantization(root);
  if (config.quantization.method == QuantizationMethod::kNone)
    config.quantization = parse_quantization(text);
  config.dtype = parse_dtype(root, text);
  config.eos_token_ids =
      root.has("eos_token_id") ? root.token_ids("eos_token_id") : text.token_ids("eos_token_id");
  config.tie_word_embeddings =
      root.boolean("tie_word_embeddings",
                   text.boolean("tie_word_embeddings", defaults_of(family).tie_word_embeddings));
  parse_sizes(text, family, config);
  if (root.error()) return *root.error();
  if (text.error()) return *text.error();
  parse_windows(text, family, config);
  parse_ropes(text, family, config);
  for (const RopeConfig* rope : {&config.rope, &config.sliding_rope})
    check_rope(text, *rope, config.head_dim);
  parse_attention(text, family, config);
  if (text.error()) return *text.error();
  return config;
}

Result<ModelConfig> load_model_config(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const std::string text, read_model_text(folder, kFile));
  ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(text));
  config.norm_weights_include_one = is_gguf(folder);
  return config;
}

Result<GenerationConfig> parse_generation_config(std::string_view json_text) {
  ASSIGN_OR_RETURN(const json parsed, parse_json_object(json_text, "generation_config.json"));
  ConfigFields fields(parsed, "generation_config.json");
  GenerationConfig config;
  config.eos_token_ids = fields.token_ids("eos_token_id");
  config.bos_token_id = optional_integer<TokenId>(fields, "bos_token_id", 0);
  config.pad_token_id = optional_integer<TokenId>(fields, "pad_token_id", -1);
  if (fields.has("do_sample")) config.do_sample = fields.boolean("do_sample", true);
  config.temperature = optional_number<float>(fields, "temperature");
  config.top_k = optional_integer<std::int32_t>(fields, "top_k", -1);
  config.top_p = optional_number<float>(fields, "top_p");
  config.min_p = optional_number<float>(fields, "min_p");
  config.repetition_penalty = optional_number<float>(fields, "repetition_penalty");
  config.max_new_tokens = optional_integer<std::int32_t>(fields, "max_new_tokens", 1);
  if (fields.error()) return *fields.error();
  return config;
}

Result<GenerationConfig> load_generation_config(const std::filesystem::path& folder) {
  Result<std::string> text = read_model_text(folder, "generation_config.json");
  if (!text.ok()) {
    if (text.error().code == ErrorCode::kNotFound) return GenerationConfig{};
    return text.error();
  }
  return parse_generation_config(*text);
}

}  // namespace troupe
