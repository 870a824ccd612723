#pragma once
// Which process runs which actors. A configuration file names processes ("nodes") in sections
// [node.NAME]; without any, everything runs in one process.
//
//   [node.front]
//   roles=["frontend", "input-processor", "output-processor"]
//   [node.core]
//   roles=["scheduler", "kv-cache-manager", "encoder-cache-manager", "executor"]
//   [node.worker-0]
//   workers=[0]
//   host="10.0.0.2"      ; none: the Supervisor's own host, and the Supervisor starts the process
//
// "request-router" need not be named: it is where the frontend is.
//
// With data-parallel-size N there are N groups, each with all roles (but one Frontend and one
// RequestRouter for all) and all ranks:
//
//   group=1              ; or [0, 1]: it runs its roles and workers for each of them; 0 if not said
//   optional=true        ; the group begins when somebody starts this node, and not before

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/node.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/option_set.hpp"
#include "runtime/config/options.hpp"
#include "runtime/config/roles.hpp"

namespace troupe {

struct NodeConfig {
  std::string name;
  std::string host;  ///< empty: the Supervisor's host; the Supervisor starts and ends the process
  std::vector<Role> roles;
  std::vector<std::int32_t> workers;       ///< ranks, in each of the groups
  std::vector<std::int32_t> groups = {0};  ///< does not matter for what all of them share
  bool optional = false;                   ///< nobody starts it, or waits for it, at the start
  bool operator==(const NodeConfig&) const = default;

  [[nodiscard]] bool has(Role role) const;
  [[nodiscard]] bool is_in(std::int32_t group) const;
  /// Runs nothing but what all groups share: it is in no group.
  [[nodiscard]] bool serves_all_groups() const;
};

/// Workers of each group, and groups.
struct TopologySize {
  std::int32_t num_workers = 1;
  std::int32_t num_groups = 1;
};

/// Invariant of one that parse_topology has returned: each role that all groups share has one node,
/// and in each group each other role has one, and so has each rank from 0 on.
struct Topology {
  std::vector<NodeConfig> nodes;  ///< in the order of the file
  TopologySize size;

  [[nodiscard]] const NodeConfig* find(std::string_view name) const;
  [[nodiscard]] const NodeConfig& node_of(Role role, std::int32_t group = 0) const;
  [[nodiscard]] const NodeConfig& node_of_worker(std::int32_t rank, std::int32_t group = 0) const;
  /// Some node is on another host: the Supervisor must be reachable from there.
  [[nodiscard]] bool spans_hosts() const;
};

/// All roles and all ranks of all groups in one node, the Supervisor's own process.
[[nodiscard]] Topology single_process_topology(const TopologySize& size);

/// True for the sections of a configuration file that describe nodes.
[[nodiscard]] bool is_node_section(std::string_view section) noexcept;

/// From the entries of all node sections; none: a single process. Errors name file, line and what
/// is missing, doubled or unknown: a role without a node, a rank out of [0, num_workers), a group
/// out of [0, num_groups).
[[nodiscard]] Result<Topology> parse_topology(std::span<const ConfigEntry> entries,
                                              std::string_view file_name, const TopologySize& size);

/// Of the file that the options were read from, for as many workers and groups as they ask for.
/// Errors: also of nodes on other hosts that could not reach supervisor_host, as it is a loopback
/// address, or supervisor_port, as it is 0; of files for TLS that are not named; of several hosts
/// with neither TLS nor the word that it is not wanted.
[[nodiscard]] Result<Topology> options_topology(const Options& options);

/// What runs where, drawn in boxes, host by host.
[[nodiscard]] std::string draw(const Topology& topology, std::string_view supervisor_host);

}  // namespace troupe
