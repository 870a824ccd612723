#include "runtime/config/connector_config.hpp"

#include <limits>
#include <utility>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

std::string prefix_of(ConnectorKind kind) { return kind == ConnectorKind::kKV ? "kv" : "ec"; }
std::string option_of(ConnectorKind kind) { return prefix_of(kind) + "-transfer-config"; }

/// Reads the values of one option's object.
class ConnectorFields {
 public:
  explicit ConnectorFields(ConnectorKind kind)
      : kind_(kind), prefix_(prefix_of(kind) + "_"), option_(option_of(kind)) {}

  [[nodiscard]] Error wrong(const std::string& key, const std::string& what) const {
    return invalid_argument(option_ + ": " + key + " " + what, option_);
  }
  /// The rest of a key that has the kind's prefix, or all of it.
  [[nodiscard]] std::string without_prefix(const std::string& key) const {
    return key.starts_with(prefix_) ? key.substr(prefix_.size()) : "." + key;
  }
  [[nodiscard]] std::string roles() const {
    return "\"" + prefix_ + "producer\", \"" + prefix_ + "consumer\" or \"" + prefix_ + "both\"";
  }

  Result<void> read(const std::string& key, const json& value, ConnectorConfig& config) {
    constexpr std::int64_t kMaxCount = 1 << 20;
    const std::string name = without_prefix(key);
    if (name == "connector") return read_text(key, value, config.connector);
    if (name == ".engine_id") return read_text(key, value, config.engine_id);
    if (name == "role") return read_role(key, value, config.role);
    if (name == "ip") return read_text(key, value, config.ip);
    if (name == "connector_module_path") return read_text(key, value, config.module_path);
    if (name == "rank") return read_number(key, value, 0, kMaxCount, config.rank);
    if (name == "parallel_size") return read_number(key, value, 1, kMaxCount, config.parallel_size);
    if (name == "port")
      return read_number(key, value, 1, std::numeric_limits<std::uint16_t>::max(), config.port);
    if (name == "buffer_size") {
      constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
      return read_number(key, value, 1, kMaxBytes, config.buffer_size);
    }
    if (name == "buffer_device") {
      if (value != "cpu" && value != "cuda")
        return wrong(key, "must be \"cpu\" or \"cuda\", it is " + value.dump());
      return read_text(key, value, config.buffer_device);
    }
    if (name == "connector_extra_config") {
      if (!value.is_object()) return wrong(key, "must be a JSON object, it is " + value.dump());
      config.extra_config = value.dump();
      return {};
    }
    if (kind_ == ConnectorKind::kKV && name == "load_failure_policy") {
      if (value != "recompute" && value != "fail")
        return wrong(key, "must be \"recompute\" or \"fail\", it is " + value.dump());
      config.recompute_failed_loads = value == "recompute";
      return {};
    }
    if (kind_ == ConnectorKind::kKV && name == ".enable_permute_local_kv") {
      if (value != false) return wrong(key, "must be false, it is " + value.dump());
      return {};
    }
    return wrong(key, "is unknown");
  }

 private:
  Result<void> read_text(const std::string& key, const json& value, std::string& text) const {
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      return wrong(key, "must be a string that is not empty, it is " + value.dump());
    text = value.get<std::string>();
    return {};
  }
  template <class T>
  Result<void> read_number(const std::string& key, const json& value, std::int64_t least,
                           std::int64_t most, T& number) const {
    // Large ones are written as 1e9 as well.
    const double wide = value.is_number() ? value.get<double>() : -1;
    const bool is_in_range =
        wide >= static_cast<double>(least) && wide <= static_cast<double>(most);
    if (!is_in_range || wide != static_cast<double>(static_cast<std::int64_t>(wide)))
      return wrong(key, "must be an integer from " + std::to_string(least) + " to " +
                            std::to_string(most) + ", it is " + value.dump());
    number = static_cast<T>(wide);
    return {};
  }
  Result<void> read_role(const std::string& key, const json& value, ConnectorRole& role) const {
    if (value == prefix_ + "producer")
      role = ConnectorRole::kProducer;
    else if (value == prefix_ + "consumer")
      role = ConnectorRole::kConsumer;
    else if (value == prefix_ + "both")
      role = ConnectorRole::kBoth;
    else
      return wrong(key, "must be " + roles() + ", it is " + value.dump());
    return {};
  }

  ConnectorKind kind_;
  std::string prefix_;
  std::string option_;
};

}  // namespace

