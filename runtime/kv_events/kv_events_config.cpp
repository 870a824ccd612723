#include "runtime/kv_events/kv_events_config.hpp"

#include <charconv>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;

Error wrong(const std::string& key, const std::string& what) {
  return invalid_argument("kv-events-config: " + key + " " + what, "kv-events-config");
}

Result<void> read(const std::string& key, const json& value, bool& target) {
  if (!value.is_boolean()) return wrong(key, "must be true or false, it is " + value.dump());
  target = value.get<bool>();
  return {};
}
Result<void> read(const std::string& key, const json& value, std::int64_t& target) {
  const auto* number = value.get_ptr<const json::number_unsigned_t*>();
  if (number == nullptr || *number > static_cast<std::uint64_t>(kMaxCount)) {
    return wrong(key, "must be an integer from 0 to " + std::to_string(kMaxCount) + ", it is " +
                          value.dump());
  }
  target = static_cast<std::int64_t>(*number);
  return {};
}
Result<void> read(const std::string& key, const json& value, std::string& target) {
  if (value.is_null()) {
    target.clear();
    return {};
  }
  if (!value.is_string()) return wrong(key, "must be a string, it is " + value.dump());
  target = value.get<std::string>();
  return {};
}

}  // namespace

Result<KVEventsConfig> parse_kv_events_config(const std::string& text) {
  KVEventsConfig config;
  if (text.empty()) return config;
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return invalid_argument("kv-events-config is not a JSON object", "kv-events-config");
  }
  for (const auto& [key, value] : object.items()) {
    Result<void> taken = wrong(key, "is unknown");
    if (key == "enable_kv_cache_events") taken = read(key, value, config.enable_kv_cache_events);
    if (key == "publisher") taken = read(key, value, config.publisher);
    if (key == "endpoint") taken = read(key, value, config.endpoint);
    if (key == "replay_endpoint") taken = read(key, value, config.replay_endpoint);
    if (key == "buffer_steps") taken = read(key, value, config.buffer_steps);
    if (key == "hwm") taken = read(key, value, config.hwm);
    if (key == "max_queue_size") taken = read(key, value, config.max_queue_size);
    if (key == "topic") taken = read(key, value, config.topic);
    if (key == "use_int_block_hashes") taken = read(key, value, config.use_int_block_hashes);
    RETURN_IF_ERROR(std::move(taken));
  }
  if (config.publisher.empty()) config.publisher = config.enable_kv_cache_events ? "zmq" : "null";
  if (config.publisher != "zmq" && config.publisher != "null") {
    return wrong("publisher", "must be zmq or null, it is " + config.publisher);
  }
  if (config.endpoint.empty()) return wrong("endpoint", "is empty");
  return config;
}

Result<std::string> offset_endpoint(const std::string& endpoint, std::int32_t rank) {
  if (rank == 0) return endpoint;
  if (endpoint.starts_with("inproc://")) return endpoint + "_dp" + std::to_string(rank);
  if (!endpoint.starts_with("tcp://")) {
    return wrong("endpoint",
                 "must begin with tcp:// or inproc:// for several data-parallel ranks, "
                 "it is " +
                     endpoint);
  }
  const std::size_t colon = endpoint.rfind(':');
  std::int32_t port = 0;
  const char* const end = endpoint.data() + endpoint.size();
  const auto parsed = std::from_chars(endpoint.data() + colon + 1, end, port);
  if (parsed.ec != std::errc() || parsed.ptr != end || port < 0 || port + rank > 65535) {
    return wrong("endpoint", "has no port to which rank " + std::to_string(rank) +
                                 " can be added to: " + endpoint);
  }
  if (port == 0) return endpoint;
  return endpoint.substr(0, colon + 1) + std::to_string(port + rank);
}

bool is_bound_endpoint(const std::string& endpoint) {
  return endpoint.find('*') != std::string::npos || endpoint.find("::") != std::string::npos ||
         endpoint.starts_with("ipc://") || endpoint.starts_with("inproc://");
}

}  // namespace troupe
