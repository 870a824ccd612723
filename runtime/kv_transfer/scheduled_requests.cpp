#include "runtime/kv_transfer/scheduled_requests.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/base/check.hpp"

namespace troupe {

std::optional<ScheduledRequests::Request> ScheduledRequests::next() {
  if (next_ == step_.scheduled_ids.size()) return std::nullopt;
  Request request{.id = step_.scheduled_ids[next_],
                  .num_scheduled = step_.num_scheduled_tokens[next_]};
  ++next_;
  const CachedRequestData& cached = step_.cached_requests;
  if (next_cached_ == cached.ids.size() || cached.ids[next_cached_] != request.id) return request;
  request.cached_index = next_cached_++;
  if (cached.new_block_counts.empty()) return request;
  request.num_blocks =
      std::span(cached.new_block_counts).subspan(*request.cached_index * num_groups_, num_groups_);
  const std::int32_t count =
      std::accumulate(request.num_blocks.begin(), request.num_blocks.end(), 0);
  request.new_blocks =
      std::span(cached.new_block_ids).subspan(next_block_, static_cast<std::size_t>(count));
  next_block_ += request.new_blocks.size();
  return request;
}

std::int32_t ScheduledRequests::num_computed(const Request& request) const {
  if (request.cached_index) return step_.cached_requests.num_computed_tokens[*request.cached_index];
  const auto added = std::ranges::find(step_.new_requests, request.id, &NewRequestData::id);
  CHECK(added != step_.new_requests.end(), value(request.id));
  return added->num_computed_tokens;
}

void ScheduledRequests::append_new_blocks(const Request& request, BlockTable& blocks) {
  std::span<const BlockId> left = request.new_blocks;
  for (std::size_t group = 0; group < request.num_blocks.size(); ++group) {
    const auto added = left.first(static_cast<std::size_t>(request.num_blocks[group]));
    blocks[group].insert(blocks[group].end(), added.begin(), added.end());
    left = left.subspan(added.size());
  }
}

}  // namespace troupe
