// The Supervisor's nodes: processes of this host are started and started anew, those of others
// join; who is silent is gone.
#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/spawn.hpp"
#include "actors/supervisor_state.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"

namespace troupe::supervision {
namespace {

using namespace std::chrono_literals;

constexpr auto kCheckInterval = 500ms;
/// A process that dies so soon after its start is started again after that time only.
constexpr double kRestartInterval_s = 0.2;
/// A process that was asked to leave is killed after so long.
constexpr double kReleaseTimeout_s = 5;
/// To begin, to join and to reach the other nodes a process may take so many times node-timeout-s.
constexpr double kJoinFactor = 5;

/// Something runs in it, or is to.
bool is_needed(const SupervisorState& supervisor, const NodeSlot& slot) {
  if (slot.config.has(Role::kFrontend) || slot.config.has(Role::kRequestRouter)) return true;
  const auto& groups = slot.config.groups;
  return std::any_of(groups.begin(), groups.end(), [&](std::int32_t group) {
    return supervisor.groups[static_cast<std::size_t>(group)].state != GroupState::kAbsent;
  });
}

/// A process that the Supervisor should have, and has not.
bool is_missing(const SupervisorState& supervisor, const NodeSlot& slot) {
  return !supervisor.is_single_process() && slot.config.host.empty() && !slot.process &&
         !slot.node && is_needed(supervisor, slot);
}

double join_timeout_s(const SupervisorState& supervisor) {
  return kJoinFactor * supervisor.start.options.topology.node_timeout_s;
}

LossCause cause_of(ProcessEnd::Kind kind) {
  if (kind == ProcessEnd::Kind::kEnded) return LossCause::kOutside;
  return kind == ProcessEnd::Kind::kCrashed ? LossCause::kCrashed : LossCause::kKilled;
}

void start_process(Self self, std::size_t index) {
  SupervisorState& supervisor = state(self);
  NodeSlot& slot = supervisor.nodes[index];
  slot.started_at = now_seconds();
  slot.lost_at = slot.started_at + join_timeout_s(supervisor);
  std::vector<std::string> arguments = {supervisor.start.node_program, "node", slot.config.name};
  const auto& own = supervisor.start.node_arguments;
  const auto end_of_options = std::find(own.begin(), own.end(), "--");
  arguments.insert(arguments.end(), own.begin(), end_of_options);
  arguments.insert(arguments.end(), {"--supervisor-port", std::to_string(supervisor.port)});
  arguments.insert(arguments.end(), end_of_options, own.end());
  arguments.emplace_back(kReadSecretsOption);
  const SupervisorActor me = self;
  const NodeExited exited{.node = static_cast<std::uint32_t>(index), .life = ++slot.life};
  auto process = ChildProcess::start(
      arguments,
      [me, exited](ProcessEnd end) {
        NodeExited message = exited;
        message.how = std::move(end.text);
        message.cause = cause_of(end.kind);
        post(me, std::move(message));
      },
      supervisor.secrets.encode());
  if (process.ok()) {
    slot.process = std::move(process).value();
  } else if (supervisor.started.pending()) {
    refuse_start(self, process.error());
  } else {  // the next look at the nodes tries again
    log_error("no process for a node", kv("node", slot.config.name),
              kv("error", process.error().message));
  }
}

/// It is not there any more, whatever its process does.
void forget_node(Self self, std::size_t index) {
  SupervisorState& supervisor = state(self);
  NodeSlot& slot = supervisor.nodes[index];
  std::erase_if(supervisor.watched, [&](const Watched& w) { return w.node == index; });
  for (GroupSlot& group : supervisor.groups) {
    for (WorkerSlot& worker : group.workers) {
      if (worker.node == index) worker = {.node = index};
    }
  }
  if (slot.config.has(Role::kFrontend)) lose_frontend(supervisor);
  if (slot.config.has(Role::kRequestRouter)) lose_router(supervisor);
  slot.node = nullptr;
  slot.heart = nullptr;
  slot.lost_at = 0;
  slot.connected = slot.preparing = slot.prepared = slot.has_tokenizer = false;
}

/// Of a node that was asked for it at this visit.
void on_prepared(Self self, std::size_t index, const Status& status) {
  SupervisorState& supervisor = state(self);
  NodeSlot& slot = supervisor.nodes[index];
  slot.preparing = false;
  if (status.error && supervisor.started.pending()) return refuse_start(self, *status.error);
  if (status.error) return recover_node(self, index, status.error->message, LossCause::kOutside);
  (slot.prepared ? slot.has_tokenizer : slot.prepared) = true;
  for (const std::int32_t group : slot.config.groups)
    advance_group(self, static_cast<std::size_t>(group));
  advance_front(self);
}

}  // namespace

void lose_node(Self self, std::size_t index) {
  forget_node(self, index);
  if (const auto& process = state(self).nodes[index].process) process->kill();
}

void prepare_node(Self self, std::size_t index) {
  NodeSlot& slot = state(self).nodes[index];
  if (slot.has_tokenizer || slot.preparing) return;
  slot.preparing = true;
  const std::uint64_t visit = slot.visit;
  const std::string name = slot.config.name;
  const auto is_current = [=] {
    const SupervisorState& supervisor = state(self);
    return supervisor.nodes[index].node && supervisor.nodes[index].visit == visit &&
           !supervisor.stopping;
  };
  ask(self, slot.node, kControlDeadline, PrepareNode{slot.prepared})
      .then(
          [=](const Status& status) {
            if (is_current()) on_prepared(self, index, status);
          },
          [=](const caf::error& error) {
            if (!is_current()) return;
            on_prepared(self, index,
                        Status{Error{ErrorCode::kInternal, "node " + name + " is not ready: " +
                                                               to_text(error, self->system())}});
          });
}

void release_nodes(Self self, std::size_t group) {
  SupervisorState& supervisor = state(self);
  if (supervisor.is_single_process()) return;
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    NodeSlot& slot = supervisor.nodes[index];
    if (!slot.config.is_in(static_cast<std::int32_t>(group)) || is_needed(supervisor, slot))
      continue;
    if (slot.process) slot.killed_at = now_seconds() + kReleaseTimeout_s;
    if (!slot.node) continue;
    log_info("node released", kv("node", slot.config.name));
    send(self, slot.node, LeaveNode{.for_good = true});
    forget_node(self, index);
  }
}

