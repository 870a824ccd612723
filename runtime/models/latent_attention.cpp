#include "runtime/models/latent_attention.hpp"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

/// To and from latents, errors go into all heads, and are multiplied one behind the other: 8 bits
/// at least. The matrices are small beside those of experts.
constexpr MatrixRole kLatentRole = MatrixRole::kHead;

WeightLoader::Part part_of_rows(std::string name, std::int64_t num_rows, Slice rows) {
  return {.name = std::move(name), .num_rows = num_rows, .rows = rows};
}

std::vector<WeightLoader::Part> in_parts(const WeightLoader& loader, const std::string& name,
                                         const LatentAttentionOptions& options) {
  const LatentConfig& latent = options.latent;
  const std::int64_t q_rows = options.num_heads * (latent.plain_dim + latent.rotary_dim);
  const std::int64_t kv_rows = latent.kv_rank + latent.rotary_dim;
  const std::string kv = name + ".kv_a_proj_with_mqa";
  std::vector<WeightLoader::Part> parts;
  if (latent.q_rank != 0)
    parts.push_back(part_of_rows(name + ".q_a_proj", latent.q_rank, {0, latent.q_rank}));
  else
    parts.push_back({.name = name + ".q_proj",
                     .num_rows = q_rows,
                     .rows = loader.shard(q_rows),
                     .has_bias = false});
  parts.push_back(part_of_rows(kv, kv_rows, {latent.kv_rank, latent.rotary_dim}));
  parts.push_back(part_of_rows(kv, kv_rows, {0, latent.kv_rank}));
  return parts;
}

WeightLoader::Part q_part(const WeightLoader& loader, const std::string& name,
                          const LatentAttentionOptions& options) {
  const LatentConfig& latent = options.latent;
  const std::int64_t num_rows = options.num_heads * (latent.plain_dim + latent.rotary_dim);
  return part_of_rows(name + ".q_b_proj", num_rows, loader.shard(num_rows));
}

std::optional<Linear> load_q_proj(WeightLoader& loader, const std::string& name,
                                  const LatentAttentionOptions& options) {
  if (options.latent.q_rank == 0) return std::nullopt;
  return Linear(loader, {q_part(loader, name, options)}, options.latent.q_rank, false, kLatentRole);
}

/// kv_b_proj has the rows of each head's keys, then those of its values. Keys are absorbed by its
/// transpose, which some checkpoints store instead.
Linear load_key_proj(WeightLoader& loader, const std::string& name, const LatentConfig& latent,
                     std::int64_t num_heads, std::int64_t head) {
  const std::string split = name + ".k_b_proj." + std::to_string(head);
  WeightLoader::Part part = part_of_rows(split, latent.kv_rank, {0, latent.kv_rank});
  if (!loader.has(split + ".weight")) {
    const std::int64_t head_rows = latent.plain_dim + latent.value_dim;
    part.name = name + ".kv_b_proj";
    part.layout = WeightLoader::Layout{.shape = {num_heads * head_rows, latent.kv_rank},
                                       .first = head * head_rows * latent.kv_rank,
                                       .row_stride = 1,
                                       .col_stride = latent.kv_rank};
  }
  return Linear(loader, {std::move(part)}, latent.plain_dim, false, kLatentRole);
}

Linear load_value_proj(WeightLoader& loader, const std::string& name, const LatentConfig& latent,
                       std::int64_t num_heads, std::int64_t head) {
  const std::string split = name + ".v_b_proj." + std::to_string(head);
  WeightLoader::Part part = part_of_rows(split, latent.value_dim, {0, latent.value_dim});
  if (!loader.has(split + ".weight")) {
    const std::int64_t head_rows = latent.plain_dim + latent.value_dim;
    part = part_of_rows(name + ".kv_b_proj", num_heads * head_rows,
                        {head * head_rows + latent.plain_dim, latent.value_dim});
  }
  return Linear(loader, {std::move(part)}, latent.kv_rank, false, kLatentRole);
}

AdaptedMatrix adapt_key_proj(WeightLoader& loader, const std::string& name,
                             const LatentConfig& latent, std::int64_t num_heads,
                             std::int64_t head) {
  const std::int64_t head_rows = latent.plain_dim + latent.value_dim;
  return {.target = loader.add_adapter_target({.parts = {{.name = name + ".kv_b_proj",
                                                          .num_rows = latent.kv_rank,
                                                          .rows = {0, latent.kv_rank},
                                                          .is_transposed = true,
                                                          .first_col = head * head_rows,
                                                          .all_cols = num_heads * head_rows}},
                                               .num_cols = latent.plain_dim,
                                               .cols = {0, latent.plain_dim}})};
}

