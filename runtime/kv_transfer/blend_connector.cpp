#include "runtime/kv_transfer/blend_connector.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/kv_transfer/blend_connector_worker.hpp"
#include "runtime/kv_transfer/blend_pieces.hpp"
#include "runtime/kv_transfer/piece_files.hpp"
#include "runtime/kv_transfer/scheduled_requests.hpp"
#include "runtime/kv_transfer/store_ops.hpp"

namespace troupe {
namespace {

constexpr double kBytesPerGiB = 1024.0 * 1024 * 1024;

/// Of a token's keys and values in all layers of all ranks, as the workers keep them.
std::int64_t kept_token_bytes(const KVConnectorContext& context) {
  std::int64_t bytes = 0;
  for (const KVCacheGroup& group : context.cache.groups) {
    for (std::size_t i = 0; i < group.layers.size(); ++i) {
      const TokenShape* const token = group.layer_spec(i).token();
      if (token == nullptr) continue;
      bytes += 2 * std::int64_t{token->num_kv_heads} * token->head_dim *
               kept_number_bytes(token->dtype) * context.parallel.tensor_parallel_size;
    }
  }
  return bytes;
}

}  // namespace

Result<void> BlendConnector::check(const KVConnectorContext& context, const BlendConfig& config) {
  std::int32_t num_layers = 0;
  for (const KVCacheGroup& group : context.cache.groups) {
    for (std::size_t i = 0; i < group.layers.size(); ++i) {
      num_layers = std::max(num_layers, group.layers[i] + 1);
      if (!group.layer_spec(i).is<FullAttentionSpec>())
        return Error{
            ErrorCode::kUnsupported,
            "kv-transfer-config: BlendConnector needs full attention in all layers, layer " +
                std::to_string(group.layers[i]) + " is of the kind " +
                group.layer_spec(i).kind_name(),
            "kv-transfer-config"};
    }
  }
  if (context.cache.groups.size() != 1)
    return Error{ErrorCode::kUnsupported,
                 "kv-transfer-config: BlendConnector needs a KV cache with one group, it has " +
                     std::to_string(context.cache.groups.size()),
                 "kv-transfer-config"};
  if (config.rule.check_layers.back() >= num_layers)
    return invalid_argument(
        "kv-transfer-config: kv_connector_extra_config: blend_check_layers has " +
            std::to_string(config.rule.check_layers.back()) + ", the model's last layer is " +
            std::to_string(num_layers - 1),
        "kv-transfer-config");
  return {};
}

BlendConnector::BlendConnector(const KVConnectorContext& context, BlendConfig config,
                               std::vector<TokenId> separator, const std::vector<StoreKey>& files)
    : role_(context.config.role),
      config_(std::move(config)),
      separator_(std::move(separator)),
      num_groups_(context.cache.groups.size()),
      token_bytes_(kept_token_bytes(context)),
      index_(static_cast<std::int64_t>(config_.max_local_cpu_size * kBytesPerGiB) *
             context.parallel.world_size()) {
  if (config_.local_disk.empty()) return;
  files_.emplace(static_cast<std::int64_t>(config_.max_local_disk_size * kBytesPerGiB) *
                 context.parallel.world_size());
  for (const StoreKey& file : files)
    if (!add_file(file))
      next_.ops.push_back({PieceOp::Kind::kRemoveFile, {.key = file.hash}, file.group});
}

// ---- requests and their pieces ------------------------------------------------------------------

Result<void> BlendConnector::check_transfer_params(const std::string& params) const {
  RETURN_IF_ERROR(read_blend_params(config_, params));
  return {};
}

void BlendConnector::on_new_request(const KVCacheRequest& request) {
  Request& known = requests_[request.id] = {};
  known.owner = request.cache_salt;
  if (request.lora) {
    known.owner += '\0' + request.lora->name + '\0' + std::to_string(request.lora->int_id);
    // An engine that is started again counts its adapters' revisions anew; their ids stay.
    if (!files_) known.owner += '\0' + std::to_string(request.lora->revision);
  }
  known.is_plain = request.mm_features.empty() && request.prompt_embeds == nullptr;
}

bool BlendConnector::may_blend(const Request& known, const RequestState& request) const {
  return known.is_plain && !request.resumable && !request.pooling;
}

void BlendConnector::cut(Request& known, const RequestState& request) const {
  if (known.pieces) return;
  known.num_prompt_tokens = request.num_prompt_tokens;
  const auto prompt = std::span<const TokenId>(request.token_ids.get())
                          .first(static_cast<std::size_t>(request.num_prompt_tokens));
  known.pieces.emplace();
  for (const TokenSpan span :
       separator_.empty() ? pieces_by_content(prompt) : pieces_between(prompt, separator_)) {
    const auto tokens = prompt.subspan(static_cast<std::size_t>(span.begin),
                                       static_cast<std::size_t>(span.end - span.begin));
    known.pieces->push_back({.span = span, .key = piece_key(tokens, known.owner)});
  }
}

std::optional<KVConnector::Match> BlendConnector::get_num_new_matched_tokens(
    const RequestState& request, std::int32_t num_local_tokens) {
  const auto found = requests_.find(request.id);
  if (found == requests_.end() || !may_blend(found->second, request)) return Match{};
  Request& known = found->second;
  // They were checked when the request came.
  if (!known.params) known.params = read_blend_params(config_, request.kv_transfer_params).value();
  cut(known, request);
  known.num_local_tokens = num_local_tokens;
  // Log-probabilities of a prompt are those of the model.
  if (!known.params->is_enabled || request.params.prompt_logprobs ||
      role_ == ConnectorRole::kProducer)
    return Match{};
  const auto count = [&](auto&& is_there) {
    std::int32_t num_tokens = 0;
    for (const Piece& piece : *known.pieces) {
      const std::int32_t begin = std::max(piece.span.begin, num_local_tokens);
      if (begin < piece.span.end && is_there(piece)) num_tokens += piece.span.end - begin;
    }
    return num_tokens;
  };
  const auto is_in_memory = [this](const Piece& piece) { return index_.has(piece.key); };
  const auto is_on_disk = [this](const Piece& piece) {
    return !index_.knows(piece.key) && files_->has(file_key(piece));
  };
  if (files_ && !std::exchange(known.has_loaded, true) &&
      count([&](const Piece& piece) { return is_in_memory(piece) || is_on_disk(piece); }) >=
          config_.min_tokens) {
    for (const Piece& piece : *known.pieces)
      if (piece.span.end > num_local_tokens && is_on_disk(piece)) start_load(piece);
  }
  if (count([this](const Piece& piece) { return loads_.contains(file_key(piece)); }) > 0)
    return std::nullopt;
  const std::int32_t num_tokens = count(is_in_memory);
  return Match{.num_blended = num_tokens < config_.min_tokens ? 0 : num_tokens};
}

void BlendConnector::update_state_after_alloc(const RequestState& request, const BlockTable&,
                                              std::int32_t) {
  const auto found = requests_.find(request.id);
  if (found == requests_.end() || !found->second.pieces) return;
  Request& known = found->second;
  release(known);
  known.is_admitted = true;
  if (!request.is_blended) return;
  for (Piece& piece : *known.pieces) {
    if (piece.span.end <= known.num_local_tokens || !index_.has(piece.key)) continue;
    piece.is_blended = true;
    index_.pin(piece.key);
  }
}

void BlendConnector::release(Request& known) {
  known.is_admitted = false;
  if (!known.pieces) return;
  for (Piece& piece : *known.pieces) {
    if (std::exchange(piece.is_blended, false)) index_.unpin(piece.key);
    if (!std::exchange(piece.is_saved, false)) continue;
    index_.remove(piece.key);
    next_.ops.push_back({PieceOp::Kind::kRemove, {.key = piece.key}});
  }
}

KVConnector::Finished BlendConnector::request_finished(const RequestState& request,
                                                       const BlockTable&) {
  const auto found = requests_.find(request.id);
  if (found == requests_.end()) return {};
  release(found->second);
  requests_.erase(found);
  return {};
}

// ---- files --------------------------------------------------------------------------------------

bool BlendConnector::add_file(const StoreKey& file) {
  std::vector<StoreKey> removed;
  const bool fits = files_->add(file, file.group * token_bytes_, removed);
  for (const StoreKey& old : removed)
    next_.ops.push_back({PieceOp::Kind::kRemoveFile, {.key = old.hash}, old.group});
  return fits;
}

void BlendConnector::start_load(const Piece& piece) {
  const StoreKey file = file_key(piece);
  std::vector<BlockHash> removed;
  if (!index_.begin(piece.key, file.group * token_bytes_, removed)) return;
  for (const BlockHash& key : removed) next_.ops.push_back({PieceOp::Kind::kRemove, {.key = key}});
  files_->touch(file);
  const RequestId id = next_load_id();
  loads_.emplace(file, id);
  next_.ops.push_back({PieceOp::Kind::kReadFile, {.key = piece.key}, file.group, id});
}

void BlendConnector::update_connector_output(const KVConnectorOutput& output) {
  for (const RequestId id : output.finished_recving) {
    const auto load =
        std::ranges::find_if(loads_, [id](const auto& each) { return each.second == id; });
    if (load == loads_.end()) continue;
    const StoreKey file = load->first;
    loads_.erase(load);
    if (std::ranges::find(output.failed_recving, id) == output.failed_recving.end()) {
      index_.complete(file.hash);
      continue;
    }
    index_.remove(file.hash);
    files_->remove(file);
    next_.ops.push_back({PieceOp::Kind::kRemove, {.key = file.hash}});
    next_.ops.push_back({PieceOp::Kind::kRemoveFile, {.key = file.hash}, file.group});
  }
}

bool BlendConnector::reset_cache() {
  forget_pieces();
  if (files_) files_->clear();
  next_.clears_files = files_.has_value();
  return true;
}

void BlendConnector::forget_pieces() {
  for (auto& [id, known] : requests_) {
    if (!known.pieces) continue;
    for (Piece& piece : *known.pieces) piece.is_blended = piece.is_saved = false;
  }
  index_.clear();
  loads_.clear();
  next_ = {.clears = true};
}

// ---- steps --------------------------------------------------------------------------------------

/// Of the tokens [begin, end) of a request, which begin with this token of the batch.
void BlendConnector::plan_blend(const Request& known, std::int32_t begin, std::int32_t end,
                                std::int32_t token) {
  RequestBlend blend{.parts = {},
                     .ratios = known.params->rule.ratios,
                     .thresholds = known.params->rule.thresholds};
  for (const Piece& piece : *known.pieces) {
    const std::int32_t first = std::max(begin, piece.span.begin);
    const std::int32_t last = std::min(end, piece.span.end);
    if (!piece.is_blended || first >= last) continue;
    blend.parts.push_back({.key = piece.key,
                           .offset = first - piece.span.begin,
                           .token = token + first - begin,
                           .count = last - first});
  }
  if (!blend.parts.empty()) next_.blends.push_back(std::move(blend));
}

/// The same of what is to be kept. A piece is kept by the request that computes it from its first
/// token on.
void BlendConnector::plan_saves(Request& known, std::int32_t begin, std::int32_t end,
                                std::int32_t token) {
  for (Piece& piece : *known.pieces) {
    const std::int32_t first = std::max(begin, piece.span.begin);
    const std::int32_t last = std::min(end, piece.span.end);
    if (piece.is_blended || first >= last) continue;
    if (!piece.is_saved) {
      if (first != piece.span.begin || index_.knows(piece.key)) continue;
      std::vector<BlockHash> removed;
      const std::int32_t size = piece.span.end - piece.span.begin;
      if (!index_.begin(piece.key, size * token_bytes_, removed)) continue;
      for (const BlockHash& key : removed)
        next_.ops.push_back({PieceOp::Kind::kRemove, {.key = key}});
      piece.is_saved = true;
    }
    next_.ops.push_back({PieceOp::Kind::kSave,
                         {.key = piece.key,
                          .offset = first - piece.span.begin,
                          .token = token + first - begin,
                          .count = last - first},
                         piece.span.end - piece.span.begin});
    if (last < piece.span.end) continue;
    index_.complete(piece.key);
    piece.is_saved = false;
    const StoreKey file = file_key(piece);
    if (files_ && !files_->touch(file) && add_file(file))
      next_.ops.push_back({PieceOp::Kind::kWriteFile, {.key = piece.key}, file.group});
  }
}

std::string BlendConnector::build_connector_metadata(const SchedulerOutput& step) {
  for (const RequestId id : step.preempted_ids) {
    const auto found = requests_.find(id);
    // One that is back already has been given others.
    const bool is_back =
        std::ranges::find(step.new_requests, id, &NewRequestData::id) != step.new_requests.end();
    if (found != requests_.end() && !is_back) release(found->second);
  }
  ScheduledRequests all(step, num_groups_);
  std::int32_t token = 0;
  while (const auto scheduled = all.next()) {
    const std::int32_t first_token = std::exchange(token, token + scheduled->num_scheduled);
    const auto found = requests_.find(scheduled->id);
    if (found == requests_.end() || !found->second.is_admitted) continue;
    Request& known = found->second;
    const std::int32_t begin = all.num_computed(*scheduled);
    const std::int32_t end = std::min(begin + scheduled->num_scheduled, known.num_prompt_tokens);
    if (begin < end) {
      plan_blend(known, begin, end, first_token);
      if (role_ != ConnectorRole::kConsumer) plan_saves(known, begin, end, first_token);
    }
    if (end < known.num_prompt_tokens) continue;
    // Its prompt is computed.
    for (Piece& piece : *known.pieces)
      if (std::exchange(piece.is_blended, false)) index_.unpin(piece.key);
    known.is_admitted = false;
  }
  if (next_.empty()) return {};
  return pack_blend_ops(std::exchange(next_, {}));
}

// ---- the factory's ------------------------------------------------------------------------------

Result<std::shared_ptr<KVConnector>> make_blend_connector(const KVConnectorContext& context) {
  ASSIGN_OR_RETURN(BlendConfig config, read_blend_config(context.config));
  RETURN_IF_ERROR(BlendConnector::check(context, config));
  std::vector<TokenId> separator;
  if (!config.special_str.empty()) {
    CHECK(context.encode != nullptr);
    ASSIGN_OR_RETURN(separator, context.encode(config.special_str));
    if (separator.empty())
      return invalid_argument(
          "kv-transfer-config: kv_connector_extra_config: blend_special_str \"" +
              config.special_str + "\" has no tokens",
          "kv-transfer-config");
  }
  std::vector<StoreKey> files;
  if (!config.local_disk.empty()) {
    // The ranks' files are alike.
    ParallelConfig first = context.parallel;
    first.rank = 0;
    files = list_block_files(
        piece_folder(config.local_disk, context.model_identity, context.cache, first));
  }
  return std::shared_ptr<KVConnector>(
      std::make_shared<BlendConnector>(context, std::move(config), std::move(separator), files));
}

Result<std::unique_ptr<KVConnectorWorker>> make_blend_connector_worker(
    const KVConnectorWorkerContext& context) {
  ASSIGN_OR_RETURN(BlendConfig config, read_blend_config(context.config));
  return std::unique_ptr<KVConnectorWorker>(
      std::make_unique<BlendConnectorWorker>(std::move(config), context));
}

}  // namespace troupe
