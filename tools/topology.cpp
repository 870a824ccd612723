// troupe topology: draws the topology of a configuration file.
#include <cstdio>

#include "runtime/config/topology.hpp"
#include "tools/commands.hpp"

namespace troupe::tools {

int topology(Arguments arguments) {
  CommandLine line;
  if (const auto done = read_command_line(line, arguments,
                                          "topology --config-file FILE [options]\n\nDraws which "
                                          "process runs which actors, by host, or "
                                          "reports why the topology is invalid."))
    return *done;
  const auto topology = options_topology(line.options);
  if (!topology.ok()) return fail(topology.error());
  std::fputs(draw(*topology, line.options.topology.supervisor_host).c_str(), stdout);
  return kExitOk;
}

}  // namespace troupe::tools
