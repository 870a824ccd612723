#include "runtime/models/vision_transformer.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/models/encoder_layers.hpp"
#include "runtime/models/quantize.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kBlockSize = 16;
/// On the CPU. So many rows keep its units busy, and take it some tens of milliseconds at most.
constexpr std::int64_t kMaxRowsPerPart = 256;

/// All of one matrix's rows, whichever rank asks.
WeightLoader::Part whole(const std::string& name, std::int64_t num_rows) {
  return {name, num_rows, {0, num_rows}};
}

Linear load_patch_embedding(WeightLoader& loader, const std::string& name,
                            const VisionConfig& config) {
  WeightLoader::Part part = whole(name, config.hidden_size);
  const std::int64_t num_cols = config.num_channels * config.patch_size * config.patch_size;
  part.layout = WeightLoader::Layout{
      .shape = {config.hidden_size, config.num_channels, config.patch_size, config.patch_size},
      .row_stride = num_cols};
  return Linear(loader, {part}, num_cols, config.has_patch_bias, MatrixRole::kEncoder);
}

DeviceArray<float> load_positions(WeightLoader& loader, const std::string& name,
                                  const VisionConfig& config) {
  std::vector<float> rows =
      loader.rows(name + "position_embedding", config.num_rows(), config.hidden_size);
  if (config.has_class_token) {
    const std::vector<float> token = loader.values(name + "class_embedding", config.hidden_size);
    std::ranges::transform(token, rows, rows.begin(), std::plus<float>());
  }
  return loader.upload(std::move(rows));
}

std::optional<LayerNorm> load_norm(bool is_there, WeightLoader& loader, const std::string& name,
                                   const VisionConfig& config) {
  if (!is_there) return std::nullopt;
  return LayerNorm(loader, name, config.hidden_size, config.layer_norm_eps);
}

}  // namespace

VisionTransformer::VisionTransformer(WeightLoader& loader, Device& device,
                                     const std::string& prefix, const VisionConfig& config)
    : config_(config),
      rows_per_part_(device.is_host() ? std::min(kMaxRowsPerPart, (config.num_rows() + 1) / 2)
                                      : config.num_rows()),
      head_dim_(padded_head_dim(device, config.hidden_size / config.num_heads, loader.mode())),
      patch_embedding_(load_patch_embedding(loader, prefix + "embeddings.patch_embedding", config)),
      positions_(load_positions(loader, prefix + "embeddings.", config)),
      // The name has been misspelt since the first release.
      input_norm_(load_norm(config.norms_input, loader, prefix + "pre_layrnorm", config)),
      output_norm_(load_norm(config.norms_output, loader, prefix + "post_layernorm", config)) {
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string name = prefix + "encoder.layers." + std::to_string(layer);
    if (layer < config.num_used_layers)
      layers_.push_back(load_layer(loader, name));
    else
      loader.ignore(name + ".");
  }
  loader.ignore(prefix + "embeddings.position_ids");  // 0, 1, 2, ...
  if (!config.norms_output) loader.ignore(prefix + "post_layernorm.");

  const std::int64_t num_rows = config.num_rows();
  const std::int64_t num_blocks = (num_rows + kBlockSize - 1) / kBlockSize;
  cache_ = {.type = patch_embedding_.spec().mode == ComputeMode::kF32 ? ElementType::kF32
                                                                      : ElementType::kBF16,
            .num_blocks = num_blocks,
            .block_size = kBlockSize,
            .num_kv_heads = config.num_heads,
            .head_dim = head_dim_};
  cache_memory_ = loader.allocate(num_blocks * cache_.page_stride(), "a picture's keys and values");
  cache_.data = cache_memory_.data();
  streams_ =
      loader.allocate(2 * Scratch::padded_bytes(num_rows, config.hidden_size) +
                          Scratch::padded_bytes(num_rows, Scratch::spread(3 * attention_size())),
                      "a picture's hidden states");
  std::vector<std::int64_t> slots(static_cast<std::size_t>(num_rows));
  std::iota(slots.begin(), slots.end(), 0);
  slots_ = loader.upload(std::move(slots));
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  block_table_ = loader.upload(std::move(blocks));
  const auto size = static_cast<std::int32_t>(num_rows);
  const auto part = static_cast<std::int32_t>(rows_per_part_);
  const std::int32_t last = size - static_cast<std::int32_t>(num_parts() - 1) * part;
  sequence_ = loader.upload(std::vector<std::int32_t>{0, part, 0, last, size});
  span_start_loc_ = loader.upload(std::vector<std::int32_t>{0, 1});
  span_ = loader.upload(std::vector<TwoWaySpan>{{0, size}});
}

