// The Supervisor's groups: the actors of each engine are brought up in the nodes of the topology,
// and anew when one of them has ended.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/engine_settings.hpp"
#include "actors/supervisor_state.hpp"
#include "runtime/base/log.hpp"
#include "runtime/worker/worker_group.hpp"

namespace troupe::supervision {
namespace {

using namespace std::chrono_literals;

constexpr auto kLoadDeadline = 1h;
/// A group that fails so often in a row to come up is given up.
constexpr int kMaxRecoveries = 8;

bool is_in(const NodeSlot& node, std::size_t group) {
  return node.config.is_in(static_cast<std::int32_t>(group)) && !node.config.serves_all_groups();
}

std::size_t node_index(const SupervisorState& supervisor, std::size_t group, Role role) {
  std::size_t index = 0;
  while (!is_in(supervisor.nodes[index], group) || !supervisor.nodes[index].config.has(role))
    ++index;
  return index;
}

/// The nodes of the group all are as the flag says.
bool all_nodes(const SupervisorState& supervisor, std::size_t group, bool NodeSlot::*flag) {
  return std::all_of(supervisor.nodes.begin(), supervisor.nodes.end(),
                     [&](const NodeSlot& node) { return !is_in(node, group) || node.*flag; });
}

/// Something did not come up. The first time that refuses the start; later it is tried again.
void fail(Self self, std::size_t group, Error error) {
  if (state(self).started.pending()) return refuse_start(self, std::move(error));
  recover_group(self, group, error.message, LossCause::kOutside);
}

/// Asks; an answer that belongs to an earlier incarnation is dropped, and so is its failure.
template <class Handle, class OnAnswer, class... Question>
void ask_now(Self self, std::size_t group, const Handle& to, std::chrono::nanoseconds deadline,
             const std::string& what, OnAnswer on_answer, Question&&... question) {
  const std::uint32_t incarnation = state(self).groups[group].incarnation;
  ask(self, to, deadline, std::forward<Question>(question)...)
      .then(on_answer, [=](const caf::error& error) {
        if (state(self).groups[group].incarnation != incarnation || state(self).stopping) return;
        fail(self, group, {ErrorCode::kInternal, what + ": " + to_text(error, self->system())});
      });
}

void prepare_nodes(Self self, std::size_t group) {
  for (std::size_t index = 0; index < state(self).nodes.size(); ++index) {
    if (is_in(state(self).nodes[index], group)) prepare_node(self, index);
  }
}

/// Says which of the workers on its host this one is, those of all groups in order, and how many
/// they are.
void count_workers_beside(const SupervisorState& supervisor, const WorkerSlot& worker,
                          ParallelConfig& parallel) {
  parallel.ranks_on_host = 0;
  for (const GroupSlot& group : supervisor.groups) {
    for (const WorkerSlot& other : group.workers) {
      if (&other == &worker) parallel.rank_on_host = parallel.ranks_on_host;
      if (supervisor.nodes[other.node].config.host == supervisor.nodes[worker.node].config.host)
        ++parallel.ranks_on_host;
    }
  }
}

void load_model(Self self, std::size_t group, std::size_t rank) {
  SupervisorState& supervisor = state(self);
  const GroupSlot& slot = supervisor.groups[group];
  const std::uint32_t incarnation = slot.incarnation;
  ParallelConfig parallel = parallel_config(supervisor.start.options.engine);
  parallel.rank = static_cast<std::int32_t>(rank);
  count_workers_beside(supervisor, slot.workers[rank], parallel);
  parallel.rendezvous = slot.rendezvous;
  parallel.secret = slot.secret;
  parallel.incarnation = incarnation;
  ask_now(
      self, group, slot.workers[rank].worker, kLoadDeadline,
      "worker " + std::to_string(rank) + " did not load",
      [=](ModelLoaded& model) {
        GroupSlot& slot = state(self).groups[group];
        if (slot.incarnation != incarnation) return;
        if (model.error) return fail(self, group, *model.error);
        slot.workers[rank].loaded = std::move(model);
        advance_group(self, group);
      },
      LoadModel{worker_options(supervisor.start.options, parallel)});
}

void spawn_workers(Self self, std::size_t group) {
  SupervisorState& supervisor = state(self);
  const std::uint32_t incarnation = supervisor.groups[group].incarnation;
  for (std::size_t rank = 0; rank < supervisor.groups[group].workers.size(); ++rank) {
    WorkerSlot& worker = supervisor.groups[group].workers[rank];
    if (worker.worker || worker.spawning) continue;
    worker.spawning = true;
    ask_now(
        self, group, supervisor.nodes[worker.node].node, kControlDeadline,
        "worker " + std::to_string(rank) + " did not start",
        [=](const Status& status, const ActorHandles& handles) {
          GroupSlot& slot = state(self).groups[group];
          if (slot.incarnation != incarnation) return;
          if (const auto error = refusal(status, handles)) return fail(self, group, *error);
          WorkerSlot& worker = slot.workers[rank];
          worker.spawning = false;
          worker.worker = caf::actor_cast<WorkerActor>(handles.at(0));
          watch(self, "worker", handles[0], worker.node, group);
          load_model(self, group, rank);
        },
        SpawnWorker{static_cast<std::uint32_t>(group), static_cast<std::int32_t>(rank)});
  }
}

/// All workers agree on what they have loaded; the first time that settles the cache.
Result<void> settle_model(const Options& options, GroupSlot& group) {
  std::vector<ModelLoaded> loaded;
  for (const WorkerSlot& worker : group.workers) loaded.push_back(*worker.loaded);
  ASSIGN_OR_RETURN(group.model, join_loaded(loaded));
  if (group.cache.groups.empty()) {
    ASSIGN_OR_RETURN(group.cache, kv_cache_config(options, group.model));
  }
  ASSIGN_OR_RETURN(group.model.max_model_len, max_model_len(options, group.model, group.cache));
  return {};
}

void initialize_caches(Self self, std::size_t group) {
  GroupSlot& slot = state(self).groups[group];
  const std::uint32_t incarnation = slot.incarnation;
  slot.caches_asked = true;
  if (auto settled = settle_model(state(self).start.options, slot); !settled.ok())
    return fail(self, group, settled.error());
  for (const WorkerSlot& worker : slot.workers) {
    ask_now(
        self, group, worker.worker, kControlDeadline, "the worker took no KV cache",
        [=](const Status& status) {
          if (state(self).groups[group].incarnation != incarnation) return;
          if (status.error) return fail(self, group, *status.error);
          ++state(self).groups[group].num_caches;
          advance_group(self, group);
        },
        InitializeKVCache{slot.cache, incarnation});
  }
}

/// The workers that share a host with the Executor, but not its process.
std::vector<std::int32_t> ring_ranks(const SupervisorState& supervisor, std::size_t group) {
  const std::size_t executor = node_index(supervisor, group, Role::kExecutor);
  const std::vector<WorkerSlot>& workers = supervisor.groups[group].workers;
  std::vector<std::int32_t> ranks;
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    const std::size_t node = workers[rank].node;
    if (node != executor &&
        supervisor.nodes[node].config.host == supervisor.nodes[executor].config.host)
      ranks.push_back(static_cast<std::int32_t>(rank));
  }
  return ranks;
}

ActorHandles find_peers(const SupervisorState& supervisor, std::size_t group, Peer peer) {
  const GroupSlot& slot = supervisor.groups[group];
  ActorHandles found;
  switch (peer) {
    case Peer::kWorkers:
      for (const WorkerSlot& worker : slot.workers)
        found.push_back(caf::actor_cast<caf::strong_actor_ptr>(worker.worker));
      return found;
    case Peer::kRingNodes:
      for (const std::int32_t rank : ring_ranks(supervisor, group)) {
        const std::size_t node = slot.workers[static_cast<std::size_t>(rank)].node;
        found.push_back(caf::actor_cast<caf::strong_actor_ptr>(supervisor.nodes[node].node));
      }
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
      return {caf::actor_cast<caf::strong_actor_ptr>(supervisor.router)};
    case Peer::kRouterNode:
      return {caf::actor_cast<caf::strong_actor_ptr>(
          supervisor.nodes[supervisor.node_of(Role::kRequestRouter)].node)};
  }
  return found;
}

void spawn_role(Self self, std::size_t group, Role role) {
  SupervisorState& supervisor = state(self);
  GroupSlot& slot = supervisor.groups[group];
  slot.role_asked = true;
  const std::uint32_t incarnation = slot.incarnation;
  const std::size_t index = node_index(supervisor, group, role);
  const std::string name(spec_of(role).name);
  SpawnRole question{.role = role,
                     .group = static_cast<std::uint32_t>(group),
                     .incarnation = incarnation,
                     .model = slot.model,
                     .cache = slot.cache,
                     .ring_ranks = ring_ranks(supervisor, group)};
  ActorHandles peers;
  for (const Peer peer : spec_of(role).peers()) {
    for (caf::strong_actor_ptr& handle : find_peers(supervisor, group, peer)) {
      question.peers.push_back(peer);
      peers.push_back(std::move(handle));
    }
  }
  ask_now(
      self, group, supervisor.nodes[index].node, kControlDeadline, "the " + name + " did not start",
      [=](const Status& status, const ActorHandles& handles) {
        GroupSlot& slot = state(self).groups[group];
        if (slot.incarnation != incarnation) return;
        if (const auto error = refusal(status, handles)) return fail(self, group, *error);
        for (const caf::strong_actor_ptr& handle : handles) {
          const bool rings = role == Role::kExecutor && handle != handles.front();
          watch(self, rings ? std::string(kRemoteWorkers) : name, handle, index, group);
        }
        slot.role_asked = false;
        slot.actors[static_cast<std::size_t>(role)] = handles;
        ++slot.num_spawned;
        advance_group(self, group);
      },
      std::move(question), std::move(peers));
}

void end_workers(SupervisorState& supervisor, GroupSlot& slot) {
  for (WorkerSlot& worker : slot.workers) {
    if (worker.worker)
      end_quietly(supervisor, caf::actor_cast<caf::strong_actor_ptr>(worker.worker));
    worker = {.node = worker.node};
  }
}

/// Ends all actors but the workers; answers to them mean nothing any more.
void end_actors(SupervisorState& supervisor, GroupSlot& slot) {
  ++slot.incarnation;
  slot.caches_asked = false;
  slot.num_caches = slot.num_spawned = 0;
  slot.role_asked = false;
  for (ActorHandles& handles : slot.actors) {
    for (const caf::strong_actor_ptr& handle : handles) end_quietly(supervisor, handle);
    handles.clear();
  }
}

/// The others go on.
void leave_out(Self self, std::size_t group, const std::string& reason, LossCause cause) {
  SupervisorState& supervisor = state(self);
  GroupSlot& slot = supervisor.groups[group];
  if (supervisor.router) {
    send(self, supervisor.router,
         EngineLost{static_cast<std::uint32_t>(group), reason, cause, /*returns=*/false});
  }
  end_actors(supervisor, slot);
  end_workers(supervisor, slot);
  slot.state = GroupState::kAbsent;
  release_nodes(self, group);
}

bool is_last(const SupervisorState& supervisor, std::size_t group) {
  for (std::size_t other = 0; other < supervisor.groups.size(); ++other) {
    if (other != group && supervisor.groups[other].state != GroupState::kAbsent) return false;
  }
  return true;
}

}  // namespace

