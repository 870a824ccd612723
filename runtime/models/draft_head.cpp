#include "runtime/models/draft_head.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "runtime/models/gather_logits.hpp"
#include "runtime/models/pre_norm_decoder.hpp"

namespace troupe {
namespace {

/// Where the checkpoint of a head has its tensors.
std::string head_prefix(const WeightLoader& loader) {
  return loader.has("model.fc.weight") ? "model." : "";
}

Matrix columns(Matrix x, std::int64_t begin, std::int64_t count) {
  return {x.data + begin, x.num_rows, count, x.row_stride};
}

}  // namespace

DraftHead::DraftHead(const DraftHeadConfig& config, Device& device, WeightLoader& loader,
                     Model& target)
    : config_(config),
      device_(device),
      parallel_(loader.parallel()),
      target_(target),
      device_batch_(device) {
  const ModelConfig& layers = config.layers;
  const NormStyle style{.eps = layers.rms_norm_eps};
  const std::int64_t size = layers.hidden_size;
  const auto norm = [&](const std::string& name) { return RmsNorm(loader, name, size, style); };
  const auto project = [&](const std::string& name, std::int64_t num_cols) {
    return Linear(loader, {{name, size, {0, size}}}, num_cols, loader.has(name + ".bias"));
  };
  if (config.kind == DraftHeadKind::kMtp) {
    const std::string prefix = weight_prefix(loader);
    const std::string name = prefix + "layers." + std::to_string(config.first_layer);
    embedding_ = loader.table(prefix + "embed_tokens", layers.vocab_size, size);
    embedding_norm_ = norm(name + ".enorm");
    state_norm_ = norm(name + ".hnorm");
    fc_ = project(name + ".eh_proj", 2 * size);
    load_layers(loader, name);
    final_norm_ = norm(name + ".shared_head.norm");
    loader.ignore("");  // the model's; embedding and head are stored again
  } else {
    const std::string prefix = head_prefix(loader);
    if (loader.has(prefix + "embed_tokens.weight"))
      embedding_ = loader.table(prefix + "embed_tokens", layers.vocab_size, size);
    else if (size != config.target_hidden_size)
      loader.fail(ErrorCode::kCorrupt,
                  "tensor \"" + prefix + "embed_tokens.weight\" is missing, and the model's has " +
                      std::to_string(config.target_hidden_size) + " columns, not " +
                      std::to_string(size));
    if (!is_eagle3()) fc_ = project(prefix + "fc", 2 * size);
    if (takes_layer_inputs()) fc_ = project(prefix + "fc", target_state_size());
    load_layers(loader, prefix);
    if (is_eagle3()) final_norm_ = norm(prefix + "norm");
    load_token_ids(loader, prefix);
    if (loader.has("lm_head.weight"))
      head_ = Linear(loader,
                     {{"lm_head", config.draft_vocab_size, loader.shard(config.draft_vocab_size)}},
                     size, false, MatrixRole::kHead);
    else if (config.draft_vocab_size != layers.vocab_size || size != config.target_hidden_size)
      loader.fail(ErrorCode::kCorrupt, "tensor \"lm_head.weight\" is missing, expected shape [" +
                                           std::to_string(config.draft_vocab_size) + ", " +
                                           std::to_string(size) + "]");
  }
  static_cast<void>(loader.take_adapter_targets());
  weight_bytes_ = loader.num_packed_bytes();
}

void DraftHead::load_layers(WeightLoader& loader, const std::string& prefix) {
  const ModelConfig& config = config_.layers;
  const auto rope = loader.rope_tables(config.rope, config.head_dim, config.max_model_len);
  const NormStyle norm{.eps = config.rms_norm_eps};
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const auto index = static_cast<std::size_t>(i);
    AttentionOptions attention = attention_options(config, index, rope);
    attention.qkv_bias = config.attention_bias;
    attention.output_bias = config.attention_output_bias;
    attention.norm = norm;
    DecoderExtras extras;
    std::string name = prefix;
    if (config_.kind == DraftHeadKind::kMtp) {
      extras.choice_bias_name = "gate.e_score_correction_bias";
      extras.shared_name = "shared_experts";
    } else {
      name += "layers." + std::to_string(i);
      const std::string other_name = prefix + "midlayer";
      if (i == 0 && loader.has(other_name + ".mlp.gate_proj.weight")) name = other_name;
      if (i == 0) extras.norm_names.before_attention = {};
    }
    if (i == 0 && is_eagle3()) {
      embedding_norm_ = RmsNorm(loader, name + ".input_layernorm", config.hidden_size, norm);
      state_norm_ = RmsNorm(loader, name + ".hidden_norm", config.hidden_size, norm);
      attention.input_size = 2 * config.hidden_size;
    }
    layers_.push_back(load_pre_norm_layer(loader, name, config, index, attention, extras));
  }
}

