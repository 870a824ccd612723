// Sliding-window attention: a token attends to the last `sliding_window` tokens, including itself.

#include <algorithm>

#include "runtime/cache/group_manager.hpp"

namespace troupe {
namespace {

class SlidingWindowManager final : public GroupManager {
 public:
  SlidingWindowManager(const AttentionWindow& window, const Group& group)
      : GroupManager(group),
        window_(window),
        num_window_blocks_(ceil_div(window.num_tokens - 1, group.spec.block_size) +
                           (group.eagle ? 1 : 0)) {}

  std::int32_t num_skipped_tokens(std::int32_t num_computed) const override {
    return std::max(0, num_computed - window_.num_tokens + 1 - window_.extra_retained_tokens);
  }

  std::int32_t max_admission_blocks() const override {
    const std::int32_t tokens = window_.num_tokens - 1 + window_.extra_retained_tokens +
                                context_.settings.max_in_flight_tokens;
    // One more: the window need not start at a block boundary.
    return ceil_div(std::min(tokens, context_.settings.max_model_len), block_size()) + 1;
  }

  /// From right to left, the first run of blocks that fills a window; otherwise the run that starts
  /// with the first token.
  std::int32_t find_hit(std::span<const BlockHash> hashes, std::int32_t max_tokens,
                        std::span<const std::int32_t> groups, bool drop_last,
                        std::vector<std::vector<BlockId>>& hit) const override {
    const std::int32_t window = std::max(num_window_blocks_ - (eagle() && !drop_last ? 1 : 0), 1);
    std::int32_t run = 0;  // blocks [i, i + run) are cached
    std::int32_t i = max_tokens / block_size();
    while (i > 0 && run < window) {
      --i;
      const std::int32_t end = (i + 1) * block_size();
      if (run == 0 && !may_end_at(end, drop_last)) continue;
      run = append_cached(hashes, i, groups, hit) ? run + 1 : 0;
      if (run == 0)
        for (auto& blocks : hit) blocks.clear();
    }
    // The run was collected backwards; earlier blocks are null.
    if (run < window) i = 0;
    for (auto& blocks : hit) {
      std::reverse(blocks.begin(), blocks.end());
      blocks.insert(blocks.begin(), static_cast<std::size_t>(i), kNullBlock);
    }
    // A run that fills a window ends where its last block may be dropped; the other one must be
    // aligned as a hit of its own first.
    if (run < window) align(hit);
    for (auto& blocks : hit)
      if (drop_last && !blocks.empty()) blocks.pop_back();
    align(hit);
    return static_cast<std::int32_t>(hit[0].size()) * block_size();
  }

 private:
  /// A hit of this many tokens, before the last block is dropped.
  bool may_end_at(std::int32_t end, bool drop_last) const {
    return (drop_last ? end - block_size() : end) % context_.alignment == 0;
  }

  /// Whether the block is in [e - window, e) for a boundary e at which another request may start.
  bool is_tail_of(std::int32_t boundary, std::int32_t index) const {
    const std::int32_t end =
        round_down(boundary, context_.alignment) / block_size() + (eagle() ? 1 : 0);
    return index < end && index >= end - num_window_blocks_;
  }

  std::int32_t first_uncached_of_hit(std::int32_t num_blocks) const override {
    return std::max(0, num_blocks - num_window_blocks_);
  }

  bool worth_caching(const CachedRequest& request, std::int32_t index) const override {
    const std::int32_t alignment = context_.alignment;
    if (alignment % block_size() != 0) return true;
    const auto retention = context_.settings.retention_interval;
    const std::int32_t shifted = index - (eagle() ? 1 : 0);
    if (!retention || *retention > 0) {
      const std::int32_t segment = (retention ? *retention : alignment) / block_size();
      if (num_window_blocks_ >= segment) return true;
      if (shifted >= 0 && shifted % segment >= segment - num_window_blocks_) return true;
      if (!retention) return false;
    }
    const auto [repeated, extended] = replay_boundaries(request.info.num_prompt_tokens);
    if (is_tail_of(repeated, index) || is_tail_of(extended, index)) return true;
    return request.shared_prefix_boundary > 0 && is_tail_of(request.shared_prefix_boundary, index);
  }

  AttentionWindow window_;
  std::int32_t num_window_blocks_;  ///< consecutive blocks that a hit needs
};

}  // namespace

std::unique_ptr<GroupManager> make_manager(const SlidingWindowSpec& kind,
                                           const GroupManager::Group& group) {
  return std::make_unique<SlidingWindowManager>(kind.window, group);
}

std::unique_ptr<GroupManager> make_manager(const SlidingWindowMlaSpec& kind,
                                           const GroupManager::Group& group) {
  return std::make_unique<SlidingWindowManager>(kind.window, group);
}

}  // namespace troupe
