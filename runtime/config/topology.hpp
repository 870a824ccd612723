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

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/node.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/option_set.hpp"
#include "runtime/config/options.hpp"

namespace troupe {

/// As a configuration file names it.
[[nodiscard]] std::string_view to_string(Role role) noexcept;

struct NodeConfig {
  std::string name;
  std::string host;  ///< empty: the Supervisor's host; the Supervisor starts and ends the process
  std::vector<Role> roles;
  std::vector<std::int32_t> workers;  ///< ranks
  bool operator==(const NodeConfig&) const = default;

  [[nodiscard]] bool has(Role role) const;
};

/// Invariant of one that parse_topology has returned: each role has one node, and so has each rank
/// from 0 on.
struct Topology {
  std::vector<NodeConfig> nodes;  ///< in the order of the file

  [[nodiscard]] const NodeConfig* find(std::string_view name) const;
  [[nodiscard]] const NodeConfig& node_of(Role role) const;
  [[nodiscard]] const NodeConfig& node_of_worker(std::int32_t rank) const;
  [[nodiscard]] std::int32_t num_workers() const;
  /// Some node is on another host: the Supervisor must be reachable from there.
  [[nodiscard]] bool spans_hosts() const;
};

/// All roles and `num_workers` ranks in one node, the Supervisor's own process.
[[nodiscard]] Topology single_process_topology(std::int32_t num_workers);

/// True for the sections of a configuration file that describe nodes.
[[nodiscard]] bool is_node_section(std::string_view section) noexcept;

/// From the entries of all node sections; none: a single process. Errors name file, line and what
/// is missing, doubled or unknown: a role without a node, a rank out of [0, num_workers).
[[nodiscard]] Result<Topology> parse_topology(std::span<const ConfigEntry> entries,
                                              std::string_view file_name, std::int32_t num_workers);

/// Of the file that the options were read from, for the number of workers that they ask for.
/// Errors: also of nodes on other hosts that could not reach supervisor_host, as it is a loopback
/// address, or supervisor_port, as it is 0; of files for TLS that are not named; of several hosts
/// with neither TLS nor the word that it is not wanted.
[[nodiscard]] Result<Topology> options_topology(const Options& options);

/// What runs where, drawn in boxes, host by host.
[[nodiscard]] std::string draw(const Topology& topology, std::string_view supervisor_host);

}  // namespace troupe