void on_node_exited(Self self, const NodeExited& exited) {
  SupervisorState& supervisor = state(self);
  NodeSlot& slot = supervisor.nodes[exited.node];
  if (slot.life != exited.life) return;
  const bool was_there = slot.node != nullptr;
  slot.killed_at = slot.lost_at = 0;
  if (supervisor.stopping) {
    slot.process = nullptr;
    lose_node(self, exited.node);
    return end_children(self);
  }
  const std::string what = "node " + slot.config.name + " ended: " + exited.how;
  if (supervisor.started.pending()) {
    slot.process = nullptr;
    return refuse_start(self, {ErrorCode::kUnavailable, what});
  }
  lose_node(self, exited.node);
  slot.process = nullptr;
  if (was_there) {
    recover_node(self, exited.node, what, exited.cause);
  } else {
    log_warning("node process ended", kv("node", slot.config.name), kv("how", exited.how));
  }
  if (is_missing(supervisor, slot) && now_seconds() - slot.started_at >= kRestartInterval_s)
    start_process(self, exited.node);
  // Else the next look at the nodes does it.
}

NodeAccepted on_join(Self self, const JoinNode& join, const ActorHandles& handles) {
  SupervisorState& supervisor = state(self);
  const auto refuse = [](std::string reason) {
    log_warning("node refused", kv("reason", reason));
    return NodeAccepted{.error = Error{ErrorCode::kInvalidArgument, std::move(reason)}};
  };
  if (join.protocol != kProtocolVersion || join.version != TROUPE_VERSION) {
    return refuse("node '" + join.name + "' is troupe " + join.version + " (protocol " +
                  std::to_string(join.protocol) +
                  "), the supervisor is troupe " TROUPE_VERSION " (protocol " +
                  std::to_string(kProtocolVersion) + ")");
  }
  std::size_t index = 0;
  while (index < supervisor.nodes.size() && supervisor.nodes[index].config.name != join.name)
    ++index;
  if (index == supervisor.nodes.size())
    return refuse("the topology has no node '" + join.name + "'");
  const caf::node_id home = self->current_sender() ? self->current_sender()->node() : self->node();
  if (handles.size() != 2 ||
      !std::all_of(handles.begin(), handles.end(), [&](const caf::strong_actor_ptr& handle) {
        return handle && handle->node() == home && home != self->node();
      }))
    return refuse("node '" + join.name + "' has no actors");
  NodeSlot& slot = supervisor.nodes[index];
  if (slot.process && slot.process->pid() != join.pid) {
    return refuse("node '" + join.name + "' is process " + std::to_string(slot.process->pid()) +
                  ", not " + std::to_string(join.pid));
  }
  if (slot.killed_at > 0) return refuse("node '" + join.name + "' is to leave");
  if (supervisor.stopping) return refuse("the system is shutting down");
  if (slot.node) {
    lose_node(self, index);
    recover_node(self, index, "node " + join.name + " has come anew", LossCause::kOutside);
  }
  slot.node = caf::actor_cast<NodeActor>(handles[0]);
  slot.heart = caf::actor_cast<HeartActor>(handles[1]);
  slot.heard_at = now_seconds();
  slot.lost_at = slot.heard_at + join_timeout_s(supervisor);
  ++slot.visit;
  const std::string& host = slot.config.host;
  slot.address = {host.empty() ? supervisor.start.options.topology.supervisor_host : host,
                  join.port};
  watch(self, "node " + join.name, handles[0], index);
  NodeAccepted accepted;
  for (const NodeSlot& other : supervisor.nodes) {
    if (&other != &slot && other.node) accepted.peers.push_back(other.address);
  }
  return accepted;
}

