// Blocks that stay in the cache after the end of their request, for the next turn of its session.

#include "runtime/scheduler/scheduler.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxKept = 4096;

std::pair<std::uint32_t, std::string> session_of(const RequestState& request) {
  return {request.tenant, request.session_id};
}

}  // namespace

/// Keeps the blocks of a request that has ended, instead of those of its session's turn before.
/// False: they are not to be kept.
bool Scheduler::keep_blocks(RequestState& request) {
  const bool is_whole = request.status == RequestStatus::kFinishedStopped ||
                        request.status == RequestStatus::kFinishedLengthCapped;
  if (config_.session_ttl_s <= 0 || request.session_id.empty() || !is_whole ||
      !config_.prefix_caching)
    return false;
  const auto session = session_of(request);
  if (const auto earlier = kept_sessions_.find(session); earlier != kept_sessions_.end())
    drop(*requests_.at(earlier->second));
  if (kept_.size() >= kMaxKept) drop_kept();
  request.kept_until = now_ + config_.session_ttl_s;
  kept_.emplace(request.kept_until, request.id);
  kept_sessions_.emplace(session, request.id);
  return true;
}

/// Those that would have been dropped first. False: there are none.
bool Scheduler::drop_kept() {
  if (kept_.empty()) return false;
  drop(*requests_.at(kept_.begin()->second));
  return true;
}

void Scheduler::drop_expired() {
  while (!kept_.empty() && kept_.begin()->first <= now_) drop_kept();
}

/// Its blocks are no longer needed.
void Scheduler::drop(RequestState& request) {
  if (request.kept_until > 0) {
    kept_.erase({request.kept_until, request.id});
    kept_sessions_.erase(session_of(request));
  }
  if (must_defer_free(request)) free_blocks(request);
  tell_kv(KVCacheCommandKind::kForgetRequest, request.id);
  requests_.erase(request.id);
}

}  // namespace troupe
