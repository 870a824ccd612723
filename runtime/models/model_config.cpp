#include "runtime/models/model_config.hpp"

#include <algorithm>

#include "runtime/base/json.hpp"
#include "runtime/gguf/gguf_model.hpp"
#include "runtime/gguf/mmproj.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/models/config_fields.hpp"
#include "runtime/models/registry.hpp"
#include "runtime/models/rope_config.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::string_view kFile = "config.json";

/// "Qwen3ForCausalLM" and "Qwen3Model" -> "Qwen3"
std::string_view stem_of(std::string_view name) {
  for (const std::string_view suffix : {"ForCausalLM", "Model"})
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  return {};
}

/// The task of a class of the architecture's family; nullopt: it is none of these.
std::optional<ModelTask> task_of(std::string_view name, const RegisteredArchitecture& known) {
  if (name == known.name) return ModelTask::kDefault;
  const std::string_view stem = stem_of(known.name);
  if (stem.empty() || !name.starts_with(stem)) return std::nullopt;
  name.remove_prefix(stem.size());
  if (name == "Model") return ModelTask::kEmbed;
  if (name == "ForSequenceClassification") return ModelTask::kClassify;
  if (name == "ForMaskedLM" && known.name.ends_with("Model")) return ModelTask::kDefault;
  return std::nullopt;
}

/// What turns the logits of so many classes into probabilities, unless something else is said.
ClassActivation probabilities_of(const std::vector<std::string>& labels) {
  return labels.size() == 1 ? ClassActivation::kSigmoid : ClassActivation::kSoftmax;
}

/// problem_type, which transformers and vLLM read alike.
ClassActivation read_class_activation(ConfigFields& root, const std::vector<std::string>& labels) {
  const std::string type = root.text("problem_type", "single_label_classification");
  if (type == "regression") return ClassActivation::kNone;
  if (type == "multi_label_classification") return ClassActivation::kSigmoid;
  if (type != "single_label_classification")
    root.fail(ErrorCode::kUnsupported, "problem_type " + type + " is not supported");
  return probabilities_of(labels);
}

/// What sentence-transformers writes for a cross-encoder, in the newer or the older of its places,
/// with vLLM's meaning.
ClassActivation read_score_activation(ConfigFields& root, const std::vector<std::string>& labels) {
  std::string key = "sbert_ce_default_activation_function";
  std::string name = root.text(key, "");
  if (const json* const nested = root.object("sentence_transformers")) {
    ConfigFields fields(*nested, root.where() + ": sentence_transformers");
    if (fields.has("activation_fn")) key = "sentence_transformers: activation_fn";
    name = fields.text("activation_fn", name);
    if (fields.error()) root.fail(ErrorCode::kCorrupt, key + " is not a string");
  }
  if (name == "torch.nn.modules.linear.Identity") return ClassActivation::kNone;
  if (!name.empty() && name != "torch.nn.modules.activation.Sigmoid" &&
      name != "torch.nn.modules.activation.Softmax")
    root.fail(ErrorCode::kUnsupported,
              key + " " + name + " is not supported, only Identity, Sigmoid and Softmax of torch");
  return probabilities_of(labels);
}

/// The classes of a classifier, as transformers reads them.
void read_labels(ConfigFields& root, ModelConfig& config) {
  constexpr std::int64_t kMaxLabels = 1 << 16;
  const json* const names = root.object("id2label");
  const std::int64_t count = root.integer(
      "num_labels", names == nullptr ? 2 : std::max<std::int64_t>(1, std::ssize(*names)), 1,
      kMaxLabels);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string id = std::to_string(i);
    const auto named = names == nullptr ? json() : names->value(id, json());
    config.labels.push_back(named.is_string() ? named.get<std::string>() : "LABEL_" + id);
  }
  config.class_activation = read_class_activation(root, config.labels);
  config.score_activation = read_score_activation(root, config.labels);
}

/// The first architecture of that list that is supported.
Result<const RegisteredArchitecture*> find_named_architecture(ConfigFields& root, ModelTask& task) {
  const std::vector<std::string> names = root.texts("architectures");
  if (root.error()) return *root.error();
  std::string supported;
  for (const RegisteredArchitecture* known : registered_architectures()) {
    for (const std::string& name : names) {
      const auto found = task_of(name, *known);
      if (!found) continue;
      task = *found;
      return known;
    }
    supported += (supported.empty() ? "" : ", ") + std::string(known->name);
  }
  return Error{ErrorCode::kUnsupported, names.empty()
                                            ? std::string(kFile) + ": architectures is missing"
                                            : "architecture " + names.front() +
                                                  " is not supported; supported are " + supported};
}

/// transformers chooses the classes by model_type, which tells the defaults.
Result<const RegisteredArchitecture*> architecture_of(ConfigFields& root, ModelTask& task) {
  ASSIGN_OR_RETURN(const RegisteredArchitecture* const named, find_named_architecture(root, task));
  const std::string type = root.text("model_type", named->model_type);
  if (root.error()) return *root.error();
  for (const RegisteredArchitecture* known : registered_architectures())
    if (known->model_type == type) return known;
  return Error{ErrorCode::kUnsupported, std::string(kFile) + ": model_type " + type +
                                            " is not supported, the architecture's is " +
                                            std::string(named->model_type)};
}

