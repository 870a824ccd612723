#include "runtime/ec_transfer/factory.hpp"

#include <array>

#include "runtime/ec_transfer/connectors.hpp"

namespace troupe {
namespace {

constexpr std::array kKinds = {
    store_connector_kind<open_file_store>("ECExampleConnector"),
    store_connector_kind<open_memory_store>("ECMemoryConnector"),
    store_connector_kind<open_shared_memory_store>("ECSharedMemoryConnector"),
    store_connector_kind<open_tiered_store>("ECTieredConnector"),
    store_connector_kind<open_network_store>(kNetworkConnector),
};

}  // namespace

std::span<const ECConnectorKind> ec_connector_kinds() noexcept { return kKinds; }

Result<const ECConnectorKind*> find_ec_connector(const ConnectorConfig& config) {
  return find_connector<ECConnectorModule>(config, kKinds, "ec", kECConnectorModule);
}

}  // namespace troupe
