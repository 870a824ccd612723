#include "runtime/config/connector_module.hpp"

#include <dlfcn.h>

namespace troupe {

Result<const void*> load_connector_module(const std::string& path,
                                          const ConnectorModuleSymbol& symbol) {
  const std::string prefix = symbol.prefix;
  const std::string option = prefix + "-transfer-config";
  const auto failed = [&](ErrorCode code, const std::string& reason) {
    return Error{code, option + ": " + prefix + "_connector_module_path " + path + ": " + reason,
                 option};
  };
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return failed(ErrorCode::kNotFound, ::dlerror());
  const void* const module = ::dlsym(handle, symbol.name);
  if (module == nullptr)
    return failed(ErrorCode::kUnsupported, std::string("it does not export ") + symbol.name);
  const std::uint32_t interface = *static_cast<const std::uint32_t*>(module);
  if (interface != symbol.interface)
    return failed(ErrorCode::kUnsupported, "its connectors have interface " +
                                               std::to_string(interface) + ", this program has " +
                                               std::to_string(symbol.interface));
  return module;
}

Error unknown_connector(const ConnectorConfig& config, const std::string& prefix,
                        const std::string& names) {
  const std::string option = prefix + "-transfer-config";
  return invalid_argument(option + ": " + prefix + "_connector " + config.connector +
                              " is unknown, there are " + names +
                              (config.module_path.empty() ? "" : " in " + config.module_path),
                          option);
}

}  // namespace troupe
