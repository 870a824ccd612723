#pragma once
// The requests of a step, as the Scheduler's side of a KV connector reads them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "messages/cache.hpp"
#include "messages/ids.hpp"
#include "messages/scheduler_output.hpp"

namespace troupe {

/// Goes through the requests of a step in its order, and matches them with what the step says of
/// requests that the workers know. Pre: the step outlives it.
class ScheduledRequests {
 public:
  struct Request {
    RequestId id{};
    std::int32_t num_scheduled = 0;
    std::optional<std::size_t> cached_index;   ///< in step.cached_requests; none: it is new
    std::span<const std::int32_t> num_blocks;  ///< new ones of each group, or empty: none
    std::span<const BlockId> new_blocks;       ///< of all groups, one after the other
  };

  explicit ScheduledRequests(const SchedulerOutput& step, std::size_t num_groups) noexcept
      : step_(step), num_groups_(num_groups) {}

  /// None: there are no more.
  [[nodiscard]] std::optional<Request> next();
  /// Tokens that were computed before the step.
  [[nodiscard]] std::int32_t num_computed(const Request& request) const;
  /// Puts the request's new blocks behind those that it has.
  static void append_new_blocks(const Request& request, BlockTable& blocks);

 private:
  const SchedulerOutput& step_;
  std::size_t num_groups_;
  std::size_t next_ = 0;
  std::size_t next_cached_ = 0;
  std::size_t next_block_ = 0;
};

}  // namespace troupe
