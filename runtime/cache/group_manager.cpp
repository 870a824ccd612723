#include "runtime/cache/group_manager.hpp"

#include <algorithm>
#include <limits>

#include "runtime/base/check.hpp"

namespace troupe {

std::int32_t GroupManager::num_skipped_tokens(std::int32_t) const { return 0; }

std::int32_t GroupManager::max_admission_blocks() const {
  return std::numeric_limits<std::int32_t>::max();
}

std::int32_t GroupManager::num_blocks_needed(CachedRequest& request,
                                             const BlockDemand& demand) const {
  const GroupBlocks& own = blocks_of(request);
  const auto have = static_cast<std::int32_t>(own.blocks.size());
  std::int32_t required = ceil_div(demand.room.num_tokens, block_size());
  if (demand.whole_sequence) required = std::min(required, max_admission_blocks());
  if (own.num_cached_blocks) return std::max(required - have, 0);

  const auto num_hits = static_cast<std::int32_t>(demand.hit.size());
  const std::int32_t num_skipped = num_skipped_tokens(demand.num_computed_tokens) / block_size();
  const std::int32_t num_new = std::max(required - std::max(num_skipped, num_hits + have), 0);
  const std::int32_t num_copies = ends_inside(demand.hit, demand.num_hit_tokens) ? 1 : 0;
  const auto used =
      demand.hit.subspan(std::min(static_cast<std::size_t>(num_skipped), demand.hit.size()));
  return num_new + num_copies + num_unreferenced(used);
}

/// A hit block without references is free now, but would not be any more.
std::int32_t GroupManager::num_unreferenced(std::span<const BlockId> hit) const {
  return static_cast<std::int32_t>(std::count_if(hit.begin(), hit.end(), [&](BlockId block) {
    return block != kNullBlock && context_.pool.num_references(block) == 0;
  }));
}

void GroupManager::adopt(CachedRequest& request, std::span<const BlockId> hit,
                         std::int32_t num_hit_tokens, std::int32_t num_computed) {
  GroupBlocks& own = blocks_of(request);
  const bool shares_tail = ends_inside(hit, num_hit_tokens);
  const std::int32_t num_skipped = num_skipped_tokens(num_computed) / block_size();
  if (num_skipped > 0) {
    own.blocks.assign(static_cast<std::size_t>(num_skipped), kNullBlock);
    hit = hit.subspan(std::min(static_cast<std::size_t>(num_skipped), hit.size()));
  }
  for (const BlockId block : hit) {
    context_.pool.touch(block);
    own.blocks.push_back(block);
  }
  own.num_cached_blocks = static_cast<std::int32_t>(own.blocks.size());
  if (shares_tail && !hit.empty()) {
    --*own.num_cached_blocks;
    own.shared_tail = own.num_cached_blocks;
  }
}

void GroupManager::take(std::int32_t n, std::vector<BlockId>& blocks) {
  if (n <= 0) return;
  context_.pool.take(n, blocks);
  if (context_.zero_new_blocks)
    new_blocks_.insert(new_blocks_.end(), blocks.end() - n, blocks.end());
}

void GroupManager::replace_shared_tail(CachedRequest& request, std::vector<BlockId>* taken) {
  GroupBlocks& own = blocks_of(request);
  if (!own.shared_tail) return;
  BlockId& tail = own.blocks[static_cast<std::size_t>(*own.shared_tail)];
  std::vector<BlockId> copy;
  take(1, copy);
  context_.pool.touch(copy[0]);
  // The request's reference to the source is now the copy operation's.
  copies_.emplace_back(tail, copy[0]);
  if (taken != nullptr) taken->push_back(copy[0]);
  tail = copy[0];
  own.shared_tail.reset();
}

void GroupManager::extend_external(CachedRequest& request, std::int32_t num_computed) {
  if (num_skipped_tokens(num_computed) >= num_computed) return;  // nothing to load here
  std::vector<BlockId>& blocks = blocks_of(request).blocks;
  take(ceil_div(num_computed, block_size()) - static_cast<std::int32_t>(blocks.size()), blocks);
}

void GroupManager::extend(CachedRequest& request, const Room& room, std::vector<BlockId>* taken) {
  replace_shared_tail(request, taken);
  std::vector<BlockId>& blocks = blocks_of(request).blocks;
  const auto had = static_cast<std::ptrdiff_t>(blocks.size());
  take(ceil_div(room.num_tokens, block_size()) - static_cast<std::int32_t>(had), blocks);
  if (taken != nullptr) taken->insert(taken->end(), blocks.begin() + had, blocks.end());
}

void GroupManager::take_new_blocks(std::vector<BlockId>& blocks) {
  blocks.insert(blocks.end(), new_blocks_.begin(), new_blocks_.end());
  new_blocks_.clear();
}

void GroupManager::take_copies(BlockCopies& copies) {
  copies.insert(copies.end(), copies_.begin(), copies_.end());
  copies_.clear();
}

const BlockHash& GroupManager::block_hash(std::span<const BlockHash> hashes,
                                          std::int32_t index) const {
  const auto last_unit =
      static_cast<std::size_t>((index + 1) * (block_size() / context_.hash_unit)) - 1;
  CHECK(last_unit < hashes.size(), index, hashes.size());
  return hashes[last_unit];
}

bool GroupManager::worth_caching(const CachedRequest&, std::int32_t) const { return true; }

void GroupManager::cache(CachedRequest& request, std::int32_t num_tokens) {
  GroupBlocks& own = blocks_of(request);
  const std::int32_t begin = own.num_cached_blocks.value_or(0);
  const std::int32_t end = num_tokens / block_size();
  if (begin >= end) return;
  std::vector<std::int32_t> stored_ends;
  for (std::int32_t i = begin; i < end; ++i)
    context_.pool.prefetch({block_hash(request.hashes, i), group_});
  for (std::int32_t i = begin; i < end; ++i) {
    const BlockId block = own.blocks[static_cast<std::size_t>(i)];
    if (block == kNullBlock || !worth_caching(request, i)) continue;
    const std::int32_t end_token = (i + 1) * block_size();
    if (context_.pool.prefix_map().has_entry(block)) {
      // It holds a shorter prefix, from when the block was not yet full.
      if (context_.pool.prefix_map().num_tokens(block) >= end_token) continue;
      context_.pool.drop_content(block);
    }
    context_.pool.set_content(block, {block_hash(request.hashes, i), group_}, end_token);
    if (context_.pool.records_events()) stored_ends.push_back(end_token);
  }
  own.num_cached_blocks = end;
  record_stored(request, begin * block_size(), end * block_size(), block_size(), stored_ends);
}

void GroupManager::cache_end(CachedRequest& request, std::int32_t num_tokens) {
  const GroupBlocks& own = blocks_of(request);
  const std::int32_t end =
      std::min(num_tokens / block_size(), static_cast<std::int32_t>(own.blocks.size()));
  for (std::int32_t i = first_uncached_of_hit(end); i < end; ++i) {
    const BlockId block = own.blocks[static_cast<std::size_t>(i)];
    if (block == kNullBlock || context_.pool.prefix_map().has_entry(block)) continue;
    const std::int32_t end_token = (i + 1) * block_size();
    context_.pool.set_content(block, {block_hash(request.hashes, i), group_}, end_token);
    if (context_.pool.records_events())
      record_stored(request, i * block_size(), end_token, block_size(), {end_token});
  }
}

void GroupManager::remove_skipped(CachedRequest& request, std::int32_t num_processed) {
  std::vector<BlockId>& blocks = blocks_of(request).blocks;
  const std::int32_t num_skipped = std::min(num_skipped_tokens(num_processed) / block_size(),
                                            static_cast<std::int32_t>(blocks.size()));
  std::vector<BlockId> released;
  for (std::int32_t i = num_skipped - 1; i >= 0; --i) {
    BlockId& block = blocks[static_cast<std::size_t>(i)];
    if (block == kNullBlock) break;  // earlier blocks have been released before
    released.push_back(block);
    block = kNullBlock;
  }
  if (!released.empty()) context_.pool.free(released);
}

void GroupManager::free(CachedRequest& request) {
  GroupBlocks& own = blocks_of(request);
  // The end of a chain is evicted before its beginning.
  std::reverse(own.blocks.begin(), own.blocks.end());
  context_.pool.free(own.blocks);
  own = {};
}

std::int32_t GroupManager::estimate_cached_tokens(const CachedRequest& request) const {
  const GroupBlocks& own = blocks_of(request);
  for (std::size_t i = own.blocks.size(); i-- > 0;) {
    const BlockId block = own.blocks[i];
    if (block != kNullBlock && context_.pool.prefix_map().has_entry(block))
      return context_.pool.prefix_map().num_tokens(block);
  }
  return 0;
}

void GroupManager::add_prefix_key(const CachedRequest& request, BlockId block,
                                  std::int32_t num_tokens) {
  const std::int32_t unit = context_.hash_unit;
  const BlockKey key{hash_of_prefix(request.hashes, num_tokens, unit), group()};
  const PrefixMap& map = context_.pool.prefix_map();
  if (map.has_entry(block)) {
    if (map.has_key(block, key)) return;
    if (map.num_tokens(block) < num_tokens) context_.pool.drop_content(block);
  }
  context_.pool.set_content(block, key, num_tokens);
  record_stored(request, num_tokens - unit, num_tokens, unit, {num_tokens});
}

bool GroupManager::append_cached(std::span<const BlockHash> hashes, std::int32_t index,
                                 std::span<const std::int32_t> groups,
                                 std::vector<std::vector<BlockId>>& hit) const {
  return append_prefix(hashes, (index + 1) * block_size(), groups, hit);
}

bool GroupManager::append_prefix(std::span<const BlockHash> hashes, std::int32_t num_tokens,
                                 std::span<const std::int32_t> groups,
                                 std::vector<std::vector<BlockId>>& hit) const {
  const auto unit = static_cast<std::size_t>(num_tokens / context_.hash_unit) - 1;
  CHECK(unit < hashes.size(), num_tokens, hashes.size());
  const BlockHash& hash = hashes[unit];
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const BlockId block = context_.pool.find(hash, groups[g]);
    if (block == PrefixMap::kNotFound) {
      for (std::size_t done = 0; done < g; ++done) hit[done].pop_back();
      return false;
    }
    hit[g].push_back(block);
  }
  return true;
}

