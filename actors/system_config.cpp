#include "actors/system_config.hpp"

#include <caf/io/all.hpp>
#include <sstream>

#include "messages/actor_interfaces.hpp"

namespace troupe {

void configure(caf::actor_system_config& config) {
  add_message_types<caf::id_block::troupe>(config);
  add_message_types<caf::id_block::troupe_local>(config);
  add_message_types<caf::id_block::troupe_handles>(config);
  add_caf_type<ActorHandles>(config, "ActorHandles");
  tune(config);
}

void load_network(caf::actor_system_config& config) { config.load<caf::io::middleman>(); }

SystemConfig::SystemConfig() { configure(*this); }

Result<void> SystemConfig::apply(std::span<const ConfigEntry> entries) {
  for (const ConfigEntry& entry : entries) {
    const std::string argument = "--" + entry.section + "." + entry.key + "=" + entry.value;
    std::istringstream no_file;
    if (parse(std::vector<std::string>{argument}, no_file) || !remainder.empty()) {
      return invalid_argument("line " + std::to_string(entry.line) + ": CAF takes no '" +
                                  entry.section + "." + entry.key + "' with value '" + entry.value +
                                  "'",
                              entry.key);
    }
  }
  return {};
}

}  // namespace troupe
