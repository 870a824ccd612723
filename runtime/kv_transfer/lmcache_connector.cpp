#include "runtime/kv_transfer/lmcache_connector.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"
#include "runtime/kv_transfer/block_blob.hpp"
#include "runtime/kv_transfer/lmcache/cache_engine_key.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/kv_transfer/scheduled_requests.hpp"

namespace troupe {
namespace {

using lmcache::ChunkId;
using lmcache::PythonInt;

/// Chunks that were put into the remote store lately, and are not put again.
constexpr std::int64_t kMaxRemoteKnown = 1'000'000;
constexpr double kGiB = 1024.0 * 1024 * 1024;

std::int64_t all_ranks_bytes(double gib, const ParallelConfig& parallel) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(gib * kGiB * parallel.world_size()));
}

bool is_tag_text(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  });
}

}  // namespace

std::string lmcache_model_name(const std::string& model_identity, const KVCacheConfig& cache,
                               const ParallelConfig& parallel) {
  const std::string folder = origin_folder(model_identity, cache, parallel);
  return "troupe." + folder.substr(0, folder.find('_'));
}

std::string lmcache_dtype(const KVCacheConfig& cache) {
  const TokenShape* const token = cache.groups.at(0).spec.token();
  switch (token == nullptr ? DType::kU8 : token->dtype) {
    case DType::kF32:
      return "float";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "half";
    case DType::kI8:
      return "int8";
    case DType::kI32:
      return "int32";
    case DType::kF8E4M3:
      return "fp8_e4m3fn";
    case DType::kU8:
      break;
  }
  return "uint8";
}

std::size_t lmcache_chunk_bytes(const KVCacheConfig& cache, std::int32_t chunk_size) {
  std::int64_t bytes = sizeof(BlobHeader);
  for (const KVCacheGroup& group : cache.groups)
    for (std::size_t i = 0; i < group.layers.size(); ++i)
      bytes += chunk_size / group.spec.block_size * cache.page_bytes[i];
  return static_cast<std::size_t>(bytes);
}

Result<void> LMCacheConnector::check(const KVConnectorContext& context,
                                     const lmcache::LMCacheConfig& config) {
  for (const KVCacheGroup& group : context.cache.groups)
    if (!group.spec.is<FullAttentionSpec>() && !group.spec.is<MlaSpec>() &&
        group.spec.window() == nullptr)
      return Error{ErrorCode::kUnsupported,
                   std::string("kv-transfer-config: LMCacheConnectorV1 does not transfer layers of "
                               "the kind ") +
                       group.spec.kind_name(),
                   "kv-transfer-config"};
  const std::int32_t alignment = context.settings.scheduler_block_size();
  if (config.chunk_size % alignment != 0)
    return invalid_argument(
        "kv-transfer-config: LMCache's chunk_size is " + std::to_string(config.chunk_size) +
            ", it must be a multiple of the block size " + std::to_string(alignment),
        "kv-transfer-config");
  return {};
}

LMCacheConnector::LMCacheConnector(const KVConnectorContext& context, lmcache::LMCacheConfig config,
                                   std::unique_ptr<lmcache::RemoteLookup> lookup,
                                   const std::vector<std::pair<ChunkId, std::int64_t>>& stored,
                                   LMCacheWatchers watchers)
    : role_(context.config.role),
      config_(std::move(config)),
      cache_(context.cache),
      parallel_(context.parallel),
      model_(lmcache_model_name(context.model_identity, context.cache, context.parallel)),
      dtype_(lmcache_dtype(context.cache)),
      hasher_(context.settings.hash_algorithm, context.settings.hash_block_size(),
              context.settings.hash_seed),
      chunk_hasher_(config_.hash_algorithm, config_.none_hash,
                    static_cast<std::size_t>(config_.chunk_size)),
      alignment_(context.settings.scheduler_block_size()),
      cpu_(all_ranks_bytes(config_.max_local_cpu_size, parallel_), config_.cache_policy),
      disk_(all_ranks_bytes(config_.max_local_disk_size, parallel_), config_.cache_policy),
      remote_(kMaxRemoteKnown, lmcache::CachePolicy::kLru),
      has_windows_(std::ranges::any_of(
          cache_.groups, [](const KVCacheGroup& group) { return group.spec.window() != nullptr; })),
      is_layered_(config_.use_layerwise && !context.among_others),
      lookup_(std::move(lookup)),
      watchers_(std::move(watchers)) {
  for (const auto& [id, bytes] : stored) {
    std::vector<ChunkId> removed;
    if (disk_.has(id)) continue;
    if (!disk_.add(id, bytes * parallel_.world_size(), removed))
      removed.push_back(id);
    else if (watchers_.board != nullptr)
      watchers_.board->admit(lmcache::Location::kDisk, id);
    for (const ChunkId& old : removed) remove(old, kDiskTier);
  }
}

