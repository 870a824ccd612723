#include "runtime/supervision/node_watch.hpp"

#include <algorithm>

namespace troupe::supervision {
namespace {

/// A node without heartbeats waits longer than the Supervisor, which should act first.
constexpr double kSilenceFactor = 2;
/// The time that the Supervisor has to end actors that depend on a lost process.
constexpr double kLinkTimeout_s = 2;
/// Between attempts to join another Supervisor.
constexpr double kMinRetry_s = 0.25;
constexpr double kMaxRetry_s = 2;

std::string seconds(double value) {
  std::string text = std::to_string(value);
  return text.substr(0, text.find('.') + 2) + " s";
}

}  // namespace

void NodeWatch::add_link(ActorId actor, ActorId peer, double patience) {
  links_.push_back({actor, peer, patience, std::nullopt});
}

void NodeWatch::forget_links(ActorId actor) {
  std::erase_if(links_, [&](const Link& link) { return link.actor == actor; });
}

void NodeWatch::peer_unreachable(double now, ActorId peer) {
  for (Link& link : links_) {
    if (link.peer == peer) link.lost_at = now;
  }
}

void NodeWatch::supervisor_lost(double now) {
  if (orphaned_at_) return;
  orphaned_at_ = now;
  retry_s_ = kMinRetry_s;
}

void NodeWatch::joined(double now) {
  orphaned_at_.reset();
  for (Link& link : links_) {
    if (link.lost_at) link.lost_at = now;  // the new Supervisor has as much time
  }
}

NodeWatch::Decision NodeWatch::check(double now, double heard_at) {
  if (orphaned_at_) {
    const double left_s = *orphaned_at_ + limits_.supervisor_timeout_s - now;
    if (left_s <= 0) {
      return {.action = Action::kLeave,
              .reason = "no supervisor for " + seconds(limits_.supervisor_timeout_s)};
    }
    const double next_s = std::min(retry_s_, left_s);
    retry_s_ = std::min(2 * retry_s_, kMaxRetry_s);
    return {.action = Action::kJoin, .next_check_s = next_s};
  }
  const double silent_s = now - heard_at;
  if (silent_s >= kSilenceFactor * limits_.node_timeout_s) {
    return {.action = Action::kLeave,
            .reason = "the supervisor has been silent for " + seconds(silent_s)};
  }
  const bool cut_off = std::any_of(links_.begin(), links_.end(), [&](const Link& link) {
    return link.lost_at && now - *link.lost_at >= link.patience * kLinkTimeout_s;
  });
  if (cut_off)
    return {.action = Action::kLeave, .reason = "the connection with another node is lost"};
  return {};
}

}  // namespace troupe::supervision