void advance_group(Self self, std::size_t group) {
  SupervisorState& supervisor = state(self);
  GroupSlot& slot = supervisor.groups[group];
  if (supervisor.stopping || slot.state != GroupState::kStarting || slot.waits) return;
  if (!all_nodes(supervisor, group, &NodeSlot::connected)) return;
  if (!all_nodes(supervisor, group, &NodeSlot::prepared)) return prepare_nodes(self, group);
  spawn_workers(self, group);  // they load while the tokenizer is read
  prepare_nodes(self, group);
  if (!all_nodes(supervisor, group, &NodeSlot::has_tokenizer) ||
      !std::all_of(slot.workers.begin(), slot.workers.end(),
                   [](const WorkerSlot& worker) { return worker.loaded; }))
    return;
  if (!slot.caches_asked) return initialize_caches(self, group);
  if (slot.num_caches < slot.workers.size()) return;
  if (slot.role_asked) return;
  if (slot.num_spawned < kSpawnOrder.size()) {
    const Role next = kSpawnOrder[slot.num_spawned];
    // Its node is to see when the RequestRouter's cannot be reached.
    if (next == Role::kInputProcessor &&
        !supervisor.nodes[supervisor.node_of(Role::kRequestRouter)].connected)
      return;
    return spawn_role(self, group, next);
  }
  slot.state = GroupState::kServing;
  on_group_up(self, group);
}