// ---- requests and their chunks ------------------------------------------------------------------

void LMCacheConnector::on_new_request(const KVCacheRequest& request) {
  Request& known = requests_[request.id] = {};
  known.identity = request;
  known.identity.token_ids = {};
  if (request.cache_salt.empty() && !request.lora) return;
  // Of a tenant, and of an adapter: theirs alone.
  std::string owner = request.cache_salt + '\0' + (request.lora ? request.lora->name : "");
  // Of the adapter's weights: they may be others after a restart.
  if (request.lora) owner += '\0' + std::to_string(request.lora->int_id);
  known.tags = "@salt%" + to_hex(xxh3_128(owner)).substr(0, 16);
}

/// Null: its chunks have no keys that could be known here.
LMCacheConnector::Request* LMCacheConnector::find(const RequestState& request) {
  const auto known = requests_.find(request.id);
  return known == requests_.end() || request.resumable || known->second.identity.prompt_embeds
             ? nullptr
             : &known->second;
}

/// What the client says of it, before its first chunk is looked up.
void LMCacheConnector::read_params(Request& known, const RequestState& request) const {
  if (std::exchange(known.has_params, true)) return;
  known.saves = !config_.force_skip_save && role_ != ConnectorRole::kConsumer &&
                !(config_.priority_limit && request.priority > *config_.priority_limit);
  const auto params =
      nlohmann::json::parse(request.kv_transfer_params, nullptr, /*allow_exceptions=*/false);
  if (!params.is_object()) return;
  std::string tags;
  for (const auto& [name, value] : params.items()) {
    if (name == "lmcache.skip_save") {
      const bool is_off = value.is_null() || value == false || value == 0 || value == "";
      known.saves = known.saves && is_off;
    } else if (name == "lmcache.max_tokens_per_load" && value.is_number_integer()) {
      known.max_load_tokens = static_cast<std::int32_t>(
          std::clamp<std::int64_t>(value.get<std::int64_t>(), 0, INT32_MAX));
    } else if (name.starts_with(lmcache::kTagPrefix) && value.is_string()) {
      const std::string tag = name.substr(lmcache::kTagPrefix.size());
      const auto text = value.get<std::string>();
      if (is_tag_text(tag) && is_tag_text(text))
        tags.append(1, '@').append(tag).append(1, '%').append(text);
      else
        log_warning("a tag is not possible in a key", kv("request", request.id), kv("tag", name));
    }
  }
  known.tags = tags + known.tags;
}

PythonInt LMCacheConnector::python_int(std::uint64_t hash) const noexcept {
  return config_.hash_algorithm == lmcache::ChunkHashAlgorithm::kBuiltin
             ? PythonInt::of(static_cast<std::int64_t>(hash))
             : PythonInt{hash, false};
}

std::uint64_t LMCacheConnector::hash_chunk(const Request& known, const RequestState& request,
                                           std::int32_t begin, std::int32_t end) const {
  const auto ids =
      std::span<const TokenId>(request.token_ids.get())
          .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  std::vector<std::int64_t> tokens(ids.begin(), ids.end());
  for (const MultiModalFeature& item : known.identity.mm_features) {
    const std::int32_t first = std::max(begin, item.offset);
    const std::int32_t last = std::min(end, item.offset + item.length);
    if (first >= last) continue;
    const auto numbers =
        lmcache::placeholder_tokens(item.identifier, static_cast<std::size_t>(last - item.offset));
    std::copy(numbers.begin() + (first - item.offset), numbers.end(),
              tokens.begin() + (first - begin));
  }
  const std::int32_t chunk = begin / config_.chunk_size;
  const PythonInt parent = chunk == 0
                               ? chunk_hasher_.none()
                               : python_int(known.hashes[static_cast<std::size_t>(chunk) - 1]);
  const PythonInt hash = chunk_hasher_.hash(parent, tokens);
  return hash.negative ? 0 - hash.magnitude : hash.magnitude;
}

