// The encoders, which all groups share: each is started where the topology places it, and restarted
// when it ends. Without them the workers encode, so no group depends on one.
#include <algorithm>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/supervision/supervision.hpp"

namespace troupe::supervision {
namespace {

/// An encoder is abandoned after this many failed starts in a row.
constexpr int kMaxEncoderFailures = 8;

}  // namespace

/// The start waits for all encoders except optional ones.
bool Supervision::has_all_encoders() const {
  return std::all_of(encoders_.begin(), encoders_.end(), [&](const EncoderSlot& encoder) {
    return encoder.actor != kNobody || nodes_[encoder.node].config.optional;
  });
}

void Supervision::advance_encoders() {
  if (stopping_ || given_up_) return;
  for (EncoderSlot& encoder : encoders_) {
    const NodeSlot& node = nodes_[encoder.node];
    if (encoder.actor != kNobody || encoder.spawning || encoder.waits || !node.connected ||
        encoder.num_failures > kMaxEncoderFailures)
      continue;
    encoder.spawning = true;
    encoder.life = ++encoder_life_;
    command(AskRole{.node = node.node,
                    .question = SpawnRole{.role = Role::kEncoder, .life = encoder.life},
                    .peers = {}});
  }
}

void Supervision::encoder_spawned(const SpawnRole& what, const SpawnedActors& spawned, double now) {
  const auto encoder = std::ranges::find(encoders_, what.life, &EncoderSlot::life);
  if (encoder == encoders_.end() || !encoder->spawning || stopping_) return;
  encoder->spawning = false;
  const std::string& node = nodes_[encoder->node].config.name;
  if (spawned.error) {
    if (refuses()) return refuse_start(now, *spawned.error);
    log_error("incident", kv("cause", spawned.error->message), kv("node", node),
              kv("recovery", ++encoder->num_failures));
    encoder->waits = true;
    return;
  }
  log_info("encoder ready", kv("node", node));
  encoder->num_failures = 0;
  take_encoder(*encoder, spawned.actors.front());
}

void Supervision::take_encoder(EncoderSlot& encoder, ActorId actor) {
  encoder.actor = actor;
  watch("encoder", actor, encoder.node);
  send_encoders();
  advance_front();
}

bool Supervision::lose_encoder(ActorId actor, double now, const std::string& reason) {
  const auto encoder = std::ranges::find(encoders_, actor, &EncoderSlot::actor);
  if (encoder == encoders_.end()) return false;
  if (refuses()) {
    refuse_start(now, {ErrorCode::kInternal, reason});
    return true;
  }
  log_error("incident", kv("cause", reason), kv("node", nodes_[encoder->node].config.name));
  *encoder = {.node = encoder->node, .num_failures = encoder->num_failures};
  send_encoders();
  advance_encoders();
  return true;
}

/// The encoders of a lost node.
void Supervision::forget_encoders(std::size_t node) {
  bool is_lost = false;
  for (EncoderSlot& encoder : encoders_) {
    if (encoder.node != node) continue;
    is_lost |= encoder.actor != kNobody;
    encoder = {.node = node, .num_failures = encoder.num_failures};
  }
  if (is_lost) send_encoders();
}

void Supervision::send_encoders() {
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].connected) send_encoders(node);
  }
}

void Supervision::send_encoders(std::size_t node) {
  if (encoders_.empty() || stopping_ || nodes_[node].config.serves_all_groups()) return;
  SendEncoders list{.node = nodes_[node].node, .message = {}, .encoders = {}};
  for (const EncoderSlot& encoder : encoders_) {
    if (encoder.actor == kNobody) continue;
    list.message.names.push_back(nodes_[encoder.node].config.name);
    list.encoders.push_back(encoder.actor);
  }
  command(std::move(list));
}

/// True: the node has one.
bool Supervision::adopt_encoder(std::size_t node, ActorId actor) {
  const auto encoder = std::ranges::find(encoders_, node, &EncoderSlot::node);
  if (encoder == encoders_.end() || encoder->actor != kNobody || encoder->spawning) return false;
  take_encoder(*encoder, actor);
  return true;
}

}  // namespace troupe::supervision