void recover_group(Self self, std::size_t group, const std::string& reason, LossCause cause) {
  SupervisorState& supervisor = state(self);
  GroupSlot& slot = supervisor.groups[group];
  if (supervisor.stopping || supervisor.given_up || slot.state == GroupState::kAbsent) return;
  if (supervisor.started.pending()) return refuse_start(self, {ErrorCode::kInternal, reason});
  log_error("incident", kv("cause", reason), kv("group", group),
            kv("incarnation", slot.incarnation), kv("recovery", slot.num_recoveries + 1));
  if (++slot.num_recoveries > kMaxRecoveries) {
    if (is_last(supervisor, group)) return give_up(self, reason);
    log_error("group given up", kv("group", group), kv("reason", reason));
    return leave_out(self, group, reason, cause);
  }
  if (supervisor.router)
    send(self, supervisor.router, EngineLost{static_cast<std::uint32_t>(group), reason, cause});
  slot.state = GroupState::kStarting;
  // What fails again at once may lack a node that we have not heard to be gone: all tries would be
  // over before we do.
  slot.waits = slot.num_recoveries > 1;
  end_actors(supervisor, slot);
  const bool worker_lost =
      std::any_of(slot.workers.begin(), slot.workers.end(),
                  [](const WorkerSlot& worker) { return !worker.worker || !worker.loaded; });
  if (worker_lost) end_workers(supervisor, slot);
  advance_group(self, group);
}

