#include "runtime/models/pooler_config.hpp"

#include <array>
#include <string>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/models/config_fields.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::string_view kModules = "modules.json";

/// "sentence_transformers.models.Pooling" -> "Pooling"
std::string_view last_name(std::string_view type) { return type.substr(type.rfind('.') + 1); }

struct PoolingMode {
  std::string_view key;
  PoolingType type;  ///< kNone: not offered
};
constexpr std::array<PoolingMode, 6> kModes = {{
    {"pooling_mode_cls_token", PoolingType::kCls},
    {"pooling_mode_mean_tokens", PoolingType::kMean},
    {"pooling_mode_lasttoken", PoolingType::kLast},
    {"pooling_mode_max_tokens", PoolingType::kNone},
    {"pooling_mode_mean_sqrt_len_tokens", PoolingType::kNone},
    {"pooling_mode_weightedmean_tokens", PoolingType::kNone},
}};

Result<PoolingType> read_pooling(const std::filesystem::path& folder, const std::string& path) {
  const std::string name = path + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, read_file(folder / path / "config.json"));
  ASSIGN_OR_RETURN(const json parsed, parse_json_object(text, name));
  ConfigFields fields(parsed, name);
  PoolingType type = PoolingType::kNone;
  for (const PoolingMode& mode : kModes) {
    if (!fields.boolean(mode.key, false)) continue;
    if (mode.type == PoolingType::kNone)
      fields.fail(ErrorCode::kUnsupported, std::string(mode.key) + " is not supported");
    if (type != PoolingType::kNone)
      fields.fail(ErrorCode::kUnsupported, "several ways of pooling at once are not supported");
    type = mode.type;
  }
  if (!fields.boolean("include_prompt", true))
    fields.fail(ErrorCode::kUnsupported, "include_prompt false is not supported");
  if (fields.error()) return *fields.error();
  if (type == PoolingType::kNone)
    return Error{ErrorCode::kCorrupt, name + " names no way of pooling", {}};
  return type;
}

Result<PoolerConfig> read_modules(const std::filesystem::path& folder) {
  ASSIGN_OR_RETURN(const std::string text, read_file(folder / kModules));
  const json modules = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!modules.is_array())
    return Error{ErrorCode::kCorrupt, std::string(kModules) + " is not an array", {}};
  PoolerConfig config{.type = PoolingType::kNone, .normalize = false};
  for (const json& module : modules) {
    if (!module.is_object())
      return Error{
          ErrorCode::kCorrupt, std::string(kModules) + " has a module that is not an object", {}};
    ConfigFields fields(module, std::string(kModules));
    const std::string type = fields.text("type", "");
    const std::string path = fields.text("path", "");
    if (fields.error()) return *fields.error();
    const std::string_view name = last_name(type);
    if (name == "Pooling") {
      ASSIGN_OR_RETURN(config.type, read_pooling(folder, path));
    } else if (name == "Normalize") {
      config.normalize = true;
    } else if (name != "Transformer") {
      return Error{ErrorCode::kUnsupported,
                   std::string(kModules) + ": module " + type + " is not supported",
                   {}};
    }
  }
  if (config.type == PoolingType::kNone)
    return Error{ErrorCode::kCorrupt, std::string(kModules) + " has no module for pooling", {}};
  return config;
}

Result<void> override_config(std::string_view text, PoolerConfig& config) {
  constexpr std::string_view kOption = "pooler-config";
  const auto parsed = parse_json_object(text, kOption);
  if (!parsed.ok()) return invalid_argument(parsed.error().message, std::string(kOption));
  for (const auto& [key, value] : parsed->items()) {
    if (key != "pooling_type" && key != "normalize" && key != "use_activation")
      return invalid_argument("pooler-config: " + key +
                                  " is not known, only pooling_type, normalize and use_activation",
                              std::string(kOption));
  }
  ConfigFields fields(*parsed, std::string(kOption));
  const std::string type = fields.text("pooling_type", to_string(config.type));
  config.normalize =
      fields.boolean("normalize", fields.boolean("use_activation", config.normalize));
  if (fields.error()) return invalid_argument(fields.error()->message, std::string(kOption));
  for (const PoolingType known : {PoolingType::kLast, PoolingType::kCls, PoolingType::kMean}) {
    if (type != to_string(known)) continue;
    config.type = known;
    return {};
  }
  return invalid_argument(
      "pooler-config: pooling_type is \"" + type + "\", must be LAST, CLS or MEAN",
      std::string(kOption));
}

}  // namespace

Result<PoolerConfig> load_pooler_config(const std::filesystem::path& folder,
                                        std::string_view runner, std::string_view override_json,
                                        bool is_encoder) {
  if (runner == "generate" && is_encoder)
    return invalid_argument("runner generate: the model is an encoder, it generates no text",
                            "runner");
  const bool has_modules = std::filesystem::is_regular_file(folder / kModules);
  PoolerConfig config;
  if (runner != "generate" && has_modules) {
    ASSIGN_OR_RETURN(config, read_modules(folder));
  } else if (runner == "pooling" || is_encoder) {
    config.type = is_encoder ? PoolingType::kCls : PoolingType::kLast;
  }
  if (!override_json.empty() && config.type == PoolingType::kNone)
    return invalid_argument("pooler-config needs a pooling model: see runner", "pooler-config");
  if (!override_json.empty()) RETURN_IF_ERROR(override_config(override_json, config));
  config.whole_texts =
      is_encoder || config.type == PoolingType::kCls || config.type == PoolingType::kMean;
  return config;
}

Result<PoolerConfig> classifier_config(const ModelConfig& config, std::string_view runner,
                                       std::string_view override_json, bool is_encoder) {
  if (runner == "generate")
    return invalid_argument("runner generate: the model classifies texts, it generates none",
                            "runner");
  PoolerConfig pooler{.type = is_encoder ? PoolingType::kCls : PoolingType::kLast,
                      .normalize = false,
                      .whole_texts = is_encoder,
                      .labels = config.labels,
                      .activation = config.class_activation,
                      .score_activation = config.score_activation};
  if (override_json.empty()) return pooler;
  const PoolingType own_type = pooler.type;
  pooler.normalize = true;
  RETURN_IF_ERROR(override_config(override_json, pooler));
  if (pooler.type != own_type)
    return invalid_argument(
        "pooler-config: pooling_type of this classifier is " + std::string(to_string(own_type)),
        "pooler-config");
  if (!pooler.normalize) pooler.activation = pooler.score_activation = ClassActivation::kNone;
  pooler.normalize = false;
  return pooler;
}

Result<std::int64_t> load_max_text_tokens(const std::filesystem::path& folder) {
  constexpr std::string_view kFile = "sentence_bert_config.json";
  if (!std::filesystem::is_regular_file(folder / kFile)) return std::int64_t{0};
  ASSIGN_OR_RETURN(const std::string text, read_file(folder / kFile));
  ASSIGN_OR_RETURN(const json parsed, parse_json_object(text, kFile));
  ConfigFields fields(parsed, std::string(kFile));
  const std::int64_t length = fields.integer("max_seq_length", 0, 0, 1 << 30);
  if (fields.boolean("do_lower_case", false))
    fields.fail(ErrorCode::kUnsupported, "do_lower_case is not supported");
  if (fields.error()) return *fields.error();
  return length;
}

}  // namespace troupe
