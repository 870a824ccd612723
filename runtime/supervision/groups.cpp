// The groups: the actors of each engine are started in the nodes of the topology, and restarted
// when one of them ends.
#include <algorithm>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/supervision/supervision.hpp"

namespace troupe::supervision {
namespace {

/// A group is abandoned after this many failed starts in a row.
constexpr int kMaxRecoveries = 8;

bool is_in(const NodeConfig& node, std::size_t group) {
  return node.is_in(static_cast<std::int32_t>(group)) && !node.serves_all_groups();
}

/// Except roles that all groups share.
bool is_of(const RunningActor& what, std::size_t group) {
  return what.group == group && (what.is_worker || !spec_of(what.role).is_shared);
}

}  // namespace

std::size_t Supervision::node_index(std::size_t group, Role role) const {
  std::size_t index = 0;
  while (!is_in(nodes_[index].config, group) || !nodes_[index].config.has(role)) ++index;
  return index;
}

/// True if the flag is set for all nodes of the group.
bool Supervision::all_nodes(std::size_t group, bool NodeSlot::*flag) const {
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const NodeSlot& node) {
    return !is_in(node.config, group) || node.*flag;
  });
}

/// An actor did not start. At first that refuses the start; later the group is started again.
void Supervision::fail_group(double now, std::size_t group, Error error) {
  if (refuses()) return refuse_start(now, std::move(error));
  recover_group(now, group, error.message, LossCause::kOutside);
}

void Supervision::prepare_nodes(std::size_t group) {
  for (std::size_t index = 0; index < nodes_.size(); ++index) {
    if (is_in(nodes_[index].config, group)) prepare_node(index);
  }
}

/// The index of a worker among those of all groups on its host, in order, and the number of
/// these.
RankPlacement Supervision::placement_of(const WorkerSlot& worker) const {
  RankPlacement place{.device = nodes_[worker.node].config.device, .ranks_on_host = 0};
  for (const GroupSlot& group : groups_) {
    for (const WorkerSlot& other : group.workers) {
      if (&other == &worker) place.rank_on_host = place.ranks_on_host;
      if (nodes_[other.node].config.host == nodes_[worker.node].config.host) ++place.ranks_on_host;
    }
  }
  return place;
}

void Supervision::load_model(std::size_t group) {
  GroupSlot& slot = groups_[group];
  slot.workers_asked = true;
  ParallelConfig parallel = config_.parallel;
  parallel.rendezvous = slot.rendezvous;
  parallel.secret = slot.secret;
  parallel.incarnation = slot.incarnation;
  std::vector<RankPlacement> ranks;
  for (const WorkerSlot& worker : slot.workers) ranks.push_back(placement_of(worker));
  command(AskLoad{.executor = slot.first_of(Role::kExecutor),
                  .group = static_cast<std::uint32_t>(group),
                  .incarnation = slot.incarnation,
                  .parallel = std::move(parallel),
                  .ranks = std::move(ranks)});
}

void Supervision::ask_workers(std::size_t group, WorkerMethod method) {
  GroupSlot& slot = groups_[group];
  slot.workers_asked = true;
  command(AskWorkers{.executor = slot.first_of(Role::kExecutor),
                     .group = static_cast<std::uint32_t>(group),
                     .incarnation = slot.incarnation,
                     .method = std::move(method)});
}

void Supervision::spawn_workers(std::size_t group) {
  GroupSlot& slot = groups_[group];
  for (std::size_t rank = 0; rank < slot.workers.size(); ++rank) {
    WorkerSlot& worker = slot.workers[rank];
    if (worker.worker != kNobody || worker.spawning) continue;
    worker.spawning = true;
    command(AskWorker{.node = nodes_[worker.node].node,
                      .incarnation = slot.incarnation,
                      .question = SpawnWorker{static_cast<std::uint32_t>(group),
                                              static_cast<std::int32_t>(rank)}});
  }
}

void Supervision::worker_spawned(double now, std::uint32_t incarnation, const SpawnWorker& what,
                                 const SpawnedActors& spawned) {
  GroupSlot& slot = groups_[what.group];
  if (slot.incarnation != incarnation || stopping_) return;
  if (spawned.error) return fail_group(now, what.group, *spawned.error);
  WorkerSlot& worker = slot.workers[static_cast<std::size_t>(what.rank)];
  worker.spawning = false;
  worker.worker = spawned.actors.front();
  watch("worker", worker.worker, worker.node, what.group);
  advance_group(what.group);
}