AdaptedMatrix adapt_value_proj(WeightLoader& loader, const std::string& name,
                               const LatentConfig& latent, std::int64_t num_heads,
                               std::int64_t head) {
  const std::int64_t head_rows = latent.plain_dim + latent.value_dim;
  return {.target = loader.add_adapter_target(
              {part_of_rows(name + ".kv_b_proj", num_heads * head_rows,
                            {head * head_rows + latent.plain_dim, latent.value_dim})},
              latent.kv_rank, {0, latent.kv_rank})};
}

}  // namespace

LatentAttention::LatentAttention(WeightLoader& loader, const std::string& name,
                                 const LatentAttentionOptions& options)
    : layer_(options.layer),
      latent_(options.latent),
      num_heads_(loader.shard(options.num_heads).count),
      scale_(options.scale),
      in_proj_(loader, in_parts(loader, name, options), options.hidden_size, options.has_bias,
               kLatentRole),
      q_proj_(load_q_proj(loader, name, options)),
      kv_norm_(loader, name + ".kv_a_layernorm", options.latent.kv_rank,
               {.eps = options.latent.norm_eps}),
      o_proj_(loader, name + ".o_proj", options.hidden_size,
              options.num_heads * options.latent.value_dim, options.has_bias,
              options.canonical_shards),
      rope_(options.rope) {
  if (q_proj_)
    q_norm_ = RmsNorm(loader, name + ".q_a_layernorm", latent_.q_rank, {.eps = latent_.norm_eps});
  const Slice all_cols{0, options.hidden_size};
  adapted_in_.target =
      loader.add_adapter_target(in_parts(loader, name, options), options.hidden_size, all_cols);
  if (q_proj_)
    adapted_q_.target = loader.add_adapter_target({q_part(loader, name, options)}, latent_.q_rank,
                                                  {0, latent_.q_rank});
  adapted_o_ = adapt_row_parallel(
      loader, name + ".o_proj", options.hidden_size, options.num_heads * latent_.value_dim,
      loader.shard(options.num_heads * latent_.value_dim), options.canonical_shards);
  const Slice heads = loader.shard(options.num_heads);
  for (std::int64_t head = heads.begin; head < heads.end(); ++head) {
    key_projs_.push_back(load_key_proj(loader, name, latent_, options.num_heads, head));
    value_projs_.push_back(load_value_proj(loader, name, latent_, options.num_heads, head));
    adapted_keys_.push_back(adapt_key_proj(loader, name, latent_, options.num_heads, head));
    adapted_values_.push_back(adapt_value_proj(loader, name, latent_, options.num_heads, head));
  }
}

void LatentAttention::absorb(const LayerStep& step, Matrix queries, Heads out) const {
  const std::int64_t num_tokens = queries.num_rows;
  // The rows of both are dense: each is a row of heads.
  step.ops.gather_rows(step.context,
                       {.x = {queries.data + latent_.plain_dim, num_tokens * num_heads_,
                              latent_.rotary_dim, query_dim()},
                        .out = {out.data, num_tokens * num_heads_, latent_.rotary_dim, key_dim()}});
  for (std::int64_t head = 0; head < num_heads_; ++head) {
    const auto at = static_cast<std::size_t>(head);
    const ConstMatrix query(queries.data + head * query_dim(), num_tokens, latent_.plain_dim,
                            queries.row_stride);
    const Matrix absorbed(out.data + head * key_dim() + latent_.rotary_dim, num_tokens,
                          latent_.kv_rank, out.token_stride);
    key_projs_[at].apply(step.ops, step.context, query, absorbed);
    if (step.adapters != nullptr)
      add_adapters(step, step.adapters->tokens, adapted_keys_[at], query, absorbed);
  }
}