void on_connected(Self self, const NodeConnected& connected) {
  SupervisorState& supervisor = state(self);
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    NodeSlot& slot = supervisor.nodes[index];
    if (!slot.node || slot.node.address() != self->current_sender()) continue;
    if (connected.error) {
      const Error error = {connected.error->code, "node " + slot.config.name + " cannot reach " +
                                                      connected.error->message};
      lose_node(self, index);
      if (supervisor.started.pending()) return refuse_start(self, error);
      return recover_node(self, index, error.message, LossCause::kOutside);
    }
    slot.connected = true;
    slot.lost_at = 0;
    log_info("node joined", kv("node", slot.config.name), kv("host", slot.address.host));
    for (const std::int32_t group : slot.config.groups)
      admit_group(self, static_cast<std::size_t>(group));
    for (std::size_t group = 0; group < supervisor.groups.size(); ++group)
      advance_group(self, group);
    return advance_front(self);
  }
}

void on_heartbeat(Self self, const HeartbeatReply& reply) {
  SupervisorState& supervisor = state(self);
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    NodeSlot& slot = supervisor.nodes[index];
    if (!slot.heart || slot.heart.address() != self->current_sender()) continue;
    slot.heard_at = now_seconds();
    const auto& groups = slot.config.groups;
    const bool serves = std::any_of(groups.begin(), groups.end(), [&](std::int32_t group) {
      return supervisor.groups[static_cast<std::size_t>(group)].state == GroupState::kServing;
    });
    if (!serves || reply.busy_s < supervisor.start.options.topology.step_timeout_s) return;
    const std::string what = "a worker of node " + slot.config.name + " has been at a step for " +
                             std::to_string(static_cast<int>(reply.busy_s)) + " s";
    if (slot.process) lose_node(self, index);
    return recover_node(self, index, what, LossCause::kOutside);
  }
}

void check_nodes_later(Self self) {
  const SupervisorActor me = self;
  send_after(self, kCheckInterval, me, CheckNodes{});
}

