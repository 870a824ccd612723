// The nodes: processes on the Supervisor's host are started and restarted, those on others join;
// silent ones count as lost.
#include <algorithm>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/supervision/supervision.hpp"

namespace troupe::supervision {
namespace {

/// A process that ends within this time after its start is restarted after it, not at once.
constexpr double kRestartInterval_s = 0.2;
/// A process that was asked to leave is killed after this time.
constexpr double kReleaseTimeout_s = 5;
/// Multiple of node-timeout-s that a process has to start, to join and to connect to other nodes.
constexpr double kJoinFactor = 5;

/// The Supervisor was stopped if check() is late by this multiple of node-timeout-s.
constexpr double kOwnPause = 0.5;

std::string milliseconds(double seconds) {
  return std::to_string(static_cast<int>(seconds * 1000)) + " ms";
}

}  // namespace

/// An actor runs in it, or should.
bool Supervision::is_needed(const NodeSlot& slot) const {
  if (slot.config.has(Role::kFrontend) || slot.config.has(Role::kRequestRouter)) return true;
  // An encoder alone.
  if (slot.config.serves_all_groups()) return !slot.config.optional || slot.node != kNobody;
  const auto& groups = slot.config.groups;
  return std::any_of(groups.begin(), groups.end(), [&](std::int32_t group) {
    return groups_[static_cast<std::size_t>(group)].state != GroupState::kAbsent;
  });
}

/// A process that should run and does not.
bool Supervision::is_missing(const NodeSlot& slot) const {
  return !is_single_process() && slot.config.host.empty() && !slot.has_process &&
         slot.node == kNobody && is_needed(slot);
}

double Supervision::join_timeout_s() const { return kJoinFactor * config_.node_timeout_s; }

void Supervision::start_process(double now, std::size_t index) {
  NodeSlot& slot = nodes_[index];
  slot.started_at = now;
  slot.lost_at = now + join_timeout_s();
  slot.has_process = true;
  command(StartProcess{index, ++slot.life});
}

void Supervision::process_started(std::size_t node, std::uint64_t life, std::int64_t pid) {
  if (nodes_[node].life == life) nodes_[node].pid = pid;
}

void Supervision::process_failed(double now, std::size_t node, std::uint64_t life,
                                 const Error& error) {
  NodeSlot& slot = nodes_[node];
  if (slot.life != life) return;
  slot.has_process = false;
  if (refuses()) return refuse_start(now, error);
  if (stopping_) return end_children(now);
  // The next check() tries again.
  log_error("no process for a node", kv("node", slot.config.name), kv("error", error.message));
}

/// It no longer belongs to the topology, whether its process runs or not.
void Supervision::forget_node(std::size_t index) {
  NodeSlot& slot = nodes_[index];
  std::erase_if(watched_, [&](const Watched& w) { return w.node == index; });
  for (GroupSlot& group : groups_) {
    for (WorkerSlot& worker : group.workers) {
      if (worker.node == index) worker = {.node = index};
    }
  }
  if (slot.config.has(Role::kFrontend)) lose_frontend();
  if (slot.config.has(Role::kRequestRouter)) lose_router();
  forget_encoders(index);
  slot.node = slot.heart = kNobody;
  slot.lost_at = 0;
  slot.connected = slot.preparing = slot.prepared = slot.has_tokenizer = slot.cut_off = false;
  slot.found.clear();
  slot.records.clear();
}

void Supervision::lose_node(std::size_t index) {
  forget_node(index);
  if (nodes_[index].has_process) command(KillProcess{index});
}

void Supervision::prepare_node(std::size_t index) {
  NodeSlot& slot = nodes_[index];
  if (slot.has_tokenizer || slot.preparing) return;
  slot.preparing = true;
  command(AskPrepare{.actor = slot.node,
                     .node = index,
                     .visit = slot.visit,
                     .question = PrepareNode{.read_tokenizer = slot.prepared}});
}

void Supervision::node_prepared(double now, std::size_t node, std::uint64_t visit,
                                const Status& status) {
  NodeSlot& slot = nodes_[node];
  if (slot.node == kNobody || slot.visit != visit || stopping_) return;
  slot.preparing = false;
  if (status.error && refuses()) return refuse_start(now, *status.error);
  if (status.error) return recover_node(now, node, status.error->message, LossCause::kOutside);
  (slot.prepared ? slot.has_tokenizer : slot.prepared) = true;
  for (const std::int32_t group : slot.config.groups)
    advance_group(static_cast<std::size_t>(group));
  advance_front();
}

void Supervision::release_nodes(double now, std::size_t group) {
  if (is_single_process()) return;
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    NodeSlot& slot = nodes_[index];
    if (!slot.config.is_in(static_cast<std::int32_t>(group)) || is_needed(slot)) continue;
    if (slot.has_process) slot.killed_at = now + kReleaseTimeout_s;
    if (slot.node == kNobody) continue;
    log_info("node released", kv("node", slot.config.name));
    command(SendLeave{slot.node, LeaveNode{.for_good = true}});
    forget_node(index);
  }
}