/// Whether text_config goes with the architecture.
Result<void> check_text_config(ConfigFields& root, const RegisteredArchitecture& architecture,
                               const json* text_config) {
  const auto unsupported = [](const std::string& reason) {
    return Error{ErrorCode::kUnsupported, std::string(kFile) + ": " + reason};
  };
  const std::span<const std::string_view> expected = architecture.text_model_types;
  if (text_config == nullptr) {
    if (!expected.empty() && root.has("model_type")) return unsupported("text_config is missing");
    return {};
  }
  if (expected.empty()) return unsupported("text_config is not supported for this model_type");
  const auto type = text_config->find("model_type");
  if (type == text_config->end() || std::ranges::find(expected, *type) != expected.end()) return {};
  std::string names;
  for (const std::string_view name : expected)
    names += (names.empty() ? "" : ", ") + std::string(name);
  return unsupported("text_config: model_type is not " + names);
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

std::int32_t StateSpaceConfig::canonical_shards(std::int32_t shards) const noexcept {
  while (num_heads % shards != 0 || (num_groups % shards != 0 && shards % num_groups != 0))
    shards /= 2;
  return shards;
}

std::int32_t ModelConfig::canonical_shards() const noexcept {
  std::int32_t shards = 4;
  const auto divides = [&](std::int64_t size) { return size % shards == 0; };
  while (!divides(num_heads) || !divides(intermediate_size) ||
         (experts && !(divides(experts->intermediate_size) && divides(experts->shared_size))))
    shards /= 2;
  return shards;
}

namespace {

Result<ModelConfig> read_model_config(const json& parsed, bool is_gguf) {
  ConfigFields root(parsed, std::string(kFile));
  ModelConfig config;
  ASSIGN_OR_RETURN(const RegisteredArchitecture* const architecture,
                   architecture_of(root, config.task));
  config.architecture = architecture->name;
  const json* nested = root.object("text_config");
  RETURN_IF_ERROR(check_text_config(root, *architecture, nested));
  ConfigFields text(nested != nullptr ? *nested : parsed,
                    nested != nullptr ? std::string(kFile) + ": text_config" : std::string(kFile));
  config.quantization = parse_quantization(root);
  if (config.quantization.method == QuantizationMethod::kNone)
    config.quantization = parse_quantization(text);
  config.dtype = parse_dtype(root, text);
  config.eos_token_ids =
      root.has("eos_token_id") ? root.token_ids("eos_token_id") : text.token_ids("eos_token_id");
  // Of a nested configuration the outer one tells, as the head is its own.
  config.tie_word_embeddings = root.boolean("tie_word_embeddings", architecture->ties_embeddings);
  if (config.task == ModelTask::kClassify) read_labels(root, config);
  refuse_unsupported(root);
  refuse_unsupported(text);
  architecture->read_config(text, is_gguf, config);
  if (const json* vision = root.object("vision_config");
      vision != nullptr && architecture->read_vision != nullptr && (nested != nullptr || is_gguf)) {
    ConfigFields fields(*vision, std::string(kFile) + ": vision_config");
    architecture->read_vision(root, fields, config);
    if (fields.error()) return *fields.error();
  }
  for (const RopeConfig* rope : {&config.rope, &config.sliding_rope})
    check_rope(text, *rope, config.head_dim);
  if (root.error()) return *root.error();
  if (text.error()) return *text.error();
  return config;
}

}  // namespace

namespace {

/// What the encoder's file says, to what the model's says.
Result<void> add_mmproj(const GgufModel& text, const std::filesystem::path& path,
                        const RegisteredArchitecture& architecture, json& config) {
  const GgufProjector* projector = architecture.gguf->projector;
  if (projector == nullptr)
    return invalid_argument("mmproj is " + path.string() + ", but " +
                                std::string(architecture.name) + " takes no images here",
                            "mmproj");
  ASSIGN_OR_RETURN(const GgufModel mmproj, open_gguf_model(path, GgufKeys::kNoVocabulary));
  GgufMetadata fields(*mmproj.contents.metadata, mmproj.file_names.front());
  GgufMetadata text_fields(*text.contents.metadata, text.file_names.front());
  config["vision_config"] = mmproj_vision_config(fields, *projector);
  if (!fields.error()) projector->add_config(fields, text_fields, config);
  if (fields.error()) return *fields.error();
  if (text_fields.error()) return *text_fields.error();
  return {};
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view json_text, bool is_gguf) {
  ASSIGN_OR_RETURN(const json parsed, parse_json_object(json_text, kFile));
  return read_model_config(parsed, is_gguf);
}

Result<ModelConfig> load_model_config(const std::filesystem::path& model,
                                      const std::filesystem::path& mmproj) {
  if (!is_gguf(model)) {
    if (!mmproj.empty())
      return invalid_argument("mmproj is " + mmproj.string() + ", but " + model.string() +
                                  " is a folder, which has its encoder itself",
                              "mmproj");
    ASSIGN_OR_RETURN(const std::string text, read_model_text(model, kFile));
    return parse_model_config(text);
  }
  ASSIGN_OR_RETURN(
      const GgufModel gguf,
      open_gguf_model(model, mmproj.empty() ? GgufKeys::kNoVocabulary : GgufKeys::kAll));
  const std::string& file_name = gguf.file_names.front();
  ASSIGN_OR_RETURN(const RegisteredArchitecture* const architecture,
                   find_gguf_architecture(*gguf.contents.metadata, file_name));
  ASSIGN_OR_RETURN(json fields, gguf_config_json(gguf.contents, *architecture->gguf, file_name));
  fields["architectures"] = {architecture->name};
  if (!mmproj.empty()) RETURN_IF_ERROR(add_mmproj(gguf, mmproj, *architecture, fields));
  ASSIGN_OR_RETURN(ModelConfig config, read_model_config(fields, true));
  config.norm_weights_include_one = true;
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