/// d2t: of each token that can be guessed, how much its id is greater than its number.
void DraftHead::load_token_ids(WeightLoader& loader, const std::string& prefix) {
  loader.ignore(prefix + "t2d");  // the same the other way round
  if (config_.draft_vocab_size == config_.layers.vocab_size && !loader.has(prefix + "d2t")) return;
  const std::vector<std::int64_t> offsets =
      loader.integers(prefix + "d2t", config_.draft_vocab_size);
  if (loader.is_check()) return;
  std::set<std::int64_t> known;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const auto number = static_cast<std::int64_t>(i);
    const bool is_token = offsets[i] >= -number && offsets[i] < config_.layers.vocab_size - number;
    const std::int64_t id = is_token ? number + offsets[i] : 0;
    token_ids_.push_back(static_cast<TokenId>(id));
    if (is_token && known.insert(id).second) continue;
    return loader.fail(
        ErrorCode::kCorrupt,
        "tensor \"" + prefix + "d2t\": element " + std::to_string(number) + " is " +
            std::to_string(offsets[i]) +
            (is_token ? ", whose token another one has already"
                      : ", expected a token below " + std::to_string(config_.layers.vocab_size)));
  }
}

std::int64_t DraftHead::target_state_size() const noexcept {
  const auto num_parts = static_cast<std::int64_t>(config_.input_layers.size());
  return std::max<std::int64_t>(1, num_parts) * config_.target_hidden_size;
}

std::vector<LayerCacheSpec> DraftHead::kv_cache_specs(std::int32_t block_size, DType dtype) const {
  std::vector<LayerCacheSpec> specs;
  for (const DecoderLayer& layer : layers_) layer.add_cache_specs(block_size, dtype, specs);
  return specs;
}

Result<void> DraftHead::reserve(const BatchLimits& limits) {
  const std::int64_t num_tokens = limits.max_num_tokens;
  const std::int64_t size = config_.layers.hidden_size;
  const std::int64_t num_rows = limits.max_num_logit_rows;
  std::int64_t scratch_bytes = 0;
  std::int64_t workspace_bytes = 0;
  const auto add = [&](const MixerMemory& memory) {
    scratch_bytes = std::max(scratch_bytes, memory.scratch_bytes);
    workspace_bytes = std::max(workspace_bytes, memory.workspace_bytes);
  };
  for (const DecoderLayer& layer : layers_)
    add(layer.memory(device_,
                     {.max_num_tokens = num_tokens, .max_seq_len = config_.layers.max_model_len}));
  if (fc_) add({.workspace_bytes = device_.ops().matmul_workspace_bytes(fc_->spec(), num_tokens)});
  // Residual, x, normed, and a pair of inputs.
  scratch_bytes +=
      3 * Scratch::padded_bytes(num_tokens, size) + Scratch::padded_bytes(num_tokens, 2 * size);
  MixerMemory logits{.scratch_bytes = Scratch::padded_bytes(num_rows, size)};
  if (head_) {
    logits.scratch_bytes +=
        gather_logits_bytes(num_rows, head_->spec().num_rows, parallel_.tensor_parallel_size);
    logits.workspace_bytes = device_.ops().matmul_workspace_bytes(head_->spec(), num_rows);
  }
  add(logits);
  ASSIGN_OR_RETURN(activations_, device_.allocate(static_cast<std::size_t>(scratch_bytes),
                                                  "activations of the draft head"));
  return device_.reserve_workspace(workspace_bytes);
}

void DraftHead::embed(const ForwardBatch& batch, const ForwardBatch& device_batch, Matrix out) {
  if (!embedding_) return target_.embed_tokens(batch, device_batch, out);
  device_.ops().embedding(device_.context(), {.table = {embedding_->data(), embedding_->type(),
                                                        config_.layers.vocab_size, out.num_cols},
                                              .ids = device_batch.token_ids.data(),
                                              .out = out});
}

void DraftHead::copy(ConstMatrix x, Matrix out) {
  device_.ops().gather_rows(device_.context(), {.x = x, .out = out});
}