void LMCacheConnector::extend_hashes(Request& known, const RequestState& request) const {
  if (std::ssize(known.digests) < request.num_tokens() / hasher_.unit()) {
    known.identity.token_ids = request.token_ids;
    hasher_.extend(known.identity, known.digests);
    known.identity.token_ids = {};  // the Scheduler is to append to them without a copy
  }
  for (auto chunk = static_cast<std::int32_t>(known.hashes.size());
       (chunk + 1) * config_.chunk_size <= request.num_tokens(); ++chunk)
    known.hashes.push_back(
        hash_chunk(known, request, chunk * config_.chunk_size, (chunk + 1) * config_.chunk_size));
}

std::vector<LMCacheConnector::Piece> LMCacheConnector::pieces(const Request& known,
                                                              const RequestState& request,
                                                              std::int32_t end) const {
  std::vector<Piece> pieces;
  std::int32_t begin = 0;
  for (; begin + config_.chunk_size <= end; begin += config_.chunk_size)
    pieces.push_back(
        {begin,
         begin + config_.chunk_size,
         {known.hashes[static_cast<std::size_t>(begin / config_.chunk_size)], known.tags}});
  if (config_.save_unfull_chunk && begin < end)
    pieces.push_back({begin, end, {hash_chunk(known, request, begin, end), known.tags}});
  return pieces;
}

std::string LMCacheConnector::key_of(const ChunkId& id, std::int32_t rank) const {
  return lmcache::chunk_key({.model = model_,
                             .world_size = parallel_.world_size(),
                             .worker = rank,
                             .hash = {},
                             .dtype = dtype_,
                             .layer = {},
                             .tags = {}},
                            id, config_.hash_algorithm == lmcache::ChunkHashAlgorithm::kBuiltin);
}

/// Of a piece, on all ranks.
std::int64_t LMCacheConnector::num_bytes(std::int32_t num_tokens) const {
  std::int64_t bytes = static_cast<std::int64_t>(sizeof(BlobHeader)) * parallel_.world_size();
  for (const KVCacheGroup& group : cache_.groups) {
    std::int64_t block_bytes = 0;
    for (std::size_t i = 0; i < group.layers.size(); ++i)
      block_bytes += cache_.page_bytes[i] * parallel_.tensor_parallel_size;
    bytes += num_tokens / group.spec.block_size * block_bytes;
  }
  return bytes;
}

/// A request of num_computed tokens needs no block that ends before this one.
std::int32_t LMCacheConnector::first_needed_token(std::size_t group,
                                                  std::int32_t num_computed) const {
  const AttentionWindow* const window = cache_.groups[group].spec.window();
  return window == nullptr
             ? 0
             : std::max(0, num_computed - window->num_tokens + 1 - window->extra_retained_tokens);
}

/// The blocks behind the first `begin` tokens that a request of num_computed tokens still needs.
ChunkBlocks LMCacheConnector::chunk_blocks(const Request& known, const Piece& piece,
                                           std::int32_t begin, std::int32_t num_computed) const {
  ChunkBlocks chunk{.hash = piece.id.hash,
                    .tags = piece.id.tags,
                    .digest = hash_of_prefix(known.digests, piece.end, hasher_.unit()),
                    .tiers = 0,
                    .blocks = {}};
  for (std::size_t g = 0; g < cache_.groups.size(); ++g) {
    const std::int32_t size = cache_.groups[g].spec.block_size;
    const std::int32_t first_needed = first_needed_token(g, num_computed);
    for (std::int32_t block = piece.begin / size; block < piece.end / size; ++block) {
      const bool needed = block * size >= begin && (block + 1) * size > first_needed;
      chunk.blocks.push_back(needed ? known.blocks[g].at(static_cast<std::size_t>(block))
                                    : kNullBlock);
    }
  }
  return chunk;
}

void LMCacheConnector::add(lmcache::TierIndex& tier, std::uint8_t bit, const Piece& piece,
                           std::uint8_t& tiers) {
  std::vector<ChunkId> removed;
  if (tier.has(piece.id) || !tier.add(piece.id, num_bytes(piece.end - piece.begin), removed))
    return;
  for (const ChunkId& old : removed) remove(old, bit);
  tiers = static_cast<std::uint8_t>(tiers | bit);
  if (watchers_.board != nullptr)
    watchers_.board->admit(bit == kCpuTier ? lmcache::Location::kCpu : lmcache::Location::kDisk,
                           piece.id);
}

