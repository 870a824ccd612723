#include "runtime/supervision/supervision.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/log.hpp"

namespace troupe::supervision {
namespace {

/// Processes that were asked to leave are killed after this time.
constexpr double kLeaveTimeout_s = 5;

}  // namespace

Supervision::Supervision(SupervisionConfig config)
    : config_(std::move(config)), http_port_(config_.http_port) {
  const TopologySize& size = config_.topology.size;
  groups_.resize(static_cast<std::size_t>(size.num_groups));
  for (GroupSlot& group : groups_) group.workers.resize(static_cast<std::size_t>(size.num_workers));
  for (std::size_t index = 0; index < config_.topology.nodes.size(); ++index) {
    const NodeConfig& node = config_.topology.nodes[index];
    for (const std::int32_t number : node.groups) {
      if (node.serves_all_groups()) break;
      GroupSlot& group = groups_[static_cast<std::size_t>(number)];
      if (node.optional) group.state = GroupState::kAbsent;
      for (const std::int32_t rank : node.workers)
        group.workers[static_cast<std::size_t>(rank)].node = index;
    }
    nodes_.push_back({.config = node});
    if (node.has(Role::kEncoder)) encoders_.push_back({.node = index});
  }
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    groups_[group].secret = config_.secret + "-" + std::to_string(group);
    if (size.num_workers > 1) groups_[group].rendezvous = rendezvous_name(group);
  }
}

std::vector<Command> Supervision::take_commands() { return std::exchange(commands_, {}); }

void Supervision::add_own_node(ActorId node, ActorId heart) {
  nodes_.front().node = node;
  nodes_.front().heart = heart;
  nodes_.front().connected = true;
  watch("node", node, 0);
}

std::uint64_t Supervision::adopt_process(double now, std::size_t node, std::int64_t pid) {
  NodeSlot& slot = nodes_[node];
  resumed_ = slot.has_process = true;
  slot.pid = pid;
  slot.started_at = now;
  slot.lost_at = now + join_timeout_s();
  return ++slot.life;
}

void Supervision::start(double now) {
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    if (is_missing(nodes_[index])) start_process(now, index);
  }
  advance_front();
  advance_encoders();
  for (std::size_t group = 0; group < groups_.size(); ++group) advance_group(group);
}

void Supervision::refuse_start(double now, Error error) {
  if (!starting_) return;  // refused before
  starting_ = false;
  command(AnswerStart{.started = Started{.error = std::move(error)}});
  end_children(now);
}

void Supervision::stop(double now) { end_children(now); }

void Supervision::give_up(const std::string& reason) {
  log_error("the engine is given up", kv("reason", reason));
  given_up_ = true;
  if (router_ != kNobody) command(SendHealth{router_, EngineHealth{false, reason}});
  command(AnnounceFailure{reason});
}

// ---- Watching and stopping ---------------------------------------------------------------------

void Supervision::watch(std::string name, ActorId actor, std::size_t node,
                        std::optional<std::size_t> group) {
  command(WatchActor{actor, name});
  watched_.push_back({std::move(name), actor, node, group});
}

void Supervision::end_quietly(ActorId actor) {
  std::erase_if(watched_, [&](const Watched& w) { return w.actor == actor; });
  command(EndActor{actor});
}

void Supervision::end_children(double now) {
  if (!stopping_) {
    stopping_ = true;
    killed_at_ = now + kLeaveTimeout_s;
  }
  if (!watched_.empty()) {
    // The shutdown continues from here.
    command(EndActor{.actor = watched_.back().actor, .at_once = false});
    return;
  }
  for (const NodeSlot& slot : nodes_) {
    if (slot.node != kNobody) command(SendLeave{slot.node, {}});
  }
  const bool running = std::any_of(nodes_.begin(), nodes_.end(),
                                   [](const NodeSlot& slot) { return slot.has_process; });
  if (!running) command(Quit{!given_up_});  // else it follows the end of the last one
}

