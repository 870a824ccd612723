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
      return {.num_kv_heads = 32, .max_positions = 32768, .theta = 1e4};
    case ModelFamily::kQwen3:
      return {.num_kv_heads = 32, .head_dim = 128, .max_positions = 32768, .theta = 1e4};
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

/// The first architecture of that list that is supported.
Result<const RegisteredArchitecture*> find_named_architecture(ConfigFields& root) {
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

/// transformers chooses the classes by model_type, which tells the defaults.
Result<const RegisteredArchitecture*> find_architecture(ConfigFields& root) {
  ASSIGN_OR_RETURN(const RegisteredArchitecture* const named, find_named_architecture(root));
  const std::string type = root.text("model_type", named->model_type);
  if (root.error()) return *root.error();
  for (const RegisteredArchitecture& known : registered_architectures())
    if (known.model_type == type) return &known;
  return Error{ErrorCode::kUnsupported, std::string(kFile) + ": model_type " + type +
                                            " is not supported, the architecture's is " +
                                            std::string(named->model_type)};
}

/// Why text_config does not go with the architecture; null: it does.
const char* contradiction(ConfigFields& root, const RegisteredArchitecture& architecture,
                          const json* text_config) {
  const bool may_have = architecture.model_type == "gemma3";
  if (text_config == nullptr)
    return may_have && root.has("model_type") ? "text_config is missing" : nullptr;
  if (!may_have) return "text_config is not supported for this model_type";
  const auto type = text_config->find("model_type");
  return type == text_config->end() || *type == "gemma3_text"
             ? nullptr
             : "text_config: model_type is not gemma3_text";
}

/// What changes the result wherever it is said, and is not supported.
void refuse_unsupported(ConfigFields& fields) {
  if (fields.contains("is_causal") && !fields.boolean("is_causal", false))
    fields.fail(ErrorCode::kUnsupported, "is_causal is not true, which is not supported");
  for (const char* key : {"kv_sharing_modes", "per_layer_config"})
    if (fields.has(key))
      fields.fail(ErrorCode::kUnsupported, std::string(key) + " is not supported");
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

/// Some functions have several names.
bool are_same_activation(std::string_view name, std::string_view supported) {
  constexpr std::string_view kTanhNames[] = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast",
                                             "gelu_accurate", "gelu_python_tanh"};
  if (name == supported || (name == "swish" && supported == "silu")) return true;
  return supported == "gelu_pytorch_tanh" &&
         std::ranges::find(kTanhNames, name) != std::end(kTanhNames);
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
  // Null says that no heads are shared.
  const bool shares_none = text.contains("num_key_value_heads") && !text.has("num_key_value_heads");
  config.num_kv_heads =
      size("num_key_value_heads",
           shares_none ? config.num_heads : defaults.num_kv_heads.value_or(config.num_heads));
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
  config.mlp_bias = family == ModelFamily::kLlama && text.boolean("mlp_bias", false);
  if (config.num_heads % config.num_kv_heads != 0)
    text.fail(ErrorCode::kCorrupt, "num_attention_heads is " + std::to_string(config.num_heads) +
                                       ", not a multiple of num_key_value_heads, " +
                                       std::to_string(config.num_kv_heads));
  const std::string activation = text.text(
      family == ModelFamily::kGemma3 ? "hidden_activation" : "hidden_act", defaults.activation);
  if (!are_same_activation(activation, defaults.activation))
    text.fail(ErrorCode::kUnsupported,
              "activation " + activation + " is not supported for " + config.architecture);
}

/// The window of the family's windowed layers; 0 if it has none. Null is no window.
std::int32_t parse_window(ConfigFields& text, ModelFamily family) {
  const bool uses_window = (family != ModelFamily::kQwen2 && family != ModelFamily::kQwen3) ||
                           text.boolean("use_sliding_window", false);
  if (!uses_window) return 0;
  if (text.contains("sliding_window") && !text.has("sliding_window")) return 0;
  const std::int64_t otherwise = family == ModelFamily::kLlama ? 0 : 4096;
  if (otherwise == 0 && !text.has("sliding_window")) return 0;
  return static_cast<std::int32_t>(text.integer("sliding_window", otherwise, 1, kMaxPositions));
}

/// Which layers have a window by the family's own rule.
std::vector<bool> windowed_layers(ConfigFields& text, ModelFamily family, bool has_window,
                                  std::size_t num_layers) {
  // Gemma 3: every pattern-th layer is global. Qwen: the layers from max_window_layers on.
  std::int64_t pattern = 1;
  std::int64_t first_window = 0;
  if (family == ModelFamily::kGemma3)
    pattern = text.integer("sliding_window_pattern", 6, 1, kMaxLayers);
  if (family == ModelFamily::kQwen2 || family == ModelFamily::kQwen3)
    first_window = text.integer("max_window_layers", 28, 0, INT32_MAX);
  std::vector<bool> windowed(num_layers, has_window);
  for (std::size_t i = 0; i < num_layers; ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    if (family == ModelFamily::kGemma3) windowed[i] = (layer + 1) % pattern != 0;
    if (layer < first_window) windowed[i] = false;
  }
  return windowed;
}

/// Which layers have the window: layer_types says it, or else the family's own rule.
void parse_windows(ConfigFields& text, ModelFamily family, ModelConfig& config) {
  const std::int32_t window = parse_window(text, family);
  const auto num_layers = static_cast<std::size_t>(config.num_layers);
  config.sliding_windows.assign(num_layers, 0);
  if (text.error()) return;
  // Llama and Mistral have one type of layer, and Llama no window; transformers then keeps a cache
  // of one kind and attends as if it were of the other.
  const bool has_one_type = family == ModelFamily::kLlama || family == ModelFamily::kMistral;
  if (family == ModelFamily::kLlama && window != 0 && window < config.max_model_len)
    return text.fail(ErrorCode::kUnsupported, "sliding_window is " + std::to_string(window) + ", " +
                                                  config.architecture + " has none");
  if (has_one_type && text.has("attention_chunk_size"))
    text.fail(ErrorCode::kUnsupported, "attention_chunk_size is not supported");
  const bool has_window = window != 0 && family != ModelFamily::kLlama;
  std::vector<bool> windowed = windowed_layers(text, family, has_window, num_layers);
  if (text.has("layer_types")) {
    const std::vector<std::string> types = text.texts("layer_types");
    if (types.size() != num_layers)
      return text.fail(ErrorCode::kCorrupt, "layer_types has " + std::to_string(types.size()) +
                                                " entries for " + std::to_string(num_layers) +
                                                " layers");
    for (std::size_t i = 0; i < num_layers; ++i) {
      const bool is_windowed = types[i] == "sliding_attention";
      if (!is_windowed && types[i] != "full_attention" && types[i] != "attention")
        text.fail(ErrorCode::kUnsupported, "layer type " + types[i] + " is not supported");
      if (has_one_type && is_windowed != has_window)
        text.fail(ErrorCode::kUnsupported,
                  "layer_types has " + types[i] + ", which " + config.architecture +
                      (has_window ? " with a sliding_window" : " without a sliding_window") +
                      " has not");
      windowed[i] = is_windowed;
    }
  }
  for (std::size_t i = 0; i < num_layers; ++i) {
    if (!windowed[i]) continue;
    if (!has_window)
      return text.fail(ErrorCode::kUnsupported, "layer " + std::to_string(i) +
                                                    " has a window, but sliding_window is not "
                                                    "given or not used");
    config.sliding_windows[i] = window;
  }
}

/// Gemma 3 rotates its local layers by a base of their own.
void parse_ropes(ConfigFields& text, ModelFamily family, bool is_gguf, ModelConfig& config) {
  const double theta = defaults_of(family).theta;
  const std::int64_t trained = config.max_model_len;
  if (family == ModelFamily::kGemma3) {
    config.rope = parse_layer_rope(text,
                                   {.type = "full_attention",
                                    .theta_key = "rope_theta",
                                    .default_theta = theta,
                                    .takes_scaling = true},
                                   trained);
    config.sliding_rope = parse_layer_rope(
        text,
        {.type = "sliding_attention", .theta_key = "rope_local_base_freq", .default_theta = 1e4},
        trained);
    return;
  }
  config.rope = parse_rope(text, theta, trained);
  if (is_gguf) parse_rope_divisors(text, config.rope);
  config.sliding_rope = config.rope;
  // A scaled model was made for more positions than it was trained on at first; where the length
  // in config.json is the trained one, the factor extends it.
  double extended = 0;
  if (config.rope.kind == RopeKind::kLinear || config.rope.kind == RopeKind::kDynamic)
    extended = static_cast<double>(trained) * config.rope.factor;
  if (config.rope.kind == RopeKind::kYarn)
    extended = static_cast<double>(config.rope.original_max_positions) * config.rope.factor;
  config.max_model_len = static_cast<std::int64_t>(
      std::clamp(extended, static_cast<double>(trained), static_cast<double>(kMaxPositions)));
}

void parse_attention(ConfigFields& text, ModelFamily family, ModelConfig& config) {
  double scale_base = static_cast<double>(config.head_dim);
  if (family == ModelFamily::kGemma3) {
    scale_base = text.number("query_pre_attn_scalar", 256);
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

Result<ModelConfig> parse_model_config(std::string_view json_text, bool is_gguf) {
  ASSIGN_OR_RETURN(const json parsed, parse_json_object(json_text, kFile));
  ConfigFields root(parsed, std::string(kFile));
  ModelConfig config;
  ASSIGN_OR_RETURN(const RegisteredArchitecture* const architecture, find_architecture(root));
  config.architecture = architecture->name;
  const ModelFamily family = architecture->family;
  const json* nested = root.object("text_config");
  if (const char* reason = contradiction(root, *architecture, nested))
    return Error{ErrorCode::kUnsupported, std::string(kFile) + ": " + reason};
  ConfigFields text(nested != nullptr ? *nested : parsed,
                    nested != nullptr ? std::string(kFile) + ": text_config" : std::string(kFile));
  config.quantization = parse_quantization(root);
  if (config.quantization.method == QuantizationMethod::kNone)
    config.quantization = parse_quantization(text);
  config.dtype = parse_dtype(root, text);
  config.eos_token_ids =
      root.has("eos_token_id") ? root.token_ids("eos_token_id") : text.token_ids("eos_token_id");
  // Of a nested configuration the outer one tells, as the head is its own.
  config.tie_word_embeddings =
      root.boolean("tie_word_embeddings", defaults_of(family).tie_word_embeddings);
  parse_sizes(text, family, config);
  config.attention_output_bias =
      is_gguf ? text.boolean("attention_output_bias", false) : config.attention_bias;
  if (root.error()) return *root.error();
  if (text.error()) return *text.error();
  refuse_unsupported(root);
  refuse_unsupported(text);
  parse_windows(text, family, config);
  parse_ropes(text, family, is_gguf, config);
  for (const RopeConfig* rope : {&config.rope, &config.sliding_rope})
    check_rope(text, *rope, config.head_dim);
  parse_attention(text, family, config);
  if (root.error()) return *root.error();
  if (text.error()) return *text.error();
  return config;
}

Result<ModelConfig> load_model_config(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const std::string text, read_model_text(folder, kFile));
  ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(text, is_gguf(folder)));
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
