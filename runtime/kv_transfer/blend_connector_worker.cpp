#include "runtime/kv_transfer/blend_connector_worker.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/models/communicator.hpp"
#include "runtime/models/model.hpp"

namespace troupe {
namespace {

/// What the norm of a head divides by, but for its epsilon, which decides nothing here.
float root_mean_square(const float* x, std::int64_t size) {
  float sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += x[i] * x[i];
  return std::sqrt(sum / static_cast<float>(size)) + 1e-6f;
}

}  // namespace

BlendConnectorWorker::BlendConnectorWorker(BlendConfig config,
                                           const KVConnectorWorkerContext& context)
    : config_(std::move(config)),
      model_identity_(context.model_identity),
      parallel_(context.parallel) {}

Result<void> BlendConnectorWorker::register_kv_caches(const KVCacheMemory& memory) {
  device_ = memory.device;
  pieces_.clear();
  blends_.clear();
  saves_.clear();
  CHECK(memory.config.groups.size() == 1, memory.config.groups.size());  // BlendConnector::check
  const TokenShape* const token = memory.config.groups.front().spec.token();
  CHECK(token != nullptr);
  is_narrow_ = kept_number_bytes(token->dtype) == 2;
  files_.reset();
  if (config_.local_disk.empty()) return {};
  const std::string folder =
      piece_folder(config_.local_disk, model_identity_, memory.config, parallel_);
  RETURN_IF_ERROR(make_store_folder(folder));
  files_ = std::make_unique<PieceFiles>(make_file_block_store(folder),
                                        block_origin(model_identity_, memory.config, parallel_),
                                        is_narrow_, config_.load_timeout);
  return {};
}

// ---- a step -------------------------------------------------------------------------------------

void BlendConnectorWorker::start_step() {
  blends_.clear();
  saves_.clear();
  file_ops_.clear();
}

void BlendConnectorWorker::start_load_kv(const std::string& metadata) {
  std::optional<BlendOps> ops = unpack_blend_ops(metadata);
  CHECK(ops.has_value(), metadata.size());
  if (ops->clears) {
    pieces_.clear();
    if (files_ != nullptr) files_->forget_loads();
  }
  if (ops->clears_files && files_ != nullptr) files_->clear();
  for (RequestBlend& request : ops->blends) {
    Blend& blend = blends_.emplace_back();
    blend.ratios = std::move(request.ratios);
    blend.thresholds = std::move(request.thresholds);
    for (const PiecePart& part : request.parts) {
      const auto found = pieces_.find({part.key, 0});
      CHECK(found != pieces_.end(), part.token);
      blend.parts.emplace_back(part, found->second);
    }
  }
  for (const PieceOp& op : ops->ops) {
    const StoreKey key{op.part.key, 0};
    const StoreKey file{op.part.key, op.num_tokens};
    switch (op.kind) {
      case PieceOp::Kind::kSave: {
        std::shared_ptr<KeptPiece>& piece = pieces_[key];
        if (op.part.offset == 0) piece = std::make_shared<KeptPiece>(op.num_tokens, is_narrow_);
        CHECK(piece != nullptr, op.part.offset);
        saves_.push_back({op.part, piece});
        break;
      }
      case PieceOp::Kind::kRemove:
        pieces_.erase(key);
        break;
      case PieceOp::Kind::kWriteFile:
        file_ops_.push_back({file, pieces_.at(key)});
        break;
      case PieceOp::Kind::kReadFile:
        files_->load({value(op.load), file});
        break;
      case PieceOp::Kind::kRemoveFile:
        file_ops_.push_back({file, nullptr});
        break;
    }
  }
}

void BlendConnectorWorker::wait_for_save() {
  for (FileOp& op : file_ops_) {
    if (op.piece != nullptr)
      files_->save(op.key, std::move(op.piece));
    else
      files_->remove(op.key);
  }
  file_ops_.clear();
}

KVConnectorOutput BlendConnectorWorker::get_finished() {
  KVConnectorOutput output;
  if (files_ == nullptr) return output;
  for (PieceFiles::Loaded& loaded : files_->take_loaded()) {
    const RequestId id{loaded.load.number};
    output.finished_recving.push_back(id);
    if (loaded.piece == nullptr)
      output.failed_recving.push_back(id);
    else
      pieces_[{loaded.load.key.hash, 0}] = std::move(loaded.piece);
  }
  return output;
}

void BlendConnectorWorker::begin(const ForwardBatch& batch) {
  CHECK(batch.groups.size() == 1, batch.groups.size());
  batch_ = &batch;
  last_selection_ = 0;
  current_.clear();
  candidates_.clear();
  left_out_.clear();
  for (std::size_t index = 0; index < blends_.size(); ++index) {
    Blend& blend = blends_[index];
    blend.num_tokens = 0;
    for (const auto& [part, piece] : blend.parts) {
      CHECK(part.token + part.count <= batch.num_tokens(), part.token, part.count);
      const auto next = std::ranges::upper_bound(batch.query_start_loc, part.token);
      const auto sequence = static_cast<std::size_t>(next - batch.query_start_loc.begin()) - 1;
      const std::int32_t num_outputs =
          batch.output_start_loc[sequence + 1] - batch.output_start_loc[sequence];
      const std::int32_t end = *next - std::max(1, num_outputs);
      for (std::int32_t i = 0; i < part.count && part.token + i < end; ++i) {
        candidates_.push_back({part.token + i, index, piece.get(), part.offset + i});
        ++blend.num_tokens;
      }
    }
  }
  CHECK(std::ranges::is_sorted(candidates_, {}, &Candidate::token));
}

bool BlendConnectorWorker::selects_at(std::int32_t layer) const noexcept {
  return !blends_.empty() && layer > last_selection_ &&
         std::ranges::find(config_.rule.check_layers, layer) != config_.rule.check_layers.end();
}

std::int32_t BlendConnectorWorker::row_of(std::int32_t token) const {
  if (current_.empty()) return token;
  const auto found = std::ranges::lower_bound(current_, token);
  CHECK(found != current_.end() && *found == token, token);
  return static_cast<std::int32_t>(found - current_.begin());
}

ConstHeads BlendConnectorWorker::on_host(ConstHeads heads, std::vector<float>& copy) const {
  if (device_->is_host() || heads.num_tokens == 0) return heads;
  copy.resize(static_cast<std::size_t>((heads.num_tokens - 1) * heads.token_stride +
                                       heads.num_heads * heads.head_dim));
  device_->copy_to_host(copy.data(), heads.data, copy.size() * sizeof(float));
  heads.data = copy.data();
  return heads;
}

template <class T>
const T* BlendConnectorWorker::on_device(const std::vector<T>& values, DeviceMemory& memory) const {
  if (device_->is_host()) return values.data();
  const std::size_t num_bytes = values.size() * sizeof(T);
  if (memory.size() < num_bytes) {
    static_cast<void>(device_->synchronize());  // the one that goes may be in use
    auto allocated = device_->allocate(2 * num_bytes, "blended tokens");
    if (!allocated.ok()) {
      device_->fail(allocated.error());
      return nullptr;
    }
    memory = std::move(*allocated);
  }
  device_->copy_to_device(memory.data(), values.data(), num_bytes);
  return reinterpret_cast<const T*>(memory.data());
}

void BlendConnectorWorker::take(std::int32_t layer, ConstHeads k, ConstHeads v, bool norms_keys) {
  const std::int64_t row_size = k.num_heads * k.head_dim;
  const bool selects = selects_at(layer);
  if (!selects && saves_.empty()) return;
  const ConstHeads keys = on_host(k, k_copy_);
  const ConstHeads values = selects ? v : on_host(v, v_copy_);
  if (!device_->is_host()) static_cast<void>(device_->synchronize());  // errors stick
  if (selects) return measure(layer, keys, norms_keys);
  for (const Save& save : saves_) {
    const std::int32_t row = row_of(save.part.token);
    // Tokens that are kept for others are not left out, so their rows are neighbours.
    CHECK(row_of(save.part.token + save.part.count - 1) == row + save.part.count - 1, row);
    for (std::int32_t i = 0; i < save.part.count; ++i)
      save.piece->write(layer, save.part.offset + i, row_size, keys.row(row + i, 0),
                        values.row(row + i, 0));
  }
}

void BlendConnectorWorker::measure(std::int32_t layer, ConstHeads k, bool norms_keys) {
  const std::int64_t dim = k.head_dim;
  const std::int64_t row_size = k.num_heads * dim;
  const std::size_t count = candidates_.size();
  deviations_.assign(count * static_cast<std::size_t>(k.num_heads), {});
  if (count == 0) return;
  device_->pool().parallel_for(static_cast<std::int64_t>(count), [&](std::int64_t number) {
    const auto index = static_cast<std::size_t>(number);
    const Candidate& candidate = candidates_[index];
    thread_local std::vector<float> kept;
    kept.resize(static_cast<std::size_t>(row_size));
    candidate.piece->read(layer, candidate.offset, row_size, kept.data(), nullptr);
    const std::int32_t row = row_of(candidate.token);
    for (std::int64_t head = 0; head < k.num_heads; ++head) {
      const float* const now = k.row(row, head);
      const float* const then = kept.data() + head * dim;
      const float now_scale = norms_keys ? 1 / root_mean_square(now, dim) : 1;
      const float then_scale = norms_keys ? 1 / root_mean_square(then, dim) : 1;
      Deviation sum;
      for (std::int64_t i = 0; i < dim; ++i) {
        const float x = now[i] * now_scale;
        const float difference = x - then[i] * then_scale;
        sum.distance += difference * difference;
        sum.length += x * x;
      }
      deviations_[static_cast<std::size_t>(head) * count + index] = sum;
    }
  });
}

/// All ranks of the stage add the same numbers in the same order, head by head.
std::span<const std::int32_t> BlendConnectorWorker::select(std::int32_t layer,
                                                           Communicator* peers) {
  const std::size_t count = candidates_.size();
  std::vector<Deviation> all = deviations_;
  if (peers != nullptr && peers->group_size() > 1) {
    all.resize(deviations_.size() * static_cast<std::size_t>(peers->group_size()));
    peers->all_gather(std::as_bytes(std::span(deviations_)),
                      std::as_writable_bytes(std::span(all)));
  }
  std::vector<double> distances(count);
  std::vector<double> lengths(count);
  for (std::size_t i = 0; i < all.size(); ++i) {
    distances[i % count] += static_cast<double>(all[i].distance);
    lengths[i % count] += static_cast<double>(all[i].length);
  }

  const auto check = static_cast<std::size_t>(std::ranges::find(config_.rule.check_layers, layer) -
                                              config_.rule.check_layers.begin());
  std::vector<bool> is_kept(count);
  for (std::size_t number = 0; number < blends_.size(); ++number) {
    const Blend& blend = blends_[number];
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < count; ++i)
      if (candidates_[i].blend == number) own.push_back(i);
    if (!blend.thresholds.empty()) {
      for (const std::size_t i : own)
        is_kept[i] = distances[i] > blend.thresholds[check] * lengths[i];
      continue;
    }
    const auto num_kept = std::min(
        own.size(), static_cast<std::size_t>(std::llround(blend.ratios[check] * blend.num_tokens)));
    // Of equal ones those that come first.
    std::ranges::stable_sort(own, std::ranges::greater(),
                             [&](std::size_t i) { return distances[i]; });
    for (std::size_t i = 0; i < num_kept; ++i) is_kept[own[i]] = true;
  }