void Supervision::workers_replied(double now, std::uint32_t group, std::uint32_t incarnation,
                                  CollectiveRpcReply reply) {
  GroupSlot& slot = groups_[group];
  if (slot.incarnation != incarnation || stopping_) return;
  if (reply.error) return fail_group(now, group, std::move(*reply.error));
  slot.workers_asked = false;
  if (!slot.workers.front().loaded) {
    CHECK(reply.results.size() == slot.workers.size(), reply.results.size(), slot.workers.size());
    for (std::size_t rank = 0; rank < slot.workers.size(); ++rank) {
      slot.workers[rank].loaded = std::get<ModelLoaded>(std::move(reply.results[rank]));
      slot.workers[rank].fraction = 1;
    }
    if (auto settled = settle_model(slot); !settled.ok()) {
      for (WorkerSlot& worker : slot.workers) worker.loaded.reset();
      return fail_group(now, group, settled.error());
    }
  } else if (!slot.have_caches) {
    slot.have_caches = true;
  } else {
    slot.are_warm = true;
  }
  advance_group(group);
}

/// Merges what the workers have loaded, which must agree; the first time it decides the cache.
Result<void> Supervision::settle_model(GroupSlot& group) const {
  std::vector<ModelLoaded> loaded;
  for (const WorkerSlot& worker : group.workers) loaded.push_back(*worker.loaded);
  ASSIGN_OR_RETURN(SettledModel settled, config_.settle(loaded, group.cache));
  group.model = std::move(settled.model);
  group.cache = std::move(settled.cache);
  return {};
}

bool Supervision::advance_workers(std::size_t group) {
  const GroupSlot& slot = groups_[group];
  if (slot.workers_asked) return false;
  if (!slot.workers.front().loaded) return load_model(group), false;
  if (!all_nodes(group, &NodeSlot::has_tokenizer)) return false;
  if (!slot.have_caches)
    return ask_workers(group, InitializeKVCache{slot.cache, slot.incarnation}), false;
  if (!slot.are_warm) return ask_workers(group, WarmUp{}), false;
  return true;
}

/// The workers that share a host with the Executor, but not its process.
std::vector<std::int32_t> Supervision::ring_ranks(std::size_t group) const {
  const std::size_t executor = node_index(group, Role::kExecutor);
  const std::vector<WorkerSlot>& workers = groups_[group].workers;
  std::vector<std::int32_t> ranks;
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    const std::size_t node = workers[rank].node;
    if (node != executor && nodes_[node].config.host == nodes_[executor].config.host)
      ranks.push_back(static_cast<std::int32_t>(rank));
  }
  return ranks;
}

std::vector<ActorId> Supervision::find_peers(std::size_t group, Peer peer) const {
  const GroupSlot& slot = groups_[group];
  std::vector<ActorId> found;
  switch (peer) {
    case Peer::kWorkers:
      for (const WorkerSlot& worker : slot.workers) found.push_back(worker.worker);
      return found;
    case Peer::kRingNodes:
      for (const std::int32_t rank : ring_ranks(group))
        found.push_back(nodes_[slot.workers[static_cast<std::size_t>(rank)].node].node);
      return found;
    case Peer::kExecutor:
      return {slot.first_of(Role::kExecutor)};
    case Peer::kKVCacheManager:
      return {slot.first_of(Role::kKVCacheManager)};
    case Peer::kEncoderCacheManager:
      return {slot.first_of(Role::kEncoderCacheManager)};
    case Peer::kScheduler:
      return {slot.first_of(Role::kScheduler)};
    case Peer::kOutputProcessor:
      return {slot.first_of(Role::kOutputProcessor)};
    case Peer::kRequestRouter:
      return {router_};
    case Peer::kRouterNode:
      return {nodes_[node_of(Role::kRequestRouter)].node};
  }
  return found;
}