void LMCacheConnector::remove(const ChunkId& id, std::uint8_t tiers) {
  next_.ops.push_back(
      {ChunkOp::Kind::kRemove, {.hash = id.hash, .tags = id.tags, .tiers = tiers, .blocks = {}}});
  if (watchers_.board == nullptr) return;
  if ((tiers & kCpuTier) != 0) watchers_.board->evict(lmcache::Location::kCpu, id);
  if ((tiers & kDiskTier) != 0) watchers_.board->evict(lmcache::Location::kDisk, id);
}

/// What LMCache's controller wants.
void LMCacheConnector::obey_orders() {
  using Order = lmcache::ChunkBoard::Order;
  if (watchers_.board == nullptr) return;
  const auto tier_of = [this](const Order& order) -> lmcache::TierIndex& {
    return order.location == lmcache::Location::kCpu ? cpu_ : disk_;
  };
  const auto now = lmcache::ChunkBoard::Clock::now();
  std::erase_if(pins_, [&](const Order& pin) {
    if (pin.until > now) return false;
    for (const ChunkId& chunk : pin.chunks) tier_of(pin).unpin(chunk);
    return true;
  });
  for (Order& order : watchers_.board->take_orders()) {
    lmcache::TierIndex& tier = tier_of(order);
    const std::uint8_t bit = order.location == lmcache::Location::kCpu ? kCpuTier : kDiskTier;
    switch (order.kind) {
      case Order::Kind::kPin:
        std::erase_if(order.chunks, [&](const ChunkId& chunk) { return !tier.pin(chunk); });
        pins_.push_back(std::move(order));
        break;
      case Order::Kind::kRemove:
        for (const ChunkId& chunk : order.chunks)
          if (tier.remove(chunk)) remove(chunk, bit);
        break;
      case Order::Kind::kClear:
        for (const ChunkId& chunk : tier.clear_unpinned()) remove(chunk, bit);
        break;
    }
  }
}

// ---- loads --------------------------------------------------------------------------------------

std::optional<KVConnector::Match> LMCacheConnector::get_num_new_matched_tokens(
    const RequestState& request, std::int32_t num_local_tokens) {
  Request* const known = find(request);
  if (known == nullptr || known->load_failed || role_ == ConnectorRole::kProducer ||
      request.params.skip_reading_prefix_cache || num_local_tokens % alignment_ != 0)
    return Match{};
  obey_orders();
  read_params(*known, request);
  extend_hashes(*known, request);
  // The last token is always computed.
  const std::int32_t end =
      std::max(0, request.num_tokens() - 1 - config_.skip_last_n_tokens) / alignment_ * alignment_;
  known->lookup_end = end;
  std::vector<Piece> wanted = pieces(*known, request, end);
  std::erase_if(wanted, [&](const Piece& piece) { return piece.end <= num_local_tokens; });
  const auto first_missing = [&] {
    return std::ranges::find_if(wanted, [this](const Piece& piece) {
      return !cpu_.has(piece.id) && !disk_.has(piece.id) && !remote_.has(piece.id);
    });
  };
  auto missing = first_missing();
  if (missing != wanted.end() && lookup_ != nullptr && !known->has_asked) {
    const auto num_ranks = static_cast<std::size_t>(parallel_.world_size());
    std::vector<std::string> keys;
    for (auto piece = missing; piece != wanted.end(); ++piece)
      for (std::int32_t rank = 0; rank < parallel_.world_size(); ++rank)
        keys.push_back(key_of(piece->id, rank));
    const auto count = lookup_->count(value(request.id), keys);
    if (!count) return std::nullopt;
    known->has_asked = true;
    if (*count > 0) trusts_remote_ = true;
    std::vector<ChunkId> forgotten;
    // What was asked first may have had fewer local tokens before it: then it is asked no more.
    for (std::size_t i = 0; i < *count / num_ranks && missing != wanted.end(); ++i, ++missing)
      if (!remote_.has(missing->id)) remote_.add(missing->id, 1, forgotten);
    missing = first_missing();
  }
  const std::int32_t hit = missing == wanted.begin() ? num_local_tokens : std::prev(missing)->end;
  std::int32_t num_tokens = hit - num_local_tokens;
  // To the end of a chunk: behind it nothing is kept of what windows have left.
  if (known->max_load_tokens > 0 && num_tokens > known->max_load_tokens)
    num_tokens = std::max(
        0, (num_local_tokens + known->max_load_tokens) / config_.chunk_size * config_.chunk_size -
               num_local_tokens);
  known->medium = Medium::kHost;
  for (auto piece = wanted.begin(); piece != missing; ++piece) {
    if (cpu_.has(piece->id)) continue;
    const bool is_on_disk = disk_.has(piece->id);
    if (!is_on_disk || known->medium == Medium::kHost)
      known->medium = is_on_disk ? Medium::kDisk : Medium::kRemote;
  }
  known->num_matched_after = num_local_tokens;
  if (num_tokens < config_.min_retrieve_tokens) num_tokens = 0;
  // The whole step would wait for a remote store.
  known->is_layered = is_layered_ && known->medium != Medium::kRemote;
  return Match{num_tokens, /*async=*/!known->is_layered};
}

