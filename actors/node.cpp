// The node: a process in which actors are placed. It starts the actors that the Supervisor asks
// for, answers its heartbeats, and ends all of them when the Supervisor is lost.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "actors/deadlines.hpp"
#include "actors/exceptions.hpp"
#include "actors/network.hpp"
#include "actors/node_state.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace node {
namespace {

using namespace std::chrono_literals;

constexpr auto kJoinDeadline = 60s;
/// A node with clients or their journal waits this many times as long before it leaves after a lost
/// connection, so that the other side leaves first.
constexpr double kFrontPatience = 3;
/// The Frontend outlives the RequestRouter: it waits this many times as long for another one.
constexpr double kRouterPatience = 10;

struct HeartState {
  HeartState() = default;
  static inline const char* name = "heart";
};

/// Scheduled by the thread pool like the engine's actors: if it is not run, neither are they.
HeartActor::behavior_type heart_behavior(HeartActor::stateful_pointer<HeartState> self,
                                         const std::shared_ptr<Pulse>& pulse) {
  return {[=](const Heartbeat&) {
    const std::int64_t now = steady_ns();
    pulse->heard_ns = now;
    HeartbeatReply reply;
    for (const auto& worker : pulse->workers) {
      const std::int64_t since = worker->busy_since_ns;
      if (since != 0)
        reply.busy_s = std::max(reply.busy_s, 1e-9 * static_cast<double>(now - since));
    }
    send(self, caf::actor_cast<SupervisorActor>(self->current_sender()), reply);
  }};
}

void end_all(Self self) {
  NodeState& node = state(self);
  for (const auto& [number, group] : node.groups) {
    for (const RoleActors& role : group.actors)
      std::for_each(role.handles.begin(), role.handles.end(), end);
    for (const auto& [rank, executor] : group.remote_executors) end(executor);
    for (const auto& [rank, worker] : group.workers) end(worker);
    if (group.kv_event_publisher) end(pointer(group.kv_event_publisher));
  }
  if (node.encoder_router) end(pointer(node.encoder_router));
  end(pointer(node.heart));
  self->quit();
}

void check_later(Self self, double seconds) {
  const NodeActor me = self;
  send_after(self, from_seconds(seconds), me, CheckNodes{});
}

/// The Supervisor's process has ended, or its connection was closed.
void lose_supervisor(Self self, const std::string& reason) {
  NodeState& node = state(self);
  log_warning("the supervisor is gone", kv("node", node.config.name), kv("reason", reason));
  node.link.supervisor = nullptr;
  node.watch->supervisor_lost(now_seconds());
  if (!node.is_member || node.options.topology.supervisor_timeout_s == 0) end_all(self);
}

/// An actor that ends is no longer watched; one that is unreachable may still be ended by the
/// Supervisor for a while.
void on_down(Self self, const caf::down_msg& down) {
  NodeState& node = state(self);
  if (node.link.supervisor && node.link.supervisor.address() == down.source) {
    return lose_supervisor(self, to_text(down.reason, self->system()));
  }
  const supervision::ActorId actor = node.numbers.of(down.source);
  node.watch->forget_links(actor);
  if (down.reason == caf::exit_reason::remote_link_unreachable)
    node.watch->peer_unreachable(now_seconds(), actor);
}

void watch_links(Self self, const ActorHandles& actors, const ActorHandles& peers,
                 double patience) {
  NodeState& node = state(self);
  const auto number_of = [&](const caf::strong_actor_ptr& actor) {
    return node.numbers.of(caf::actor_cast<caf::actor_addr>(actor));
  };
  for (const caf::strong_actor_ptr& peer : peers) {
    if (!peer || peer->node() == self->node()) continue;
    self->monitor(caf::actor_cast<caf::actor>(peer));
    for (const caf::strong_actor_ptr& actor : actors) {
      self->monitor(caf::actor_cast<caf::actor>(actor));
      node.watch->add_link(number_of(actor), number_of(peer), patience);
    }
  }
}

double patience_for(const NodeState& node, Role role) {
  if (role == Role::kFrontend) return kRouterPatience;
  const bool is_front = node.config.has(Role::kFrontend) || node.config.has(Role::kRequestRouter);
  return is_front ? kFrontPatience : 1;
}

/// The node's Frontend continues with another RequestRouter.
void change_router(Self self, const ActorHandles& router) {
  NodeState& node = state(self);
  for (const auto& [number, group] : node.groups) {
    const ActorHandles& frontend = group.actors[static_cast<std::size_t>(Role::kFrontend)].handles;
    if (frontend.empty()) continue;
    node.watch->forget_links(node.numbers.of(caf::actor_cast<caf::actor_addr>(frontend.front())));
    watch_links(self, frontend, router, kRouterPatience);
    send(self, caf::actor_cast<FrontendActor>(frontend.front()), RouterReady{}, router);
  }
}

// ---- Joining a Supervisor, and its successor
// ----------------------------------------------------------

/// Lists the actors that run here; `handles` gets theirs.
JoinNode inventory(const NodeState& node, ActorHandles& handles) {
  JoinNode join{.version = TROUPE_VERSION,
                .name = node.config.name,
                .pid = getpid(),
                .port = node.link.port,
                .epoch = node.epoch,
                .prepared = node.prepared,
                .has_tokenizer = node.has_tokenizer};
  for (const auto& [number, group] : node.groups) {
    for (std::size_t role = 0; role < kNumRoles; ++role) {
      const RoleActors& actors = group.actors[role];
      for (const caf::strong_actor_ptr& handle : actors.handles) {
        join.actors.push_back({.role = static_cast<Role>(role),
                               .group = number,
                               .incarnation = actors.incarnation,
                               .life = actors.life});
        handles.push_back(handle);
      }
    }
    for (const auto& [rank, worker] : group.workers) {
      join.actors.push_back({.is_worker = true, .group = number, .rank = rank});
      handles.push_back(worker);
    }
    if (group.record) join.groups.push_back(*group.record);
  }
  return join;
}

void on_accepted(Self self, const NodeAccepted& accepted) {
  NodeState& node = state(self);
  NodeConnected connected;
  for (const NodeAddress& address : accepted.peers) {
    auto done = node.link.network->connect(address.host, address.port);
    if (!done.ok() && !connected.error) connected.error = done.error();
  }
  send(self, node.link.supervisor, std::move(connected));
  if (!node.watch->has_supervisor())
    log_info("joined another supervisor", kv("node", node.config.name));
  node.epoch = accepted.epoch;
  node.pulse->heard_ns = steady_ns();
  node.watch->joined(now_seconds());
  if (!std::exchange(node.is_member, true)) check_later(self, 0);
}

void join(Self self) {
  NodeState& node = state(self);
  self->monitor(node.link.supervisor);
  const SupervisorActor supervisor = node.link.supervisor;
  const auto fail = [self](const std::string& why, bool for_now) {
    NodeState& node = state(self);
    log_error("the node cannot join", kv("node", node.config.name), kv("reason", why));
    if (!node.is_member || !for_now) return end_all(self);
    node.link.supervisor = nullptr;  // the actors of this node keep running
  };
  const NodeActor me = self;
  ActorHandles handles = {pointer(me), pointer(node.heart)};
  JoinNode question = inventory(node, handles);
  ask(self, node.link.supervisor, kJoinDeadline, std::move(question), std::move(handles))
      .then(
          [self, fail, supervisor](const NodeAccepted& accepted) {
            if (state(self).link.supervisor != supervisor) return;
            if (!accepted.error) return on_accepted(self, accepted);
            fail(accepted.error->message, accepted.error->code == ErrorCode::kUnavailable);
          },
          [self, fail, supervisor](const caf::error& error) {
            if (state(self).link.supervisor == supervisor)
              fail(to_text(error, self->system()), /*for_now=*/true);
          });
}

/// Another Supervisor at the same address, if there is one.
void find_supervisor(Self self) {
  NodeState& node = state(self);
  const TopologyOptions& topology = node.options.topology;
  auto found = node.link.network->find_supervisor(
      topology.supervisor_host, static_cast<std::uint16_t>(topology.supervisor_port));
  if (!found.ok()) return log_debug("no supervisor", kv("reason", found.error().message));
  node.link.supervisor = std::move(found).value();
  join(self);
}

void check(Self self) {
  using Action = supervision::NodeWatch::Action;
  NodeState& node = state(self);
  const bool joins = !node.watch->has_supervisor() && node.link.supervisor;
  if (joins) return check_later(self, 1);
  const auto decision =
      node.watch->check(now_seconds(), 1e-9 * static_cast<double>(node.pulse->heard_ns.load()));
  if (decision.action == Action::kLeave) {
    log_warning("the node leaves", kv("node", node.config.name), kv("cause", decision.reason));
    return end_all(self);
  }
  if (decision.action == Action::kJoin) find_supervisor(self);
  check_later(self, decision.next_check_s);
}

NodeActor::behavior_type node_behavior(Self self, const Options& options, const NodeConfig& config,
                                       const SupervisorLink& link, const HeartActor& heart,
                                       const std::shared_ptr<Pulse>& pulse,
                                       const std::shared_ptr<std::atomic<bool>>& released) {
  NodeState& node = state(self);
  node.options = options;
  node.config = config;
  node.link = link;
  node.pulse = pulse;
  node.heart = heart;
  node.released = released;
  if (has_encoders(options) && !config.serves_all_groups())
    node.encoder_router = spawn_encoder_router(self->system());
  node.watch = std::make_unique<supervision::NodeWatch>(supervision::NodeLimits{
      options.topology.node_timeout_s, options.topology.supervisor_timeout_s});
  self->set_exit_handler([self](const caf::exit_msg&) { end_all(self); });
  self->set_exception_handler([self](std::exception_ptr& exception) -> caf::error {
    const std::string reason = describe(exception);
    log_error("the node ends", kv("node", state(self).config.name), kv("reason", reason));
    end_all(self);
    return exit_reason_of(reason);
  });
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  if (link.supervisor) join(self);
  return {
      [self](const PrepareNode& how) -> Status {
        auto prepared = prepare(self, how.read_tokenizer);
        if (prepared.ok())
          (how.read_tokenizer ? state(self).has_tokenizer : state(self).prepared) = true;
        return {prepared.ok() ? std::nullopt : std::optional(prepared.error())};
      },
      [self](const SpawnWorker& what) { return start_worker(self, what); },
      [self](const SpawnRole& what,
             const ActorHandles& peers) -> caf::result<Status, ActorHandles> {
        if (what.role == Role::kEncoder) return start_encoder(self, what);
        GroupActors& group = state(self).groups[what.group];
        RoleActors& actors = group.actors.at(static_cast<std::size_t>(what.role));
        std::for_each(actors.handles.begin(), actors.handles.end(), end);
        actors = {};
        auto spawned = spawn_role(self, what, peers);
        if (!spawned.ok()) return {Status{spawned.error()}, ActorHandles{}};
        actors = {std::move(spawned).value(), what.incarnation, what.life};
        watch_links(self, actors.handles, peers, patience_for(state(self), what.role));
        return {Status{}, actors.handles};
      },
      [self](const OpenRings& open) { take_rings(self, open); },
      [self](const RouterReady&, const ActorHandles& router) { change_router(self, router); },
      [self](const EncodersChanged& changed, const ActorHandles& encoders) {
        if (state(self).encoder_router) send(self, state(self).encoder_router, changed, encoders);
      },
      [self](const GroupRecord& record) { state(self).groups[record.group].record = record; },
      [self](const CheckNodes&) { check(self); },
      [self](const LeaveNode& leave) {
        *state(self).released = leave.for_good;
        end_all(self);
      },
  };
}

}  // namespace
}  // namespace node

NodeHandles spawn_node(caf::actor_system& system, const Options& options, const NodeConfig& config,
                       const SupervisorLink& link) {
  const std::size_t num_encoders = config.has(Role::kEncoder) ? 1 : 0;  // the last one
  auto pulse =
      std::make_shared<node::Pulse>(config.workers.size() * config.groups.size() + num_encoders);
  auto released = std::make_shared<std::atomic<bool>>(false);
  NodeHandles handles;
  handles.released = released;
  handles.heart = system.spawn(node::heart_behavior, pulse);
  handles.node = system.spawn<caf::detached>(node::node_behavior, options, config, link,
                                             handles.heart, pulse, released);
  return handles;
}

}  // namespace troupe
