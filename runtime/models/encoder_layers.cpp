#include "runtime/models/encoder_layers.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kEncoderBlockSize = 16;
/// On the CPU. So many rows keep its units busy, and take it some tens of milliseconds at most.
constexpr std::int64_t kMaxRowsPerPart = 256;

/// All of one matrix's rows, whichever rank asks.
WeightLoader::Part all_rows(const std::string& name, std::int64_t num_rows) {
  return {name, num_rows, {0, num_rows}};
}

ElementType cache_type(ComputeMode mode) {
  return mode == ComputeMode::kF32 ? ElementType::kF32 : ElementType::kBF16;
}

/// SigLIP's largest models have heads of 72. Zeros change no sum.
std::int64_t padded_head_dim(const Device& device, std::int64_t head_dim, ComputeMode mode) {
  const std::int64_t unit = device.ops().attention_head_dim_unit(cache_type(mode));
  return (head_dim + unit - 1) / unit * unit;
}

}  // namespace

EncoderLayers::EncoderLayers(WeightLoader& loader, Device& device, const std::string& prefix,
                             const EncoderLayersOptions& options)
    : options_(options),
      rows_per_part_(device.is_host() ? std::min(kMaxRowsPerPart, (options.num_rows + 1) / 2)
                                      : options.num_rows),
      head_dim_(padded_head_dim(device, options.hidden_size / options.num_heads, loader.mode())) {
  for (std::int64_t layer = 0; layer < options.num_layers; ++layer)
    layers_.push_back(load_layer(loader, prefix + std::to_string(layer)));
  const std::int64_t num_rows = options.num_rows;
  const std::int64_t num_blocks = (num_rows + kEncoderBlockSize - 1) / kEncoderBlockSize;
  qkv_ = loader.allocate(Scratch::padded_bytes(num_rows, Scratch::spread(3 * attention_size())),
                         "an item's queries, keys and values");
  cache_ = {.type = cache_type(loader.mode()),
            .num_blocks = num_blocks,
            .block_size = kEncoderBlockSize,
            .num_kv_heads = options.num_heads,
            .head_dim = head_dim_};
  cache_memory_ = loader.allocate(num_blocks * cache_.page_stride(), "an item's keys and values");
  cache_.data = cache_memory_.data();
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

EncoderLayers::Layer EncoderLayers::load_layer(WeightLoader& loader,
                                               const std::string& name) const {
  const std::int64_t hidden_size = options_.hidden_size;
  const auto named = [&](std::string_view part) { return name + "." + std::string(part); };
  const auto linear = [&](const std::vector<WeightLoader::Part>& parts, std::int64_t num_cols) {
    return Linear(loader, parts, num_cols, /*has_bias=*/true, MatrixRole::kEncoder);
  };
  const auto norm = [&](std::string_view part) {
    return LayerNorm(loader, named(part), hidden_size, options_.layer_norm_eps);
  };
  const WeightLoader::HeadPadding padding{.head_dim = hidden_size / options_.num_heads,
                                          .padded_dim = head_dim_};
  const auto heads = [&](std::string_view part_name, bool has_bias) {
    WeightLoader::Part part = all_rows(named(part_name), attention_size());
    part.row_padding = padding;
    part.has_bias = has_bias;
    return part;
  };
  WeightLoader::Part output = all_rows(named("self_attn.out_proj"), hidden_size);
  output.col_padding = padding;
  return {
      .attention_norm = norm(options_.names.attention_norm),
      .qkv = linear({heads("self_attn.q_proj", true), heads("self_attn.k_proj", options_.k_bias),
                     heads("self_attn.v_proj", true)},
                    hidden_size),
      .output = linear({output}, attention_size()),
      .mlp_norm = norm(options_.names.mlp_norm),
      .up = linear({all_rows(named(options_.names.up), options_.intermediate_size)}, hidden_size),
      .down =
          linear({all_rows(named(options_.names.down), hidden_size)}, options_.intermediate_size)};
}

/// The part's rows see those of all parts: they stand for the last ones of the sequence.
void EncoderLayers::attend(Device& device, const Part& part, Matrix out) const {
  const std::int64_t heads = options_.num_heads;
  const Matrix qkv = part.of(all_qkv());
  const auto own_head_dim = static_cast<float>(options_.hidden_size / heads);
  const bool is_last = part.begin + part.count == options_.num_rows;
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

void EncoderLayers::write_keys_and_values(Device& device, Scratch scratch, const Layer& layer,
                                          const Part& part, Matrix x, Matrix residual) const {
  const OpTable& ops = device.ops();
  const OpContext context = device.context();
  const Matrix normed = scratch.take(part.count, options_.hidden_size);
  layer.attention_norm.add_and_apply(ops, context, x, residual, residual, normed);
  const Matrix qkv = part.of(all_qkv());
  layer.qkv.apply(ops, context, normed, qkv);
  const auto heads = [&](std::int64_t index) {
    return Heads(qkv.data + index * attention_size(), qkv.num_rows, options_.num_heads, head_dim_,
                 qkv.row_stride);
  };
  ops.rope_and_write_kv(context, {.q = heads(0),
                                  .k = heads(1),
                                  .v = heads(2),
                                  .slots = slots_.data() + part.begin,
                                  .cache = cache_});
}

void EncoderLayers::run_layer(Device& device, Scratch scratch, const Layer& layer, const Part& part,
                              Matrix x, Matrix residual) const {
  const OpTable& ops = device.ops();
  const OpContext context = device.context();
  {
    const Matrix attended = Scratch(scratch).take_spread(part.count, attention_size());
    attend(device, part, attended);
    layer.output.apply(ops, context, attended, x);
  }
  const Matrix normed = scratch.take(part.count, options_.hidden_size);
  layer.mlp_norm.add_and_apply(ops, context, x, residual, residual, normed);
  const Matrix wide = scratch.take_spread(part.count, options_.intermediate_size);
  layer.up.apply(ops, context, normed, wide);
  ops.gelu(context, {.gelu = options_.activation, .out = wide});
  layer.down.apply(ops, context, wide, x);
}

void EncoderLayers::run_slice(Device& device, Scratch scratch, Matrix x, Matrix residual,
                              std::int64_t slice) const {
  CHECK(slice >= 0 && slice < num_slices(), slice);
  const Layer& layer = layers_[static_cast<std::size_t>(slice / (kNumPhases * num_parts()))];
  const std::int64_t begin = slice % num_parts() * rows_per_part_;
  const Part part{begin, std::min(rows_per_part_, options_.num_rows - begin)};
  if (slice / num_parts() % kNumPhases == 0)
    write_keys_and_values(device, scratch, layer, part, part.of(x), part.of(residual));
  else
    run_layer(device, scratch, layer, part, part.of(x), part.of(residual));
}

void EncoderLayers::forward(Device& device, Scratch scratch, Matrix x, Matrix residual) const {
  for (std::int64_t slice = 0; slice < num_slices(); ++slice)
    run_slice(device, scratch, x, residual, slice);
}

void EncoderLayers::add(Device& device, Matrix x, Matrix residual, Matrix sum) const {
  // Any norm: its sum alone is wanted.
  layers_.back().mlp_norm.add_and_apply(device.ops(), device.context(), x, residual, sum, x);
}

MixerMemory EncoderLayers::memory(Device& device) const noexcept {
  const std::int64_t part = rows_per_part_;
  MixerMemory memory{
      .scratch_bytes =
          std::max(Scratch::padded_bytes(part, options_.hidden_size) +
                       Scratch::padded_bytes(part, Scratch::spread(options_.intermediate_size)),
                   Scratch::padded_bytes(part, Scratch::spread(attention_size()))),
      .workspace_bytes = device.ops().attention_workspace_bytes({.num_heads = options_.num_heads,
                                                                 .num_kv_heads = options_.num_heads,
                                                                 .head_dim = cache_.head_dim,
                                                                 .max_seq_len = options_.num_rows},
                                                                device.pool().num_threads())};
  for (const Layer& layer : layers_)
    for (const Linear* linear : {&layer.qkv, &layer.output, &layer.up, &layer.down})
      memory.workspace_bytes = std::max(memory.workspace_bytes,
                                        device.ops().matmul_workspace_bytes(linear->spec(), part));
  return memory;
}

}  // namespace troupe