KVConnector::Medium LMCacheConnector::medium(const RequestState& request) const {
  const auto known = requests_.find(request.id);
  return known == requests_.end() ? Medium::kHost : known->second.medium;
}

void LMCacheConnector::update_state_after_alloc(const RequestState& request,
                                                const BlockTable& blocks,
                                                std::int32_t num_external_tokens) {
  Request* const known = find(request);
  if (known == nullptr) return;
  read_params(*known, request);
  known->state = &request;
  known->blocks = blocks;
  known->num_seen = 0;
  if (lookup_ != nullptr) lookup_->forget(value(request.id));
  if (num_external_tokens == 0) return;
  ChunkLoad load{
      .number = ++last_load_, .id = request.id, .is_layered = known->is_layered, .chunks = {}};
  const std::int32_t begin = known->num_matched_after;
  const std::int32_t end = begin + num_external_tokens;
  std::vector<Piece> loaded = pieces(*known, request, known->lookup_end);
  std::erase_if(loaded,
                [&](const Piece& piece) { return piece.end <= begin || piece.begin >= end; });
  for (const Piece& piece : loaded) {
    ChunkBlocks chunk = chunk_blocks(*known, piece, begin, end);
    if (config_.local_cpu) add(cpu_, kCpuTier, piece, chunk.tiers);
    load.chunks.push_back(std::move(chunk));
  }
  // The end of a prefix is to go before its beginning.
  for (auto piece = loaded.rbegin(); piece != loaded.rend(); ++piece) {
    cpu_.touch(piece->id);
    disk_.touch(piece->id);
  }
  next_.loads.push_back(load);
  open_loads_.emplace(load.number, std::move(load));
}

void LMCacheConnector::update_connector_output(const KVConnectorOutput& output) {
  for (const RequestId id : output.finished_recving) {
    const auto load = std::ranges::find_if(
        open_loads_, [id](const auto& numbered) { return numbered.second.id == id; });
    if (load == open_loads_.end()) continue;
    const auto is_invalid = [&](const ChunkBlocks& chunk) {
      return std::ranges::any_of(chunk.blocks, [&](BlockId block) {
        return block != kNullBlock &&
               std::ranges::find(output.invalid_block_ids, block) != output.invalid_block_ids.end();
      });
    };
    if (std::ranges::find(output.failed_recving, id) != output.failed_recving.end() ||
        (load->second.is_layered && std::ranges::any_of(load->second.chunks, is_invalid))) {
      for (const ChunkBlocks& chunk : load->second.chunks) forget({chunk.hash, chunk.tags});
      if (const auto known = requests_.find(id); known != requests_.end()) {
        known->second.load_failed = true;
        known->second.num_seen = 0;
      }
    }
    open_loads_.erase(load);
  }
  if (!output.invalid_block_ids.empty())
    for (const ChunkId& chunk : std::exchange(doubtful_saves_, {})) forget(chunk);
  if (!is_doubtful()) doubtful_saves_.clear();
}

void LMCacheConnector::set_others_load_layers(bool do_others) {
  others_load_layers_ = do_others;
  if (!is_doubtful()) doubtful_saves_.clear();
}

bool LMCacheConnector::has_layered_loads() const {
  return std::ranges::any_of(open_loads_,
                             [](const auto& numbered) { return numbered.second.is_layered; });
}

void LMCacheConnector::forget(const ChunkId& id) {
  std::uint8_t tiers = 0;
  if (cpu_.remove(id)) tiers |= kCpuTier;
  if (disk_.remove(id)) tiers |= kDiskTier;
  if (remote_.remove(id)) trusts_remote_ = false;
  if (tiers != 0) remove(id, tiers);
}

void LMCacheConnector::on_failed_steps() {
  sends_loads_again_ = true;
  // Their requests begin anew, in other blocks.
  std::erase_if(open_loads_, [](const auto& numbered) { return numbered.second.is_layered; });
  doubtful_saves_.clear();
}

