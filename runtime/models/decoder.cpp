#include "runtime/models/decoder.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/models/gather_logits.hpp"
#include "runtime/models/quantize.hpp"

namespace troupe {
namespace {

std::span<std::byte> writable_bytes_of(Matrix matrix) {
  return std::as_writable_bytes(
      std::span(matrix.data, static_cast<std::size_t>(matrix.num_rows * matrix.num_cols)));
}

RmsNorm load_final_norm(const ModelConfig& config, WeightLoader& loader,
                        const DecoderOptions& options) {
  const std::string name =
      weight_prefix(loader, options.names) + std::string(options.names.final_norm);
  if (loader.parallel().is_last_stage())
    return RmsNorm(loader, name, config.hidden_size, options.norm);
  loader.ignore(name + ".");
  return {};
}

/// A tied head is the embedding matrix once more, packed for multiplication. Where another head is
/// stored, the configuration is wrong about it, and the model has that one, as transformers sees
/// it.
std::string head_name(const ModelConfig& config, WeightLoader& loader, const DecoderNames& names) {
  const std::string stored =
      loader.has("language_model.lm_head.weight") ? "language_model.lm_head" : "lm_head";
  if (!config.tie_word_embeddings) return stored;
  const std::string embedding = weight_prefix(loader, names) + std::string(names.embedding);
  if (!loader.has(stored + ".weight")) return embedding;
  if (loader.are_equal(stored + ".weight", embedding + ".weight")) {
    loader.ignore(stored + ".weight");  // some checkpoints store the tied head again
    return embedding;
  }
  log_warning("tie_word_embeddings is true, but another head is stored, which is used",
              kv("tensor", stored + ".weight"));
  return stored;
}

Linear load_head(const ModelConfig& config, WeightLoader& loader, const DecoderNames& names) {
  if (!loader.parallel().is_last_stage() || config.task != ModelTask::kDefault) {
    loader.ignore("lm_head.");
    loader.ignore("language_model.lm_head.");
    return {};
  }
  return Linear(
      loader,
      {{head_name(config, loader, names), config.vocab_size, loader.shard(config.vocab_size)}},
      config.hidden_size, false, MatrixRole::kHead);
}

/// "score": a matrix over the classes.
std::optional<ClassificationHead> load_classes(const ModelConfig& config, WeightLoader& loader) {
  if (config.task != ModelTask::kClassify) return std::nullopt;
  if (!loader.parallel().is_last_stage()) {
    loader.ignore("score.");
    return std::nullopt;
  }
  return std::optional<ClassificationHead>(std::in_place, loader, config, "", "score");
}

}  // namespace

std::string weight_prefix(const WeightLoader& loader, const DecoderNames& names) {
  static constexpr std::array<std::string_view, 5> kPrefixes = {
      "model.", "language_model.model.", "model.language_model.", "backbone.", ""};
  for (const std::string_view prefix : kPrefixes)
    if (loader.has(std::string(prefix) + std::string(names.embedding) + ".weight"))
      return std::string(prefix);
  return std::string(kPrefixes.front());
}

std::vector<std::size_t> layers_to_load(const ModelConfig& config, WeightLoader& loader,
                                        const DecoderNames& names) {
  const Slice mine = stage_layers(config.num_layers, loader.parallel());
  std::vector<std::size_t> layers;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (layer >= mine.begin && layer < mine.end())
      layers.push_back(static_cast<std::size_t>(layer));
    else
      loader.ignore(weight_prefix(loader, names) + "layers." + std::to_string(layer) + ".");
  }
  return layers;
}

void ignore_mtp_layers(const ModelConfig& config, WeightLoader& loader) {
  for (std::int64_t layer = config.num_layers;; ++layer) {
    const std::string name = weight_prefix(loader) + "layers." + std::to_string(layer) + ".";
    if (!loader.has(name + "enorm.weight")) return;
    loader.ignore(name);
  }
}

