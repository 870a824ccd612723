#pragma once
// The configuration of the binary's own actor system: Troupe's module, and the CAF settings in
// Troupe's configuration file.

#include <caf/actor_system_config.hpp>
#include <span>

#include "runtime/base/result.hpp"
#include "runtime/config/option_set.hpp"

namespace troupe {

/// Loads CAF's network layer, which multi-process topologies need.
void load_network(caf::actor_system_config& config);

class SystemConfig : public caf::actor_system_config {
 public:
  SystemConfig();
  /// Passes entries such as scheduler.max-threads=4 to CAF. Errors: an unknown key, a wrong type.
  [[nodiscard]] Result<void> apply(std::span<const ConfigEntry> entries);
};

}  // namespace troupe