  std::vector<std::int32_t> kept;
  std::size_t next = 0;  // of the candidates
  const auto add = [&](std::int32_t token) {
    if (next < count && candidates_[next].token == token) {
      if (is_kept[next++]) kept.push_back(token);
    } else {
      kept.push_back(token);
    }
  };
  if (current_.empty()) {
    for (std::int32_t token = 0; token < batch_->num_tokens(); ++token) add(token);
  } else {
    for (const std::int32_t token : current_) add(token);
  }
  last_selection_ = layer;
  leave_out(kept);
  return current_;
}

void BlendConnectorWorker::follow(std::span<const std::int32_t> tokens) { leave_out(tokens); }

/// Only these tokens continue.
void BlendConnectorWorker::leave_out(std::span<const std::int32_t> kept) {
  current_.assign(kept.begin(), kept.end());
  const auto is_current = [&](const Candidate& candidate) {
    return std::ranges::binary_search(current_, candidate.token);
  };
  for (const Candidate& candidate : candidates_)
    if (!is_current(candidate)) left_out_.push_back(candidate);
  std::erase_if(candidates_, [&](const Candidate& candidate) { return !is_current(candidate); });
  std::ranges::sort(left_out_, {}, &Candidate::token);
  positions_.clear();
  slots_.clear();
  for (const Candidate& candidate : left_out_) {
    const auto index = static_cast<std::size_t>(candidate.token);
    positions_.push_back(batch_->positions[index]);
    slots_.push_back(batch_->groups[0].slots[index]);
  }
  put_.positions = on_device(positions_, device_positions_);
  put_.slots = on_device(slots_, device_slots_);
}

