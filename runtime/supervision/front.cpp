// The RequestRouter and the Frontend, which all groups share.
#include <algorithm>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/supervision/supervision.hpp"

namespace troupe::supervision {
namespace {

/// RequestRouter and Frontend are abandoned after this many failed starts in a row.
constexpr int kMaxFrontLosses = 8;

}  // namespace

std::size_t Supervision::node_of(Role role) const {
  std::size_t index = 0;
  while (!nodes_[index].config.has(role)) ++index;
  return index;
}

/// The first group that serves; null: none does.
const Supervision::GroupSlot* Supervision::find_serving() const {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [](const GroupSlot& group) {
    return group.state == GroupState::kServing;
  });
  return found == groups_.end() ? nullptr : &*found;
}

/// The start waits for all groups except optional ones; later a single one is enough.
bool Supervision::has_enough_groups() const {
  if (!refuses()) return find_serving() != nullptr;
  return has_all_encoders() &&
         std::none_of(groups_.begin(), groups_.end(),
                      [](const GroupSlot& group) { return group.state == GroupState::kStarting; });
}

/// Clients can reach the RequestRouter. Pre: it runs.
bool Supervision::reaches_clients() const { return config_.serve_http ? listening_ : !starting_; }

void Supervision::report_started() {
  const GroupSlot& group = *find_serving();
  const ModelLoaded& model = group.model;
  std::int32_t num_blocks = 0;
  for (const GroupSlot& each : groups_) {
    if (each.state == GroupState::kServing) num_blocks += each.cache.num_blocks;
  }
  log_info("engine ready", kv("architecture", model.architecture), kv("dtype", model.dtype),
           kv("cpu_isa", model.cpu_isa), kv("max_model_len", model.max_model_len),
           kv("device", model.device), kv("canonical_shards", model.canonical_shards),
           kv("groups", groups_.size()), kv("workers", group.workers.size()),
           kv("weight_mib", model.weight_bytes >> 20), kv("kv_blocks", group.cache.num_blocks - 1),
           kv("kv_groups", group.cache.groups.size()));
  starting_ = false;
  command(
      AnswerStart{.started = Started{.model = model, .num_blocks = num_blocks, .port = http_port_},
                  .router = router_});
}

void Supervision::hand_over(std::size_t group) {
  const GroupSlot& slot = groups_[group];
  command(SendEngine{.router = router_,
                     .message = EngineReady{static_cast<std::uint32_t>(group), slot.incarnation},
                     .input_processors = slot.actors_of(Role::kInputProcessor),
                     .output_processor = slot.first_of(Role::kOutputProcessor),
                     .scheduler = slot.first_of(Role::kScheduler)});
}

/// It serves, for clients too.
void Supervision::report_group(std::size_t group) {
  GroupSlot& slot = groups_[group];
  slot.num_recoveries = num_front_losses_ = 0;
  log_info("engine restarted", kv("group", group), kv("incarnation", slot.incarnation));
}

void Supervision::report_groups() {
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].state == GroupState::kServing) report_group(group);
  }
}

/// RequestRouter or Frontend did not start: tries again.
void Supervision::fail_front(double now, Role role, const Error& error) {
  if (role == Role::kFrontend) {
    if (frontend_ != kNobody) end_quietly(frontend_);  // it will never open a port
    lose_frontend();
  } else {
    lose_router();
  }
  if (refuses()) return refuse_start(now, error);
  recover_front(now, error.message, LossCause::kOutside);
}

void Supervision::port_opened(double now, std::uint64_t life, const Listening& listening) {
  if (life != frontend_life_ || stopping_) return;
  if (listening.error) return fail_front(now, Role::kFrontend, *listening.error);
  http_port_ = listening.port;
  listening_ = true;
  if (starting_) return advance_front();
  report_groups();
}

void Supervision::spawn_frontend() {
  const GroupSlot& group = *find_serving();
  frontend_spawning_ = true;
  command(AskRole{.node = nodes_[node_of(Role::kFrontend)].node,
                  .question = SpawnRole{.role = Role::kFrontend,
                                        .model = group.model,
                                        .cache = group.cache,
                                        .port = http_port_,
                                        .peers = {Peer::kRequestRouter},
                                        .life = frontend_life_},
                  .peers = {router_}});
}

void Supervision::spawn_router() {
  router_spawning_ = true;
  router_life_ = std::max(router_life_, config_.epoch << 20) + 1;  // above all earlier ones
  command(AskRole{.node = nodes_[node_of(Role::kRequestRouter)].node,
                  .question = SpawnRole{.role = Role::kRequestRouter, .life = router_life_},
                  .peers = {}});
}

