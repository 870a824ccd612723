#include "runtime/kv_transfer/store_connector.hpp"

#include <algorithm>
#include <unordered_set>

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/cache/kv_events.hpp"
#include "runtime/kv_transfer/block_blob.hpp"
#include "runtime/kv_transfer/block_store.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/kv_transfer/scheduled_requests.hpp"

namespace troupe {
namespace {

/// More would make the message of a step large.
constexpr std::size_t kMovesPerStep = 4096;

std::string first_rank_folder(const KVConnectorContext& context) {
  ParallelConfig first = context.parallel;
  first.rank = 0;
  return origin_folder(context.model_identity, context.cache, first);
}

}  // namespace

Result<void> StoreKVConnector::check_groups(const KVCacheConfig& cache) {
  for (const KVCacheGroup& group : cache.groups) {
    const KVCacheSpec& spec = group.spec;
    if (spec.is<FullAttentionSpec>() || spec.is<SlidingWindowSpec>() || spec.is<MlaSpec>() ||
        spec.is<SlidingWindowMlaSpec>() || spec.is<ChunkedLocalAttentionSpec>())
      continue;
    return Error{ErrorCode::kUnsupported,
                 std::string("kv-transfer-config: layers of the kind ") + spec.kind_name() +
                     " cannot be transferred",
                 "kv-transfer-config"};
  }
  return {};
}

std::int64_t StoreKVConnector::stored_bytes(const KVConnectorContext& context, std::size_t group) {
  const ParallelConfig& parallel = context.parallel;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < context.cache.groups[group].layers.size(); ++i)
    bytes += context.cache.page_bytes[i] * parallel.tensor_parallel_size;
  return bytes + static_cast<std::int64_t>(sizeof(BlobHeader)) * parallel.world_size();
}

Result<std::shared_ptr<KVConnector>> StoreKVConnector::create(const KVConnectorContext& context,
                                                              const std::vector<StoreTier>& tiers,
                                                              bool describes_events, bool layered) {
  CHECK(!tiers.empty());
  std::vector<Tier> made;
  for (const StoreTier& tier : tiers) {
    ASSIGN_OR_RETURN(auto policy, make_eviction_policy(tier.eviction_policy));
    made.push_back({tier.medium, BlockIndex(tier.max_bytes, std::move(policy))});
  }
  std::shared_ptr<StoreKVConnector> connector(
      new StoreKVConnector(context, std::move(made), describes_events));
  connector->is_layered_ = layered && !context.among_others;
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    for (const StoreKey& key : tiers[t].stored) {
      const auto group = static_cast<std::size_t>(key.group);
      if (group >= connector->cache_.groups.size() || connector->tiers_[t].index.has(key)) continue;
      if (!connector->add(key, t)) connector->remove(key, t);
    }
  }
  connector->events_.clear();  // nobody has been told of those that are gone
  return std::shared_ptr<KVConnector>(std::move(connector));
}

StoreKVConnector::StoreKVConnector(const KVConnectorContext& context, std::vector<Tier> tiers,
                                   bool describes_events)
    : role_(context.config.role),
      origin_folder_(first_rank_folder(context)),
      cache_(context.cache),
      hasher_(context.settings.hash_algorithm, context.settings.hash_block_size(),
              context.settings.hash_seed),
      alignment_(context.settings.scheduler_block_size()),
      tiers_(std::move(tiers)),
      describes_events_(describes_events) {
  for (std::size_t g = 0; g < cache_.groups.size(); ++g)
    stored_bytes_.push_back(stored_bytes(context, g));
}

// ---- requests -----------------------------------------------------------------------------------

void StoreKVConnector::on_new_request(const KVCacheRequest& request) {
  Request& known = requests_[request.id] = {};
  known.identity = request;
  known.identity.token_ids = {};
  // An engine that is started again counts its adapters' revisions anew; their ids stay.
  if (known.identity.lora && is_persistent()) known.identity.lora->revision = request.lora->int_id;
}

bool StoreKVConnector::is_persistent() const {
  return std::ranges::any_of(
      tiers_, [](const Tier& tier) { return tier.medium == std::string_view(kDiskMedium); });
}

