#include "runtime/cache/kv_cache_manager.hpp"

#include <algorithm>
#include <unordered_set>

#include "runtime/base/check.hpp"

namespace troupe {

namespace {

/// A fixed seed, since it does not matter which blocks are sampled.
constexpr std::uint64_t kSampleSeed = 1;

/// Of kKeepPrefix; pins have their number of tokens.
constexpr std::int32_t kKeptTag = 0;

std::optional<BlockMetrics> make_metrics(const KVCacheSettings& settings) {
  if (!settings.prefix_caching || settings.metrics_sample_rate <= 0) return std::nullopt;
  return BlockMetrics(settings.metrics_sample_rate, kSampleSeed);
}

}  // namespace

KVCacheManager::KVCacheManager(const KVCacheSettings& settings)
    : settings_(settings),
      hasher_(settings.hash_algorithm, settings.hash_block_size(), settings.hash_seed),
      metrics_(make_metrics(settings)),
      pool_(settings.num_blocks, settings.events, metrics()),
      coordinator_(settings_, pool_),
      watermark_blocks_(static_cast<std::int32_t>(settings.watermark * settings.num_blocks)) {}

// ---- operations on one request ------------------------------------------------------------------

CachedRequest& KVCacheManager::add_request(KVCacheRequest info) {
  const RequestId id = info.id;
  auto added = std::make_unique<CachedRequest>();
  added->info = std::move(info);
  added->groups.resize(coordinator_.num_groups());
  if (settings_.keeps_hashes()) hasher_.extend(added->info, added->hashes);
  const auto [place, is_new] = requests_.emplace(id, std::move(added));
  CHECK(is_new, value(id));
  return *place->second;
}

CachedRequest& KVCacheManager::request(RequestId id) {
  const auto found = requests_.find(id);
  CHECK(found != requests_.end(), value(id));
  return *found->second;
}

void KVCacheManager::append_tokens(CachedRequest& request, std::span<const TokenId> token_ids) {
  std::vector<TokenId>& all = request.info.token_ids.edit();
  all.insert(all.end(), token_ids.begin(), token_ids.end());
  if (settings_.keeps_hashes()) hasher_.extend(request.info, request.hashes);
}

CacheHit KVCacheManager::get_computed_blocks(const CachedRequest& request) {
  CacheHit hit;
  hit.blocks.resize(coordinator_.num_groups());
  if (!settings_.prefix_caching || request.info.skip_reading_prefix_cache) return hit;
  // The last token is always computed: its logits are needed.
  hit = coordinator_.find_longest_hit(request, request.num_tokens() - 1);
  if (hit.num_tokens > 0 && request.info.report_all_hits) coordinator_.report_hit(request, hit);
  return hit;
}

bool KVCacheManager::allocate_slots(CachedRequest& request, const Slots& slots,
                                    BlockTable* new_blocks) {
  CHECK(slots.num_new_tokens + slots.num_hit_tokens + slots.num_external_tokens > 0,
        value(request.info.id));
  const std::int32_t max_len = settings_.max_model_len;
  const std::int32_t num_local = slots.num_computed_tokens + slots.num_hit_tokens;
  const std::int32_t num_computed = std::min(num_local + slots.num_external_tokens, max_len);

  if (slots.full_sequence_must_fit) {
    const std::int32_t num_needed = coordinator_.num_blocks_needed(
        request, {.room = {.num_tokens = std::min(request.num_tokens(), max_len),
                           .num_main_tokens = std::min(request.num_tokens(), max_len),
                           .num_encoder_tokens = slots.num_encoder_tokens},
                  .hit = slots.hit,
                  .num_computed_tokens = num_computed,
                  .whole_sequence = true});
    if (num_needed + slots.num_watermark_blocks > pool_.num_free_blocks()) return false;
  }

  const std::int32_t num_tokens = num_computed + slots.num_new_tokens;
  const GroupManager::Room room{
      .num_tokens = std::min(num_tokens + slots.num_lookahead_tokens, max_len),
      .num_main_tokens = num_tokens,
      .num_encoder_tokens = slots.num_encoder_tokens};
  // Before the free blocks are counted: released blocks may be sufficient.
  remove_skipped_blocks(request, std::max(0, num_computed - slots.num_in_flight_tokens));
  const std::int32_t num_needed = coordinator_.num_blocks_needed(
      request, {.room = room, .hit = slots.hit, .num_computed_tokens = num_computed});
  if (num_needed + slots.num_watermark_blocks > pool_.num_free_blocks() - slots.num_reserved_blocks)
    return false;

  const bool adopts = slots.hit != nullptr && slots.hit->has_blocks();
  if (adopts || slots.num_external_tokens > 0)
    coordinator_.adopt(request, slots.hit, num_computed, slots.num_external_tokens);
  coordinator_.extend(request, room, new_blocks);
  request.num_computed_tokens = slots.num_computed_tokens;
  if (settings_.prefix_caching && !slots.delay_caching && !request.delays_caching)
    cache_blocks(request, std::min(num_tokens, request.num_tokens()));
  return true;
}

void KVCacheManager::cache_blocks(CachedRequest& request, std::int32_t num_tokens) {
  if (!settings_.prefix_caching) return;
  coordinator_.cache(request, num_tokens);
  if (!request.pins_to_come.empty()) settle_pins(request, num_tokens);
}

// ---- prefixes that stay -------------------------------------------------------------------------

void KVCacheManager::pin_when_cached(CachedRequest& request, std::int32_t num_tokens) {
  request.pins_to_come.push_back(num_tokens);
}

void KVCacheManager::settle_pins(CachedRequest& request, std::int32_t num_cached) {
  for (const std::int32_t end : std::exchange(request.pins_to_come, {})) {
    if (end <= num_cached)
      keep_prefix(request, end, /*tag=*/end, /*bounded=*/true);
    else
      request.pins_to_come.push_back(end);
  }
}

void KVCacheManager::keep_prefix(CachedRequest& request, std::int32_t num_tokens, std::int32_t tag,
                                 bool bounded) {
  if (!settings_.prefix_caching) return;
  KeptPrefix kept{.id = request.info.id, .tag = tag, .bounded = bounded, .blocks = {}};
  std::int32_t num_new = 0;
  for (const std::vector<BlockId>& blocks : coordinator_.cache_hit_of(request, num_tokens).blocks) {
    for (const BlockId block : blocks) {
      if (block == kNullBlock) continue;
      kept.blocks.push_back(block);
      num_new += !num_pins_.contains(block);
    }
  }
  if (kept.blocks.empty() || (bounded && num_new > settings_.max_pinned_blocks)) return;
  for (const BlockId block : kept.blocks) {
    pool_.touch(block);
    if (bounded) ++num_pins_[block];
  }
  kept_.push_back(std::move(kept));
  // Blocks that older ones share with it do not count twice: it goes last itself.
  while (num_pinned_blocks() > settings_.max_pinned_blocks)
    release(std::ranges::find_if(kept_, &KeptPrefix::bounded));
}

void KVCacheManager::release(std::deque<KeptPrefix>::iterator kept) {
  CHECK(kept != kept_.end());
  if (kept->bounded)
    for (const BlockId block : kept->blocks)
      if (const auto pins = num_pins_.find(block); --pins->second == 0) num_pins_.erase(pins);
  // The end of a chain is evicted before its beginning.
  std::ranges::reverse(kept->blocks);
  pool_.free(kept->blocks);
  kept_.erase(kept);
}

void KVCacheManager::release_prefix(RequestId id, std::int32_t tag) {
  if (const auto known = requests_.find(id); known != requests_.end())
    std::erase(known->second->pins_to_come, tag);
  const auto same = [&](const KeptPrefix& kept) { return kept.id == id && kept.tag == tag; };
  for (auto kept = std::ranges::find_if(kept_, same); kept != kept_.end();
       kept = std::ranges::find_if(kept_, same))
    release(kept);
}

// ---- operations on one request, continued -------------------------------------------------------

void KVCacheManager::remove_skipped_blocks(CachedRequest& request,
                                           std::int32_t num_processed_tokens) {
  coordinator_.remove_skipped(request, num_processed_tokens);
}

void KVCacheManager::free(CachedRequest& request) {
  coordinator_.free(request);
  request.delays_caching = false;
}

void KVCacheManager::forget(RequestId id) {
  free(request(id));
  requests_.erase(id);
}

std::vector<BlockId> KVCacheManager::pop_blocks_for_free(RequestId id) {
  std::vector<BlockId> blocks;
  for (const GroupBlocks& group : request(id).groups)
    blocks.insert(blocks.end(), group.blocks.begin(), group.blocks.end());
  requests_.erase(id);
  return blocks;
}

void KVCacheManager::defer_free(CachedRequest& request) {
  std::vector<BlockId>& blocks = deferred_frees_.emplace_back();
  for (GroupBlocks& group : request.groups) {
    blocks.insert(blocks.end(), group.blocks.begin(), group.blocks.end());
    group = {};
  }
  request.delays_caching = false;
}

void KVCacheManager::release_deferred(std::size_t count) {
  CHECK(count <= deferred_frees_.size(), count, deferred_frees_.size());
  for (; count > 0; --count) {
    std::vector<BlockId>& blocks = deferred_frees_.front();
    std::reverse(blocks.begin(), blocks.end());
    pool_.free(blocks);
    deferred_frees_.pop_front();
  }
}

bool KVCacheManager::reset_prefix_cache() { return pool_.reset(); }

std::int32_t KVCacheManager::estimate_cached_tokens(const CachedRequest& request) const {
  return settings_.prefix_caching ? coordinator_.estimate_cached_tokens(request) : 0;
}

BlockCopies KVCacheManager::take_block_copies() {
  BlockCopies copies = coordinator_.take_copies();
  std::vector<BlockId> both;
  for (const auto& [source, destination] : copies) both.insert(both.end(), {source, destination});
  pool_.free(both);
  return copies;
}

BlockTable KVCacheManager::clipped_block_table(const CachedRequest& request,
                                               std::int32_t num_tokens) const {
  BlockTable table;
  for (std::size_t g = 0; g < request.groups.size(); ++g) {
    std::vector<BlockId>& blocks = table.emplace_back(request.groups[g].blocks);
    const GroupManager& manager = *coordinator_.groups()[g];
    if (manager.holds_states()) continue;
    const auto size = static_cast<std::size_t>(ceil_div(num_tokens, manager.block_size()));
    blocks.resize(std::min(blocks.size(), size));
  }
  return table;
}

// ---- messages -----------------------------------------------------------------------------------

void KVCacheManager::apply(const KVCacheUpdates& updates) {
  for (const KVCacheRequest& added : updates.new_requests) add_request(added);
  for (const auto& [id, item] : updates.new_mm_features)
    request(id).info.mm_features.push_back(item);
  std::size_t next_token = 0;
  for (const KVCacheCommand& command : updates.commands) {
    if (command.kind == KVCacheCommandKind::kNewStep) {
      new_step_starts();
      continue;
    }
    const auto count = static_cast<std::size_t>(command.count);
    if (command.kind == KVCacheCommandKind::kReleaseDeferred) {
      release_deferred(count);
      continue;
    }
    if (command.kind == KVCacheCommandKind::kReleasePrefix) {
      release_prefix(command.id, command.count);
      continue;
    }
    CachedRequest& known = request(command.id);
    switch (command.kind) {
      case KVCacheCommandKind::kExtendPrompt:
        known.info.num_prompt_tokens += command.count;
        [[fallthrough]];
      case KVCacheCommandKind::kAppendTokens:
        CHECK(next_token + count <= updates.token_ids.size(), count);
        append_tokens(known, std::span(updates.token_ids).subspan(next_token, count));
        next_token += count;
        break;
      case KVCacheCommandKind::kNewStep:
        break;
      case KVCacheCommandKind::kCacheBlocks:
        known.num_computed_tokens = command.count;
        known.delays_caching = false;
        cache_blocks(known, command.count);
        break;
      case KVCacheCommandKind::kFreeBlocks:
        free(known);
        break;
      case KVCacheCommandKind::kDeferFree:
        defer_free(known);
        break;
      case KVCacheCommandKind::kPinPrefix:
        pin_when_cached(known, command.count);
        break;
      case KVCacheCommandKind::kKeepPrefix:
        keep_prefix(known, command.count, kKeptTag, /*bounded=*/false);
        break;
      case KVCacheCommandKind::kReleaseDeferred:
      case KVCacheCommandKind::kReleasePrefix:
        break;
      case KVCacheCommandKind::kForgetRequest:
        forget(command.id);
        break;
      case KVCacheCommandKind::kTruncate:
        CHECK(count <= known.info.token_ids.size(), count);
        known.info.token_ids.edit().resize(count);
        known.info.num_prompt_tokens = command.count;
        known.hashes.resize(
            std::min(known.hashes.size(), count / static_cast<std::size_t>(hasher_.unit())));
        break;
    }
  }
}

SlotsAllocated KVCacheManager::allocate(const AllocateSlots& question) {
  apply(question.updates);
  const std::size_t num_groups = coordinator_.num_groups();
  SlotsAllocated answer;
  bool any_blocks = false;
  BlockTable taken(num_groups);
  for (const SlotDemand& demand : question.demands) {
    CachedRequest& known = request(demand.id);
    const Slots slots{.num_computed_tokens = demand.num_computed_tokens,
                      .num_in_flight_tokens = demand.num_in_flight_tokens,
                      .num_new_tokens = demand.num_new_tokens,
                      .num_lookahead_tokens = question.num_lookahead_tokens};
    if (demand.num_new_tokens > 0 && !allocate_slots(known, slots, &taken)) break;
    for (std::vector<BlockId>& blocks : taken) {
      any_blocks |= !blocks.empty();
      answer.block_counts.push_back(static_cast<std::int32_t>(blocks.size()));
      answer.block_ids.insert(answer.block_ids.end(), blocks.begin(), blocks.end());
      blocks.clear();
    }
    // Until the result of the step that ends the prompt is known: its prompt statistics count the
    // blocks that are cached then.
    if (demand.num_new_tokens == 0 ||
        demand.num_computed_tokens - demand.num_in_flight_tokens < known.info.num_prompt_tokens) {
      answer.num_cached_tokens.resize(question.demands.size(), -1);
      answer.num_cached_tokens[static_cast<std::size_t>(answer.num_allocated)] =
          estimate_cached_tokens(known);
    }
    ++answer.num_allocated;
  }
  if (!any_blocks) answer.block_counts.clear();
  answer.num_free_blocks = pool_.num_free_blocks();
  answer.num_pinned_blocks = num_pinned_blocks();
  answer.evicted = take_evicted();
  return answer;
}

PrefixHit KVCacheManager::lookup(const LookupPrefix& question) {
  apply(question.updates);
  CachedRequest& known = request(question.id);
  hit_ = get_computed_blocks(known);
  hit_owner_ = question.id;
  known.shared_prefix_boundary = hit_.shared_prefix_boundary;
  return {hit_.num_tokens, hit_.shared_prefix_boundary, pool_.num_free_blocks()};
}

/// The first num_tokens of a hit; a block boundary of all groups.
CacheHit KVCacheManager::clipped_hit(CacheHit hit, std::int32_t num_tokens) const {
  hit.num_tokens = num_tokens;
  for (std::size_t g = 0; g < hit.blocks.size(); ++g) {
    const auto size = static_cast<std::size_t>(num_tokens / coordinator_.groups()[g]->block_size());
    hit.blocks[g].resize(std::min(hit.blocks[g].size(), size));
  }
  return hit;
}

/// These must stay free, otherwise requests in mid-prefill could deadlock waiting for each other.
std::int32_t KVCacheManager::num_reserved_blocks(const AdmitRequest& question) {
  std::int32_t num_reserved = 0;
  for (const UnfinishedPrefill& prefill : question.reserve_for) {
    CachedRequest& known = request(prefill.id);
    const std::int32_t num_tokens = std::min(known.num_tokens(), settings_.max_model_len);
    num_reserved += coordinator_.num_blocks_needed(
        known, {.room = {.num_tokens = num_tokens + question.num_reserved_tokens,
                         .num_main_tokens = num_tokens},
                .num_computed_tokens = prefill.num_computed_tokens,
                .whole_sequence = true});
  }
  for (const auto& group : coordinator_.groups())
    if (!group->holds_states())
      num_reserved += ceil_div(question.num_reserved_tokens, group->block_size());
  return num_reserved;
}

RequestAdmitted KVCacheManager::admit(const AdmitRequest& question) {
  apply(question.updates);
  CHECK(!question.use_hit || hit_owner_ == question.id, value(question.id));
  CachedRequest& known = request(question.id);
  if (question.use_hit && question.num_hit_tokens < hit_.num_tokens)
    hit_ = clipped_hit(hit_, question.num_hit_tokens);
  const Slots slots{.num_computed_tokens = question.num_computed_tokens,
                    .num_in_flight_tokens = question.num_in_flight_tokens,
                    .num_new_tokens = question.num_new_tokens,
                    .num_hit_tokens = question.num_hit_tokens,
                    .hit = question.use_hit ? &hit_ : nullptr,
                    .num_external_tokens = question.num_external_tokens,
                    .num_lookahead_tokens = question.num_lookahead_tokens,
                    .num_encoder_tokens = question.num_encoder_tokens,
                    .delay_caching = question.delay_caching,
                    .full_sequence_must_fit = question.full_sequence_must_fit,
                    .num_watermark_blocks = question.keep_watermark ? watermark_blocks_ : 0,
                    .num_reserved_blocks = num_reserved_blocks(question)};
  RequestAdmitted answer;
  answer.fits = allocate_slots(known, slots, nullptr);
  answer.num_free_blocks = pool_.num_free_blocks();
  answer.num_pinned_blocks = num_pinned_blocks();
  answer.evicted = take_evicted();
  if (!answer.fits) return answer;
  known.delays_caching |= question.delay_caching;
  for (const GroupBlocks& group : known.groups) {
    answer.block_counts.push_back(static_cast<std::int32_t>(group.blocks.size()));
    answer.block_ids.insert(answer.block_ids.end(), group.blocks.begin(), group.blocks.end());
  }
  answer.num_cached_tokens = estimate_cached_tokens(known);
  return answer;
}

BlockOps KVCacheManager::get_block_ops(const GetBlockOps& question) {
  apply(question.updates);
  BlockOps ops{coordinator_.take_new_blocks(), take_block_copies()};
  ops.num_free_blocks = pool_.num_free_blocks();
  return ops;
}

BlockTableRead KVCacheManager::read_block_table(const ReadBlockTable& question) {
  apply(question.updates);
  CachedRequest& known = request(question.id);
  remove_skipped_blocks(known,
                        std::max(0, question.num_computed_tokens - question.num_in_flight_tokens));
  BlockTableRead answer{clipped_block_table(known, question.num_computed_tokens)};
  answer.num_free_blocks = pool_.num_free_blocks();
  return answer;
}

InvalidBlocksFound KVCacheManager::find_invalid_blocks(const FindInvalidBlocks& question) {
  apply(question.updates);
  const bool has_several_groups = coordinator_.num_groups() > 1;
  const std::unordered_set<BlockId> invalid(question.block_ids.begin(), question.block_ids.end());
  std::unordered_set<BlockId> claimed;  // the first request of a list recomputes a shared block
  InvalidBlocksFound answer;
  const auto find = [&](const FindInvalidBlocks::Loaded& loaded, bool drop_content) {
    const auto& groups = request(loaded.id).groups;
    std::int32_t num_valid = -1;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::vector<BlockId>& blocks = groups[g].blocks;
      const std::int32_t block_size = coordinator_.group(g).block_size();
      const auto end = std::min(blocks.size(),
                                static_cast<std::size_t>(ceil_div(loaded.num_tokens, block_size)));
      for (std::size_t i = 0; i < end; ++i) {
        if (!invalid.contains(blocks[i])) continue;
        if (num_valid < 0) num_valid = loaded.num_tokens;
        // Of several groups each request begins anew, in other blocks.
        if (claimed.insert(blocks[i]).second || has_several_groups)
          num_valid = std::min(num_valid, static_cast<std::int32_t>(i) * block_size);
      }
    }
    if (num_valid < 0 || num_valid == loaded.num_tokens) return num_valid;
    for (std::size_t g = 0; drop_content && g < groups.size(); ++g) {
      const std::vector<BlockId>& blocks = groups[g].blocks;
      for (auto i = static_cast<std::size_t>(num_valid / coordinator_.group(g).block_size());
           i < blocks.size(); ++i)
        if (blocks[i] != kNullBlock) pool_.drop_content(blocks[i]);
    }
    // What the windows of an earlier token need is not there.
    return has_several_groups ? 0 : num_valid;
  };
  for (const auto& loaded : question.loading) answer.loading.push_back(find(loaded, false));
  claimed.clear();  // a running request cannot wait until one that loads recomputes a shared block
  for (const auto& loaded : question.running)
    answer.running.push_back(find(loaded, question.drop_content));
  answer.num_free_blocks = pool_.num_free_blocks();
  return answer;
}

PrefixCacheReset KVCacheManager::reset(const ResetPrefixCache& question) {
  apply(question.updates);
  const bool ok = reset_prefix_cache();
  return {ok, pool_.num_free_blocks()};
}

std::vector<KVCacheEvent> KVCacheManager::take_events() { return pool_.take_events(); }

std::vector<BlockResidency> KVCacheManager::take_evicted() {
  return metrics_ ? metrics_->take_ended() : std::vector<BlockResidency>();
}

}  // namespace troupe
