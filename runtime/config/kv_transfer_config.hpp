#pragma once
// The option kv-transfer-config.

#include <cstdint>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe {

/// What an engine does with the blocks of its KV cache.
enum class KVRole : std::uint8_t {
  kProducer,  ///< it saves them
  kConsumer,  ///< it loads what is saved
  kBoth,
};

/// Which KV connector transfers them, and how.
struct KVConnectorConfig {
  std::string connector;  ///< its name; empty: nothing is transferred
  std::string engine_id;  ///< empty: it has none
  KVRole role = KVRole::kBoth;
  bool recompute_failed_loads = true;  ///< otherwise the requests fail
  std::string buffer_device = "cpu";
  std::int64_t buffer_size = 1'000'000'000;  ///< bytes
  std::int32_t rank = 0;
  std::int32_t parallel_size = 1;
  std::string ip = "127.0.0.1";
  std::int32_t port = 14579;
  std::string extra_config = "{}";  ///< JSON object: the connector's own
  std::string module_path;          ///< shared object that has the connector; empty: this program

  [[nodiscard]] bool is_enabled() const noexcept { return !connector.empty(); }
  [[nodiscard]] bool is_producer() const noexcept { return role != KVRole::kConsumer; }
  [[nodiscard]] bool is_consumer() const noexcept { return role != KVRole::kProducer; }
};

/// Parses vLLM's JSON object: kv_connector and kv_role ("kv_producer", "kv_consumer", "kv_both"),
/// which are required; kv_load_failure_policy ("recompute", which is the default here, or "fail"),
/// engine_id, kv_buffer_device ("cpu" or "cuda"), kv_buffer_size (bytes, a number), kv_rank,
/// kv_parallel_size, kv_ip, kv_port, enable_permute_local_kv (false), kv_connector_extra_config (an
/// object), kv_connector_module_path. null means missing. Empty text: nothing is transferred.
/// Errors name the key and its value.
[[nodiscard]] Result<KVConnectorConfig> parse_kv_transfer_config(const std::string& json);

}  // namespace troupe