void check_nodes(Self self) {
  SupervisorState& supervisor = state(self);
  const double now = now_seconds();
  if (supervisor.stopping) {
    if (now >= supervisor.killed_at) {
      for (NodeSlot& slot : supervisor.nodes) {
        if (slot.process) slot.process->kill();
      }
      supervisor.watched.clear();  // who has not ended by now is on a node that is gone
      end_children(self);
    }
    return check_nodes_later(self);
  }
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    NodeSlot& slot = supervisor.nodes[index];
    if (slot.heart) send(self, slot.heart, Heartbeat{});
    const double silent_s = now - slot.heard_at;
    if (slot.node && !supervisor.is_single_process() &&
        silent_s > supervisor.start.options.topology.node_timeout_s) {
      lose_node(self, index);
      recover_node(self, index,
                   "node " + slot.config.name + " has been silent for " +
                       std::to_string(static_cast<int>(silent_s * 1000)) + " ms",
                   LossCause::kOutside);
    }
    if (slot.lost_at > 0 && now >= slot.lost_at) {
      lose_node(self, index);
      recover_node(self, index,
                   "node " + slot.config.name + " has not come within " +
                       std::to_string(static_cast<int>(join_timeout_s(supervisor) * 1000)) + " ms",
                   LossCause::kOutside);
    }
    if (slot.process && slot.killed_at > 0 && now >= slot.killed_at) slot.process->kill();
    if (is_missing(supervisor, slot) && now - slot.started_at >= kRestartInterval_s)
      start_process(self, index);
  }
  for (std::size_t group = 0; group < supervisor.groups.size(); ++group) {
    if (std::exchange(supervisor.groups[group].waits, false)) advance_group(self, group);
  }
  if (std::exchange(supervisor.front_waits, false)) advance_front(self);
  check_nodes_later(self);
}

Result<void> start_nodes(Self self) {
  SupervisorState& supervisor = state(self);
  if (supervisor.is_single_process()) {
    NodeSlot& slot = supervisor.nodes.front();
    const NodeHandles handles = spawn_node(self->system(), supervisor.start.options, slot.config);
    slot.node = handles.node;
    slot.heart = handles.heart;
    slot.connected = true;
    watch(self, "node", caf::actor_cast<caf::strong_actor_ptr>(handles.node), 0);
    return {};
  }
  if (!self->system().has_middleman())
    return invalid_argument("several nodes need CAF's middleman: load it into the configuration");
  const auto here = std::find_if(supervisor.nodes.begin(), supervisor.nodes.end(),
                                 [](const NodeSlot& slot) { return slot.config.host.empty(); });
  if (here != supervisor.nodes.end() && supervisor.start.node_program.empty()) {
    return invalid_argument("node-program is not set: node '" + here->config.name +
                                "' is a process of this host, which runs the program troupe",
                            "node-program");
  }
  const TopologyOptions& topology = supervisor.start.options.topology;
  const bool spans_hosts =
      std::any_of(supervisor.nodes.begin(), supervisor.nodes.end(),
                  [](const NodeSlot& slot) { return !slot.config.host.empty(); });
  // Nodes of other hosts know no secret of this process; where they need none, nobody does.
  if (!spans_hosts) supervisor.secrets.cluster_secret = random_secret();
  supervisor.secrets.arguments = take_secret_options(supervisor.start.node_arguments);
  ASSIGN_OR_RETURN(auto credentials, load_credentials(topology, supervisor.secrets.cluster_secret));
  supervisor.network =
      std::make_unique<Network>(self->system(), std::move(credentials), Network::Side::kSupervisor);
  ASSIGN_OR_RETURN(supervisor.port, supervisor.network->publish(
                                        self, topology.supervisor_host,
                                        static_cast<std::uint16_t>(topology.supervisor_port)));
  if (const std::string& secret = supervisor.secrets.cluster_secret; !secret.empty()) {
    auto published = LocalSecret::publish(supervisor.port, secret);
    if (published.ok()) {
      supervisor.local_secret.emplace(std::move(published).value());
    } else {
      log_warning("nodes that are started by hand will not be let in",
                  kv("reason", published.error().message));
    }
  }
  if (topology.insecure) {
    log_warning("nodes of other hosts come without TLS: whoever can connect can do anything",
                kv("host", topology.supervisor_host), kv("port", supervisor.port));
  }
  log_info("waiting for nodes", kv("host", topology.supervisor_host), kv("port", supervisor.port),
           kv("nodes", supervisor.nodes.size()), kv("tls", !topology.tls_certificate.empty()));
  for (std::size_t index = 0; index < supervisor.nodes.size(); ++index) {
    if (is_missing(supervisor, supervisor.nodes[index])) start_process(self, index);
  }
  return {};
}

}  // namespace troupe::supervision
