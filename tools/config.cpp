// troupe config: prints every option with its value and its source.
#include <cstdio>

#include "tools/commands.hpp"

namespace troupe::tools {

int config(Arguments arguments) {
  CommandLine line;
  if (const auto done = read_command_line(line, arguments, "config [MODEL] [options]"))
    return *done;
  std::fputs(line.set.dump().c_str(), stdout);
  for (const ConfigEntry& entry : line.caf_entries) {
    std::printf("%s.%s = %s  (file, for CAF)\n", entry.section.c_str(), entry.key.c_str(),
                entry.value.c_str());
  }
  return kExitOk;
}

}  // namespace troupe::tools