void Supervision::spawn_role(std::size_t group, Role role) {
  GroupSlot& slot = groups_[group];
  slot.role_asked = true;
  AskRole ask{.node = nodes_[node_index(group, role)].node,
              .question = SpawnRole{.role = role,
                                    .group = static_cast<std::uint32_t>(group),
                                    .incarnation = slot.incarnation,
                                    .model = slot.model,
                                    .cache = slot.cache,
                                    .ring_ranks = ring_ranks(group)},
              .peers = {}};
  for (const Peer peer : spec_of(role).peers()) {
    for (const ActorId actor : find_peers(group, peer)) {
      ask.question.peers.push_back(peer);
      ask.peers.push_back(actor);
    }
  }
  command(std::move(ask));
}

void Supervision::role_spawned(double now, const SpawnRole& what, const SpawnedActors& spawned) {
  if (what.role == Role::kEncoder) return encoder_spawned(what, spawned, now);
  if (spec_of(what.role).is_shared) return front_spawned(now, what, spawned);
  GroupSlot& slot = groups_[what.group];
  if (slot.incarnation != what.incarnation || stopping_) return;
  if (spawned.error) return fail_group(now, what.group, *spawned.error);
  slot.role_asked = false;
  watch_role(what.group, what.role, spawned.actors);
  advance_group(what.group);
}

void Supervision::watch_role(std::size_t group, Role role, std::vector<ActorId> actors) {
  for (const ActorId actor : actors) {
    const bool rings = role == Role::kExecutor && actor != actors.front();
    watch(std::string(rings ? kRemoteWorkers : spec_of(role).name), actor, node_index(group, role),
          group);
  }
  groups_[group].actors[static_cast<std::size_t>(role)] = std::move(actors);
  ++groups_[group].num_spawned;
}

void Supervision::end_workers(GroupSlot& slot) {
  for (WorkerSlot& worker : slot.workers) {
    if (worker.worker != kNobody) end_quietly(worker.worker);
    worker = {.node = worker.node};
  }
  slot.are_warm = false;
}

/// Ends all actors except the workers; later answers of theirs are ignored.
void Supervision::end_actors(GroupSlot& slot) {
  ++slot.incarnation;
  slot.workers_asked = slot.have_caches = false;
  slot.num_spawned = 0;
  slot.role_asked = false;
  for (std::vector<ActorId>& actors : slot.actors) {
    for (const ActorId actor : actors) end_quietly(actor);
    actors.clear();
  }
}

/// The other groups continue.
void Supervision::leave_out(double now, std::size_t group, const std::string& reason,
                            LossCause cause) {
  GroupSlot& slot = groups_[group];
  if (router_ != kNobody) {
    command(SendLoss{router_, EngineLost{static_cast<std::uint32_t>(group), reason, cause,
                                         /*returns=*/false}});
  }
  end_actors(slot);
  end_workers(slot);
  slot.state = GroupState::kAbsent;
  release_nodes(now, group);
}

bool Supervision::is_last(std::size_t group) const {
  for (std::size_t other = 0; other < groups_.size(); ++other) {
    if (other != group && groups_[other].state != GroupState::kAbsent) return false;
  }
  return true;
}

void Supervision::advance_group(std::size_t group) {
  GroupSlot& slot = groups_[group];
  if (stopping_ || slot.state != GroupState::kStarting || slot.waits) return;
  if (!all_nodes(group, &NodeSlot::connected)) return;
  if (has_found(group)) {
    if (!nodes_[node_of(Role::kRequestRouter)].connected) return;
    adopt_group(group);
    if (slot.state == GroupState::kServing) return on_group_up(group);
  }
  if (!all_nodes(group, &NodeSlot::prepared)) return prepare_nodes(group);
  spawn_workers(group);  // they load while the tokenizer is loaded
  prepare_nodes(group);
  if (std::any_of(slot.workers.begin(), slot.workers.end(),
                  [](const WorkerSlot& worker) { return worker.worker == kNobody; }))
    return;
  if (slot.role_asked) return;
  // The workers are called through the Executor, the first of the roles.
  if (slot.num_spawned > 0 && !advance_workers(group)) return;
  if (slot.num_spawned < kSpawnOrder.size()) {
    const Role next = kSpawnOrder[slot.num_spawned];
    // Its node must detect when the RequestRouter's node is unreachable.
    if (next == Role::kInputProcessor && !nodes_[node_of(Role::kRequestRouter)].connected) return;
    return spawn_role(group, next);
  }
  slot.state = GroupState::kServing;
  send_records(group);
  on_group_up(group);
}

// ---- Adoption from another Supervisor ----------------------------------------------------------

