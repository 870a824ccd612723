#include "runtime/kv_transfer/blend_config.hpp"

#include <algorithm>
#include <optional>

#include "runtime/base/json.hpp"
#include "runtime/kv_transfer/connectors.hpp"
#include "runtime/kv_transfer/multi_connector.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::string_view kFileScheme = "file://";

/// A number, or an array of numbers, from 0 on. nullopt: it is null.
Result<std::optional<std::vector<double>>> numbers_of(const json& value, const std::string& key,
                                                      double most) {
  if (value.is_null()) return std::optional<std::vector<double>>();
  std::vector<double> numbers;
  for (const json& one : value.is_array() ? value : json::array({value})) {
    if (!one.is_number() || !(one.get<double>() >= 0 && one.get<double>() <= most))
      return invalid_argument(key + " must be numbers from 0" +
                                  (most == 1 ? std::string(" to 1") : std::string(" on")) +
                                  ", it is " + value.dump(),
                              "kv_transfer_params");
    numbers.push_back(one.get<double>());
  }
  if (numbers.empty()) return invalid_argument(key + " must not be empty", "kv_transfer_params");
  return std::optional(std::move(numbers));
}

constexpr double kAnyNumber = 1e30;

/// The rule with what the object says of ratios and thresholds, which are taken out of it.
Result<BlendRule> read_rule(json& object, BlendRule rule) {
  const auto take = [&](const char* key) {
    const auto found = object.find(key);
    json value = found == object.end() ? json(nullptr) : *found;
    if (found != object.end()) object.erase(found);
    return value;
  };
  ASSIGN_OR_RETURN(const auto ratios,
                   numbers_of(take("blend_recompute_ratios"), "blend_recompute_ratios", 1));
  ASSIGN_OR_RETURN(const auto thresholds,
                   numbers_of(take("blend_thresholds"), "blend_thresholds", kAnyNumber));
  if (ratios && thresholds)
    return invalid_argument("blend_recompute_ratios and blend_thresholds exclude each other",
                            "kv_transfer_params");
  if (ratios) rule.thresholds.clear(), rule.ratios = *ratios;
  if (thresholds) rule.ratios.clear(), rule.thresholds = *thresholds;
  std::vector<double>& shares = rule.thresholds.empty() ? rule.ratios : rule.thresholds;
  if (shares.size() == 1) shares.resize(rule.check_layers.size(), shares.front());
  if (shares.size() != rule.check_layers.size())
    return invalid_argument(
        std::string(rule.thresholds.empty() ? "blend_recompute_ratios" : "blend_thresholds") +
            " has " + std::to_string(shares.size()) + " numbers for " +
            std::to_string(rule.check_layers.size()) + " blend_check_layers",
        "kv_transfer_params");
  return rule;
}

Error in_config(const Error& error) {
  return invalid_argument("kv-transfer-config: kv_connector_extra_config: " + error.message,
                          "kv-transfer-config");
}

}  // namespace

Result<BlendConfig> read_blend_config(const ConnectorConfig& config) {
  BlendConfig blend;
  json object = json::parse(config.extra_config, nullptr, /*allow_exceptions=*/false);
  if (const auto layers = object.find("blend_check_layers"); layers != object.end()) {
    const auto given = numbers_of(*layers, "blend_check_layers", kAnyNumber);
    if (!given.ok()) return in_config(given.error());
    if (*given) blend.rule.check_layers.clear();
    for (const double layer : given->value_or(std::vector<double>())) {
      const auto number = static_cast<std::int32_t>(std::min(layer, 1e6));
      // The keys of the first layer depend on no other token.
      if (static_cast<double>(number) != layer || number < 1 ||
          (!blend.rule.check_layers.empty() && number <= blend.rule.check_layers.back()))
        return in_config(
            {ErrorCode::kInvalidArgument,
             "blend_check_layers must be ascending numbers from 1 on, it is " + layers->dump(),
             {}});
      blend.rule.check_layers.push_back(number);
    }
    object.erase(layers);
  }
  auto rule = read_rule(object, blend.rule);
  if (!rule.ok()) return in_config(rule.error());
  blend.rule = *std::move(rule);

  ConnectorConfig others = config;
  others.extra_config = object.dump();
  ConnectorExtraConfig extra(ConnectorKind::kKV, others);
  ASSIGN_OR_RETURN(blend.is_default, extra.take_boolean("enable_blending", true));
  ASSIGN_OR_RETURN(blend.special_str, extra.take_text("blend_special_str", ""));
  ASSIGN_OR_RETURN(const auto min_tokens, extra.take_number("blend_min_tokens", 1));
  blend.min_tokens = static_cast<std::int32_t>(
      std::min<std::int64_t>(min_tokens.value_or(blend.min_tokens), INT32_MAX));
  ASSIGN_OR_RETURN(blend.max_local_cpu_size,
                   extra.take_real("max_local_cpu_size", blend.max_local_cpu_size));
  if (!(blend.max_local_cpu_size > 0))
    return in_config({ErrorCode::kInvalidArgument,
                      "max_local_cpu_size must be greater than 0, it is " +
                          std::to_string(blend.max_local_cpu_size),
                      {}});
  ASSIGN_OR_RETURN(blend.local_disk, extra.take_text("local_disk", ""));
  if (blend.local_disk.starts_with(kFileScheme)) blend.local_disk.erase(0, kFileScheme.size());
  ASSIGN_OR_RETURN(blend.max_local_disk_size, extra.take_real("max_local_disk_size", 0));
  if (blend.local_disk.empty() != !(blend.max_local_disk_size > 0))
    return in_config({ErrorCode::kInvalidArgument,
                      "local_disk and max_local_disk_size, in GiB, need each other",
                      {}});
  ASSIGN_OR_RETURN(blend.load_timeout, take_load_timeout(extra));
  RETURN_IF_ERROR(extra.check_empty());
  return blend;
}

Result<BlendParams> read_blend_params(const BlendConfig& config,
                                      const std::string& kv_transfer_params) {
  BlendParams params{.is_enabled = config.is_default, .rule = config.rule};
  if (kv_transfer_params.empty()) return params;
  json object = json::parse(kv_transfer_params, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object())
    return invalid_argument("kv_transfer_params is not an object", "kv_transfer_params");
  if (const auto flag = object.find("enable_blending"); flag != object.end()) {
    if (!flag->is_boolean())
      return invalid_argument(
          "kv_transfer_params: enable_blending must be true or false, it is " + flag->dump(),
          "kv_transfer_params");
    params.is_enabled = flag->get<bool>();
  }
  auto rule = read_rule(object, config.rule);
  if (!rule.ok())
    return invalid_argument("kv_transfer_params: " + rule.error().message, "kv_transfer_params");
  params.rule = *std::move(rule);
  return params;
}

std::string blend_separator(const ConnectorConfig& config) {
  if (config.connector == kMultiConnector) {
    const auto all = read_connectors(config);
    if (!all.ok()) return {};
    for (const ConnectorConfig& one : *all)
      if (one.connector == kBlendConnector) return blend_separator(one);
    return {};
  }
  if (config.connector != kBlendConnector) return {};
  const auto blend = read_blend_config(config);
  return blend.ok() ? blend->special_str : std::string();
}

}  // namespace troupe