/// Null: its blocks have no hashes that could be known here.
StoreKVConnector::Request* StoreKVConnector::find(const RequestState& request) {
  const auto known = requests_.find(request.id);
  // The prompts of sessions change, and what was hashed may not be part of them any more.
  return known == requests_.end() || request.resumable ? nullptr : &known->second;
}

void StoreKVConnector::extend_hashes(Request& known, const RequestState& request) const {
  if (std::ssize(known.hashes) >= request.num_tokens() / hasher_.unit()) return;
  known.identity.token_ids = request.token_ids;
  hasher_.extend(known.identity, known.hashes);
  known.identity.token_ids = {};  // the Scheduler is to append to them without a copy
}

std::int32_t StoreKVConnector::block_size(std::size_t group) const {
  return cache_.groups[group].spec.block_size;
}

StoreKey StoreKVConnector::key_of(const Request& request, std::size_t group,
                                  std::int32_t block) const {
  return {hash_of_prefix(request.hashes, (block + 1) * block_size(group), hasher_.unit()),
          static_cast<std::int32_t>(group)};
}

std::int32_t StoreKVConnector::first_needed_token(std::size_t group,
                                                  std::int32_t num_computed) const {
  const KVCacheSpec& spec = cache_.groups[group].spec;
  if (const AttentionWindow* const window = spec.window())
    return std::max(0, num_computed - window->num_tokens + 1 - window->extra_retained_tokens);
  if (const auto* const chunks = std::get_if<ChunkedLocalAttentionSpec>(&spec.kind))
    return num_computed / chunks->chunk_size * chunks->chunk_size;
  return 0;
}

/// Of the blocks that end in (begin_token, end_token].
bool StoreKVConnector::has_all(const Request& request, std::size_t group, std::int32_t begin_token,
                               std::int32_t end_token) const {
  const std::int32_t size = block_size(group);
  for (std::int32_t block = end_token / size; block-- > begin_token / size;)
    if (!has(key_of(request, group, block))) return false;
  return true;
}

// ---- loads --------------------------------------------------------------------------------------

std::optional<KVConnector::Match> StoreKVConnector::get_num_new_matched_tokens(
    const RequestState& request, std::int32_t num_local_tokens) {
  Request* const known = find(request);
  if (known == nullptr || known->load_failed || role_ == ConnectorRole::kProducer ||
      request.params.skip_reading_prefix_cache)
    return Match{};
  extend_hashes(*known, request);
  // The last token is always computed, and what it attends to must be there.
  std::int32_t end = (request.num_tokens() - 1) / alignment_ * alignment_;
  if (num_local_tokens % alignment_ != 0) return Match{};
  // Of what all tokens need, the longest run.
  for (std::size_t g = 0; g < cache_.groups.size(); ++g) {
    const KVCacheSpec& spec = cache_.groups[g].spec;
    if (spec.window() != nullptr || spec.is<ChunkedLocalAttentionSpec>()) continue;
    std::int32_t run = num_local_tokens;
    while (run < end && has_all(*known, g, run, run + alignment_)) run += alignment_;
    end = run;
  }
  const auto has_window = [&](std::size_t g) {
    return has_all(*known, g, std::max(num_local_tokens, first_needed_token(g, end)), end);
  };
  while (end > num_local_tokens) {
    bool complete = true;
    for (std::size_t g = 0; complete && g < cache_.groups.size(); ++g) {
      const KVCacheSpec& spec = cache_.groups[g].spec;
      if (spec.window() != nullptr || spec.is<ChunkedLocalAttentionSpec>())
        complete = has_window(g);
    }
    if (complete) break;
    end -= alignment_;
  }
  known->num_matched_after = num_local_tokens;
  known->num_matched = std::max(0, end - num_local_tokens);
  return Match{std::max(0, end - num_local_tokens), /*async=*/!is_layered_};
}

