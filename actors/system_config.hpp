#pragma once
// The actor system's configuration: Troupe's message types, the tuning that serving needs, and what
// the configuration file says to CAF itself.

#include <caf/actor_system_config.hpp>
#include <span>

#include "runtime/base/result.hpp"
#include "runtime/config/option_set.hpp"

namespace troupe {

/// Registers Troupe's message types and sets the scheduler to what was measured best. An embedding
/// application calls it on its own configuration before it makes its actor system.
void configure(caf::actor_system_config& config);

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