AttentionOptions attention_options(const ModelConfig& config, std::size_t layer,
                                   std::shared_ptr<const RopeTables> rope) {
  return {.layer = layer,
          .hidden_size = config.hidden_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .scale = config.attention_scale,
          .logit_softcap = config.attention_softcap,
          .sliding_window = config.sliding_windows[layer],
          .local_chunk = config.local_chunks.empty() ? 0 : config.local_chunks[layer],
          .canonical_shards = config.canonical_shards(),
          .norm = {.eps = config.rms_norm_eps},
          .rope = std::move(rope)};
}

void DecoderLayer::forward(const LayerStep& step, Matrix residual, Matrix x, Matrix normed) const {
  mixers_.front().norm.add_and_apply(step, x, residual, normed);
  forward(step, normed, residual, x, normed);
}

void DecoderLayer::forward(const LayerStep& step, ConstMatrix input, Matrix residual, Matrix x,
                           Matrix normed) const {
  const std::int64_t num_queries = step.num_queries();
  x = first_rows(x, num_queries);
  bool is_first = true;
  for (const NormedMixer& part : mixers_) {
    if (!is_first) {
      part.norm.add_and_apply(step, x, residual, normed);
      input = normed;
    }
    part.mixer->forward(step, input, x);
    if (num_queries == 0) return;
    if (std::exchange(is_first, false)) {
      residual = keep_queries(step, residual);
      normed = first_rows(normed, num_queries);
    }
    if (part.post_norm) part.post_norm->apply(step.ops, step.context, x);
    if (part.scale != 1) step.ops.scale(step.context, {.scale = part.scale, .out = x});
  }
}

MixerMemory DecoderLayer::memory(Device& device, const MixerLimits& limits) const noexcept {
  MixerMemory most;
  for (const NormedMixer& part : mixers_) {
    const MixerMemory memory = part.mixer->memory(device, limits);
    most.scratch_bytes = std::max(most.scratch_bytes, memory.scratch_bytes);
    most.workspace_bytes = std::max(most.workspace_bytes, memory.workspace_bytes);
  }
  return most;
}

void DecoderLayer::add_cache_specs(std::int32_t block_size, DType dtype,
                                   std::vector<LayerCacheSpec>& specs) const {
  for (const NormedMixer& part : mixers_) part.mixer->add_cache_specs(block_size, dtype, specs);
}

std::string DecoderLayer::blend_obstacle() const {
  for (const NormedMixer& part : mixers_) {
    std::vector<LayerCacheSpec> specs;
    part.mixer->add_cache_specs(1, DType::kF32, specs);
    if (!specs.empty() && !part.mixer->blend_obstacle().empty())
      return std::string("it is of the kind ") + specs.front().spec.kind_name() + ", " +
             std::string(part.mixer->blend_obstacle());
  }
  return {};
}

DecoderModel::DecoderModel(const ModelConfig& config, Device& device, WeightLoader& loader,
                           std::vector<DecoderLayer> layers, DecoderOptions options,
                           std::unique_ptr<const ItemTower> tower)
    : config_(config),
      device_(device),
      parallel_(loader.parallel()),
      options_(options),
      tower_(std::move(tower)),
      layers_(std::move(layers)),
      embedding_(
          loader.table(weight_prefix(loader, options.names) + std::string(options.names.embedding),
                       config.vocab_size, config.hidden_size)),
      final_norm_(load_final_norm(config, loader, options)),
      head_(load_head(config, loader, options.names)),
      classes_(load_classes(config, loader)),
      weight_bytes_(loader.num_packed_bytes()),
      device_batch_(device),
      adapter_batch_(device) {
  const std::int64_t vocab_size = config.vocab_size;
  if (parallel_.is_first_stage())
    adapted_embedding_.target = loader.add_adapter_target(
        {{weight_prefix(loader) + "embed_tokens", config.hidden_size, {0, config.hidden_size}}},
        vocab_size, {0, vocab_size}, /*is_embedding=*/true);
  if (parallel_.is_last_stage() && config.task == ModelTask::kDefault)
    adapted_head_.target =
        loader.add_adapter_target({{"lm_head", vocab_size, loader.shard(vocab_size)}},
                                  config.hidden_size, {0, config.hidden_size});
  adapter_targets_ = {.targets = loader.take_adapter_targets(),
                      .num_layers = config.num_layers,
                      .is_first_stage = parallel_.is_first_stage(),
                      .is_last_stage = parallel_.is_last_stage()};
}