void Supervision::process_exited(double now, const NodeExited& exited) {
  NodeSlot& slot = nodes_[exited.node];
  if (slot.life != exited.life) return;
  const bool was_there = slot.node != kNobody;
  slot.has_process = false;
  slot.killed_at = slot.lost_at = 0;
  if (stopping_) {
    forget_node(exited.node);
    return end_children(now);
  }
  const std::string what = "node " + slot.config.name + " ended: " + exited.how;
  if (refuses()) return refuse_start(now, {ErrorCode::kUnavailable, what});
  forget_node(exited.node);
  if (was_there) {
    recover_node(now, exited.node, what, exited.cause);
  } else {
    log_warning("node process ended", kv("node", slot.config.name), kv("how", exited.how));
  }
  if (is_missing(slot) && now - slot.started_at >= kRestartInterval_s)
    start_process(now, exited.node);
  // Else the next check() does it.
}

NodeAccepted Supervision::join(double now, const JoinNode& join,
                               const std::vector<ActorId>& actors) {
  const auto refuse = [](std::string reason, ErrorCode code = ErrorCode::kInvalidArgument) {
    log_warning("node refused", kv("reason", reason));
    return NodeAccepted{.error = Error{code, std::move(reason)}};
  };
  if (join.protocol != kProtocolVersion || join.version != TROUPE_VERSION) {
    return refuse("node '" + join.name + "' is troupe " + join.version + " (protocol " +
                  std::to_string(join.protocol) +
                  "), the supervisor is troupe " TROUPE_VERSION " (protocol " +
                  std::to_string(kProtocolVersion) + ")");
  }
  const std::optional<std::size_t> found = find_node(join.name);
  if (!found) return refuse("the topology has no node '" + join.name + "'");
  const std::size_t index = *found;
  if (actors.size() != 2 + join.actors.size())
    return refuse("node '" + join.name + "' has no actors");
  NodeSlot& slot = nodes_[index];
  if (slot.has_process && slot.pid != join.pid) {
    return refuse("node '" + join.name + "' is process " + std::to_string(slot.pid) + ", not " +
                  std::to_string(join.pid));
  }
  if (slot.killed_at > 0) return refuse("node '" + join.name + "' is to leave");
  if (stopping_) return refuse("the system is shutting down");
  // If it has really ended, its silence is noticed soon; joining again costs the engine nothing.
  if (slot.node != kNobody && !slot.cut_off)
    return refuse("node '" + join.name + "' has joined already", ErrorCode::kUnavailable);
  if (slot.node != kNobody) {
    forget_node(index);
    recover_node(now, index, "node " + join.name + " has lost its connection", LossCause::kOutside);
  }
  slot.node = actors[0];
  slot.heart = actors[1];
  slot.heard_at = now;
  slot.prepared = join.prepared;
  slot.has_tokenizer = join.has_tokenizer;
  for (std::size_t i = 0; i < join.actors.size(); ++i) {
    if (static_cast<std::size_t>(join.actors[i].role) < kNumRoles)
      slot.found.emplace_back(join.actors[i], actors[i + 2]);
  }
  slot.records = join.groups;
  if (!join.actors.empty()) {
    resumed_ = true;
    config_.epoch = std::max(config_.epoch, join.epoch + 1);
  }
  slot.lost_at = now + join_timeout_s();
  ++slot.visit;
  const std::string& host = slot.config.host;
  slot.address = {host.empty() ? config_.supervisor_host : host, join.port};
  watch("node " + join.name, slot.node, index);
  NodeAccepted accepted{.epoch = config_.epoch};
  for (const NodeSlot& other : nodes_) {
    if (&other != &slot && other.node != kNobody) accepted.peers.push_back(other.address);
  }
  return accepted;
}

