#pragma once
// The options kv-transfer-config and ec-transfer-config: which connector transfers blocks of the KV
// cache, or outputs of the encoder, and how.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// What an engine does with them.
enum class ConnectorRole : std::uint8_t {
  kProducer,  ///< it saves them
  kConsumer,  ///< it loads what is saved
  kBoth,
};

enum class ConnectorKind : std::uint8_t {
  kKV,  ///< blocks of the KV cache
  kEC,  ///< outputs of the encoder
};

struct ConnectorConfig {
  std::string connector;  ///< its name; empty: nothing is transferred
  std::string engine_id;  ///< empty: none
  ConnectorRole role = ConnectorRole::kBoth;
  bool recompute_failed_loads = true;  ///< otherwise the requests fail; of kKV
  std::string buffer_device = "cpu";
  std::int64_t buffer_size = 1'000'000'000;  ///< bytes
  std::int32_t rank = 0;
  std::int32_t parallel_size = 1;
  std::string ip = "127.0.0.1";
  std::int32_t port = 14579;
  std::string extra_config = "{}";  ///< JSON object: the connector's own
  std::string module_path;          ///< shared object that has the connector; empty: this program

  [[nodiscard]] bool is_enabled() const noexcept { return !connector.empty(); }
  [[nodiscard]] bool is_producer() const noexcept { return role != ConnectorRole::kConsumer; }
  [[nodiscard]] bool is_consumer() const noexcept { return role != ConnectorRole::kProducer; }
};

/// Parses vLLM's JSON object. P is the kind's prefix, "kv" or "ec". Required are P_connector and
/// P_role ("P_producer", "P_consumer", "P_both"); besides there are engine_id, P_buffer_device
/// ("cpu" or "cuda"), P_buffer_size (bytes, a number), P_rank, P_parallel_size, P_ip, P_port,
/// P_connector_extra_config (an object), P_connector_module_path, and of kKV
/// kv_load_failure_policy ("recompute", which is the default here, or "fail") and
/// enable_permute_local_kv (false). null means missing. Empty text: nothing is transferred. Errors
/// name the key and its value.
[[nodiscard]] Result<ConnectorConfig> parse_connector_config(ConnectorKind kind,
                                                             const std::string& text);

/// Owns the object of P_connector_extra_config, which the keys are taken out of; what is left in
/// the end is unknown.
class ConnectorExtraConfig {
 public:
  /// Pre: extra_config is a JSON object, as returned by parse_connector_config.
  ConnectorExtraConfig(ConnectorKind kind, const ConnectorConfig& config);
  ~ConnectorExtraConfig();
  ConnectorExtraConfig(const ConnectorExtraConfig&) = delete;
  ConnectorExtraConfig& operator=(const ConnectorExtraConfig&) = delete;

  /// The text of a key, or another one where it is missing. Errors: kInvalidArgument, it is no
  /// string, or empty.
  [[nodiscard]] Result<std::string> take_text(const std::string& key, const std::string& otherwise);
  /// The same of a whole number from `least` on. nullopt: it is missing.
  [[nodiscard]] Result<std::optional<std::int64_t>> take_number(const std::string& key,
                                                                std::int64_t least);
  /// The same of true and false.
  [[nodiscard]] Result<bool> take_boolean(const std::string& key, bool otherwise);
  /// The same of a number, from `least` on if that is given.
  [[nodiscard]] Result<double> take_real(const std::string& key, double otherwise,
                                         std::optional<std::int64_t> least = std::nullopt);
  /// The JSON texts of the objects of an array; none where it is missing.
  [[nodiscard]] Result<std::vector<std::string>> take_objects(const std::string& key);
  /// The same of a number of seconds from 0 on.
  [[nodiscard]] Result<double> take_seconds(const std::string& key, double otherwise);
  /// Errors: kInvalidArgument naming a key that was not taken.
  [[nodiscard]] Result<void> check_empty() const;

 private:
  struct Json;
  std::unique_ptr<Json> json_;
};

}  // namespace troupe
