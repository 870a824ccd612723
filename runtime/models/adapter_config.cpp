#include "runtime/models/adapter_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/base/json.hpp"
#include "runtime/models/config_fields.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::string_view kAdapterConfig = "adapter_config.json";
constexpr std::int64_t kMostRanks = 1 << 16;

/// How it was trained or found, which the tensors tell by themselves.
constexpr std::array<std::string_view, 27> kDescribing = {"auto_mapping",
                                                          "base_model_name_or_path",
                                                          "revision",
                                                          "task_type",
                                                          "inference_mode",
                                                          "peft_version",
                                                          "lora_dropout",
                                                          "target_modules",
                                                          "target_parameters",
                                                          "exclude_modules",
                                                          "layers_to_transform",
                                                          "layers_pattern",
                                                          "megatron_config",
                                                          "megatron_core",
                                                          "loftq_config",
                                                          "eva_config",
                                                          "corda_config",
                                                          "lora_ga_config",
                                                          "runtime_config",
                                                          "qalora_group_size",
                                                          "peft_type",
                                                          "r",
                                                          "lora_alpha",
                                                          "use_rslora",
                                                          "rank_pattern",
                                                          "alpha_pattern",
                                                          "init_lora_weights"};

/// Those that leave the base model as it is.
constexpr std::array<std::string_view, 4> kPlainInits = {"gaussian", "eva", "orthogonal", "true"};

bool is_empty_value(const json& value) {
  return value.is_null() || value == false || value == "" ||
         ((value.is_object() || value.is_array()) && value.empty());
}

/// PEFT takes a pattern for a regular expression; those that are names are what is written.
bool is_module_name(std::string_view pattern) {
  return !pattern.empty() && std::ranges::all_of(pattern, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  });
}

bool pattern_matches(std::string_view pattern, std::string_view module) {
  if (!module.ends_with(pattern)) return false;
  return module.size() == pattern.size() || module[module.size() - pattern.size() - 1] == '.';
}

template <class T>
std::vector<std::pair<std::string, T>> read_pattern(ConfigFields& fields, std::string_view key,
                                                    double most) {
  std::vector<std::pair<std::string, T>> patterns;
  const json* const object = fields.object(key);
  if (object == nullptr) return patterns;
  for (const auto& [pattern, value] : object->items()) {
    if (!is_module_name(pattern))
      fields.fail(ErrorCode::kUnsupported, std::string(key) + ": \"" + pattern.substr(0, 128) +
                                               "\" is a regular expression, only names of modules "
                                               "are supported");
    const double number = value.is_number() ? value.template get<double>() : 0;
    if (!(number > 0 && number <= most))
      fields.fail(ErrorCode::kCorrupt, std::string(key) + ": the value of " +
                                           pattern.substr(0, 128) + " is not a positive number");
    patterns.emplace_back(pattern, static_cast<T>(number));
  }
  return patterns;
}

void refuse_unknown(const json& object, ConfigFields& fields) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(kDescribing, key) != kDescribing.end() || is_empty_value(value)) continue;
    if (key == "bias" && value == "none") continue;
    if (key == "modules_to_save")
      fields.fail(ErrorCode::kUnsupported, "modules_to_save is not supported");
    const std::string shown =
        value.is_string() ? value.get<std::string>().substr(0, 64) : value.dump().substr(0, 64);
    fields.fail(ErrorCode::kUnsupported,
                key.substr(0, 64) + " is " + shown + ", which is not supported");
  }
}

}  // namespace

bool AdapterConfig::targets_parameter(std::string_view parameter) const {
  return std::ranges::any_of(target_parameters, [&](const std::string& pattern) {
    return pattern_matches(pattern, parameter);
  });
}

std::int64_t AdapterConfig::rank_of(std::string_view module) const {
  const auto found = std::ranges::find_if(
      rank_pattern, [&](const auto& each) { return pattern_matches(each.first, module); });
  return found == rank_pattern.end() ? rank : found->second;
}

float AdapterConfig::scaling_of(std::string_view module) const {
  const auto found = std::ranges::find_if(
      alpha_pattern, [&](const auto& each) { return pattern_matches(each.first, module); });
  const double own = found == alpha_pattern.end() ? alpha : found->second;
  const auto ranks = static_cast<double>(rank_of(module));
  return static_cast<float>(own / (uses_rslora ? std::sqrt(ranks) : ranks));
}

Result<AdapterConfig> parse_adapter_config(std::string_view text) {
  ASSIGN_OR_RETURN(const json object, parse_json_object(text, kAdapterConfig));
  ConfigFields fields(object, std::string(kAdapterConfig));
  const std::string type = fields.text("peft_type", "");
  if (type != "LORA")
    fields.fail(ErrorCode::kUnsupported, "peft_type is \"" + type + "\", only LORA is supported");
  AdapterConfig config;
  config.rank = fields.integer("r", std::nullopt, 1, kMostRanks);
  config.alpha = fields.number("lora_alpha", std::nullopt);
  config.uses_rslora = fields.boolean("use_rslora", false);
  config.rank_pattern =
      read_pattern<std::int64_t>(fields, "rank_pattern", static_cast<double>(kMostRanks));
  config.alpha_pattern = read_pattern<double>(fields, "alpha_pattern", 1e9);
  if (fields.has("target_parameters")) config.target_parameters = fields.texts("target_parameters");
  if (!std::isfinite(config.alpha)) fields.fail(ErrorCode::kCorrupt, "lora_alpha is not finite");
  if (const auto init = object.find("init_lora_weights");
      init != object.end() && init->is_string() &&
      std::ranges::find(kPlainInits, init->get<std::string>()) == kPlainInits.end())
    fields.fail(ErrorCode::kUnsupported,
                "init_lora_weights is " + init->get<std::string>().substr(0, 64) +
                    ", which changes the base model; PEFT converts such an adapter when it saves "
                    "it (path_initial_model_for_weight_conversion)");
  refuse_unknown(object, fields);
  if (fields.error()) return *fields.error();
  return config;
}

}  // namespace troupe