void StoreKVConnector::update_state_after_alloc(const RequestState& request,
                                                const BlockTable& blocks,
                                                std::int32_t num_external_tokens) {
  Request* const known = find(request);
  if (known == nullptr) return;
  known->state = &request;
  known->blocks = blocks;
  known->num_seen.assign(cache_.groups.size(), 0);
  if (num_external_tokens == 0) return;
  BlockLoad load{.number = ++last_load_, .id = request.id, .is_layered = is_layered_, .blocks = {}};
  const std::int32_t begin = known->num_matched_after;
  const std::int32_t end = begin + num_external_tokens;
  for (std::size_t g = 0; g < cache_.groups.size(); ++g) {
    for (std::int32_t block = begin / block_size(g); block < end / block_size(g); ++block) {
      const BlockId id = blocks[g].at(static_cast<std::size_t>(block));
      if (id == kNullBlock) continue;  // no later token attends to it
      const StoreKey key = key_of(*known, g, block);
      for (Tier& tier : tiers_) tier.index.touch(key);
      load.blocks.push_back({key, id});
      if (tiers_.front().index.has(key) || role_ == ConnectorRole::kConsumer) continue;
      if (!add(key, 0)) continue;
      next_.ops.push_back({StoreOpKind::kCopy, {key, kNullBlock}, 0});
      record_stored(*known, key, block, tiers_.front().medium);
    }
  }
  next_.loads.push_back(load);
  open_loads_.emplace(load.number, std::move(load));
}

bool StoreKVConnector::has(const StoreKey& key) const {
  return std::ranges::any_of(tiers_, [&](const Tier& tier) { return tier.index.has(key); });
}

/// What has to go for it is removed.
bool StoreKVConnector::add(const StoreKey& key, std::size_t tier) {
  std::vector<StoreKey> removed;
  const bool fits =
      tiers_[tier].index.add(key, stored_bytes_[static_cast<std::size_t>(key.group)], removed);
  for (const StoreKey& old : removed) remove(old, tier);
  return fits;
}

void StoreKVConnector::remove(const StoreKey& key, std::size_t tier) {
  next_.ops.push_back({StoreOpKind::kRemove, {key, kNullBlock}, static_cast<std::uint8_t>(tier)});
  events_.emplace_back(
      BlockRemoved{.hash = key.hash, .group = key.group, .medium = tiers_[tier].medium});
}

KVConnector::Medium StoreKVConnector::medium(const RequestState& request) const {
  const auto found = requests_.find(request.id);
  if (found == requests_.end()) return Medium::kHost;
  const Request& known = found->second;
  bool is_in_memory = tiers_.front().medium == std::string_view(kHostMedium);
  for (std::size_t g = 0; g < cache_.groups.size(); ++g) {
    const std::int32_t end = (known.num_matched_after + known.num_matched) / block_size(g);
    for (std::int32_t block = known.num_matched_after / block_size(g); block < end; ++block) {
      const StoreKey key = key_of(known, g, block);
      is_in_memory &= !has(key) || tiers_.front().index.has(key);
    }
  }
  return is_in_memory ? Medium::kHost : Medium::kDisk;
}

void StoreKVConnector::record_stored(const Request& request, const StoreKey& key,
                                     std::int32_t block, const char* medium) {
  BlocksStored event;
  event.hashes = {key.hash};
  event.block_size = block_size(static_cast<std::size_t>(key.group));
  event.group = key.group;
  event.kind = cache_.groups[static_cast<std::size_t>(key.group)].spec.kind_name();
  event.medium = medium;
  if (describes_events_) {
    const std::int32_t begin = block * event.block_size;
    const std::int32_t end = begin + event.block_size;
    if (begin > 0) event.parent = hash_of_prefix(request.hashes, begin, hasher_.unit());
    const auto& tokens = request.state->token_ids;
    event.token_ids.assign(tokens.begin() + begin, tokens.begin() + end);
    event.lora = request.identity.lora;
    event.session_id = request.identity.session_id;
    event.extra_keys = {extra_keys(request.identity, begin, end)};
    const KVCacheSpec& spec = cache_.groups[static_cast<std::size_t>(key.group)].spec;
    if (const AttentionWindow* const window = spec.window())
      event.sliding_window = window->num_tokens;
  }
  events_.emplace_back(std::move(event));
}

