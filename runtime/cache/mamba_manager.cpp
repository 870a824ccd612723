// Mamba layers: a block holds the state after some token, which summarises all tokens up to it.

#include <algorithm>
#include <unordered_set>

#include "runtime/base/check.hpp"
#include "runtime/cache/group_manager.hpp"

namespace troupe {
namespace {

class StateManager : public GroupManager {
 public:
  StateManager(const MambaSpec& kind, const Group& group) : GroupManager(group), kind_(kind) {}

  bool holds_states() const override { return true; }
  std::int32_t num_skipped_tokens(std::int32_t num_computed) const override {
    return num_computed - 1;
  }

 protected:
  MambaSpec kind_;
};

/// Mode `none`: one running state per request, and further blocks for those of speculative tokens.
/// States are not cached, so there are no hits.
class RunningStateManager final : public StateManager {
 public:
  using StateManager::StateManager;

  std::int32_t num_blocks_needed(CachedRequest& request, const BlockDemand& demand) const override {
    BlockDemand with_drafts = demand;
    with_drafts.room.num_tokens = with_speculative_blocks(demand.room.num_tokens);
    return GroupManager::num_blocks_needed(request, with_drafts);
  }

  void extend(CachedRequest& request, const Room& room, std::vector<BlockId>* taken) override {
    Room with_drafts = room;
    with_drafts.num_tokens = with_speculative_blocks(room.num_tokens);
    GroupManager::extend(request, with_drafts, taken);
  }

  std::int32_t find_hit(std::span<const BlockHash>, std::int32_t, std::span<const std::int32_t>,
                        bool, std::vector<std::vector<BlockId>>&) const override {
    return 0;
  }

 private:
  std::int32_t with_speculative_blocks(std::int32_t num_tokens) const {
    return num_tokens + kind_.num_speculative_blocks * block_size();
  }
};

/// Mode `align`: steps end at block boundaries (StatePositions), where states can be kept for later
/// requests. Entry i of a table is the state after token (i + 1) * block_size - 1; only the running
/// state, the speculative ones after it, and a checkpoint before it are real blocks, and the state
/// that a step started from stays until the step is done.
class AlignedStateManager final : public StateManager {
 public:
  using StateManager::StateManager;

  void new_step_starts() override { keys_of_this_step_.clear(); }

  std::int32_t num_blocks_needed(CachedRequest& request, const BlockDemand& demand) const override {
    // The state would be read before the step that writes it has run.
    if (!demand.hit.empty() && is_of_this_step(demand.hit.back()))
      return context_.pool.num_blocks() + 1;
    GroupBlocks& own = blocks_of(request);
    // Drafters have no Mamba layers: tokens that they run ahead need no states.
    const std::int32_t num_tokens = demand.room.num_main_tokens;
    const auto checkpoint = find_checkpoint(request, demand.num_computed_tokens, num_tokens);
    if (!demand.whole_sequence) own.checkpoint = checkpoint;
    const auto have = static_cast<std::int32_t>(own.blocks.size());
    const std::int32_t num_copies =
        ends_inside(demand.hit, demand.num_hit_tokens) || own.cached_tail ? 1 : 0;
    std::int32_t num_new = ceil_div(num_tokens, block_size()) + kind_.num_speculative_blocks -
                           static_cast<std::int32_t>(demand.hit.size()) - have;
    num_new = std::max(num_new, 0) + num_copies;
    // All others are null blocks, or reused blocks of speculative states.
    const std::int32_t most = 1 + num_copies + (checkpoint ? 1 : 0) +
                              (own.has_running_state ? 0 : kind_.num_speculative_blocks);
    return std::min(num_new, most) + num_unreferenced(demand.hit);
  }