void Supervision::actor_down(double now, ActorId actor, const std::string& how, bool unreachable) {
  const auto found = std::find_if(watched_.begin(), watched_.end(),
                                  [&](const Watched& w) { return w.actor == actor; });
  if (found == watched_.end()) return;
  const Watched gone = *found;
  watched_.erase(found);
  if (stopping_) return end_children(now);
  const std::string reason = gone.name + " ended: " + how;
  if (gone.name == kRemoteWorkers) {
    // Most likely a worker's process has ended: its exit status arrives shortly.
    return command(ConfirmLater{
        {static_cast<std::uint32_t>(*gone.group), groups_[*gone.group].incarnation, reason}});
  }
  NodeSlot& slot = nodes_[gone.node];
  if (unreachable || slot.node == actor) {
    // The end of a process of this host is reported shortly, with its exit status. If only the
    // connection is lost, it joins again.
    slot.cut_off = true;
    if (slot.has_process) return;
    lose_node(gone.node);
    return recover_node(now, gone.node, reason, LossCause::kKilled);
  }
  if (lose_encoder(actor, now, reason)) return;
  if (!gone.group) {
    actor == router_ ? lose_router() : lose_frontend();
    return recover_front(now, reason, LossCause::kCrashed);
  }
  for (WorkerSlot& worker : groups_[*gone.group].workers) {
    if (worker.worker == actor) worker = {.node = gone.node};
  }
  recover_group(now, *gone.group, reason, LossCause::kCrashed);
}

// ---- State -----------------------------------------------------------------------------------

/// In shared memory, under a name that is unique on the host; or, with workers on several hosts, at
/// the host of rank 0, on a port after the Supervisor's.
std::string Supervision::rendezvous_name(std::size_t group) const {
  const std::vector<WorkerSlot>& workers = groups_[group].workers;
  const auto host = [&](const WorkerSlot& slot) {
    const std::string& own = nodes_[slot.node].config.host;
    return own.empty() ? config_.supervisor_host : own;
  };
  const std::string first = host(workers.front());
  const bool on_one_host = std::all_of(workers.begin(), workers.end(),
                                       [&](const WorkerSlot& slot) { return host(slot) == first; });
  if (on_one_host) return "shm:" + config_.name + "-" + std::to_string(group);
  return "tcp:" + first + ":" + std::to_string(config_.supervisor_port + 1 + group);
}

double Supervision::load_progress(ActorId executor, std::int32_t rank, double fraction) {
  const double own = fraction >= 0 ? std::min(fraction, 1.0) : 0;  // not NaN
  double all = 1;
  for (GroupSlot& group : groups_) {
    if (group.state == GroupState::kAbsent) continue;
    const auto& executors = group.actors_of(Role::kExecutor);
    const bool is_its = !executors.empty() && executors.front() == executor;
    if (is_its && rank >= 0 && rank < std::ssize(group.workers))
      group.workers[static_cast<std::size_t>(rank)].fraction = own;
    for (const WorkerSlot& slot : group.workers) all = std::min(all, slot.fraction);
  }
  return all;
}

std::optional<std::size_t> Supervision::find_node(const std::string& name) const {
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    if (nodes_[index].config.name == name) return index;
  }
  return std::nullopt;
}

TopologyStatus Supervision::status() const {
  TopologyStatus status;
  for (const GroupSlot& group : groups_) status.groups.push_back({group.state, group.incarnation});
  for (const NodeSlot& node : nodes_) {
    NodeStatus& listed = status.nodes.emplace_back();
    listed = {.name = node.config.name, .host = node.address.host, .joined = node.connected};
    if (!node.config.serves_all_groups()) listed.groups = node.config.groups;
  }
  return status;
}

bool Supervision::is_up() const {
  return reaches_clients() && router_ != kNobody &&
         std::none_of(groups_.begin(), groups_.end(),
                      [](const GroupSlot& group) { return group.state == GroupState::kStarting; });
}

bool Supervision::knows(ActorId actor) const {
  if (actor == router_ || actor == frontend_) return true;
  if (std::any_of(watched_.begin(), watched_.end(),
                  [&](const Watched& watched) { return watched.actor == actor; }))
    return true;
  if (std::any_of(nodes_.begin(), nodes_.end(), [&](const NodeSlot& slot) {
        return slot.node == actor || slot.heart == actor ||
               std::any_of(slot.found.begin(), slot.found.end(),
                           [&](const auto& found) { return found.second == actor; });
      }))
    return true;
  return std::any_of(groups_.begin(), groups_.end(), [&](const GroupSlot& group) {
    return std::any_of(group.actors.begin(), group.actors.end(),
                       [&](const std::vector<ActorId>& role) {
                         return std::find(role.begin(), role.end(), actor) != role.end();
                       });
  });
}

}  // namespace troupe::supervision