bool Supervision::has_found(std::size_t group) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const NodeSlot& slot) {
    return std::any_of(slot.found.begin(), slot.found.end(),
                       [&](const auto& found) { return is_of(found.first, group); });
  });
}

void Supervision::forget_found(std::size_t group) {
  for (NodeSlot& slot : nodes_) {
    std::erase_if(slot.found, [&](const auto& found) { return is_of(found.first, group); });
    std::erase_if(slot.records, [&](const GroupRecord& record) { return record.group == group; });
  }
}

/// The newest record of its nodes; null: none.
const GroupRecord* Supervision::find_record(std::size_t group) const {
  const GroupRecord* newest = nullptr;
  for (const NodeSlot& slot : nodes_) {
    for (const GroupRecord& record : slot.records) {
      if (record.group == group && (newest == nullptr || record.incarnation > newest->incarnation))
        newest = &record;
    }
  }
  return newest;
}

/// The actors of this role in its node.
std::vector<ActorId> Supervision::find_running(std::size_t group, const GroupRecord& record,
                                               Role role) const {
  std::vector<ActorId> actors;
  for (const auto& [what, actor] : nodes_[node_index(group, role)].found) {
    if (!what.is_worker && what.role == role && what.group == group &&
        what.incarnation == record.incarnation)
      actors.push_back(actor);
  }
  return actors;
}

ActorId Supervision::find_worker(std::size_t group, std::size_t rank) const {
  for (const auto& [what, actor] : nodes_[groups_[group].workers[rank].node].found) {
    if (what.is_worker && what.group == group && what.rank == static_cast<std::int32_t>(rank))
      return actor;
  }
  return kNobody;
}

std::string Supervision::check_found(std::size_t group, const GroupRecord* record) const {
  const GroupSlot& slot = groups_[group];
  if (record == nullptr) return "it had not served yet";
  if (record->incarnation < slot.incarnation)
    return "it is of incarnation " + std::to_string(record->incarnation) + ", which has ended";
  if (router_ == kNobody || record->router_life != router_life_)
    return "its request router was lost";
  if (record->loaded.size() != slot.workers.size())
    return "it has " + std::to_string(record->loaded.size()) + " workers, not " +
           std::to_string(slot.workers.size());
  for (const NodeSlot& node : nodes_) {
    if (!is_in(node.config, group)) continue;
    const bool knows_it =
        std::any_of(node.records.begin(), node.records.end(), [&](const GroupRecord& each) {
          return each.group == group && each.incarnation == record->incarnation;
        });
    if (!knows_it) return "node " + node.config.name + " was restarted";
  }
  for (const Role role : kSpawnOrder) {
    if (find_running(group, *record, role).empty())
      return "it has no " + std::string(spec_of(role).name);
  }
  for (std::size_t rank = 0; rank < slot.workers.size(); ++rank) {
    if (find_worker(group, rank) == kNobody) return "it has no worker " + std::to_string(rank);
  }
  return "";
}

void Supervision::adopt_group(std::size_t group) {
  GroupSlot& slot = groups_[group];
  const GroupRecord* record = find_record(group);
  if (const std::string reason = check_found(group, record); !reason.empty()) {
    log_error("incident", kv("cause", "the engine of another supervisor is of no use: " + reason),
              kv("group", group));
    if (router_ != kNobody)
      command(SendLoss{router_, EngineLost{static_cast<std::uint32_t>(group), reason}});
    for (const NodeSlot& node : nodes_) {
      for (const auto& [what, actor] : node.found) {
        if (!is_of(what, group)) continue;
        slot.incarnation = std::max(slot.incarnation, what.incarnation + 1);
        command(EndActor{actor});
      }
    }
    return forget_found(group);
  }
  slot.incarnation = record->incarnation;
  slot.rendezvous = record->rendezvous;
  slot.secret = record->secret;
  slot.model = record->model;
  slot.cache = record->cache;
  for (std::size_t rank = 0; rank < slot.workers.size(); ++rank) {
    WorkerSlot& worker = slot.workers[rank];
    worker.worker = find_worker(group, rank);
    worker.loaded = record->loaded[rank];
    watch("worker", worker.worker, worker.node, group);
  }
  slot.have_caches = slot.are_warm = true;
  for (const Role role : kSpawnOrder) watch_role(group, role, find_running(group, *record, role));
  slot.state = GroupState::kServing;
  log_info("engine adopted", kv("group", group), kv("incarnation", slot.incarnation));
  forget_found(group);
}

