#pragma once
// A node's decisions: whether it stays, looks for another Supervisor, or leaves.
//
// The Supervisor detects the end of processes, but not that two of them have lost their connection,
// after which their messages are lost. So a node leaves when one of its actors is disconnected from
// an actor that it sends to, unless the Supervisor ends the former first. While there is no
// Supervisor nothing is ended, and no node leaves for that reason.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervision/commands.hpp"

namespace troupe::supervision {

struct NodeLimits {
  double node_timeout_s = 0;        ///< after which the Supervisor considers a silent node lost
  double supervisor_timeout_s = 0;  ///< without a Supervisor; 0: the node ends with it
};

class NodeWatch {
 public:
  explicit NodeWatch(const NodeLimits& limits) : limits_(limits) {}

  /// `actor` runs here and sends to `peer`, which runs elsewhere. The link waits `patience`
  /// times as long as others for the Supervisor to act.
  void add_link(ActorId actor, ActorId peer, double patience);
  /// Its links are no longer watched.
  void forget_links(ActorId actor);
  void peer_unreachable(double now, ActorId peer);

  void supervisor_lost(double now);
  /// Accepted by this Supervisor or another one.
  void joined(double now);
  [[nodiscard]] bool has_supervisor() const noexcept { return !orphaned_at_; }

  enum class Action : std::uint8_t { kStay, kJoin, kLeave };
  struct Decision {
    Action action = Action::kStay;
    std::string reason;       ///< to leave
    double next_check_s = 1;  ///< when to ask again
  };
  /// `heard_at`: when the last heartbeat arrived.
  [[nodiscard]] Decision check(double now, double heard_at);

 private:
  struct Link {
    ActorId actor = kNobody;
    ActorId peer = kNobody;
    double patience = 1;            ///< times kLinkTimeout_s
    std::optional<double> lost_at;  ///< when the peer became unreachable
  };

  NodeLimits limits_;
  std::vector<Link> links_;
  std::optional<double> orphaned_at_;
  double retry_s_ = 0;
};

}  // namespace troupe::supervision
