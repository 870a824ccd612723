// What stays in the prefix cache: the last turn of a session, and prefixes that requests pin.

#include "runtime/scheduler/scheduler.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxKept = 4096;

}  // namespace

/// The blocks of a request that has ended stay, instead of those of its session's turn before.
void Scheduler::keep_blocks(const RequestState& request) {
  const bool is_whole = request.status == RequestStatus::kFinishedStopped ||
                        request.status == RequestStatus::kFinishedLengthCapped;
  if (config_.session_ttl_s <= 0 || request.session_id.empty() || !is_whole ||
      !config_.prefix_caching)
    return;
  const Session session{request.tenant, request.session_id};
  if (const auto earlier = kept_sessions_.find(session); earlier != kept_sessions_.end()) {
    tell_kv(KVCacheCommandKind::kReleasePrefix, earlier->second.second);
    kept_.erase(earlier->second);
    kept_sessions_.erase(earlier);
  }
  if (kept_.size() >= kMaxKept) drop_kept(/*pins_too=*/false);
  // The next turn may begin with this prompt and answer, or, if the client changes the answer, with
  // the prompt only: layers with a window need different blocks for the two.
  tell_kv(KVCacheCommandKind::kKeepPrefix, request.id,
          std::min(request.num_computed_tokens, request.num_tokens()));
  tell_kv(KVCacheCommandKind::kKeepPrefix, request.id, request.num_prompt_tokens - 1);
  const std::pair key{now_ + config_.session_ttl_s, request.id};
  kept_.emplace(key, session);
  kept_sessions_.emplace(session, key);
}

/// They are pinned as soon as they are computed.
void Scheduler::keep_pins(const RequestState& request, std::span<const PrefixPin> pins) {
  if (!config_.prefix_caching) return;
  for (const PrefixPin& pin : pins) {
    if (pin.num_tokens <= 0 || pin.ttl_s <= 0) continue;
    if (pins_.size() >= kMaxKept) drop_pin();
    tell_kv(KVCacheCommandKind::kPinPrefix, request.id, pin.num_tokens);
    pins_.emplace(now_ + pin.ttl_s, std::pair(request.id, pin.num_tokens));
  }
}

/// What would have been dropped first; pins only if no session's blocks stay. False: there is
/// nothing.
bool Scheduler::drop_kept(bool pins_too) {
  if (!kept_.empty()) {
    tell_kv(KVCacheCommandKind::kReleasePrefix, kept_.begin()->first.second);
    kept_sessions_.erase(kept_.begin()->second);
    kept_.erase(kept_.begin());
    return true;
  }
  if (!pins_too || pins_.empty()) return false;
  drop_pin();
  return true;
}

/// Pre: there is one.
void Scheduler::drop_pin() {
  const auto& [id, num_tokens] = pins_.begin()->second;
  tell_kv(KVCacheCommandKind::kReleasePrefix, id, num_tokens);
  pins_.erase(pins_.begin());
}

void Scheduler::drop_expired() {
  while (!kept_.empty() && kept_.begin()->first.first <= now_) drop_kept(/*pins_too=*/false);
  while (!pins_.empty() && pins_.begin()->first <= now_) drop_pin();
}

}  // namespace troupe
