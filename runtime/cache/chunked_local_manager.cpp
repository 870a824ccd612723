// Chunked local attention: a token attends to its chunk, up to itself.

#include <algorithm>

#include "runtime/cache/group_manager.hpp"

namespace troupe {
namespace {

class ChunkedLocalManager final : public GroupManager {
 public:
  ChunkedLocalManager(const ChunkedLocalAttentionSpec& kind, const Group& group)
      : GroupManager(group), chunk_size_(kind.chunk_size) {}

  std::int32_t num_skipped_tokens(std::int32_t num_computed) const override {
    return round_down(num_computed, chunk_size_);
  }

  std::int32_t max_admission_blocks() const override {
    const std::int32_t tokens = chunk_size_ + context_.settings.max_in_flight_tokens;
    return ceil_div(std::min(tokens, context_.settings.max_model_len), block_size());
  }

  /// Tokens before the last chunk are a hit without blocks: they are never attended to.
  std::int32_t find_hit(std::span<const BlockHash> hashes, std::int32_t max_tokens,
                        std::span<const std::int32_t> groups, bool /*drop_last*/,
                        std::vector<std::vector<BlockId>>& hit) const override {
    const std::int32_t first = round_down(max_tokens, chunk_size_) / block_size();
    for (auto& blocks : hit) blocks.assign(static_cast<std::size_t>(first), kNullBlock);
    const std::int32_t max_blocks = max_tokens / block_size();
    for (std::int32_t i = first; i < max_blocks && append_cached(hashes, i, groups, hit);) ++i;
    return static_cast<std::int32_t>(hit[0].size()) * block_size();
  }

 private:
  std::int32_t chunk_size_;
};

}  // namespace

std::unique_ptr<GroupManager> make_manager(const ChunkedLocalAttentionSpec& kind,
                                           const GroupManager::Group& group) {
  return std::make_unique<ChunkedLocalManager>(kind, group);
}

}  // namespace troupe
