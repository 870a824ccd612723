// troupe node: one process of a topology, controlled by the Supervisor of `troupe serve`.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "actors/network.hpp"
#include "actors/spawn.hpp"
#include "actors/system_config.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/config/node_secrets.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/transport/local_secret.hpp"
#include "tools/commands.hpp"
#include "tools/reload.hpp"

namespace troupe::tools {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kNodeUsage =
    "node NAME [MODEL] --config-file FILE [options]\n\n"
    "Runs the node NAME of the topology in FILE. `troupe serve` starts the nodes of its own host;\n"
    "on other hosts, run this with the same file and options. It waits for the supervisor, and\n"
    "rejoins after the supervisor has restarted.";

constexpr auto kRetryInterval = 500ms;
constexpr auto kProbeTimeout = 2000ms;

/// Reads and closes standard input.
NodeSecrets read_secrets() {
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t size = read(STDIN_FILENO, piece.data(), piece.size());
    if (size <= 0) break;
    text.append(piece.data(), static_cast<std::size_t>(size));
  }
  const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  dup2(nothing.get(), STDIN_FILENO);
  return NodeSecrets::decode(text);
}

/// The command line of this process, program name included.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');)
    arguments.push_back(std::move(argument));
  return arguments;
}

/// Ends the process, or re-executes it to wait for the next Supervisor: CAF 0.17's own shutdown may
/// wait forever (its issues 1196 and 1266), and there is no state left to save.
[[noreturn]] void leave(const NodeConfig& config, bool for_good) {
  std::fflush(stdout);
  if (!config.host.empty() && !for_good) {
    const std::vector<std::string> arguments = own_arguments();
    std::vector<char*> pointers;
    pointers.reserve(arguments.size() + 1);
    for (const std::string& argument : arguments)
      pointers.push_back(const_cast<char*>(argument.c_str()));  // execv's signature predates const
    pointers.push_back(nullptr);
    execv("/proc/self/exe", pointers.data());
  }
  std::_Exit(kExitOk);
}

/// Serves the Supervisor until it is lost, or asks the node to leave; then the process ends.
/// Returns only if it cannot be reached, with the reason.
Error serve_supervisor(const CommandLine& line, const NodeConfig& config, std::string secret) {
  const TopologyOptions& topology = line.options.topology;
  const auto port = static_cast<std::uint16_t>(topology.supervisor_port);
  if (secret.empty() && config.host.empty()) secret = LocalSecret::find(port);
  ASSIGN_OR_RETURN(const auto credentials, load_credentials(topology, std::move(secret)));
  RETURN_IF_ERROR(credentials->probe(topology.supervisor_host, port, kProbeTimeout));
  SystemConfig system_config;
  RETURN_IF_ERROR(system_config.apply(line.caf_entries));
  load_network(system_config);
  caf::actor_system system{system_config};
  SupervisorLink link;
  link.network = std::make_shared<Network>(system, credentials, Network::Side::kNode);
  ASSIGN_OR_RETURN(link.supervisor, link.network->find_supervisor(topology.supervisor_host, port));
  const std::string& own_host = config.host.empty() ? topology.supervisor_host : config.host;
  ASSIGN_OR_RETURN(link.port, link.network->open(own_host));
  const NodeHandles node = spawn_node(system, line.options, config, link);
  caf::scoped_actor self{system};
  self->wait_for(node.node);
  leave(config, *node.released);
}

}  // namespace

int node(Arguments given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  NodeSecrets secrets;
  if (!arguments.empty() && arguments.back() == kReadSecretsOption) {
    arguments.pop_back();
    secrets = read_secrets();
    // At the front, since "--" may end the options of the command line.
    arguments.insert(arguments.begin(), secrets.arguments.begin(), secrets.arguments.end());
  }
  CommandLine line;
  line.tells_notes = false;  // `troupe serve` has the same arguments, and logs them
  if (const auto done = read_command_line(line, arguments, kNodeUsage, false)) return *done;
  if (line.positionals.empty() || line.positionals.size() > 2)
    return fail(invalid_argument("expected a node name, and optionally a model"));
  if (line.positionals.size() == 2) line.options.model.model = line.positionals[1];
  if (auto resolved = resolve_model(line.options); !resolved.ok()) return fail(resolved.error());
  const auto topology = options_topology(line.options);
  if (!topology.ok()) return fail(topology.error());
  const NodeConfig* config = topology->find(line.positionals[0]);
  if (config == nullptr || config->name.empty())
    return fail(invalid_argument("the topology has no node '" + line.positionals[0] + "'"));
  if (line.options.topology.supervisor_port == 0) {
    return fail(invalid_argument("supervisor-port is 0: a node needs the supervisor's port",
                                 "supervisor-port"));
  }
  const ReloadSignal reload_signal(line.options);
  std::signal(SIGPIPE, SIG_IGN);
  for (std::string told;; std::this_thread::sleep_for(kRetryInterval)) {
    const Error error = serve_supervisor(line, *config, secrets.cluster_secret);
    // Nodes of the Supervisor's own host are restarted by it.
    if (config->host.empty() || error.code == ErrorCode::kInvalidArgument) return fail(error);
    if (told != error.message) log_info("waiting for the supervisor", kv("reason", error.message));
    told = error.message;
  }
}

}  // namespace troupe::tools