  void extend(CachedRequest& request, const Room& room, std::vector<BlockId>* taken) override {
    replace_shared_tail(request, taken);
    GroupBlocks& own = blocks_of(request);
    move_cached_tail(own);
    std::vector<BlockId>& blocks = own.blocks;
    const auto had = static_cast<std::int32_t>(blocks.size());
    const std::int32_t num_speculative = kind_.num_speculative_blocks;
    const std::int32_t last = ceil_div(room.num_main_tokens, block_size()) - 1;
    if (last + 1 + num_speculative <= had && !own.checkpoint) return;
    const std::int32_t first_real = last - (own.checkpoint ? 1 : 0);
    while (static_cast<std::int32_t>(blocks.size()) < first_real) blocks.push_back(kNullBlock);
    if (own.has_running_state) {
      for (std::int32_t i = had - num_speculative; i < std::min(had, first_real); ++i) {
        const BlockId moved = std::exchange(blocks[static_cast<std::size_t>(i)], kNullBlock);
        blocks.push_back(moved);
      }
    }
    take(last + 1 + num_speculative - static_cast<std::int32_t>(blocks.size()), blocks);
    own.has_running_state = true;
    if (taken != nullptr) taken->insert(taken->end(), blocks.begin() + had, blocks.end());
  }

  void cache(CachedRequest& request, std::int32_t num_tokens) override {
    GroupBlocks& own = blocks_of(request);
    const std::int32_t begin = own.num_cached_blocks.value_or(0);
    GroupManager::cache(request, num_tokens);
    const std::int32_t end = own.num_cached_blocks.value_or(0);
    if (own.checkpoint)
      cache_checkpoint(request, *own.checkpoint);
    else
      cache_tail(request, num_tokens);
    for (std::int32_t i = begin; i < end; ++i) note_key(own.blocks[static_cast<std::size_t>(i)]);
  }

  /// All blocks before the state that the next step starts from; null blocks among them are
  /// skipped.
  void remove_skipped(CachedRequest& request, std::int32_t num_processed) override {
    if (num_processed <= 0) return;
    std::vector<BlockId>& blocks = blocks_of(request).blocks;
    std::vector<BlockId> released;
    const std::size_t end =
        std::min(static_cast<std::size_t>((num_processed - 1) / block_size()), blocks.size());
    for (std::size_t i = end; i-- > 0;)
      if (blocks[i] != kNullBlock) released.push_back(std::exchange(blocks[i], kNullBlock));
    if (!released.empty()) context_.pool.free(released);
  }

  /// From right to left: the last state alone is the whole hit.
  std::int32_t find_hit(std::span<const BlockHash> hashes, std::int32_t max_tokens,
                        std::span<const std::int32_t> groups, bool /*drop_last*/,
                        std::vector<std::vector<BlockId>>& hit) const override {
    const std::int32_t step = context_.partial_hits ? context_.hash_unit : block_size();
    for (std::int32_t end = round_down(max_tokens, step); end > 0; end -= step) {
      if (end % context_.alignment != 0 || !append_prefix(hashes, end, groups, hit)) continue;
      for (auto& blocks : hit)
        blocks.insert(blocks.begin(), static_cast<std::size_t>((end - 1) / block_size()),
                      kNullBlock);
      return end;
    }
    return 0;
  }

 private:
  struct KeyHash {
    std::size_t operator()(const BlockKey& key) const {
      std::size_t bits;
      std::memcpy(&bits, key.hash.bytes.data(), sizeof bits);
      return bits;
    }
  };

  bool is_of_this_step(BlockId block) const {
    const PrefixMap& map = context_.pool.prefix_map();
    return block != kNullBlock && map.has_entry(block) &&
           keys_of_this_step_.contains(map.key(block));
  }
  void note_key(BlockId block) {
    const PrefixMap& map = context_.pool.prefix_map();
    if (block != kNullBlock && map.has_entry(block)) keys_of_this_step_.insert(map.key(block));
  }

  /// The last position before num_tokens where a later request could start, if the step from
  /// num_computed on leaves its block free.
  std::optional<GroupBlocks::Checkpoint> find_checkpoint(const CachedRequest& request,
                                                         std::int32_t num_computed,
                                                         std::int32_t num_tokens) const {
    if (kind_.num_prefill_checkpoint_blocks == 0) return std::nullopt;
    const std::int32_t prefill_end =
        std::max(request.info.num_prompt_tokens, request.num_tokens() - 1);
    const bool only_at_end = context_.settings.retention_interval == 0;
    if (only_at_end && num_tokens < prefill_end) return std::nullopt;
    const std::int32_t position = context_.positions.last_hit(num_tokens, context_.alignment);
    const std::int32_t index = ceil_div(num_tokens, block_size()) - 2;
    if (index < 0 ||
        !context_.positions.can_checkpoint(num_computed, num_tokens, position, block_size(),
                                           kind_.prefill_checkpoint_alignment))
      return std::nullopt;
    const GroupBlocks& own = blocks_of(request);
    const auto have = static_cast<std::int32_t>(own.blocks.size());
    const bool speculative = own.has_running_state && index >= have - kind_.num_speculative_blocks;
    if (index < have && !speculative && own.blocks[static_cast<std::size_t>(index)] != kNullBlock)
      return std::nullopt;
    return GroupBlocks::Checkpoint{index, position};
  }

