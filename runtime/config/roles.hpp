#pragma once
// The roles of a topology, one line each: what a configuration file calls them, and whom their
// actors send to.

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string_view>

#include "messages/node.hpp"

namespace troupe {

struct RoleSpec {
  Role role{};
  std::string_view name;     ///< as a configuration file has it
  bool is_shared = false;    ///< of all groups, not of each
  bool is_optional = false;  ///< on any number of nodes, or on none; else on one
  std::array<Peer, 4> peer_list{};
  std::size_t num_peers = 0;

  constexpr RoleSpec(Role which, std::string_view called, bool shared,
                     std::initializer_list<Peer> peers, bool optional = false)
      : role(which),
        name(called),
        is_shared(shared),
        is_optional(optional),
        num_peers(peers.size()) {
    std::copy(peers.begin(), peers.end(), peer_list.begin());
  }
  /// The recipients of its actor's messages.
  [[nodiscard]] constexpr std::span<const Peer> peers() const {
    return {peer_list.data(), num_peers};
  }
};

/// In the order of Role.
inline constexpr std::array<RoleSpec, kNumRoles> kRoles = {{
    {Role::kFrontend, "frontend", true, {Peer::kRequestRouter}},
    {Role::kRequestRouter, "request-router", true, {}},
    {Role::kInputProcessor,
     "input-processor",
     false,
     {Peer::kOutputProcessor, Peer::kScheduler, Peer::kRouterNode}},
    {Role::kOutputProcessor, "output-processor", false, {}},
    {Role::kScheduler,
     "scheduler",
     false,
     {Peer::kKVCacheManager, Peer::kEncoderCacheManager, Peer::kExecutor, Peer::kOutputProcessor}},
    {Role::kKVCacheManager, "kv-cache-manager", false, {}},
    {Role::kEncoderCacheManager, "encoder-cache-manager", false, {}},
    {Role::kExecutor, "executor", false, {Peer::kWorkers, Peer::kRingNodes}},
    {Role::kEncoder, "encoder", true, {}, /*optional=*/true},
}};

[[nodiscard]] constexpr const RoleSpec& spec_of(Role role) {
  return kRoles[static_cast<std::size_t>(role)];
}

/// The roles of a group in the order in which they are spawned: each after those it sends to.
inline constexpr std::array kSpawnOrder = {
    Role::kExecutor,        Role::kKVCacheManager, Role::kEncoderCacheManager,
    Role::kOutputProcessor, Role::kScheduler,      Role::kInputProcessor};

}  // namespace troupe