const KvBlend::Rows* BlendConnectorWorker::put(std::int32_t layer, std::int64_t num_heads,
                                               std::int64_t head_dim) {
  // Before a selection nothing is left out that was current.
  if (left_out_.empty() || selects_at(layer)) return nullptr;
  const auto count = static_cast<std::int64_t>(left_out_.size());
  const std::int64_t size = num_heads * head_dim;
  rows_.resize(static_cast<std::size_t>(2 * count * size));
  constexpr std::int64_t kTokensAtOnce = 16;
  device_->pool().parallel_for(
      (count + kTokensAtOnce - 1) / kTokensAtOnce, [&](std::int64_t slice) {
        const std::int64_t end = std::min(count, (slice + 1) * kTokensAtOnce);
        for (std::int64_t i = slice * kTokensAtOnce; i < end; ++i) {
          const Candidate& left_out = left_out_[static_cast<std::size_t>(i)];
          float* const k = rows_.data() + 2 * i * size;
          left_out.piece->read(layer, left_out.offset, size, k, k + size);
        }
      });
  const float* const rows = on_device(rows_, device_rows_);
  if (rows == nullptr || put_.positions == nullptr || put_.slots == nullptr) return nullptr;
  put_.k = ConstHeads(rows, count, num_heads, head_dim, 2 * size);
  put_.v = ConstHeads(rows + size, count, num_heads, head_dim, 2 * size);
  return &put_;
}

}  // namespace troupe
