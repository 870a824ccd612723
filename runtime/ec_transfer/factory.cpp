#include "runtime/ec_transfer/factory.hpp"

#include <dlfcn.h>

#include <array>

#include "runtime/ec_transfer/connectors.hpp"

namespace troupe {
namespace {

constexpr std::array kKinds = {
    store_connector_kind<open_file_store>("ECExampleConnector"),
    store_connector_kind<open_memory_store>("ECMemoryConnector"),
    store_connector_kind<open_shared_memory_store>("ECSharedMemoryConnector"),
};

/// Those of a shared object, which stays loaded.
Result<std::span<const ECConnectorKind>> load_module(const std::string& path) {
  const auto failed = [&](ErrorCode code, const std::string& reason) {
    return Error{code, "ec-transfer-config: ec_connector_module_path " + path + ": " + reason,
                 "ec-transfer-config"};
  };
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return failed(ErrorCode::kNotFound, ::dlerror());
  const auto* const module =
      static_cast<const ECConnectorModule*>(::dlsym(handle, kECConnectorModule));
  if (module == nullptr)
    return failed(ErrorCode::kUnsupported, std::string("it does not export ") + kECConnectorModule);
  if (module->interface != kECConnectorInterface)
    return failed(ErrorCode::kUnsupported,
                  "its connectors have interface " + std::to_string(module->interface) +
                      ", this program has " + std::to_string(kECConnectorInterface));
  return std::span(module->kinds, module->num_kinds);
}

}  // namespace

std::span<const ECConnectorKind> ec_connector_kinds() noexcept { return kKinds; }

Result<const ECConnectorKind*> find_ec_connector(const ConnectorConfig& config) {
  std::span<const ECConnectorKind> kinds = kKinds;
  if (!config.module_path.empty()) {
    ASSIGN_OR_RETURN(kinds, load_module(config.module_path));
  }
  std::string names;
  for (const ECConnectorKind& kind : kinds) {
    if (kind.name == config.connector) return &kind;
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  return invalid_argument("ec-transfer-config: ec_connector " + config.connector +
                              " is unknown, there are " + names +
                              (config.module_path.empty() ? "" : " in " + config.module_path),
                          "ec-transfer-config");
}

}  // namespace troupe