// ---- saves --------------------------------------------------------------------------------------

void LMCacheConnector::save(Request& known, const Piece& piece, std::int32_t num_computed) {
  const bool in_cpu = cpu_.touch(piece.id);
  if (const bool on_disk = disk_.touch(piece.id); in_cpu || on_disk || remote_.has(piece.id))
    return;
  // Windows have left what a request that ends with the chunk would need.
  if (num_computed > piece.end && has_windows_) return;
  ChunkBlocks chunk = chunk_blocks(known, piece, piece.begin, num_computed);
  if (config_.local_cpu) add(cpu_, kCpuTier, piece, chunk.tiers);
  if (!config_.local_disk.empty()) add(disk_, kDiskTier, piece, chunk.tiers);
  if (lookup_ != nullptr) {
    std::vector<ChunkId> forgotten;
    if (trusts_remote_) remote_.add(piece.id, 1, forgotten);
    chunk.tiers |= kRemoteTier;
  }
  if (chunk.tiers == 0) return;
  if (is_doubtful()) doubtful_saves_.push_back(piece.id);
  next_.ops.push_back({ChunkOp::Kind::kSave, std::move(chunk)});
}

void LMCacheConnector::save_pieces(Request& known, std::int32_t num_computed,
                                   std::int32_t num_known) {
  const RequestState& request = *known.state;
  const std::int32_t size = config_.chunk_size;
  const std::int32_t first_new = known.num_seen;
  for (; (known.num_seen + 1) * size <= num_known; ++known.num_seen) {
    const std::int32_t begin = known.num_seen * size;
    // What a request generates is saved only if that is wanted.
    if (begin + size > request.num_prompt_tokens && !config_.save_decode_cache) continue;
    save(
        known,
        {begin, begin + size, {known.hashes[static_cast<std::size_t>(known.num_seen)], known.tags}},
        num_computed);
  }
  // What a prompt has behind its last full chunk, with the step that completes it.
  const std::int32_t end = (request.num_prompt_tokens - 1) / alignment_ * alignment_;
  const std::int32_t begin = end / size * size;
  if (config_.save_unfull_chunk && begin < end && num_computed < request.num_prompt_tokens &&
      num_known >= request.num_prompt_tokens)
    save(known, {begin, end, {hash_chunk(known, request, begin, end), known.tags}}, num_computed);
  // The end of a prefix is to go before its beginning.
  if (known.num_seen > first_new) {
    for (std::int32_t chunk = known.num_seen; chunk-- > 0;) {
      const ChunkId id{known.hashes[static_cast<std::size_t>(chunk)], known.tags};
      cpu_.touch(id);
      disk_.touch(id);
    }
  }
}

std::string LMCacheConnector::build_connector_metadata(const SchedulerOutput& step) {
  obey_orders();
  ScheduledRequests all(step, cache_.groups.size());
  while (const auto scheduled = all.next()) {
    const auto found = requests_.find(scheduled->id);
    if (found == requests_.end() || found->second.state == nullptr) continue;
    Request& request = found->second;
    ScheduledRequests::append_new_blocks(*scheduled, request.blocks);
    // A remote store keeps what it has been given, also what turns out to be wrong: a later step
    // saves what this one computes.
    if (!request.saves || (lookup_ != nullptr && is_doubtful())) continue;
    const std::int32_t num_computed = all.num_computed(*scheduled);
    extend_hashes(request, *request.state);
    save_pieces(request, num_computed,
                std::min(request.state->num_tokens(), num_computed + scheduled->num_scheduled));
  }
  if (std::exchange(sends_loads_again_, false)) {
    next_.loads.clear();
    for (const auto& [number, load] : open_loads_) next_.loads.push_back(load);
  }
  if (next_.empty()) return {};
  next_.oldest_load = open_loads_.empty() ? last_load_ + 1 : open_loads_.begin()->first;
  return pack_lmcache_ops(std::exchange(next_, {}));
}

KVConnector::Finished LMCacheConnector::request_finished(const RequestState& request,
                                                         const BlockTable&) {
  if (lookup_ != nullptr) lookup_->forget(value(request.id));
  requests_.erase(request.id);
  return {};
}

bool LMCacheConnector::reset_cache() {
  if (watchers_.board != nullptr) watchers_.board->forget_all();
  pins_.clear();
  cpu_.clear();
  disk_.clear();
  next_.ops.push_back({ChunkOp::Kind::kClear, {}});
  return lookup_ == nullptr;
}

}  // namespace troupe
