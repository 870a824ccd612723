#include "runtime/kv_transfer/factory.hpp"

#include <dlfcn.h>

#include <array>

#include "runtime/kv_transfer/connectors.hpp"

namespace troupe {
namespace {

constexpr std::array kKinds = {
    KVConnectorKind{"OffloadingConnector", make_offloading_connector,
                    make_offloading_connector_worker},
    KVConnectorKind{"ExampleConnector", make_example_connector, make_example_connector_worker},
};

/// Those of a shared object, which stays loaded.
Result<std::span<const KVConnectorKind>> load_kv_module(const std::string& path) {
  const auto failed = [&](ErrorCode code, const std::string& reason) {
    return Error{code, "kv-transfer-config: kv_connector_module_path " + path + ": " + reason,
                 "kv-transfer-config"};
  };
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return failed(ErrorCode::kNotFound, ::dlerror());
  const auto* const module =
      static_cast<const KVConnectorModule*>(::dlsym(handle, kKVConnectorModule));
  if (module == nullptr)
    return failed(ErrorCode::kUnsupported, std::string("it does not export ") + kKVConnectorModule);
  if (module->interface != kKVConnectorInterface)
    return failed(ErrorCode::kUnsupported,
                  "its connectors have interface " + std::to_string(module->interface) +
                      ", this program has " + std::to_string(kKVConnectorInterface));
  return std::span(module->kinds, module->num_kinds);
}

}  // namespace

std::span<const KVConnectorKind> kv_connector_kinds() noexcept { return kKinds; }

Result<const KVConnectorKind*> find_kv_connector(const ConnectorConfig& config) {
  std::span<const KVConnectorKind> kinds = kKinds;
  if (!config.module_path.empty()) {
    ASSIGN_OR_RETURN(kinds, load_kv_module(config.module_path));
  }
  std::string names;
  for (const KVConnectorKind& kind : kinds) {
    if (kind.name == config.connector) return &kind;
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  return invalid_argument("kv-transfer-config: kv_connector " + config.connector +
                              " is unknown, there are " + names +
                              (config.module_path.empty() ? "" : " in " + config.module_path),
                          "kv-transfer-config");
}

}  // namespace troupe