void Supervision::front_spawned(double now, const SpawnRole& what, const SpawnedActors& spawned) {
  const bool is_router = what.role == Role::kRequestRouter;
  if (what.life != (is_router ? router_life_ : frontend_life_) || stopping_) return;
  if (spawned.error) return fail_front(now, what.role, *spawned.error);
  const ActorId actor = spawned.actors.front();
  if (!is_router) {
    frontend_spawning_ = false;
    frontend_ = actor;
    watch("frontend", actor, node_of(Role::kFrontend));
    return command(AskListen{frontend_, frontend_life_});
  }
  router_spawning_ = false;
  take_router(actor);
}

void Supervision::take_router(ActorId router) {
  router_ = router;
  watch("request router", router, node_of(Role::kRequestRouter));
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].state == GroupState::kServing) hand_over(group);
  }
  if (frontend_ != kNobody) command(SendRouter{nodes_[node_of(Role::kFrontend)].node, router_});
  if (reaches_clients()) report_groups();
  if (!starting_) command(AnnounceRouter{router_});
  advance_front();
}

void Supervision::lose_frontend() {
  frontend_ = kNobody;
  frontend_spawning_ = listening_ = false;
  ++frontend_life_;
}

void Supervision::lose_router() {
  router_ = kNobody;
  router_spawning_ = false;
  ++router_life_;
}

void Supervision::advance_front() {
  if (stopping_ || given_up_ || front_waits_) return;
  if (router_ == kNobody) {
    if (!router_spawning_ && nodes_[node_of(Role::kRequestRouter)].connected) spawn_router();
    return;
  }
  if (!has_enough_groups()) return;
  if (starting_ && (listening_ || !config_.serve_http)) report_started();
  if (!config_.serve_http || retiring_ || frontend_ != kNobody || frontend_spawning_) return;
  const std::size_t index = node_of(Role::kFrontend);
  if (!nodes_[index].connected) return;
  if (!nodes_[index].prepared) return prepare_node(index);
  spawn_frontend();
}

void Supervision::adopt_front(std::size_t index) {
  NodeSlot& slot = nodes_[index];
  std::vector<std::pair<RunningActor, ActorId>> shared;
  std::erase_if(slot.found, [&](const auto& found) {
    const bool is_shared = !found.first.is_worker && spec_of(found.first.role).is_shared;
    if (is_shared) shared.push_back(found);
    return is_shared;
  });
  for (const auto& [what, actor] : shared) {
    const bool in_place = slot.config.has(what.role);
    if (what.role == Role::kRequestRouter && in_place && router_ == kNobody && !router_spawning_) {
      router_life_ = what.life;
      take_router(actor);
    } else if (what.role == Role::kFrontend && in_place && frontend_ == kNobody &&
               !frontend_spawning_ && config_.serve_http) {
      frontend_ = actor;
      watch("frontend", actor, index);
      if (router_ != kNobody) command(SendRouter{slot.node, router_});
      command(AskListen{frontend_, frontend_life_});  // it reports its port
    } else if (what.role == Role::kEncoder && in_place && adopt_encoder(index, actor)) {
      encoder_life_ = std::max(encoder_life_, what.life);
    } else {
      command(EndActor{actor});
      continue;
    }
    log_info("actor adopted", kv("role", spec_of(what.role).name), kv("node", slot.config.name));
  }
}

void Supervision::on_group_up(std::size_t group) {
  if (router_ != kNobody) hand_over(group);
  if (router_ != kNobody && reaches_clients()) report_group(group);
  advance_front();
}

void Supervision::recover_front(double now, const std::string& reason, LossCause cause) {
  if (stopping_ || given_up_) return;
  if (refuses()) return refuse_start(now, {ErrorCode::kInternal, reason});
  if (++num_front_losses_ > kMaxFrontLosses) return give_up(reason);
  // After an immediate second failure, a node may be lost whose end is not reported yet.
  front_waits_ = num_front_losses_ > 1;
  if (router_ != kNobody) {
    log_error("incident", kv("cause", reason), kv("role", "frontend"),
              kv("recovery", num_front_losses_));
  } else {
    for (std::size_t group = 0; group < groups_.size(); ++group)
      recover_group(now, group, reason, cause);
  }
  advance_front();
}

}  // namespace troupe::supervision