void recover_node(Self self, std::size_t index, const std::string& reason, LossCause cause) {
  const NodeConfig& config = state(self).nodes[index].config;
  const bool has_router = config.has(Role::kRequestRouter);
  if (!config.serves_all_groups() && !has_router) {
    for (const std::int32_t group : config.groups)
      recover_group(self, static_cast<std::size_t>(group), reason, cause);
  }
  if (has_router || config.has(Role::kFrontend)) recover_front(self, reason, cause);
}

void recover_all(Self self, const std::string& reason, LossCause cause) {
  for (std::size_t group = 0; group < state(self).groups.size(); ++group)
    recover_group(self, group, reason, cause);
}

Result<void> end_group(Self self, std::size_t group, const std::string& reason) {
  SupervisorState& supervisor = state(self);
  const std::string name = "group " + std::to_string(group);
  if (group >= supervisor.groups.size()) {
    return invalid_argument(
        name + ": the groups are 0 to " + std::to_string(supervisor.groups.size() - 1), "group");
  }
  if (supervisor.groups[group].state == GroupState::kAbsent)
    return invalid_argument(name + " is not there", "group");
  if (is_last(supervisor, group))
    return invalid_argument(name + " is the only one that there is", "group");
  log_info("group ends", kv("group", group), kv("reason", reason));
  leave_out(self, group, reason, LossCause::kOutside);
  return {};
}

void admit_group(Self self, std::size_t group) {
  SupervisorState& supervisor = state(self);
  GroupSlot& slot = supervisor.groups[group];
  if (slot.state != GroupState::kAbsent || !all_nodes(supervisor, group, &NodeSlot::connected))
    return;
  log_info("group begins", kv("group", group));
  slot.state = GroupState::kStarting;
  slot.num_recoveries = 0;
}

void on_confirm_loss(Self self, const ConfirmLoss& loss) {
  if (loss.incarnation == state(self).groups.at(loss.group).incarnation)
    recover_group(self, loss.group, loss.reason, LossCause::kOutside);
}

}  // namespace troupe::supervision