void StoreKVConnector::update_connector_output(const KVConnectorOutput& output) {
  for (const RequestId id : output.finished_recving) {
    const auto load = std::ranges::find_if(
        open_loads_, [id](const auto& numbered) { return numbered.second.id == id; });
    if (load == open_loads_.end()) continue;
    if (move_ && move_->id == id) {
      if (std::ranges::find(output.failed_recving, id) != output.failed_recving.end() &&
          !move_->result.error)
        move_->result.error =
            Error{ErrorCode::kIo,
                  "some blocks could not be copied: the workers' logs have the reason",
                  {}};
      moved_ = std::move(move_->result);
      move_.reset();
      open_loads_.erase(load);
      continue;
    }
    const auto is_invalid = [&](const KeyedBlock& block) {
      return std::ranges::find(output.invalid_block_ids, block.block) !=
             output.invalid_block_ids.end();
    };
    if (std::ranges::find(output.failed_recving, id) != output.failed_recving.end() ||
        (load->second.is_layered && std::ranges::any_of(load->second.blocks, is_invalid))) {
      for (const KeyedBlock& block : load->second.blocks) forget(block.key);
      if (const auto known = requests_.find(id); known != requests_.end()) {
        known->second.load_failed = true;
        std::ranges::fill(known->second.num_seen, 0);
      }
    }
    open_loads_.erase(load);
  }
  if (!output.invalid_block_ids.empty())
    for (const StoreKey& key : std::exchange(doubtful_saves_, {})) forget(key);
  if (!has_layered_loads() && !others_load_layers_) doubtful_saves_.clear();
}

void StoreKVConnector::set_others_load_layers(bool do_others) {
  others_load_layers_ = do_others;
  if (!has_layered_loads() && !others_load_layers_) doubtful_saves_.clear();
}

bool StoreKVConnector::has_layered_loads() const {
  return std::ranges::any_of(open_loads_,
                             [](const auto& numbered) { return numbered.second.is_layered; });
}

void StoreKVConnector::forget(const StoreKey& key) {
  for (std::size_t t = 0; t < tiers_.size(); ++t)
    if (tiers_[t].index.remove(key)) remove(key, t);
}

// ---- saves --------------------------------------------------------------------------------------

void StoreKVConnector::save_blocks(Request& request, const Progress& progress) {
  const bool is_doubtful = others_load_layers_ || has_layered_loads();
  for (std::size_t g = 0; g < cache_.groups.size(); ++g) {
    const std::int32_t size = block_size(g);
    const std::int32_t first_needed = first_needed_token(g, progress.num_computed);
    const auto num_known =
        std::min(progress.num_known / size, static_cast<std::int32_t>(request.blocks[g].size()));
    for (std::int32_t& block = request.num_seen[g]; block < num_known; ++block) {
      const BlockId id = request.blocks[g][static_cast<std::size_t>(block)];
      // What no token of the step attends to may have been given to others.
      if (id == kNullBlock || (block + 1) * size <= first_needed) continue;
      const StoreKey key = key_of(request, g, block);
      for (std::size_t t = 0; t < tiers_.size(); ++t) {
        if (tiers_[t].index.touch(key) || !add(key, t)) continue;
        next_.ops.push_back({StoreOpKind::kSave, {key, id}, static_cast<std::uint8_t>(t)});
        if (is_doubtful) doubtful_saves_.push_back(key);
        record_stored(request, key, block, tiers_[t].medium);
      }
    }
  }
}