std::vector<LayerCacheSpec> DecoderModel::kv_cache_specs(std::int32_t block_size,
                                                         DType dtype) const {
  std::vector<LayerCacheSpec> specs;
  for (const DecoderLayer& layer : layers_) layer.add_cache_specs(block_size, dtype, specs);
  return specs;
}

Result<void> DecoderModel::check_blend() const {
  auto number = stage_layers(config_.num_layers, parallel_).begin;
  for (const DecoderLayer& layer : layers_) {
    if (const std::string obstacle = layer.blend_obstacle(); !obstacle.empty())
      return Error{ErrorCode::kUnsupported,
                   "layer " + std::to_string(number) + " cannot be blended: " + obstacle,
                   "kv-transfer-config"};
    ++number;
  }
  return {};
}

Result<void> DecoderModel::reserve(const BatchLimits& limits) {
  const std::int64_t num_tokens = limits.max_num_tokens;
  std::int64_t scratch_bytes = 0;
  std::int64_t workspace_bytes = 0;
  if (tower_ != nullptr) {
    const MixerMemory memory = tower_->memory(device_);
    scratch_bytes = memory.scratch_bytes;
    workspace_bytes = memory.workspace_bytes;
  }
  if (parallel_.is_last_stage() && config_.task == ModelTask::kDefault) {
    workspace_bytes = std::max(workspace_bytes, device_.ops().matmul_workspace_bytes(
                                                    head_.spec(), limits.max_num_logit_rows));
    scratch_bytes = std::max(scratch_bytes,
                             gather_logits_bytes(limits.max_num_logit_rows, head_.spec().num_rows,
                                                 parallel_.tensor_parallel_size));
  }
  const MixerLimits mixer_limits{
      .max_num_tokens = num_tokens,
      .max_seq_len = config_.max_model_len,
      .adapter_ranks = limits.adapters ? most_adapter_ranks(limits.adapters->max_rank) : 0};
  if (limits.adapters) RETURN_IF_ERROR(adapter_batch_.reserve(num_tokens, *limits.adapters));
  for (const DecoderLayer& layer : layers_) {
    const MixerMemory memory = layer.memory(device_, mixer_limits);
    scratch_bytes = std::max(scratch_bytes, memory.scratch_bytes);
    workspace_bytes = std::max(workspace_bytes, memory.workspace_bytes);
  }
  if (!kept_layers_.empty()) {
    const auto num_kept = static_cast<std::int64_t>(kept_layers_.size());
    const std::int64_t kept_bytes =
        Scratch::padded_bytes(num_tokens, num_kept * config_.hidden_size);
    ASSIGN_OR_RETURN(kept_inputs_, device_.allocate(static_cast<std::size_t>(kept_bytes),
                                                    "inputs of layers for the draft head"));
  }
  constexpr std::int64_t kNumStreams = 3;  // residual, x, normed
  const std::int64_t num_bytes =
      scratch_bytes + kNumStreams * Scratch::padded_bytes(num_tokens, config_.hidden_size);
  ASSIGN_OR_RETURN(activations_,
                   device_.allocate(static_cast<std::size_t>(num_bytes), "activations"));
  return device_.reserve_workspace(workspace_bytes);
}

Result<void> DecoderModel::keep_layer_inputs(std::vector<std::int32_t> layers) {
  kept_layers_ = std::move(layers);
  return {};
}