void Supervision::node_connected(double now, ActorId node, const NodeConnected& connected) {
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    NodeSlot& slot = nodes_[index];
    if (slot.node == kNobody || slot.node != node) continue;
    if (connected.error) {
      const Error error = {connected.error->code, "node " + slot.config.name + " cannot reach " +
                                                      connected.error->message};
      lose_node(index);
      if (refuses()) return refuse_start(now, error);
      return recover_node(now, index, error.message, LossCause::kOutside);
    }
    slot.connected = true;
    slot.lost_at = 0;
    log_info("node joined", kv("node", slot.config.name), kv("host", slot.address.host));
    adopt_front(index);
    send_encoders(index);
    advance_encoders();
    for (const std::int32_t group : slot.config.groups)
      admit_group(static_cast<std::size_t>(group));
    for (std::size_t group = 0; group < groups_.size(); ++group) advance_group(group);
    return advance_front();
  }
}

void Supervision::heart_beat(double now, ActorId heart, const HeartbeatReply& reply) {
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    NodeSlot& slot = nodes_[index];
    if (slot.heart == kNobody || slot.heart != heart) continue;
    slot.heard_at = now;
    const auto& groups = slot.config.groups;
    const bool serves = std::any_of(groups.begin(), groups.end(), [&](std::int32_t group) {
      return groups_[static_cast<std::size_t>(group)].state == GroupState::kServing;
    });
    const auto encoder = std::ranges::find(encoders_, index, &EncoderSlot::node);
    const ActorId encodes = encoder == encoders_.end() ? kNobody : encoder->actor;
    if ((!serves && encodes == kNobody) || reply.busy_s < config_.step_timeout_s) return;
    const std::string what = "a worker of node " + slot.config.name + " has been at a step for " +
                             std::to_string(static_cast<int>(reply.busy_s)) + " s";
    if (slot.has_process) {
      lose_node(index);
      return recover_node(now, index, what, LossCause::kOutside);
    }
    // Other actors of this process continue.
    if (encodes != kNobody) {
      end_quietly(encodes);
      lose_encoder(encodes, now, what);
    }
    if (slot.config.serves_all_groups()) return;
    for (const std::int32_t group : groups)
      recover_group(now, static_cast<std::size_t>(group), what, LossCause::kOutside);
    return;
  }
}

/// While this process was stopped, it sent and received no heartbeats.
void Supervision::excuse_pause(double now) {
  const double due_at = std::exchange(checked_at_, now) + kCheckInterval_s;
  const double pause_s = now - due_at;
  if (due_at == kCheckInterval_s || pause_s < kOwnPause * config_.node_timeout_s) return;
  log_warning("the supervisor has been stopped itself", kv("ms", milliseconds(pause_s)));
  for (NodeSlot& slot : nodes_) {
    slot.heard_at += pause_s;
    if (slot.lost_at > 0) slot.lost_at += pause_s;
  }
}

void Supervision::check(double now) {
  excuse_pause(now);
  if (stopping_) {
    if (now < killed_at_) return;
    for (std::size_t index = 0; index < nodes_.size(); ++index) {
      if (nodes_[index].has_process) command(KillProcess{index});
    }
    watched_.clear();  // those that remain are on lost nodes
    return end_children(now);
  }
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    NodeSlot& slot = nodes_[index];
    if (slot.heart != kNobody) command(BeatHeart{slot.heart});
    const double silent_s = now - slot.heard_at;
    if (slot.node != kNobody && !is_single_process() && silent_s > config_.node_timeout_s) {
      lose_node(index);
      recover_node(now, index,
                   "node " + slot.config.name + " has been silent for " + milliseconds(silent_s),
                   LossCause::kOutside);
    }
    if (slot.lost_at > 0 && now >= slot.lost_at) {
      lose_node(index);
      recover_node(
          now, index,
          "node " + slot.config.name + " did not join within " + milliseconds(join_timeout_s()),
          LossCause::kOutside);
    }
    if (slot.has_process && slot.killed_at > 0 && now >= slot.killed_at)
      command(KillProcess{index});
    if (is_missing(slot) && now - slot.started_at >= kRestartInterval_s) start_process(now, index);
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (std::exchange(groups_[group].waits, false)) advance_group(group);
  }
  if (std::exchange(front_waits_, false)) advance_front();
  for (EncoderSlot& encoder : encoders_) encoder.waits = false;
  advance_encoders();
}

}  // namespace troupe::supervision
