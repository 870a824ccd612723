#include "runtime/config/topology.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

namespace troupe {
namespace {

constexpr std::string_view kNodePrefix = "node.";

Result<Role> parse_role(const std::string& text) {
  std::string names;
  for (const RoleSpec& spec : kRoles) {
    if (spec.name == text) return spec.role;
    names.append(names.empty() ? "" : ", ").append(spec.name);
  }
  return invalid_argument("unknown role '" + text + "', expected one of " + names);
}

/// `what` is "worker" or "group"; its numbers are [0, count).
Result<std::int32_t> parse_number(std::string_view what, const std::string& text,
                                  std::int32_t count) {
  std::int32_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && number >= 0 && number < count) return number;
  return invalid_argument(std::string(what) + " " + text + ": the " +
                          (what == "worker" ? "ranks" : "groups") + " are 0 to " +
                          std::to_string(count - 1));
}

Result<void> take_entry(NodeConfig& node, const ConfigEntry& entry, const TopologySize& size) {
  if (entry.key == "host" || entry.key == "device" || entry.key == "optional") {
    if (entry.is_list) return invalid_argument(entry.key + " takes one value, not a list");
    if (entry.key == "host") {
      node.host = entry.value;
    } else if (entry.key == "device") {
      if (std::ranges::find(kDeviceNames, entry.value) == std::end(kDeviceNames))
        return invalid_argument("device is '" + entry.value +
                                "', not one of auto, cpu, cuda, cuda-emulated");
      node.device = entry.value;
    } else if (entry.value == "true" || entry.value == "false") {
      node.optional = entry.value == "true";
    } else {
      return invalid_argument("optional is '" + entry.value + "', expected true or false");
    }
    return {};
  }
  if (entry.key != "roles" && entry.key != "workers" && entry.key != "group") {
    return invalid_argument("unknown key '" + entry.section + "." + entry.key +
                            "', expected device, group, host, optional, roles or workers");
  }
  if (entry.key == "group") node.groups.clear();
  if (entry.key == "group" && !entry.is_list) {
    ASSIGN_OR_RETURN(const std::int32_t group, parse_number("group", entry.value, size.num_groups));
    node.groups = {group};
    return {};
  }
  if (!entry.is_list) return invalid_argument(entry.key + " takes a list");
  for (const std::string& element : entry.list) {
    if (entry.key == "roles") {
      ASSIGN_OR_RETURN(const Role role, parse_role(element));
      if (node.has(role)) return invalid_argument("role '" + element + "' is listed twice");
      node.roles.push_back(role);
    } else if (entry.key == "workers") {
      ASSIGN_OR_RETURN(const std::int32_t rank, parse_number("worker", element, size.num_workers));
      node.workers.push_back(rank);
    } else {
      ASSIGN_OR_RETURN(const std::int32_t group, parse_number("group", element, size.num_groups));
      if (node.is_in(group)) return invalid_argument("group " + element + " is listed twice");
      node.groups.push_back(group);
    }
  }
  return {};
}

/// Every role and rank runs on exactly one node.
Result<void> check_places(const std::vector<NodeConfig>& nodes, const TopologySize& size) {
  const auto check = [&](const std::string& what, auto runs) -> Result<void> {
    std::string found;
    for (const NodeConfig& node : nodes) {
      for (std::ptrdiff_t times = runs(node); times > 0; --times) {
        if (!found.empty())
          return invalid_argument(what + " is assigned to both '" + found + "' and '" + node.name +
                                  "'");
        found = node.name;
      }
    }
    if (found.empty()) return invalid_argument("no node runs the " + what);
    return {};
  };
  for (std::int32_t group = 0; group < size.num_groups; ++group) {
    const std::string of = size.num_groups > 1 ? " of group " + std::to_string(group) : "";
    for (const RoleSpec& spec : kRoles) {
      if (spec.is_optional) continue;
      RETURN_IF_ERROR(
          check(std::string(spec.name) + (spec.is_shared ? "" : of), [&](const NodeConfig& node) {
            return spec.is_shared || node.is_in(group)
                       ? std::count(node.roles.begin(), node.roles.end(), spec.role)
                       : 0;
          }));
    }
    for (std::int32_t rank = 0; rank < size.num_workers; ++rank) {
      RETURN_IF_ERROR(
          check("worker of rank " + std::to_string(rank) + of, [&](const NodeConfig& node) {
            return node.is_in(group) ? std::count(node.workers.begin(), node.workers.end(), rank)
                                     : 0;
          }));
    }
  }
  return {};
}

/// TLS needs all three files, and nodes on several hosts need an explicit choice.
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
    return invalid_argument("insecure and tls-certificate exclude each other", "insecure");
  const bool secret = !options.cluster_secret_file.empty();
  if (secret && (tls || options.insecure)) {
    return invalid_argument(std::string("cluster-secret-file and ") +
                                (tls ? "tls-certificate" : "insecure") + " exclude each other",
                            "cluster-secret-file");
  }
  if (spans_hosts && !tls && !secret && !options.insecure) {
    return invalid_argument(
        "nodes are on several hosts without authentication, so anyone who can connect to "
        "supervisor-port controls the engine: set tls-certificate, tls-key and tls-ca, or "
        "cluster-secret-file, or insecure=true in a trusted network",
        "tls-certificate");
  }
  return {};
}

