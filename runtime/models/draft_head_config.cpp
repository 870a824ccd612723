#include "runtime/models/draft_head_config.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/models/config_fields.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::string_view kHeadFile = "config.json";
constexpr std::string_view kMtpArchitecture = "DeepseekV3ForCausalLM";
/// What changes the result if it is true, and is not supported.
constexpr std::string_view kUnsupportedSwitches[] = {"add_para_norm", "norm_before_fc", "fc_norm",
                                                     "norm_output", "parallel_drafting"};

Error head_error(ErrorCode code, const std::string& what) {
  return {code, std::string(kHeadFile) + ": " + what, "speculative-config"};
}

/// The fields of a head as published heads have them: those of one llama, and some more.
Result<json> flat_fields(const json& root) {
  const auto type = root.find("speculators_model_type");
  if (type != root.end()) {
    const auto layer = root.find("transformer_layer_config");
    if (layer == root.end() || !layer->is_object())
      return head_error(ErrorCode::kCorrupt, "transformer_layer_config is not an object");
    json fields = *layer;
    fields["norm_before_residual"] = true;  // the format's default
    for (const auto& [key, value] : root.items())
      if (key != "architectures" && key != "model_type" && !value.is_object() && !value.is_null())
        fields[key] = value;
    return fields;
  }
  const auto nested = root.find("model");
  if (root.value("model_type", json()) != "eagle" || nested == root.end() || !nested->is_object())
    return root;
  json fields = *nested;
  for (const auto& [key, value] : root.items())
    if (key != "architectures" && key != "model_type" && key != "model") fields[key] = value;
  return fields;
}

/// The head's own layers are those of a llama.
Result<ModelConfig> read_layers(json fields) {
  const json type = fields.value("model_type", json("llama"));
  if (type != "llama" && type != "eagle" && type != "eagle3")
    return head_error(ErrorCode::kUnsupported, "model_type is " + type.dump() +
                                                   ", a draft head's layers can be llama's only");
  fields["model_type"] = "llama";
  fields["architectures"] = {"LlamaForCausalLM"};
  ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(fields.dump()));
  ConfigFields more(fields, std::string(kHeadFile));
  if (more.has("qkv_bias")) {
    config.attention_bias = more.boolean("qkv_bias", false);
    config.attention_output_bias = false;
  }
  for (const std::string_view key : kUnsupportedSwitches)
    if (more.boolean(key, false))
      more.fail(ErrorCode::kUnsupported, std::string(key) + " is true, which is not supported");
  if (more.number("logit_scale", 1) != 1)
    more.fail(ErrorCode::kUnsupported, "logit_scale is not 1, which is not supported");
  if (more.error()) return *more.error();
  return config;
}

/// Which the published heads take where they do not say: one near the first layer, the middle, one
/// near the last.
std::vector<std::int64_t> usual_input_layers(std::int64_t num_layers) {
  return {2, num_layers / 2, num_layers - 3};
}

Result<void> read_input_layers(const json& fields, const ModelConfig& target,
                               DraftHeadConfig& config) {
  ConfigFields root(fields, std::string(kHeadFile));
  const json* const nested = root.object("eagle_config");
  const json nothing = json::object();
  ConfigFields eagle(nested == nullptr ? nothing : *nested,
                     std::string(kHeadFile) + ": eagle_config");
  constexpr std::string_view kKey = "eagle_aux_hidden_state_layer_ids";
  std::vector<std::int64_t> layers = root.integers(kKey);
  if (layers.empty()) layers = eagle.integers(kKey);
  const bool takes_layers = eagle.boolean("use_aux_hidden_state", true);
  if (root.error()) return *root.error();
  if (eagle.error()) return *eagle.error();
  if (!takes_layers) return {};
  if (layers.empty()) layers = usual_input_layers(target.num_layers);
  std::string text;
  bool are_right = true;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(layers[i]);
    are_right &= layers[i] >= (i == 0 ? 0 : layers[i - 1] + 1) && layers[i] < target.num_layers;
    config.input_layers.push_back(static_cast<std::int32_t>(layers[i]));
  }
  if (are_right) return {};
  return head_error(ErrorCode::kCorrupt, std::string(kKey) + " is [" + text +
                                             "], expected ascending numbers of the model's " +
                                             std::to_string(target.num_layers) + " layers");
}