VisionTransformer::Layer VisionTransformer::load_layer(WeightLoader& loader,
                                                       const std::string& name) const {
  const std::int64_t hidden_size = config_.hidden_size;
  const auto linear = [&](const std::vector<WeightLoader::Part>& parts, std::int64_t num_cols) {
    return Linear(loader, parts, num_cols, /*has_bias=*/true, MatrixRole::kEncoder);
  };
  const auto norm = [&](const std::string& suffix) {
    return LayerNorm(loader, name + suffix, hidden_size, config_.layer_norm_eps);
  };
  const WeightLoader::HeadPadding padding{.head_dim = hidden_size / config_.num_heads,
                                          .padded_dim = head_dim_};
  const auto heads = [&](const std::string& suffix) {
    WeightLoader::Part part = whole(name + suffix, attention_size());
    part.row_padding = padding;
    return part;
  };
  WeightLoader::Part output = whole(name + ".self_attn.out_proj", hidden_size);
  output.col_padding = padding;
  return {.attention_norm = norm(".layer_norm1"),
          .qkv = linear(
              {heads(".self_attn.q_proj"), heads(".self_attn.k_proj"), heads(".self_attn.v_proj")},
              hidden_size),
          .output = linear({output}, attention_size()),
          .mlp_norm = norm(".layer_norm2"),
          .up = linear({whole(name + ".mlp.fc1", config_.intermediate_size)}, hidden_size),
          .down = linear({whole(name + ".mlp.fc2", hidden_size)}, config_.intermediate_size)};
}

std::vector<float> VisionTransformer::cut_patches(std::span<const float> pixels) const {
  const std::int64_t side = config_.patches_per_side();
  const std::int64_t patch = config_.patch_size;
  std::vector<float> rows;
  rows.reserve(
      static_cast<std::size_t>(config_.num_patches() * config_.num_channels * patch * patch));
  for (std::int64_t y = 0; y < side; ++y)
    for (std::int64_t x = 0; x < side; ++x)
      for (std::int64_t channel = 0; channel < config_.num_channels; ++channel)
        for (std::int64_t row = 0; row < patch; ++row) {
          const float* first =
              pixels.data() +
              ((channel * config_.image_size) + y * patch + row) * config_.image_size + x * patch;
          rows.insert(rows.end(), first, first + patch);
        }
  return rows;
}

VisionTransformer::Streams VisionTransformer::streams() const noexcept {
  Scratch memory(streams_.bytes());
  const std::int64_t num_rows = config_.num_rows();
  return {.x = memory.take(num_rows, config_.hidden_size),
          .residual = memory.take(num_rows, config_.hidden_size),
          .qkv = memory.take_spread(num_rows, 3 * attention_size())};
}

/// The part's rows see those of all parts: they stand for the last ones of the sequence.
void VisionTransformer::attend(Device& device, const Part& part, Matrix out) const {
  const std::int64_t heads = config_.num_heads;
  const Matrix qkv = part.of(streams().qkv);
  const auto own_head_dim = static_cast<float>(config_.hidden_size / heads);
  const bool is_last = part.begin + part.count == config_.num_rows();
  device.ops().attention(device.context(),
                         {.q = Heads(qkv.data, qkv.num_rows, heads, head_dim_, qkv.row_stride),
                          .cache = cache_,
                          .query_start_loc = sequence_.data() + (is_last ? 2 : 0),
                          .seq_lens = sequence_.data() + 4,
                          .block_tables = block_table_.data(),
                          .block_table_stride = cache_.num_blocks,
                          .block_table_rows = sequence_.data(),
                          .num_seqs = 1,
                          .scale = 1.0f / std::sqrt(own_head_dim),
                          .two_way_spans = span_.data(),
                          .span_start_loc = span_start_loc_.data(),
                          .out = Heads(out.data, out.num_rows, heads, head_dim_, out.row_stride)});
}

void VisionTransformer::embed(Device& device, Scratch scratch, std::span<const float> pixels,
                              const Streams& streams) const {
  const auto row_bytes = static_cast<std::size_t>(config_.hidden_size) * sizeof(float);
  Matrix x = streams.x;
  if (config_.has_class_token) {
    device.fill_zero(x.data, row_bytes);
    x = {x.row(1), x.num_rows - 1, x.num_cols, x.row_stride};
  }
  const std::vector<float> cut = cut_patches(pixels);
  const Matrix patches = scratch.take(x.num_rows, patch_embedding_.spec().num_cols);
  device.copy_to_device(patches.data, cut.data(), cut.size() * sizeof(float));
  patch_embedding_.apply(device.ops(), device.context(), patches, x);
  const std::size_t num_bytes = static_cast<std::size_t>(config_.num_rows()) * row_bytes;
  device.copy(streams.residual.data, positions_.data(), num_bytes);
  if (!input_norm_) return;
  input_norm_->add_and_apply(device.ops(), device.context(), streams.x, streams.residual,
                             streams.residual);
  device.fill_zero(streams.x.data, num_bytes);
}

