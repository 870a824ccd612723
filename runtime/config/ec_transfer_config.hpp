#pragma once
// The option ec-transfer-config.

#include <cstdint>
#include <string>

#include "runtime/base/result.hpp"

namespace troupe {

/// What an engine does with the outputs of its encoder.
enum class ECRole : std::uint8_t {
  kProducer,  ///< others load them from it
  kConsumer,  ///< it loads those of others
  kBoth,
};

/// Which EC connector transfers them, and how.
struct ECTransferConfig {
  std::string connector;  ///< its name; empty: nothing is transferred
  std::string engine_id;  ///< empty: it has none
  ECRole role = ECRole::kBoth;
  std::string buffer_device = "cpu";
  std::int64_t buffer_size = 1'000'000'000;  ///< bytes
  std::int32_t rank = 0;
  std::int32_t parallel_size = 1;
  std::string ip = "127.0.0.1";
  std::int32_t port = 14579;
  std::string extra_config = "{}";  ///< JSON object: the connector's own
  std::string module_path;          ///< shared object that has the connector; empty: this program

  [[nodiscard]] bool is_enabled() const noexcept { return !connector.empty(); }
  [[nodiscard]] bool is_producer() const noexcept { return role != ECRole::kConsumer; }
  [[nodiscard]] bool is_consumer() const noexcept { return role != ECRole::kProducer; }
};

/// Parses vLLM's JSON object: ec_connector and ec_role ("ec_producer", "ec_consumer", "ec_both"),
/// which are required; engine_id, ec_buffer_device ("cpu" or "cuda"), ec_buffer_size (bytes, a
/// number), ec_rank, ec_parallel_size, ec_ip, ec_port, ec_connector_extra_config (an object),
/// ec_connector_module_path. null means missing. Empty text: nothing is transferred. Errors name
/// the key and its value.
[[nodiscard]] Result<ECTransferConfig> parse_ec_transfer_config(const std::string& json);

}  // namespace troupe
