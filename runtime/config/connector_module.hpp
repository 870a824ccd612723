#pragma once
// Connectors by name: those of this program, and those of shared objects. One rule for connectors
// of both kinds.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/config/connector_config.hpp"

namespace troupe {

/// What a shared object exports. K has a member `name`; kInterface is the version of the interfaces
/// that connectors of this kind have.
template <class K, std::uint32_t kInterface>
struct ConnectorModule {
  using Kind = K;
  std::uint32_t interface = kInterface;
  const Kind* kinds = nullptr;
  std::size_t num_kinds = 0;
};

/// Where connectors of one kind are found, and what errors call them.
struct ConnectorModuleSymbol {
  const char* prefix = "";  ///< of the options: "kv", "ec"
  const char* name = "";    ///< exported by shared objects
  std::uint32_t interface = 0;
};

/// The module that a shared object exports; it stays loaded. Pre: a module begins with its
/// interface. Errors as in find_connector.
[[nodiscard]] Result<const void*> load_connector_module(const std::string& path,
                                                        const ConnectorModuleSymbol& symbol);

/// The error that there is no connector of that name, with the names that there are.
[[nodiscard]] Error unknown_connector(const ConnectorConfig& config, const std::string& prefix,
                                      const std::string& names);

/// The connector that the configuration names: among `kinds`, or in its shared object, if it names
/// one. Errors: kInvalidArgument, an unknown name (lists the known ones); kNotFound, the shared
/// object cannot be loaded; kUnsupported, it has no connectors, or those of another interface
/// version. `prefix` is that of the options, "kv" or "ec", `symbol` the export of shared objects.
template <class Module>
[[nodiscard]] Result<const typename Module::Kind*> find_connector(
    const ConnectorConfig& config, std::span<const typename Module::Kind> kinds, const char* prefix,
    const char* symbol) {
  if (!config.module_path.empty()) {
    ASSIGN_OR_RETURN(
        const void* const loaded,
        load_connector_module(config.module_path, {prefix, symbol, Module{}.interface}));
    const auto* const module = static_cast<const Module*>(loaded);
    kinds = std::span(module->kinds, module->num_kinds);
  }
  std::string names;
  for (const typename Module::Kind& kind : kinds) {
    if (kind.name == config.connector) return &kind;
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  return unknown_connector(config, prefix, names);
}

}  // namespace troupe
