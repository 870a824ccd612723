#pragma once
// Which process runs which actors. A configuration file defines processes ("nodes") in sections
// [node.NAME]; without any, everything runs in one process.
//
//   [node.front]
//   roles=["frontend", "input-processor", "output-processor"]
//   [node.core]
//   roles=["scheduler", "kv-cache-manager", "encoder-cache-manager", "executor"]
//   [node.worker-0]
//   workers=[0]
//   host="10.0.0.2"      ; none: the Supervisor's own host, and the Supervisor starts the process
//   device="cuda"        ; of its workers; none: that of the engine
//
// "request-router" may be omitted: it is then placed with the frontend. "encoder" may be on any
// number of nodes: each of them runs the model's image encoder, for all groups; without one,
// the workers encode.
//
// With data-parallel-size N there are N groups, each with all roles (except for the Frontend and
// the RequestRouter, which are shared) and all ranks:
//
//   group=1              ; or [0, 1]: runs its roles and workers for each of them; default 0
//   optional=true        ; not started by the Supervisor: the group begins when the node joins

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
  std::string device;                      ///< of its workers; empty: the engine's
  bool optional = false;                   ///< not started, nor waited for, at start
  bool operator==(const NodeConfig&) const = default;

  [[nodiscard]] bool has(Role role) const;
  [[nodiscard]] bool is_in(std::int32_t group) const;
  /// Whether it runs shared roles only, and so belongs to no group.
  [[nodiscard]] bool serves_all_groups() const;
};

/// Workers per group, and groups.
struct TopologySize {
  std::int32_t num_workers = 1;
  std::int32_t num_groups = 1;
};

/// Invariant after parse_topology: each shared role has one node, and in each group each other role
/// and each rank has one; optional roles have any number of nodes.
struct Topology {
  std::vector<NodeConfig> nodes;  ///< in the order of the file
  TopologySize size;

  [[nodiscard]] const NodeConfig* find(std::string_view name) const;
  /// Pre: the role is not optional.
  [[nodiscard]] const NodeConfig& node_of(Role role, std::int32_t group = 0) const;
  [[nodiscard]] const NodeConfig& node_of_worker(std::int32_t rank, std::int32_t group = 0) const;
  /// Whether some node is on another host, from which the Supervisor must be reachable.
  [[nodiscard]] bool spans_hosts() const;
};

/// All ranks of all groups, and all roles but the optional ones, in one node, the Supervisor's own
/// process.
[[nodiscard]] Topology single_process_topology(const TopologySize& size);

/// Whether a section of a configuration file describes a node.
[[nodiscard]] bool is_node_section(std::string_view section) noexcept;

/// From the entries of all node sections; none: a single process. Errors name file, line and what
/// is missing, duplicated or unknown: a role without a node, a rank outside [0, num_workers), a
/// group outside [0, num_groups).
[[nodiscard]] Result<Topology> parse_topology(std::span<const ConfigEntry> entries,
                                              std::string_view file_name, const TopologySize& size);

/// The topology of the options' file, for the workers and groups of the options. Further errors:
/// nodes on other hosts with a loopback supervisor_host or supervisor_port 0; missing TLS files;
/// several hosts without TLS, secret or `insecure`.
[[nodiscard]] Result<Topology> options_topology(const Options& options);

/// Draws hosts and nodes as boxes.
[[nodiscard]] std::string draw(const Topology& topology, std::string_view supervisor_host);

}  // namespace troupe
