#pragma once
// The configuration of the binary's own actor system: Troupe's module, and what Troupe's
// configuration file says to CAF itself.

#include <caf/actor_system_config.hpp>
#include <span>

#include "runtime/base/result.hpp"
#include "runtime/config/option_set.hpp"

namespace troupe {

/// Loads CAF's network layer, which a topology of several processes needs.
void load_network(caf::actor_system_config& config);

class SystemConfig : public caf::actor_system_config {
 public:
  SystemConfig();
  /// Hands entries such as scheduler.max-threads=4 on to CAF. Errors: a key that CAF does not know,
  /// a wrong type.
  [[nodiscard]] Result<void> apply(std::span<const ConfigEntry> entries);
};

}  // namespace troupe