void DecoderModel::keep_inputs(const LayerStep& step, std::int32_t number, Matrix residual,
                               Matrix x) {
  const auto kept = std::ranges::find(kept_layers_, number);
  if (kept == kept_layers_.end()) return;
  const std::int64_t first_col = (kept - kept_layers_.begin()) * config_.hidden_size;
  const Matrix out(step_inputs_.data + first_col, x.num_rows, config_.hidden_size,
                   step_inputs_.row_stride);
  // The layer then adds zeros to the sum, with the same bits.
  RmsNorm().add_and_apply(step, x, residual, out);
  device_.fill_zero(x.data, writable_bytes_of(x).size());
}

void DecoderModel::embed_tokens(const ForwardBatch& batch, const ForwardBatch& device_batch,
                                Matrix out) {
  embed_rows(batch, device_batch, 1, out);
}

void DecoderModel::embed_rows(const ForwardBatch& batch, const ForwardBatch& device_batch,
                              float scale, Matrix out) {
  if (is_block_type(embedding_.stored->type)) return embed_blocks(batch.token_ids, scale, out);
  device_.ops().embedding(device_.context(), {.table = {embedding_.data(), embedding_.type(),
                                                        config_.vocab_size, config_.hidden_size},
                                              .ids = device_batch.token_ids.data(),
                                              .scale = scale,
                                              .out = out});
}

void DecoderModel::embed(const ForwardBatch& batch, const ForwardBatch& device_batch, Matrix out) {
  embed_rows(batch, device_batch, options_.embedding_scale, out);
  if (has_adapters_)
    adapter_batch_.add_embeddings(batch.token_ids, adapted_embedding_.target,
                                  options_.embedding_scale, out);
  const ForwardBatch::InputEmbeddings& given = device_batch.input_embeddings;
  if (given.tokens.empty()) return;
  device_.ops().copy_rows(device_.context(),
                          {.x = given.outputs,
                           .from = given.rows.data(),
                           .to = given.tokens.data(),
                           .count = static_cast<std::int64_t>(given.tokens.size()),
                           .out = out});
}

void DecoderModel::embed_blocks(std::span<const TokenId> ids, float scale, Matrix out) {
  Matrix rows = out;
  if (!device_.is_host()) {
    embedded_.resize(static_cast<std::size_t>(out.num_rows * out.num_cols));
    rows = {embedded_.data(), out.num_rows, out.num_cols};
  }
  device_.pool().parallel_for(rows.num_rows, [&](std::int64_t token) {
    float* row = rows.row(token);
    widen_row(*embedding_.stored, ids[static_cast<std::size_t>(token)], 0, config_.hidden_size,
              row);
    for (std::int64_t i = 0; i < config_.hidden_size; ++i) row[i] *= scale;
  });
  if (device_.is_host()) return;
  for (std::int64_t row = 0; row < rows.num_rows; ++row)
    device_.copy_to_device(out.row(row), rows.row(row),
                           static_cast<std::size_t>(rows.num_cols) * sizeof(float));
}

const ForwardBatch& DecoderModel::select_tokens(const DecoderLayer& layer, std::int32_t number,
                                                const LayerStep& step, const ForwardBatch& whole,
                                                const Stream& stream) {
  LayerStep keys_alone = step;
  no_queries_.assign(step.query_start_loc.size(), 0);
  keys_alone.query_start_loc = no_queries_;
  layer.forward(keys_alone, stream.residual, stream.x, stream.normed);
  const std::span<const std::int32_t> selected = step.blend->select(number, step.peers);
  const ForwardBatch& narrowed = narrowed_.narrow(whole, selected, current_);
  current_.assign(selected.begin(), selected.end());
  return narrowed;
}

const ForwardBatch& DecoderModel::receive_selection(const ForwardBatch& whole,
                                                    Communicator& peers) {
  const std::int32_t previous = parallel_.rank - parallel_.tensor_parallel_size;
  std::int32_t count = 0;
  // Without it the step has failed, and nothing counts.
  if (!peers.recv(std::as_writable_bytes(std::span(&count, 1)), previous) || count == 0)
    return whole;
  current_.resize(static_cast<std::size_t>(count));
  if (!peers.recv(std::as_writable_bytes(std::span(current_)), previous)) {
    current_.clear();
    return whole;
  }
  whole.kv_blend->follow(current_);
  return narrowed_.narrow(whole, current_, {});
}

