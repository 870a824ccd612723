#include "runtime/models/cross_attention.hpp"

#include <algorithm>
#include <cmath>
#include <span>

namespace troupe {
namespace {

CrossAttentionOptions cross_options_of_rank(CrossAttentionOptions options,
                                            const ParallelConfig& parallel) {
  options.num_heads /= parallel.tensor_parallel_size;
  return options;
}

WeightLoader::Part heads_of_rank(const WeightLoader& loader, const std::string& name,
                                 std::int64_t num_rows, bool has_bias) {
  WeightLoader::Part part{name, num_rows, loader.shard(num_rows)};
  part.has_bias = has_bias;
  return part;
}

}  // namespace

CrossAttention::CrossAttention(WeightLoader& loader, const std::string& name,
                               const CrossAttentionOptions& options)
    : options_(cross_options_of_rank(options, loader.parallel())),
      q_proj_(loader,
              {heads_of_rank(loader, name + ".q_proj", options.num_heads * options.head_dim, true)},
              options.hidden_size, /*has_bias=*/true),
      kv_proj_(
          loader,
          {heads_of_rank(loader, name + ".k_proj", options.num_heads * options.head_dim, false),
           heads_of_rank(loader, name + ".v_proj", options.num_heads * options.head_dim, true)},
          options.hidden_size, /*has_bias=*/true),
      out_proj_(loader, name + ".out_proj", options.hidden_size,
                options.num_heads * options.head_dim, /*has_bias=*/true, options.canonical_shards) {
}

void CrossAttention::write_encoder_rows(const LayerStep& step, const KvCacheView& pages,
                                        const std::int64_t* slots) const {
  const ForwardBatch::EncoderInputs& inputs = step.device_batch.encoder_inputs;
  const auto num_rows = static_cast<std::int64_t>(inputs.rows.size());
  for (std::int64_t first = 0; first < num_rows; first += options_.num_encoder_rows) {
    Scratch scratch = step.scratch;
    const std::int64_t count = std::min(options_.num_encoder_rows, num_rows - first);
    const Matrix rows = scratch.take(count, options_.hidden_size);
    const Matrix kv = scratch.take_spread(count, 2 * size());
    step.ops.gather_rows(step.context,
                         {.x = inputs.outputs, .rows = inputs.rows.data() + first, .out = rows});
    kv_proj_.apply(step.ops, step.context, rows, kv);
    const auto heads = [&](float* data) {
      return ConstHeads(data, count, options_.num_heads, options_.head_dim, kv.row_stride);
    };
    step.ops.rope_and_write_kv(step.context,
                               {.q = Heads(kv.data, count, 0, options_.head_dim, kv.row_stride),
                                .k = heads(kv.data),
                                .v = heads(kv.data + size()),
                                .slots = slots + first,
                                .cache = pages});
  }
}

void CrossAttention::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  const ForwardBatch& batch = step.device_batch;
  const LayerKvCache& cache = step.caches[options_.layer];
  const auto* pages = std::get_if<KvCacheView>(&cache.pages);
  CHECK(pages != nullptr, options_.layer);
  const ForwardBatch::Group& group = batch.groups[cache.group];
  write_encoder_rows(step, *pages, group.slots);

  const std::int64_t num_tokens = batch.num_tokens();
  Scratch scratch = step.scratch;
  const Matrix q = scratch.take_spread(num_tokens, size());
  const Matrix attended = scratch.take_spread(num_tokens, size());
  q_proj_.apply(step.ops, step.context, x, q);
  const auto heads = [&](const Matrix& rows) {
    return Heads(rows.data, num_tokens, options_.num_heads, options_.head_dim, rows.row_stride);
  };
  // To the kernel each token is the last one of a sequence of its own: it sees all rows.
  step.ops.attention(step.context, {.q = heads(q),
                                    .cache = *pages,
                                    .query_start_loc = batch.encoder_inputs.starts.data(),
                                    .seq_lens = batch.encoder_inputs.lens.data(),
                                    .block_tables = group.block_tables,
                                    .block_table_stride = group.block_table_stride,
                                    .block_table_rows = batch.encoder_inputs.table_rows.data(),
                                    .num_seqs = num_tokens,
                                    .scale = 1 / std::sqrt(static_cast<float>(options_.head_dim)),
                                    .out = heads(attended)});
  out_proj_.apply(step, attended, out);
}

std::optional<LayerCacheSpec> CrossAttention::cache_spec(std::int32_t block_size,
                                                         DType dtype) const {
  const TokenShape token{.num_kv_heads = static_cast<std::int32_t>(options_.num_heads),
                         .head_dim = static_cast<std::int32_t>(options_.head_dim),
                         .dtype = dtype};
  return LayerCacheSpec{.layer = static_cast<std::int32_t>(options_.layer),
                        .spec = {.kind = CrossAttentionSpec{token}, .block_size = block_size}};
}

MixerMemory CrossAttention::memory(Device& device, const MixerLimits& limits) const noexcept {
  const OpTable& ops = device.ops();
  const std::int64_t num_rows = options_.num_encoder_rows;
  const std::int64_t num_tokens = limits.max_num_tokens;
  return {
      .scratch_bytes = std::max(Scratch::padded_bytes(num_rows, options_.hidden_size) +
                                    Scratch::padded_bytes(num_rows, Scratch::spread(2 * size())),
                                2 * Scratch::padded_bytes(num_tokens, Scratch::spread(size()))),
      .workspace_bytes =
          std::max({ops.matmul_workspace_bytes(q_proj_.spec(), num_tokens),
                    ops.matmul_workspace_bytes(kv_proj_.spec(), num_rows),
                    ops.matmul_workspace_bytes(out_proj_.spec(), num_tokens),
                    ops.attention_workspace_bytes({.num_heads = options_.num_heads,
                                                   .num_kv_heads = options_.num_heads,
                                                   .head_dim = options_.head_dim,
                                                   .max_seq_len = num_rows},
                                                  device.pool().num_threads())})};
}

}  // namespace troupe
