#include "actors/system_config.hpp"

#include <caf/io/all.hpp>
#include <sstream>

#include "actors/module.hpp"

namespace troupe {

void load_network(caf::actor_system_config& config) { load_module<caf::io::middleman>(config); }

SystemConfig::SystemConfig() { load<module>(); }

Result<void> SystemConfig::apply(std::span<const ConfigEntry> entries) {
  for (const ConfigEntry& entry : entries) {
    const std::string argument =
        "--" + std::string(kCafOptionPrefix) + entry.section + "." + entry.key + "=" + entry.value;
    std::istringstream no_file;
    if (parse(std::vector<std::string>{argument}, no_file) || has_remainder(*this)) {
      return invalid_argument("line " + std::to_string(entry.line) + ": CAF does not accept '" +
                                  entry.section + "." + entry.key + "' with value '" + entry.value +
                                  "'",
                              entry.key);
    }
  }
  return {};
}

}  // namespace troupe