void DecoderModel::send_selection(Communicator& peers, std::int32_t to) const {
  const auto count = static_cast<std::int32_t>(current_.size());  // 0: all tokens go on
  peers.send(std::as_bytes(std::span(&count, 1)), to);
  if (count > 0) peers.send(std::as_bytes(std::span(current_)), to);
}

void DecoderModel::forward(const ForwardBatch& batch, std::span<const LayerKvCache> caches,
                           Communicator* peers, Matrix hidden) {
  Scratch scratch(activations_.bytes());
  Stream stream{.residual = scratch.take(batch.num_tokens(), config_.hidden_size),
                .x = scratch.take(batch.num_tokens(), config_.hidden_size),
                .normed = scratch.take(batch.num_tokens(), config_.hidden_size)};
  KvBlend* const blend =
      batch.kv_blend != nullptr && batch.kv_blend->is_active() ? batch.kv_blend : nullptr;
  const ForwardBatch* current = &batch;
  const ForwardBatch* on_device = nullptr;
  std::optional<LayerStep> step;
  const auto start = [&](const ForwardBatch& next) {
    current = &next;
    on_device = device_batch_.put(next);
    if (on_device == nullptr) return false;
    step.emplace(LayerStep::of(device_, next, *on_device, caches, peers, scratch));
    step->adapters = adapter_batch_.put(next.adapters, next.query_start_loc, next.output_start_loc);
    step->blend = blend;
    for (Matrix* const rows : {&stream.residual, &stream.x, &stream.normed})
      *rows = first_rows(*rows, next.num_tokens());
    return true;
  };
  step_outputs_ = hidden;
  const auto num_kept = static_cast<std::int64_t>(kept_layers_.size());
  step_inputs_ = {reinterpret_cast<float*>(kept_inputs_.data()), batch.num_tokens(),
                  num_kept * config_.hidden_size};
  current_.clear();
  if (blend != nullptr) blend->begin(batch);

  if (parallel_.is_first_stage()) {
    if (!start(batch)) return;
    has_adapters_ = step->adapters != nullptr;
    // The stream starts at zero, and the embedding is the first thing that is added to it.
    device_.fill_zero(stream.residual.data, writable_bytes_of(stream.residual).size());
    embed(batch, *on_device, stream.x);
  } else {
    const std::int32_t previous = parallel_.rank - parallel_.tensor_parallel_size;
    if (!start(blend == nullptr ? batch : receive_selection(batch, *peers))) return;
    has_adapters_ = step->adapters != nullptr;
    peers->recv(writable_bytes_of(stream.residual), previous);
    peers->recv(writable_bytes_of(stream.x), previous);
    if (num_kept > 0) peers->recv(writable_bytes_of(step_inputs_), previous);
  }
  auto number = static_cast<std::int32_t>(stage_layers(config_.num_layers, parallel_).begin);
  for (const DecoderLayer& layer : layers_) {
    if (blend != nullptr && blend->selects_at(number)) {
      const Matrix all = stream.residual;
      if (!start(select_tokens(layer, number, *step, batch, stream))) return;
      // What was to be added has been.
      device_.fill_zero(stream.x.data, writable_bytes_of(stream.x).size());
      const auto& kept = on_device->input_embeddings;
      device_.ops().copy_rows(device_.context(), {.x = all,
                                                  .from = kept.rows.data(),
                                                  .to = kept.tokens.data(),
                                                  .count = current->num_tokens(),
                                                  .out = stream.normed});
      device_.copy(stream.residual.data, stream.normed.data,
                   writable_bytes_of(stream.residual).size());
    }
    if (parallel_.is_last_stage() && &layer == &layers_.back()) {
      step->query_start_loc = current->output_start_loc;
      step->device_query_start_loc = on_device->output_start_loc.data();
    }
    for (LayerHook* const hook : batch.layer_hooks) hook->before_layer(number);
    keep_inputs(*step, number, stream.residual, stream.x);
    layer.forward(*step, stream.residual, stream.x, stream.normed);
    for (LayerHook* const hook : batch.layer_hooks) hook->after_layer(number);
    ++number;
  }
  if (parallel_.is_last_stage()) {
    const std::int64_t num_outputs = batch.num_outputs();
    if (num_outputs == 0) return;
    return final_norm_.add_and_apply(*step, first_rows(stream.x, num_outputs),
                                     first_rows(stream.residual, num_outputs), hidden);
  }
  // The sum is left to the next stage's first norm, as if that were on this rank.
  const std::int32_t next = parallel_.rank + parallel_.tensor_parallel_size;
  if (blend != nullptr) send_selection(*peers, next);
  peers->send(writable_bytes_of(stream.residual), next);
  peers->send(writable_bytes_of(stream.x), next);
  if (num_kept > 0) peers->send(writable_bytes_of(step_inputs_), next);
}

