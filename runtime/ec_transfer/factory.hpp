#pragma once
// EC connectors by name: those of this program, and those of shared objects.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/config/connector_config.hpp"
#include "runtime/config/connector_module.hpp"
#include "runtime/scheduler/ec_connector.hpp"
#include "runtime/worker/ec_connector_worker.hpp"

namespace troupe {

class OutputStore;
class RemoteOutputs;

/// What a connector is made for.
struct ECConnectorContext {
  ConnectorConfig config;
  /// ModelLoaded::encoder_key: outputs of other encoders do not count.
  std::string encoder_key;
  /// Of the topology's encoders; null: there are none, or this is one.
  std::shared_ptr<RemoteOutputs> remote = nullptr;
};

/// A connector's two sides. Errors: kInvalidArgument naming the key of ec_connector_extra_config,
/// kIo.
struct ECConnectorKind {
  const char* name = nullptr;
  Result<std::shared_ptr<ECConnector>> (*create)(const ECConnectorContext& context) = nullptr;
  Result<std::unique_ptr<ECConnectorWorker>> (*create_worker)(const ECConnectorContext& context) =
      nullptr;
  /// Where encoders that run apart from the workers save their outputs; null: they cannot.
  Result<std::shared_ptr<OutputStore>> (*open_store)(const ECConnectorContext& context) = nullptr;
};

/// The connector between encoders and workers where the configuration names none.
inline constexpr const char* kNetworkConnector = "ECNetworkConnector";

/// Of the interfaces ECConnector, ECConnectorWorker and of what they use: changes with them.
inline constexpr std::uint32_t kECConnectorInterface = 3;

/// What a shared object exports under the name kECConnectorModule, as a constant:
///
///   extern "C" const troupe::ECConnectorModule troupe_ec_connectors = {...};
///
/// It is built with the compiler and the options of this program, and links what it uses of its
/// libraries.
using ECConnectorModule = ConnectorModule<ECConnectorKind, kECConnectorInterface>;
inline constexpr const char* kECConnectorModule = "troupe_ec_connectors";

/// Those of this program.
[[nodiscard]] std::span<const ECConnectorKind> ec_connector_kinds() noexcept;

/// find_connector among them.
[[nodiscard]] Result<const ECConnectorKind*> find_ec_connector(const ConnectorConfig& config);

}  // namespace troupe