std::string StoreKVConnector::build_connector_metadata(const SchedulerOutput& step) {
  ScheduledRequests all(step, cache_.groups.size());
  while (const auto scheduled = all.next()) {
    const auto found = requests_.find(scheduled->id);
    if (found == requests_.end() || found->second.state == nullptr) continue;
    Request& request = found->second;
    ScheduledRequests::append_new_blocks(*scheduled, request.blocks);
    if (role_ == ConnectorRole::kConsumer) continue;
    const std::int32_t num_computed = all.num_computed(*scheduled);
    extend_hashes(request, *request.state);
    save_blocks(request, {.num_computed = num_computed,
                          .num_known = std::min(request.state->num_tokens(),
                                                num_computed + scheduled->num_scheduled)});
  }
  if (std::exchange(sends_loads_again_, false)) {
    next_.loads.clear();
    for (const auto& [number, load] : open_loads_) next_.loads.push_back(load);
  }
  if (move_) advance_move();
  if (next_.empty()) return {};
  next_.oldest_load = open_loads_.empty() ? last_load_ + 1 : open_loads_.begin()->first;
  return pack_store_ops(std::exchange(next_, {}));
}

KVConnector::Finished StoreKVConnector::request_finished(const RequestState& request,
                                                         const BlockTable&) {
  requests_.erase(request.id);
  return {};
}

// ---- exports and imports ------------------------------------------------------------------------

Result<void> StoreKVConnector::start_move(const MoveCache& what) {
  CHECK(!move_.has_value());
  Move move{.what = what};
  if (what.is_import) {
    move.keys = list_block_files(what.folder + "/" + origin_folder_);
    std::erase_if(move.keys, [&](const StoreKey& key) {
      return static_cast<std::size_t>(key.group) >= cache_.groups.size();
    });
    if (move.keys.empty())
      return Error{ErrorCode::kNotFound,
                   what.folder + " has no blocks of this model and layout of its cache",
                   {}};
  } else {
    std::unordered_set<StoreKey, StoreKeyHash> all;
    for (const Tier& tier : tiers_)
      for (const StoreKey& key : tier.index.keys()) all.insert(key);
    move.keys.assign(all.begin(), all.end());
  }
  move_ = std::move(move);
  return {};
}

/// Tells the workers of some blocks; when they know of all, of a load that they report behind them.
/// Pre: the step's requests have been looked up: an imported block is not there before it.
void StoreKVConnector::advance_move() {
  Move& move = *move_;
  if (move.num_sent == move.keys.size()) {
    if (std::exchange(move.is_last_sent, true)) return;
    move.id = next_load_id();
    BlockLoad end{.number = ++last_load_, .id = move.id, .blocks = {}};
    next_.loads.push_back(end);
    open_loads_.emplace(end.number, std::move(end));
    return;
  }
  next_.folder = move.what.folder;
  const std::size_t end = std::min(move.keys.size(), move.num_sent + kMovesPerStep);
  for (; move.num_sent < end; ++move.num_sent) {
    const StoreKey& key = move.keys[move.num_sent];
    if (!move.what.is_import) {
      if (!has(key)) continue;  // it has gone meanwhile
      next_.ops.push_back({StoreOpKind::kExport, {key, kNullBlock}, 0});
      ++move.result.num_blocks;
      continue;
    }
    bool is_new = false;
    for (std::size_t t = 0; t < tiers_.size(); ++t) {
      if (tiers_[t].index.has(key) || !add(key, t)) continue;
      next_.ops.push_back({StoreOpKind::kImport, {key, kNullBlock}, static_cast<std::uint8_t>(t)});
      is_new = true;
    }
    move.result.num_blocks += is_new;
  }
}

void StoreKVConnector::on_failed_steps() {
  sends_loads_again_ = true;
  // Their requests begin anew, in other blocks.
  std::erase_if(open_loads_, [](const auto& numbered) { return numbered.second.is_layered; });
  doubtful_saves_.clear();
  if (move_ && move_->num_sent > 0)
    move_->result.error = Error{ErrorCode::kUnavailable, "a step failed meanwhile", {}};
}

bool StoreKVConnector::reset_cache() {
  // Events of the cache itself would be cleared with them.
  for (Tier& tier : tiers_) {
    for (const StoreKey& key : tier.index.keys())
      events_.emplace_back(
          BlockRemoved{.hash = key.hash, .group = key.group, .medium = tier.medium});
    tier.index.clear();
  }
  next_.ops.push_back({StoreOpKind::kClear, {}});
  return true;
}

}  // namespace troupe