std::int64_t DecoderModel::max_item_rows() const noexcept {
  return tower_ == nullptr ? 0 : tower_->max_item_rows();
}

Result<void> DecoderModel::check_item(const EncoderItem& item) const {
  if (tower_ == nullptr) return Model::check_item(item);
  return tower_->check_item(item);
}

std::int64_t DecoderModel::num_item_slices() const noexcept {
  return tower_ == nullptr ? 0 : tower_->num_item_slices();
}

void DecoderModel::encode_slice(const EncoderItem& item, std::int64_t slice, Matrix out) {
  CHECK(tower_ != nullptr);
  tower_->encode_slice(device_, Scratch(activations_.bytes()), item, slice, out);
}

std::vector<float> DecoderModel::pool(PoolingType type, ConstMatrix hidden) const {
  const std::vector<float> pooled = Model::pool(type, hidden);
  return classes_ ? classes_->apply(pooled) : pooled;
}

void DecoderModel::apply_head(ConstMatrix hidden, Matrix out) {
  head_.apply(device_.ops(), device_.context(), hidden, out);
  const float* const outputs_end = step_outputs_.row(step_outputs_.num_rows);
  if (!has_adapters_ || std::less<>()(hidden.data, step_outputs_.data) ||
      !std::less<>()(hidden.data, outputs_end))
    return;
  const std::int64_t first = (hidden.data - step_outputs_.data) / hidden.row_stride;
  const StepAdapters* const adapters = adapter_batch_.put_outputs(
      static_cast<std::int32_t>(first), static_cast<std::int32_t>(hidden.num_rows));
  if (adapters == nullptr) return;
  const Matrix shrunk = first_rows(adapters->shrunk, adapters->outputs.num_rows);
  const std::int32_t target = adapted_head_.target;
  device_.ops().adapter_shrink(device_.context(), {.x = hidden,
                                                   .rows = adapters->outputs,
                                                   .target = target,
                                                   .type = adapters->type,
                                                   .out = shrunk});
  device_.ops().adapter_expand(device_.context(), {.x = shrunk,
                                                   .rows = adapters->outputs,
                                                   .target = target,
                                                   .type = adapters->type,
                                                   .out = out});
}

void DecoderModel::compute_logits(ConstMatrix hidden, Communicator* peers, Matrix out) {
  if (gather_logits(device_, Scratch(activations_.bytes()), peers, out,
                    [&](Matrix part) { apply_head(hidden, part); }))
    scale_logits(out);
}

void DecoderModel::scale_logits(Matrix logits) {
  if (options_.logit_scale == 1 && options_.logit_softcap == 0) return;
  device_.ops().scale(
      device_.context(),
      {.scale = options_.logit_scale, .softcap = options_.logit_softcap, .out = logits});
}

}  // namespace troupe