void DraftHead::combine_states(Matrix out) {
  if (takes_layer_inputs() && are_target_states_)
    return fc_->apply(device_.ops(), device_.context(), states_, out);
  copy(states_, out);
}

void DraftHead::forward(const ForwardBatch& batch, std::span<const LayerKvCache> caches,
                        Communicator* peers, Matrix hidden) {
  const std::int64_t num_tokens = batch.num_tokens();
  const std::int64_t size = config_.layers.hidden_size;
  CHECK(states_.num_rows == num_tokens, states_.num_rows, num_tokens);
  Scratch scratch(activations_.bytes());
  const Matrix residual = scratch.take(num_tokens, size);
  const Matrix x = scratch.take(num_tokens, size);
  const Matrix normed = scratch.take(num_tokens, size);
  const Matrix pair = scratch.take(num_tokens, 2 * size);
  const Matrix embedded = columns(pair, 0, size);
  const Matrix state = columns(pair, size, size);
  const ForwardBatch* const device_batch = device_batch_.put(batch);
  if (device_batch == nullptr) return;
  LayerStep step = LayerStep::of(device_, batch, *device_batch, caches, peers, scratch);
  const OpContext context = device_.context();

  embed(batch, *device_batch, embedded);
  if (embedding_norm_) embedding_norm_->apply(step.ops, context, embedded);
  if (is_eagle3()) {
    combine_states(residual);
    copy(residual, state);
    state_norm_->apply(step.ops, context, state);
    if (config_.norm_before_residual) copy(state, residual);
  } else {
    copy(states_, state);
    if (state_norm_) state_norm_->apply(step.ops, context, state);
    fc_->apply(step.ops, context, pair, x);
    device_.fill_zero(residual.data, static_cast<std::size_t>(num_tokens * size) * sizeof(float));
  }
  for (const DecoderLayer& layer : layers_) {
    if (&layer == &layers_.back()) {
      step.query_start_loc = batch.output_start_loc;
      step.device_query_start_loc = device_batch->output_start_loc.data();
    }
    if (is_eagle3() && &layer == &layers_.front())
      layer.forward(step, pair, residual, x, normed);
    else
      layer.forward(step, residual, x, normed);
  }
  const std::int64_t num_outputs = batch.num_outputs();
  if (num_outputs == 0) return;
  RmsNorm().add_and_apply(step, first_rows(x, num_outputs), first_rows(residual, num_outputs),
                          hidden);
}

void DraftHead::compute_logits(ConstMatrix hidden, Communicator* peers, Matrix out) {
  Scratch scratch(activations_.bytes());
  if (final_norm_) {
    const Matrix normed = scratch.take(hidden.num_rows, hidden.num_cols);
    copy(hidden, normed);
    final_norm_->apply(device_.ops(), device_.context(), normed);
    hidden = normed;
  }
  if (!head_) return target_.compute_logits(hidden, peers, out);
  gather_logits(device_, scratch, peers, out,
                [&](Matrix part) { head_->apply(device_.ops(), device_.context(), hidden, part); });
}

Result<LoadedDraftHead> load_draft_head(DraftHeadKind kind, const std::filesystem::path& folder,
                                        const LoadedModel& target, Device& device,
                                        const ModelLoadOptions& options,
                                        const LoadProgressCallback& progress) {
  ASSIGN_OR_RETURN(const DraftHeadConfig config,
                   load_draft_head_config(kind, folder, target.config));
  // The last stage drafts, with layers of one stage.
  ModelLoadOptions own = options;
  own.parallel.rank = options.parallel.tensor_rank();
  own.parallel.pipeline_parallel_size = 1;
  own.parallel.expert_parallel &= config.layers.experts.has_value();
  own.mmproj.clear();
  own.max_model_len = 0;
  LoadedDraftHead result;
  const auto make = [&](const ModelConfig&, Device& on, WeightLoader& loader) {
    auto head = std::make_unique<DraftHead>(config, on, loader, *target.model);
    result.head = head.get();
    if (!head->has_embedding() && !on.is_host() && options.parallel.pipeline_parallel_size > 1)
      loader.fail(ErrorCode::kUnsupported,
                  "the head has no embed_tokens.weight, and the stage that drafts has not the "
                  "model's");
    return std::unique_ptr<Model>(std::move(head));
  };
  ASSIGN_OR_RETURN(result.loaded, load_configured_model(folder, config.layers,
                                                        {.make = make, .part = to_string(kind)},
                                                        device, own, progress));
  return result;
}

}  // namespace troupe