  /// The running state advances; the cached content of its block is moved to a copy.
  void move_cached_tail(GroupBlocks& own) {
    if (!own.cached_tail) return;
    const BlockId source = own.blocks[static_cast<std::size_t>(*own.cached_tail)];
    own.cached_tail.reset();
    std::vector<BlockId> copy;
    take(1, copy);
    context_.pool.touch(source);
    context_.pool.move_content(source, copy[0]);
    copies_.emplace_back(source, copy[0]);
    note_key(copy[0]);
  }

  bool worth_caching(const CachedRequest& request, std::int32_t index) const override {
    const std::int32_t end = (index + 1) * block_size();
    if (is_retained(end)) return true;
    const auto ends_at = [&](std::int32_t boundary) {
      return end == round_down(round_down(boundary, context_.alignment), block_size());
    };
    const auto [repeated, extended] = replay_boundaries(request.info.num_prompt_tokens);
    return ends_at(repeated) || ends_at(extended) || ends_at(request.shared_prefix_boundary);
  }

  /// Whether the state after num_tokens is kept only because of the retention interval.
  bool is_retained(std::int32_t num_tokens) const {
    const auto interval = context_.settings.retention_interval;
    if (!interval) return num_tokens % block_size() == 0;
    return *interval > 0 && num_tokens % *interval == 0;
  }

  /// The step ends where a later request with the same prompt, or one that shares this prefix, can
  /// start.
  void cache_tail(CachedRequest& request, std::int32_t num_tokens) {
    const std::int32_t unit = context_.hash_unit;
    if (num_tokens <= 0 || num_tokens % unit != 0) return;
    const std::int32_t prompt = request.info.num_prompt_tokens;
    const std::int32_t junction = request.shared_prefix_boundary;
    const bool at_junction = context_.positions.keep_junction && num_tokens == junction &&
                             request.num_computed_tokens < junction && junction <= prompt;
    if (num_tokens != context_.positions.last_hit(prompt, unit) && !at_junction) return;
    GroupBlocks& own = blocks_of(request);
    const std::int32_t index = (num_tokens - 1) / block_size();
    const BlockId block = own.blocks[static_cast<std::size_t>(index)];
    if (block == kNullBlock) return;
    add_prefix_key(request, block, num_tokens);
    note_key(block);
    if (num_tokens % block_size() == 0) return;
    own.cached_tail = index;
    own.num_cached_blocks = index;
  }

  /// The block was cached as a full one, if at all: its only key becomes that of the checkpoint.
  void cache_checkpoint(const CachedRequest& request, const GroupBlocks::Checkpoint& checkpoint) {
    const std::int32_t position = checkpoint.num_tokens;
    const BlockId block = blocks_of(request).blocks[static_cast<std::size_t>(checkpoint.index)];
    const PrefixMap& map = context_.pool.prefix_map();
    const std::int32_t prompt = request.info.num_prompt_tokens;
    const bool is_kept = position == context_.positions.last_hit(prompt, context_.alignment) ||
                         position == request.shared_prefix_boundary || is_retained(position);
    if (block == kNullBlock ||
        (is_kept && map.has_entry(block) && map.num_tokens(block) == position))
      return;
    context_.pool.drop_content(block);
    if (!is_kept) return;
    add_prefix_key(request, block, position);
    note_key(block);
  }

  std::unordered_set<BlockKey, KeyHash> keys_of_this_step_;
};

}  // namespace

std::unique_ptr<GroupManager> make_manager(const MambaSpec& kind,
                                           const GroupManager::Group& group) {
  if (kind.mode == MambaMode::kNone) return std::make_unique<RunningStateManager>(kind, group);
  return std::make_unique<AlignedStateManager>(kind, group);
}

}  // namespace troupe