void LatentAttention::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  const ForwardBatch& batch = step.device_batch;
  const LayerKvCache& cache = step.caches[layer_];
  const auto* const latents = std::get_if<LatentCacheView>(&cache.pages);
  CHECK(latents != nullptr, layer_);
  const KvCacheView pages{.data = latents->data,
                          .type = latents->type,
                          .num_blocks = latents->num_blocks,
                          .block_size = latents->block_size,
                          .num_kv_heads = latents->num_kv_heads,
                          .head_dim = latents->dim,
                          .padded_page_bytes = latents->padded_page_bytes,
                          .latent_dim = latent_.kv_rank};
  const ForwardBatch::Group& group = batch.groups[cache.group];
  const std::int64_t num_tokens = batch.num_tokens();
  Scratch scratch = step.scratch;

  const Matrix projected = scratch.take(num_tokens, first_size() + key_dim());
  in_proj_.apply(step.ops, step.context, x, projected);
  if (step.adapters != nullptr)
    add_adapters(step, step.adapters->tokens, adapted_in_, x, projected);
  const std::int64_t row_size = projected.row_stride;
  float* const shared_key = projected.data + first_size();
  kv_norm_.apply(step.ops, step.context,
                 {shared_key + latent_.rotary_dim, num_tokens, latent_.kv_rank, row_size});
  const Matrix queries = scratch.take(num_tokens, num_heads_ * query_dim());
  const Matrix first(projected.data, num_tokens, first_size(), row_size);
  if (q_proj_) {
    q_norm_.apply(step.ops, step.context, first);
    q_proj_->apply(step.ops, step.context, first, queries);
    if (step.adapters != nullptr)
      add_adapters(step, step.adapters->tokens, adapted_q_, first, queries);
  } else {
    step.ops.gather_rows(step.context, {.x = first, .out = queries});
  }
  const Matrix absorbed = scratch.take(num_tokens, num_heads_ * key_dim());
  Heads q(absorbed.data, num_tokens, num_heads_, key_dim(), absorbed.row_stride);
  absorb(step, queries, q);
  step.ops.rope_and_write_kv(step.context,
                             {.q = q,
                              .k = ConstHeads(shared_key, num_tokens, 1, key_dim(), row_size),
                              .rotary_dim = rope_->rotary_dim,
                              .style = rope_->style,
                              .positions = batch.positions.data(),
                              .cos = rope_->cos.data(),
                              .sin = rope_->sin.data(),
                              .slots = group.slots,
                              .cache = pages});
  if (step.num_queries() == 0) return;
  q.num_tokens = keep_queries(step, absorbed).num_rows;
  const Matrix attended = scratch.take(q.num_tokens, num_heads_ * latent_.kv_rank);
  step.ops.attention(
      step.context,
      {.q = q,
       .cache = pages,
       .query_start_loc = step.device_query_start_loc,
       .seq_lens = batch.seq_lens.data(),
       .block_tables = group.block_tables,
       .block_table_stride = group.block_table_stride,
       .block_table_rows = batch.block_table_rows.data(),
       .num_seqs = static_cast<std::int64_t>(batch.seq_lens.size()),
       .scale = scale_,
       .two_way_spans = batch.two_way_spans.empty() ? nullptr : batch.two_way_spans.data(),
       .span_start_loc = batch.span_start_loc.data(),
       .out =
           Heads(attended.data, q.num_tokens, num_heads_, latent_.kv_rank, attended.row_stride)});
  const Matrix values = scratch.take(q.num_tokens, num_heads_ * latent_.value_dim);
  for (std::int64_t head = 0; head < num_heads_; ++head) {
    const auto at = static_cast<std::size_t>(head);
    const ConstMatrix latent(attended.data + head * latent_.kv_rank, q.num_tokens, latent_.kv_rank,
                             attended.row_stride);
    const Matrix value(values.data + head * latent_.value_dim, q.num_tokens, latent_.value_dim,
                       values.row_stride);
    value_projs_[at].apply(step.ops, step.context, latent, value);
    if (step.adapters != nullptr)
      add_adapters(step, step.adapter_queries(), adapted_values_[at], latent, value);
  }
  o_proj_.apply(step, values, out);
  if (step.adapters != nullptr) add_adapters(step, step.adapter_queries(), adapted_o_, values, out);
}

std::optional<LayerCacheSpec> LatentAttention::cache_spec(std::int32_t block_size,
                                                          DType dtype) const {
  return LayerCacheSpec{.layer = static_cast<std::int32_t>(layer_),
                        .spec = {.kind = MlaSpec{{.num_kv_heads = 1,
                                                  .head_dim = static_cast<std::int32_t>(key_dim()),
                                                  .dtype = dtype}},
                                 .block_size = block_size}};
}

MixerMemory LatentAttention::memory(Device& device, const MixerLimits& limits) const noexcept {
  const OpTable& ops = device.ops();
  const std::int64_t num_tokens = limits.max_num_tokens;
  MixerMemory memory;
  for (const std::int64_t size :
       {first_size() + key_dim(), num_heads_ * query_dim(), num_heads_ * key_dim(),
        num_heads_ * latent_.kv_rank, num_heads_ * latent_.value_dim})
    memory.scratch_bytes += Scratch::padded_bytes(num_tokens, size);
  const auto add = [&](const WeightSpec& spec) {
    memory.workspace_bytes =
        std::max(memory.workspace_bytes, ops.matmul_workspace_bytes(spec, num_tokens));
  };
  add(in_proj_.spec());
  if (q_proj_) add(q_proj_->spec());
  for (const Linear& proj : key_projs_) add(proj.spec());
  for (const Linear& proj : value_projs_) add(proj.spec());
  add(o_proj_.spec());
  memory.workspace_bytes = std::max(
      memory.workspace_bytes, ops.attention_workspace_bytes({.num_heads = num_heads_,
                                                             .num_kv_heads = 1,
                                                             .head_dim = latent_.kv_rank,
                                                             .max_seq_len = limits.max_seq_len},
                                                            device.pool().num_threads()));
  return memory;
}

}  // namespace troupe