std::pair<std::int32_t, std::int32_t> GroupManager::replay_boundaries(
    std::int32_t num_prompt_tokens) const {
  if (!context_.has_eagle_groups) return {num_prompt_tokens - 1, num_prompt_tokens - 1};
  const std::int32_t unit = context_.all_blocks_end;
  return {std::max(round_down(num_prompt_tokens - 1, unit) - unit, 0),
          std::max(round_down(num_prompt_tokens, unit) - unit, 0)};
}

void GroupManager::align(std::vector<std::vector<BlockId>>& hit) const {
  while (!hit[0].empty() &&
         static_cast<std::int32_t>(hit[0].size()) * block_size() % context_.alignment != 0)
    for (auto& blocks : hit) blocks.pop_back();
}

void GroupManager::record_stored(const CachedRequest& request, std::int32_t begin_token,
                                 std::int32_t end_token, std::int32_t stored_block_size,
                                 const std::vector<std::int32_t>& stored_ends, bool again) const {
  if (!context_.pool.records_events()) return;
  const auto unit = context_.hash_unit;
  BlocksStored event;
  if (begin_token > 0)
    event.parent = request.hashes[static_cast<std::size_t>(begin_token / unit) - 1];
  event.token_ids.assign(request.info.token_ids.begin() + begin_token,
                         request.info.token_ids.begin() + end_token);
  event.block_size = stored_block_size;
  event.lora = request.info.lora;
  event.group = group_;
  event.kind = spec_.kind_name();
  if (const AttentionWindow* window = spec_.window()) event.sliding_window = window->num_tokens;
  event.session_id = request.info.session_id;
  event.again = again;
  for (const std::int32_t end : stored_ends) {
    event.hashes.push_back(hash_of_prefix(request.hashes, end, unit));
    const std::int32_t begin = end - stored_block_size;
    event.block_indices.push_back((begin - begin_token) / stored_block_size);
    auto& predecessor = event.predecessors.emplace_back();
    if (begin > 0) predecessor = hash_of_prefix(request.hashes, begin, unit);
    event.extra_keys.push_back(
        extra_keys(request.info, round_down(end - 1, stored_block_size), end));
  }
  context_.pool.record(std::move(event));
}

void GroupManager::report_hit(const CachedRequest& request, std::int32_t num_tokens) const {
  std::vector<std::int32_t> ends;
  for (std::int32_t end = block_size(); end <= num_tokens; end += block_size()) ends.push_back(end);
  record_stored(request, 0, round_down(num_tokens, block_size()), block_size(), ends,
                /*again=*/true);
}

std::unique_ptr<GroupManager> make_manager(const EncoderOnlyAttentionSpec&,
                                           const GroupManager::Group& group) {
  CHECK(false, "a group of layers without a cache", group.id);
  return nullptr;
}

}  // namespace troupe
