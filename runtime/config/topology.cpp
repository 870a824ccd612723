#include "runtime/config/topology.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <utility>

namespace troupe {
namespace {

constexpr std::string_view kNodePrefix = "node.";
constexpr std::array<std::string_view, kNumRoles> kRoleNames = {
    "frontend",         "input-processor",       "output-processor", "scheduler",
    "kv-cache-manager", "encoder-cache-manager", "executor"};

Result<Role> parse_role(const std::string& text) {
  const auto found = std::find(kRoleNames.begin(), kRoleNames.end(), text);
  if (found != kRoleNames.end()) return static_cast<Role>(found - kRoleNames.begin());
  std::string names;
  for (const std::string_view name : kRoleNames)
    names.append(names.empty() ? "" : ", ").append(name);
  return invalid_argument("unknown role '" + text + "', expected one of " + names);
}

Result<std::int32_t> parse_rank(const std::string& text, std::int32_t num_workers) {
  std::int32_t rank = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, rank);
  if (error != std::errc() || stop != end || rank < 0 || rank >= num_workers) {
    return invalid_argument("worker " + text + ": the ranks are 0 to " +
                            std::to_string(num_workers - 1));
  }
  return rank;
}

Result<void> take_entry(NodeConfig& node, const ConfigEntry& entry, std::int32_t num_workers) {
  if (entry.key == "host") {
    if (entry.is_list) return invalid_argument("host takes one value, not a list");
    node.host = entry.value;
    return {};
  }
  if (entry.key != "roles" && entry.key != "workers") {
    return invalid_argument("unknown key '" + entry.section + "." + entry.key +
                            "', expected host, roles or workers");
  }
  if (!entry.is_list) return invalid_argument(entry.key + " takes a list");
  for (const std::string& element : entry.list) {
    if (entry.key == "roles") {
      ASSIGN_OR_RETURN(const Role role, parse_role(element));
      node.roles.push_back(role);
    } else {
      ASSIGN_OR_RETURN(const std::int32_t rank, parse_rank(element, num_workers));
      node.workers.push_back(rank);
    }
  }
  return {};
}

/// What every node list is checked for: each thing to run is asked of exactly one node.
Result<void> check_places(const std::vector<NodeConfig>& nodes, std::int32_t num_workers) {
  const auto check = [&](const std::string& what, auto runs) -> Result<void> {
    std::string found;
    for (const NodeConfig& node : nodes) {
      for (std::ptrdiff_t times = runs(node); times > 0; --times) {
        if (!found.empty())
          return invalid_argument(what + " is asked of '" + found + "' and of '" + node.name + "'");
        found = node.name;
      }
    }
    if (found.empty()) return invalid_argument("no node runs the " + what);
    return {};
  };
  for (std::size_t i = 0; i < kNumRoles; ++i) {
    RETURN_IF_ERROR(check(std::string(kRoleNames[i]), [&](const NodeConfig& node) {
      return std::count(node.roles.begin(), node.roles.end(), static_cast<Role>(i));
    }));
  }
  for (std::int32_t rank = 0; rank < num_workers; ++rank) {
    RETURN_IF_ERROR(check("worker of rank " + std::to_string(rank), [&](const NodeConfig& node) {
      return std::count(node.workers.begin(), node.workers.end(), rank);
    }));
  }
  return {};
}

/// All three files or none, and between hosts one or the other decision.
Result<void> check_security(const TopologyOptions& options, bool spans_hosts) {
  const bool tls = !options.tls_certificate.empty();
  if (tls == options.tls_key.empty() || tls == options.tls_ca.empty()) {
    const std::string missing = !tls                      ? "tls-certificate"
                                : options.tls_key.empty() ? "tls-key"
                                                          : "tls-ca";
    return invalid_argument(missing +
                                " is not set: TLS between nodes needs tls-certificate, "
                                "tls-key and tls-ca",
                            missing);
  }
  if (tls && options.insecure)
    return invalid_argument("insecure is set, and so is tls-certificate: which is it to be?",
                            "insecure");
  if (spans_hosts && !tls && !options.insecure) {
    return invalid_argument(
        "nodes are on several hosts, and whoever can connect to supervisor-port can do anything "
        "with the engine (CAF lets in everybody, and carries all they say out): set "
        "tls-certificate, tls-key and tls-ca, or insecure=true in a network of your own",
        "tls-certificate");
  }
  return {};
}

std::string describe_workers(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "worker" : "workers";
  for (const std::int32_t rank : ranks) text += " " + std::to_string(rank);
  return text;
}

/// One host's box: its nodes side by side would be wide; they stand below each other.
void draw_host(std::string& text, std::string_view host, const std::vector<std::string>& lines) {
  std::size_t width = host.size() + 6;
  for (const std::string& line : lines) width = std::max(width, line.size() + 2);
  const auto repeat = [&](std::string_view piece, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) text += piece;
  };
  text += "┌─ ";
  text += host;
  text += " ";
  repeat("─", width - host.size() - 3);
  text += "┐\n";
  for (const std::string& line : lines) {
    text += "│ " + line + std::string(width - line.size() - 1, ' ') + "│\n";
  }
  text += "└";
  repeat("─", width);
  text += "┘\n";
}

}  // namespace