void VisionTransformer::write_keys_and_values(Device& device, Scratch scratch, const Layer& layer,
                                              const Part& part) const {
  const OpTable& ops = device.ops();
  const OpContext context = device.context();
  const Streams all = streams();
  const Matrix residual = part.of(all.residual);
  const Matrix normed = scratch.take(part.count, config_.hidden_size);
  layer.attention_norm.add_and_apply(ops, context, part.of(all.x), residual, residual, normed);
  const Matrix qkv = part.of(all.qkv);
  layer.qkv.apply(ops, context, normed, qkv);
  const auto heads = [&](std::int64_t index) {
    return Heads(qkv.data + index * attention_size(), qkv.num_rows, config_.num_heads, head_dim_,
                 qkv.row_stride);
  };
  ops.rope_and_write_kv(context, {.q = heads(0),
                                  .k = heads(1),
                                  .v = heads(2),
                                  .slots = slots_.data() + part.begin,
                                  .cache = cache_});
}

void VisionTransformer::run_layer(Device& device, Scratch scratch, const Layer& layer,
                                  const Part& part) const {
  const OpTable& ops = device.ops();
  const OpContext context = device.context();
  const Streams all = streams();
  const Matrix x = part.of(all.x);
  const Matrix residual = part.of(all.residual);
  {
    const Matrix attended = Scratch(scratch).take_spread(part.count, attention_size());
    attend(device, part, attended);
    layer.output.apply(ops, context, attended, x);
  }
  const Matrix normed = scratch.take(part.count, config_.hidden_size);
  layer.mlp_norm.add_and_apply(ops, context, x, residual, residual, normed);
  const Matrix wide = scratch.take_spread(part.count, config_.intermediate_size);
  layer.up.apply(ops, context, normed, wide);
  ops.gelu(context, {.gelu = config_.activation, .out = wide});
  layer.down.apply(ops, context, wide, x);
}

void VisionTransformer::encode_slice(Device& device, Scratch scratch, std::span<const float> pixels,
                                     std::int64_t slice) const {
  CHECK(std::ssize(pixels) == config_.num_channels * config_.image_size * config_.image_size,
        pixels.size());
  CHECK(slice >= 0 && slice < num_slices(), slice);
  if (slice == 0) return embed(device, scratch, pixels, streams());
  const std::int64_t index = slice - 1;
  const Layer& layer = layers_[static_cast<std::size_t>(index / (kNumPhases * num_parts()))];
  const std::int64_t begin = index % num_parts() * rows_per_part_;
  const Part part{begin, std::min(rows_per_part_, config_.num_rows() - begin)};
  if (index / num_parts() % kNumPhases == 0)
    write_keys_and_values(device, scratch, layer, part);
  else
    run_layer(device, scratch, layer, part);
}

Matrix VisionTransformer::finish(Device& device, Scratch& scratch) const {
  const OpTable& ops = device.ops();
  const OpContext context = device.context();
  const Streams all = streams();
  const Matrix normed = scratch.take(config_.num_rows(), config_.hidden_size);
  if (output_norm_)
    output_norm_->add_and_apply(ops, context, all.x, all.residual, normed);
  else  // any norm: its sum alone is wanted
    layers_.back().mlp_norm.add_and_apply(ops, context, all.x, all.residual, /*sum=*/normed, all.x);
  return normed;
}

MixerMemory VisionTransformer::memory(Device& device) const noexcept {
  const std::int64_t num_rows = config_.num_rows();
  const std::int64_t hidden_size = config_.hidden_size;
  const std::int64_t part = rows_per_part_;
  const std::int64_t scratch_bytes =
      std::max({Scratch::padded_bytes(num_rows, patch_embedding_.spec().num_cols),
                Scratch::padded_bytes(num_rows, hidden_size),
                Scratch::padded_bytes(part, hidden_size) +
                    Scratch::padded_bytes(part, Scratch::spread(config_.intermediate_size)),
                Scratch::padded_bytes(part, Scratch::spread(attention_size()))});
  std::int64_t workspace_bytes =
      device.ops().attention_workspace_bytes({.num_heads = config_.num_heads,
                                              .num_kv_heads = config_.num_heads,
                                              .head_dim = cache_.head_dim,
                                              .max_seq_len = num_rows},
                                             device.pool().num_threads());
  const auto add = [&](const Linear& linear, std::int64_t rows) {
    workspace_bytes =
        std::max(workspace_bytes, device.ops().matmul_workspace_bytes(linear.spec(), rows));
  };
  add(patch_embedding_, num_rows);
  for (const Layer& layer : layers_)
    for (const Linear* linear : {&layer.qkv, &layer.output, &layer.up, &layer.down})
      add(*linear, part);
  return {.scratch_bytes = scratch_bytes, .workspace_bytes = workspace_bytes};
}

}  // namespace troupe