/// At least one group must run from the start.
Result<void> check_optional(const Topology& topology) {
  bool one_is_there = false;
  for (std::int32_t group = 0; group < topology.size.num_groups; ++group) {
    one_is_there |=
        std::none_of(topology.nodes.begin(), topology.nodes.end(), [&](const NodeConfig& node) {
          return node.optional && node.is_in(group) && !node.serves_all_groups();
        });
  }
  for (const NodeConfig& node : topology.nodes) {
    for (const Role role : node.roles) {
      if (node.optional && spec_of(role).is_shared && !spec_of(role).is_optional) {
        return invalid_argument("'" + node.name + "' is optional, but runs the " +
                                std::string(spec_of(role).name));
      }
    }
  }
  if (!one_is_there) return invalid_argument("every group has an optional node");
  return {};
}

/// Places the RequestRouter with the Frontend unless the topology names its node.
void place_router(std::vector<NodeConfig>& nodes) {
  for (const NodeConfig& node : nodes) {
    if (node.has(Role::kRequestRouter)) return;
  }
  for (NodeConfig& node : nodes) {
    const auto frontend = std::find(node.roles.begin(), node.roles.end(), Role::kFrontend);
    if (frontend == node.roles.end()) continue;
    node.roles.insert(frontend + 1, Role::kRequestRouter);
    return;
  }
}

std::string describe_groups(const NodeConfig& node) {
  std::string text = node.groups.size() == 1 ? "group" : "groups";
  for (const std::int32_t group : node.groups) text += " " + std::to_string(group);
  return text;
}

std::string describe_workers(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "worker" : "workers";
  for (const std::int32_t rank : ranks) text += " " + std::to_string(rank);
  return text;
}

/// One host's box, with its nodes below each other to limit the width.
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

bool NodeConfig::has(Role role) const {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

bool NodeConfig::is_in(std::int32_t group) const {
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

bool NodeConfig::serves_all_groups() const {
  return workers.empty() && !roles.empty() &&
         std::all_of(roles.begin(), roles.end(), [](Role role) { return spec_of(role).is_shared; });
}

const NodeConfig* Topology::find(std::string_view name) const {
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const NodeConfig& n) { return n.name == name; });
  return found == nodes.end() ? nullptr : &*found;
}

const NodeConfig& Topology::node_of(Role role, std::int32_t group) const {
  return *std::find_if(nodes.begin(), nodes.end(), [&](const NodeConfig& node) {
    return node.has(role) && (spec_of(role).is_shared || node.is_in(group));
  });
}

const NodeConfig& Topology::node_of_worker(std::int32_t rank, std::int32_t group) const {
  return *std::find_if(nodes.begin(), nodes.end(), [&](const NodeConfig& node) {
    return node.is_in(group) &&
           std::find(node.workers.begin(), node.workers.end(), rank) != node.workers.end();
  });
}

bool Topology::spans_hosts() const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const NodeConfig& node) { return !node.host.empty(); });
}

Topology single_process_topology(const TopologySize& size) {
  NodeConfig all;
  for (const RoleSpec& spec : kRoles)
    if (!spec.is_optional) all.roles.push_back(spec.role);
  all.workers.resize(static_cast<std::size_t>(size.num_workers));
  std::iota(all.workers.begin(), all.workers.end(), 0);
  all.groups.resize(static_cast<std::size_t>(size.num_groups));
  std::iota(all.groups.begin(), all.groups.end(), 0);
  return {{std::move(all)}, size};
}

bool is_node_section(std::string_view section) noexcept { return section.starts_with(kNodePrefix); }

Result<Topology> parse_topology(std::span<const ConfigEntry> entries, std::string_view file_name,
                                const TopologySize& size) {
  Topology topology{.size = size};
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
        return where(invalid_argument("[node." + name + "] is defined twice"));
      topology.nodes.push_back({.name = name});
    }
    if (auto taken = take_entry(topology.nodes.back(), entry, size); !taken.ok())
      return where(taken.error());
  }
  if (topology.nodes.empty()) return single_process_topology(size);
  place_router(topology.nodes);
  auto checked = check_places(topology.nodes, size);
  if (checked.ok()) checked = check_optional(topology);
  if (!checked.ok())
    return invalid_argument(std::string(file_name) + ": " + checked.error().message);
  return topology;
}

Result<Topology> options_topology(const Options& options) {
  const EngineOptions& engine = options.engine;
  const TopologySize size = {.num_workers = static_cast<std::int32_t>(
                                 engine.tensor_parallel_size * engine.pipeline_parallel_size),
                             .num_groups = static_cast<std::int32_t>(engine.data_parallel_size)};
  ASSIGN_OR_RETURN(Topology topology, parse_topology(options.nodes, options.config_file, size));
  const std::string& host = options.topology.supervisor_host;
  if (topology.spans_hosts() && is_loopback(host)) {
    return invalid_argument(
        "supervisor-host is " + host + ", which nodes on other hosts cannot reach",
        "supervisor-host");
  }
  if (topology.spans_hosts() && options.topology.supervisor_port == 0) {
    return invalid_argument("supervisor-port is 0; with nodes on other hosts it must be fixed",
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
      contents.append(contents.empty() ? "" : ", ").append(spec_of(role).name);
    }
    if (!node.workers.empty()) {
      contents.append(contents.empty() ? "" : ", ").append(describe_workers(node.workers));
      if (!node.device.empty()) contents += " on " + node.device;
    }
    std::string line = one_process ? "one process" : node.name;
    if (topology.size.num_groups > 1 && !node.serves_all_groups())
      line += " (" + describe_groups(node) + (node.optional ? ", optional)" : ")");
    lines[at].push_back(line + ": " + contents);
  }
  std::string text;
  for (std::size_t i = 0; i < hosts.size(); ++i) draw_host(text, hosts[i], lines[i]);
  return text;
}

}  // namespace troupe
