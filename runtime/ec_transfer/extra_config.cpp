#include "runtime/ec_transfer/extra_config.hpp"

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

Error wrong_extra_key(const std::string& key, const std::string& what) {
  return invalid_argument("ec-transfer-config: ec_connector_extra_config: " + key + " " + what,
                          "ec-transfer-config");
}

}  // namespace

struct ECExtraConfig::Json {
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

ECExtraConfig::ECExtraConfig(const ECTransferConfig& config)
    : json_(std::make_unique<Json>(
          Json{nlohmann::json::parse(config.extra_config, nullptr, /*allow_exceptions=*/false)})) {
  CHECK(json_->object.is_object(), config.extra_config);
}

ECExtraConfig::~ECExtraConfig() = default;

Result<std::string> ECExtraConfig::take_text(const std::string& key, const std::string& otherwise) {
  const nlohmann::json value = json_->take(key);
  if (value.is_null()) return otherwise;
  if (value.is_string() && !value.get_ref<const std::string&>().empty())
    return value.get<std::string>();
  return wrong_extra_key(key, "must be a string that is not empty, it is " + value.dump());
}

Result<double> ECExtraConfig::take_seconds(const std::string& key, double otherwise) {
  const nlohmann::json value = json_->take(key);
  if (value.is_null()) return otherwise;
  constexpr double kMaxSeconds = 86400;
  if (value.is_number() && value.get<double>() >= 0 && value.get<double>() <= kMaxSeconds)
    return value.get<double>();
  return wrong_extra_key(key, "must be a number of seconds from 0 to 86400, it is " + value.dump());
}

Result<void> ECExtraConfig::check_empty() const {
  for (const auto& [key, value] : json_->object.items())
    if (!value.is_null()) return wrong_extra_key(key, "is unknown");
  return {};
}

}  // namespace troupe