void Supervision::send_records(std::size_t group) {
  if (is_single_process()) return;
  const GroupSlot& slot = groups_[group];
  GroupRecord record{.group = static_cast<std::uint32_t>(group),
                     .incarnation = slot.incarnation,
                     .router_life = router_life_,
                     .rendezvous = slot.rendezvous,
                     .secret = slot.secret,
                     .loaded = {},
                     .model = slot.model,
                     .cache = slot.cache};
  for (const WorkerSlot& worker : slot.workers) record.loaded.push_back(*worker.loaded);
  for (const NodeSlot& node : nodes_) {
    if (is_in(node.config, group)) command(SendRecord{node.node, record});
  }
}

void Supervision::recover_group(double now, std::size_t group, const std::string& reason,
                                LossCause cause) {
  GroupSlot& slot = groups_[group];
  if (stopping_ || given_up_ || slot.state == GroupState::kAbsent) return;
  if (refuses()) return refuse_start(now, {ErrorCode::kInternal, reason});
  log_error("incident", kv("cause", reason), kv("group", group),
            kv("incarnation", slot.incarnation), kv("recovery", slot.num_recoveries + 1));
  if (++slot.num_recoveries > kMaxRecoveries) {
    if (is_last(group)) return give_up(reason);
    log_error("group given up", kv("group", group), kv("reason", reason));
    return leave_out(now, group, reason, cause);
  }
  if (router_ != kNobody)
    command(SendLoss{router_, EngineLost{static_cast<std::uint32_t>(group), reason, cause}});
  slot.state = GroupState::kStarting;
  // After an immediate second failure, a node may be lost whose end is not reported yet: waits, so
  // that not all attempts are used up before.
  slot.waits = slot.num_recoveries > 1;
  end_actors(slot);
  const bool worker_lost = std::any_of(
      slot.workers.begin(), slot.workers.end(),
      [](const WorkerSlot& worker) { return worker.worker == kNobody || !worker.loaded; });
  if (worker_lost) end_workers(slot);
  advance_group(group);
}

void Supervision::recover_node(double now, std::size_t index, const std::string& reason,
                               LossCause cause) {
  const NodeConfig& config = nodes_[index].config;
  const bool has_router = config.has(Role::kRequestRouter);
  if (config.has(Role::kEncoder) && config.serves_all_groups())
    log_error("incident", kv("cause", reason), kv("node", config.name));
  if (!config.serves_all_groups() && !has_router) {
    for (const std::int32_t group : config.groups)
      recover_group(now, static_cast<std::size_t>(group), reason, cause);
  }
  if (has_router || config.has(Role::kFrontend)) recover_front(now, reason, cause);
}

Result<void> Supervision::end_group(double now, std::size_t group) {
  const std::string name = "group " + std::to_string(group);
  if (group >= groups_.size()) {
    return invalid_argument(name + ": the groups are 0 to " + std::to_string(groups_.size() - 1),
                            "group");
  }
  if (groups_[group].state == GroupState::kAbsent)
    return invalid_argument(name + " is not there", "group");
  if (is_last(group)) return invalid_argument(name + " is the only one that there is", "group");
  log_info("group ends", kv("group", group), kv("reason", "drained"));
  leave_out(now, group, "drained", LossCause::kOutside);
  return {};
}

void Supervision::admit_group(std::size_t group) {
  GroupSlot& slot = groups_[group];
  if (slot.state != GroupState::kAbsent || !all_nodes(group, &NodeSlot::connected)) return;
  log_info("group begins", kv("group", group));
  slot.state = GroupState::kStarting;
  slot.num_recoveries = 0;
}

void Supervision::engine_refused(double now, const EngineRefused& refused) {
  if (refused.group >= groups_.size()) return;
  if (groups_[refused.group].incarnation != refused.incarnation) return;
  recover_group(now, refused.group, "the request router has taken back the requests of the engine",
                LossCause::kOutside);
}

void Supervision::confirm_loss(double now, const ConfirmLoss& loss) {
  if (loss.incarnation == groups_.at(loss.group).incarnation)
    recover_group(now, loss.group, loss.reason, LossCause::kOutside);
}

}  // namespace troupe::supervision
