#include "runtime/config/kv_transfer_config.hpp"

#include <limits>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

Error wrong_kv_key(const std::string& key, const std::string& what) {
  return invalid_argument("kv-transfer-config: " + key + " " + what, "kv-transfer-config");
}

Result<std::string> read_kv_text(const std::string& key, const json& value) {
  if (value.is_string() && !value.get_ref<const std::string&>().empty())
    return value.get<std::string>();
  return wrong_kv_key(key, "must be a string that is not empty, it is " + value.dump());
}

Result<std::int64_t> read_kv_number(const std::string& key, const json& value, std::int64_t least,
                                    std::int64_t most) {
  // vLLM's default is written as 1e9.
  const bool is_whole =
      value.is_number_integer() ||
      (value.is_number_float() && value.get<double>() >= 0 && value.get<double>() < 0x1p62 &&
       value.get<double>() == static_cast<double>(value.get<std::int64_t>()));
  const std::int64_t number = is_whole ? value.get<std::int64_t>() : -1;
  if (!is_whole || number < least || number > most)
    return wrong_kv_key(key, "must be an integer from " + std::to_string(least) + " to " +
                                 std::to_string(most) + ", it is " + value.dump());
  return number;
}

}  // namespace

Result<KVConnectorConfig> parse_kv_transfer_config(const std::string& text) {
  KVConnectorConfig config;
  if (text.empty()) return config;
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object())
    return invalid_argument("kv-transfer-config is not a JSON object", "kv-transfer-config");
  constexpr std::int64_t kMaxCount = 1 << 20;
  bool has_role = false;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    if (key == "kv_connector") {
      ASSIGN_OR_RETURN(config.connector, read_kv_text(key, value));
    } else if (key == "engine_id") {
      ASSIGN_OR_RETURN(config.engine_id, read_kv_text(key, value));
    } else if (key == "kv_role") {
      has_role = true;
      if (value == "kv_producer")
        config.role = KVRole::kProducer;
      else if (value == "kv_consumer")
        config.role = KVRole::kConsumer;
      else if (value == "kv_both")
        config.role = KVRole::kBoth;
      else
        return wrong_kv_key(
            key, "must be \"kv_producer\", \"kv_consumer\" or \"kv_both\", it is " + value.dump());
    } else if (key == "kv_load_failure_policy") {
      if (value != "recompute" && value != "fail")
        return wrong_kv_key(key, "must be \"recompute\" or \"fail\", it is " + value.dump());
      config.recompute_failed_loads = value == "recompute";
    } else if (key == "kv_buffer_device") {
      if (value != "cpu" && value != "cuda")
        return wrong_kv_key(key, "must be \"cpu\" or \"cuda\", it is " + value.dump());
      config.buffer_device = value.get<std::string>();
    } else if (key == "kv_buffer_size") {
      constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
      ASSIGN_OR_RETURN(config.buffer_size, read_kv_number(key, value, 1, kMaxBytes));
    } else if (key == "kv_rank") {
      ASSIGN_OR_RETURN(const std::int64_t rank, read_kv_number(key, value, 0, kMaxCount));
      config.rank = static_cast<std::int32_t>(rank);
    } else if (key == "kv_parallel_size") {
      ASSIGN_OR_RETURN(const std::int64_t size, read_kv_number(key, value, 1, kMaxCount));
      config.parallel_size = static_cast<std::int32_t>(size);
    } else if (key == "kv_ip") {
      ASSIGN_OR_RETURN(config.ip, read_kv_text(key, value));
    } else if (key == "kv_port") {
      constexpr std::int64_t kMaxPort = std::numeric_limits<std::uint16_t>::max();
      ASSIGN_OR_RETURN(const std::int64_t port, read_kv_number(key, value, 1, kMaxPort));
      config.port = static_cast<std::int32_t>(port);
    } else if (key == "enable_permute_local_kv") {
      if (value != false) return wrong_kv_key(key, "must be false, it is " + value.dump());
    } else if (key == "kv_connector_extra_config") {
      if (!value.is_object())
        return wrong_kv_key(key, "must be a JSON object, it is " + value.dump());
      config.extra_config = value.dump();
    } else if (key == "kv_connector_module_path") {
      ASSIGN_OR_RETURN(config.module_path, read_kv_text(key, value));
    } else {
      return wrong_kv_key(key, "is unknown");
    }
  }
  if (config.connector.empty()) return wrong_kv_key("kv_connector", "is missing");
  if (!has_role)
    return wrong_kv_key("kv_role",
                        "is missing, expected \"kv_producer\", \"kv_consumer\" or \"kv_both\"");
  if (config.rank >= config.parallel_size)
    return wrong_kv_key("kv_rank", "is " + std::to_string(config.rank) +
                                       ", it must be less than kv_parallel_size, " +
                                       std::to_string(config.parallel_size));
  return config;
}

}  // namespace troupe