Result<void> read_eagle3(const json& fields, const ModelConfig& target, DraftHeadConfig& config) {
  ConfigFields more(fields, std::string(kHeadFile));
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  config.draft_vocab_size =
      more.integer("draft_vocab_size", config.layers.vocab_size, 1, config.layers.vocab_size);
  config.target_hidden_size = more.integer("target_hidden_size", target.hidden_size, 1, kMost);
  config.norm_before_residual = more.boolean("norm_before_residual", false);
  if (more.error()) return *more.error();
  if (config.target_hidden_size != target.hidden_size)
    return head_error(ErrorCode::kCorrupt,
                      "target_hidden_size is " + std::to_string(config.target_hidden_size) +
                          ", the model's hidden_size is " + std::to_string(target.hidden_size));
  return read_input_layers(fields, target, config);
}

/// Of the model's own layers, one that guesses.
Result<DraftHeadConfig> read_mtp(const json& root, const ModelConfig& target) {
  if (target.architecture != kMtpArchitecture)
    return Error{ErrorCode::kUnsupported,
                 "method \"mtp\" is supported for " + std::string(kMtpArchitecture) +
                     " only, the model is " + target.architecture,
                 "speculative-config"};
  ConfigFields fields(root, std::string(kHeadFile));
  const std::int64_t count = fields.integer("num_nextn_predict_layers", 0, 0, 1 << 12);
  if (fields.error()) return *fields.error();
  if (count == 0)
    return head_error(ErrorCode::kInvalidArgument,
                      "num_nextn_predict_layers is 0: the model has no layers for method \"mtp\"");
  if (count > 1)
    return head_error(ErrorCode::kUnsupported,
                      "num_nextn_predict_layers is " + std::to_string(count) +
                          ": method \"mtp\" is supported for one layer, as each of several makes "
                          "its own draft");
  DraftHeadConfig config{.kind = DraftHeadKind::kMtp,
                         .layers = target,
                         .draft_vocab_size = target.vocab_size,
                         .target_hidden_size = target.hidden_size,
                         .first_layer = target.num_layers};
  config.layers.num_layers = 1;
  config.layers.sliding_windows = {0};
  if (config.layers.experts) config.layers.experts->layers = {true};
  return config;
}

}  // namespace

std::string_view to_string(DraftHeadKind kind) noexcept {
  switch (kind) {
    case DraftHeadKind::kNone:
      break;
    case DraftHeadKind::kEagle:
      return "eagle";
    case DraftHeadKind::kEagle3:
      return "eagle3";
    case DraftHeadKind::kMtp:
      return "mtp";
  }
  return "none";
}

Result<DraftHeadConfig> load_draft_head_config(DraftHeadKind kind,
                                               const std::filesystem::path& folder,
                                               const ModelConfig& target) {
  if (is_gguf(folder))
    return Error{ErrorCode::kUnsupported, "a GGUF file has no draft head", "speculative-config"};
  ASSIGN_OR_RETURN(const std::string text, read_model_text(folder, kHeadFile));
  return parse_draft_head_config(kind, text, target);
}

Result<DraftHeadConfig> parse_draft_head_config(DraftHeadKind kind, std::string_view json_text,
                                                const ModelConfig& target) {
  ASSIGN_OR_RETURN(const json root, parse_json_object(json_text, kHeadFile));
  if (kind == DraftHeadKind::kMtp) return read_mtp(root, target);
  ASSIGN_OR_RETURN(const json fields, flat_fields(root));
  DraftHeadConfig config{.kind = kind, .target_hidden_size = target.hidden_size};
  ASSIGN_OR_RETURN(config.layers, read_layers(fields));
  config.draft_vocab_size = config.layers.vocab_size;
  if (config.layers.vocab_size != target.vocab_size)
    return head_error(ErrorCode::kInvalidArgument,
                      "vocab_size is " + std::to_string(config.layers.vocab_size) +
                          ", the model's is " + std::to_string(target.vocab_size));
  if (kind == DraftHeadKind::kEagle3) RETURN_IF_ERROR(read_eagle3(fields, target, config));
  if (config.input_layers.empty() && config.layers.hidden_size != target.hidden_size)
    return head_error(ErrorCode::kInvalidArgument,
                      "hidden_size is " + std::to_string(config.layers.hidden_size) +
                          ", the model's is " + std::to_string(target.hidden_size));
  // Rotation has no end: the head goes as far as the model.
  config.layers.max_model_len = target.max_model_len;
  return config;
}

}  // namespace troupe
