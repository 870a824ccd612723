#include "runtime/kv_transfer/extra_config.hpp"

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

Error wrong_kv_extra_key(const std::string& key, const std::string& what) {
  return invalid_argument("kv-transfer-config: kv_connector_extra_config: " + key + " " + what,
                          "kv-transfer-config");
}

}  // namespace

struct KVExtraConfig::Json {
  nlohmann::json object;

  /// null if it is missing.
  [[nodiscard]] nlohmann::json take(const std::string& key) {
    const auto found = object.find(key);
    if (found == object.end()) return nullptr;
    nlohmann::json value = std::move(*found);
    object.erase(found);
    return value;
  }
};

KVExtraConfig::KVExtraConfig(const KVConnectorConfig& config)
    : json_(std::make_unique<Json>(
          Json{nlohmann::json::parse(config.extra_config, nullptr, /*allow_exceptions=*/false)})) {
  CHECK(json_->object.is_object(), config.extra_config);
}

KVExtraConfig::~KVExtraConfig() = default;

Result<std::string> KVExtraConfig::take_text(const std::string& key, const std::string& otherwise) {
  const nlohmann::json value = json_->take(key);
  if (value.is_null()) return otherwise;
  if (value.is_string() && !value.get_ref<const std::string&>().empty())
    return value.get<std::string>();
  return wrong_kv_extra_key(key, "must be a string that is not empty, it is " + value.dump());
}

Result<std::optional<std::int64_t>> KVExtraConfig::take_number(const std::string& key,
                                                               std::int64_t least) {
  const nlohmann::json value = json_->take(key);
  if (value.is_null()) return std::optional<std::int64_t>();
  constexpr double kMost = 0x1p52;
  // Large ones are written as 1e9 as well.
  const bool is_whole = value.is_number() && value.get<double>() >= 0 &&
                        value.get<double>() <= kMost &&
                        value.get<double>() == static_cast<double>(value.get<std::int64_t>());
  if (is_whole && value.get<std::int64_t>() >= least)
    return std::optional(value.get<std::int64_t>());
  return wrong_kv_extra_key(
      key, "must be an integer from " + std::to_string(least) + " on, it is " + value.dump());
}

Result<void> KVExtraConfig::check_empty() const {
  for (const auto& [key, value] : json_->object.items())
    if (!value.is_null()) return wrong_kv_extra_key(key, "is unknown");
  return {};
}

}  // namespace troupe