Result<ConnectorConfig> parse_connector_config(ConnectorKind kind, const std::string& text) {
  ConnectorConfig config;
  if (text.empty()) return config;
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object())
    return invalid_argument(option_of(kind) + " is not a JSON object", option_of(kind));
  ConnectorFields fields(kind);
  const std::string prefix = prefix_of(kind) + "_";
  bool has_role = false;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    has_role = has_role || key == prefix + "role";
    RETURN_IF_ERROR(fields.read(key, value, config));
  }
  if (config.connector.empty()) return fields.wrong(prefix + "connector", "is missing");
  if (!has_role) return fields.wrong(prefix + "role", "is missing, expected " + fields.roles());
  if (config.rank >= config.parallel_size)
    return fields.wrong(prefix + "rank",
                        "is " + std::to_string(config.rank) + ", it must be less than " + prefix +
                            "parallel_size, " + std::to_string(config.parallel_size));
  return config;
}

struct ConnectorExtraConfig::Json {
  ConnectorKind kind;
  json object;

  /// null if it is missing.
  [[nodiscard]] json take(const std::string& key) {
    const auto found = object.find(key);
    if (found == object.end()) return nullptr;
    json value = std::move(*found);
    object.erase(found);
    return value;
  }
  [[nodiscard]] Error wrong(const std::string& key, const std::string& what) const {
    return invalid_argument(
        option_of(kind) + ": " + prefix_of(kind) + "_connector_extra_config: " + key + " " + what,
        option_of(kind));
  }
};

ConnectorExtraConfig::ConnectorExtraConfig(ConnectorKind kind, const ConnectorConfig& config)
    : json_(std::make_unique<Json>(
          Json{kind, json::parse(config.extra_config, nullptr, /*allow_exceptions=*/false)})) {
  CHECK(json_->object.is_object(), config.extra_config);
}

ConnectorExtraConfig::~ConnectorExtraConfig() = default;

Result<std::string> ConnectorExtraConfig::take_text(const std::string& key,
                                                    const std::string& otherwise) {
  const json value = json_->take(key);
  if (value.is_null()) return otherwise;
  if (value.is_string() && !value.get_ref<const std::string&>().empty())
    return value.get<std::string>();
  return json_->wrong(key, "must be a string that is not empty, it is " + value.dump());
}

Result<std::optional<std::int64_t>> ConnectorExtraConfig::take_number(const std::string& key,
                                                                      std::int64_t least) {
  const json value = json_->take(key);
  if (value.is_null()) return std::optional<std::int64_t>();
  constexpr double kMost = 0x1p52;
  const double wide = value.is_number() ? value.get<double>() : -1;
  if (wide >= static_cast<double>(least) && wide <= kMost &&
      wide == static_cast<double>(static_cast<std::int64_t>(wide)))
    return std::optional(static_cast<std::int64_t>(wide));
  return json_->wrong(
      key, "must be an integer from " + std::to_string(least) + " on, it is " + value.dump());
}

Result<bool> ConnectorExtraConfig::take_boolean(const std::string& key, bool otherwise) {
  const json value = json_->take(key);
  if (value.is_null()) return otherwise;
  if (value.is_boolean()) return value.get<bool>();
  return json_->wrong(key, "must be true or false, it is " + value.dump());
}

Result<double> ConnectorExtraConfig::take_real(const std::string& key, double otherwise,
                                               std::optional<std::int64_t> least) {
  const json value = json_->take(key);
  if (value.is_null()) return otherwise;
  if (value.is_number() && (!least || value.get<double>() >= static_cast<double>(*least)))
    return value.get<double>();
  return json_->wrong(key, "must be a number" +
                               (least ? " from " + std::to_string(*least) + " on" : std::string()) +
                               ", it is " + value.dump());
}

Result<std::vector<std::string>> ConnectorExtraConfig::take_objects(const std::string& key) {
  const json value = json_->take(key);
  std::vector<std::string> texts;
  if (value.is_null()) return texts;
  for (const json& object : value.is_array() ? value : json::array({nullptr})) {
    if (!object.is_object())
      return json_->wrong(key, "must be an array of objects, it is " + value.dump());
    texts.push_back(object.dump());
  }
  return texts;
}

Result<double> ConnectorExtraConfig::take_seconds(const std::string& key, double otherwise) {
  const json value = json_->take(key);
  if (value.is_null()) return otherwise;
  constexpr double kMaxSeconds = 86400;
  if (value.is_number() && value.get<double>() >= 0 && value.get<double>() <= kMaxSeconds)
    return value.get<double>();
  return json_->wrong(key, "must be a number of seconds from 0 to 86400, it is " + value.dump());
}

Result<void> ConnectorExtraConfig::check_empty() const {
  for (const auto& [key, value] : json_->object.items())
    if (!value.is_null()) return json_->wrong(key, "is unknown");
  return {};
}

}  // namespace troupe