std::string_view to_string(Role role) noexcept {
  return kRoleNames[static_cast<std::size_t>(role)];
}

bool NodeConfig::has(Role role) const {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

const NodeConfig* Topology::find(std::string_view name) const {
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const NodeConfig& n) { return n.name == name; });
  return found == nodes.end() ? nullptr : &*found;
}

const NodeConfig& Topology::node_of(Role role) const {
  return *std::find_if(nodes.begin(), nodes.end(),
                       [&](const NodeConfig& node) { return node.has(role); });
}

const NodeConfig& Topology::node_of_worker(std::int32_t rank) const {
  return *std::find_if(nodes.begin(), nodes.end(), [&](const NodeConfig& node) {
    return std::find(node.workers.begin(), node.workers.end(), rank) != node.workers.end();
  });
}

std::int32_t Topology::num_workers() const {
  return std::accumulate(nodes.begin(), nodes.end(), 0, [](std::int32_t sum, const NodeConfig& n) {
    return sum + static_cast<std::int32_t>(n.workers.size());
  });
}

bool Topology::spans_hosts() const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const NodeConfig& node) { return !node.host.empty(); });
}

Topology single_process_topology(std::int32_t num_workers) {
  NodeConfig all;
  for (std::size_t i = 0; i < kNumRoles; ++i) all.roles.push_back(static_cast<Role>(i));
  all.workers.resize(static_cast<std::size_t>(num_workers));
  std::iota(all.workers.begin(), all.workers.end(), 0);
  return {{std::move(all)}};
}

bool is_node_section(std::string_view section) noexcept { return section.starts_with(kNodePrefix); }

Result<Topology> parse_topology(std::span<const ConfigEntry> entries, std::string_view file_name,
                                std::int32_t num_workers) {
  Topology topology;
  for (const ConfigEntry& entry : entries) {
    if (!is_node_section(entry.section)) continue;
    const std::string name = entry.section.substr(kNodePrefix.size());
    const auto where = [&](const Error& error) {
      return invalid_argument(std::string(file_name) + ":" + std::to_string(entry.line) + ": " +
                              error.message);
    };
    if (name.empty()) return where(invalid_argument("[node.] needs a name"));
    if (topology.nodes.empty() || topology.nodes.back().name != name) {
      if (topology.find(name) != nullptr)
        return where(invalid_argument("[node." + name + "] stands in two places"));
      topology.nodes.push_back({.name = name});
    }
    if (auto taken = take_entry(topology.nodes.back(), entry, num_workers); !taken.ok())
      return where(taken.error());
  }
  if (topology.nodes.empty()) return single_process_topology(num_workers);
  if (auto placed = check_places(topology.nodes, num_workers); !placed.ok())
    return invalid_argument(std::string(file_name) + ": " + placed.error().message);
  return topology;
}

Result<Topology> options_topology(const Options& options) {
  const std::int64_t num_workers =
      options.engine.tensor_parallel_size * options.engine.pipeline_parallel_size;
  ASSIGN_OR_RETURN(Topology topology, parse_topology(options.nodes, options.config_file,
                                                     static_cast<std::int32_t>(num_workers)));
  const std::string& host = options.topology.supervisor_host;
  if (topology.spans_hosts() && (host.starts_with("127.") || host == "localhost")) {
    return invalid_argument(
        "supervisor-host is " + host + ", which the nodes of other hosts cannot reach",
        "supervisor-host");
  }
  if (topology.spans_hosts() && options.topology.supervisor_port == 0) {
    return invalid_argument("supervisor-port is 0, which the nodes of other hosts cannot know",
                            "supervisor-port");
  }
  RETURN_IF_ERROR(check_security(options.topology, topology.spans_hosts()));
  return topology;
}

std::string draw(const Topology& topology, std::string_view supervisor_host) {
  std::vector<std::string> hosts = {std::string(supervisor_host)};
  std::vector<std::vector<std::string>> lines(1);
  const bool one_process = topology.nodes.size() == 1 && topology.nodes.front().name.empty();
  if (!one_process) lines[0].emplace_back("supervisor");
  for (const NodeConfig& node : topology.nodes) {
    const std::string host = node.host.empty() ? std::string(supervisor_host) : node.host;
    std::size_t at = 0;
    while (at < hosts.size() && hosts[at] != host) ++at;
    if (at == hosts.size()) {
      hosts.push_back(host);
      lines.emplace_back();
    }
    std::string contents = one_process ? "supervisor" : "";
    for (const Role role : node.roles) {
      contents.append(contents.empty() ? "" : ", ").append(to_string(role));
    }
    if (!node.workers.empty()) {
      contents.append(contents.empty() ? "" : ", ").append(describe_workers(node.workers));
    }
    lines[at].push_back((one_process ? "one process" : node.name) + ": " + contents);
  }
  std::string text;
  for (std::size_t i = 0; i < hosts.size(); ++i) draw_host(text, hosts[i], lines[i]);
  return text;
}

}  // namespace troupe
