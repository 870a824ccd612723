#include "runtime/models/layers.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

LayerStep LayerStep::of(Device& device, const ForwardBatch& batch, const ForwardBatch& device_batch,
                        std::span<const LayerKvCache> caches, Communicator* peers,
                        Scratch scratch) {
  return {.device = device,
          .ops = device.ops(),
          .context = device.context(),
          .batch = batch,
          .device_batch = device_batch,
          .query_start_loc = batch.query_start_loc,
          .device_query_start_loc = device_batch.query_start_loc.data(),
          .caches = caches,
          .peers = peers,
          .scratch = scratch};
}

void copy_outputs(LayerStep step, Matrix x, Matrix hidden) {
  step.query_start_loc = step.batch.output_start_loc;
  const Matrix outputs = keep_queries(step, x);
  step.device.copy(hidden.data, outputs.data,
                   static_cast<std::size_t>(outputs.num_rows * outputs.num_cols) * sizeof(float));
}

Matrix keep_queries(const LayerStep& step, Matrix x) {
  const std::span<const std::int32_t> tokens = step.batch.query_start_loc;
  const std::span<const std::int32_t> queries = step.query_start_loc;
  for (std::size_t seq = 0; seq + 1 < queries.size(); ++seq) {
    // Rows only move forward, so none is overwritten before it has moved.
    const std::int32_t distance = tokens[seq + 1] - queries[seq + 1];
    if (distance == 0) continue;
    for (std::int32_t query = queries[seq]; query < queries[seq + 1]; ++query)
      step.device.copy(x.row(query), x.row(query + distance),
                       static_cast<std::size_t>(x.num_cols) * sizeof(float));
  }
  return first_rows(x, step.num_queries());
}

Linear::Linear(WeightLoader& loader, const std::vector<WeightLoader::Part>& parts,
               std::int64_t num_cols, bool has_bias, MatrixRole role)
    : weight_(loader.matrix(parts, num_cols, {0, num_cols}, /*k_shards=*/1, role)) {
  if (has_bias) bias_ = loader.biases(parts);
}

void Linear::apply(const OpTable& ops, const OpContext& context, ConstMatrix x, Matrix out) const {
  ops.matmul(context, {.x = x, .weight = weight(), .bias = bias(), .out = out});
}

namespace {

bool has_part_of_sum(const LayerStep& step) {
  return step.peers != nullptr && step.peers->group_size() > 1;
}

}  // namespace

void add_over_ranks(const LayerStep& step, Matrix out) {
  if (!has_part_of_sum(step)) return;
  step.peers->all_reduce({out.data, static_cast<std::size_t>(out.num_rows * out.num_cols)});
}

void add_adapters(const LayerStep& step, const AdapterRows& rows, const AdaptedMatrix& matrix,
                  ConstMatrix x, Matrix out) {
  if (matrix.target < 0 || rows.num_rows == 0) return;
  const StepAdapters& adapters = *step.adapters;
  const Matrix shrunk = first_rows(adapters.shrunk, rows.num_rows);
  const bool is_part_of_sum = matrix.is_row_parallel && has_part_of_sum(step);
  // Not every adapter fills all of it, and the sum over ranks is of all.
  if (is_part_of_sum)
    step.device.fill_zero(
        shrunk.data, static_cast<std::size_t>(shrunk.num_rows * shrunk.num_cols) * sizeof(float));
  step.ops.adapter_shrink(step.context, {.x = x,
                                         .rows = rows,
                                         .target = matrix.target,
                                         .type = adapters.type,
                                         .k_shards = matrix.k_shards,
                                         .out = shrunk});
  if (is_part_of_sum) add_over_ranks(step, shrunk);
  step.ops.adapter_expand(
      step.context,
      {.x = shrunk, .rows = rows, .target = matrix.target, .type = adapters.type, .out = out});
}

AdaptedMatrix adapt_row_parallel(WeightLoader& loader, const std::string& name,
                                 std::int64_t num_rows, std::int64_t num_cols, Slice cols,
                                 std::int32_t canonical_shards) {
  return {.target = loader.add_adapter_target({{name, num_rows, {0, num_rows}}}, num_cols, cols),
          .k_shards = static_cast<std::int32_t>(canonical_shards * cols.count / num_cols),
          .is_row_parallel = true};
}

RowParallelLinear::RowParallelLinear(WeightLoader& loader, const WeightLoader::Part& part,
                                     std::int64_t num_cols, Slice cols, bool has_bias,
                                     std::int32_t canonical_shards)
    : weight_(loader.matrix({part}, num_cols, cols,
                            static_cast<std::int32_t>(canonical_shards * cols.count / num_cols))) {
  if (has_bias) bias_ = loader.biases({part});
}

void RowParallelLinear::apply(const LayerStep& step, ConstMatrix x, Matrix out) const {
  step.ops.matmul(step.context,
                  {.x = x, .weight = weight(), .bias = kernel_bias(step), .out = out});
  reduce(step, out);
}

const float* RowParallelLinear::kernel_bias(const LayerStep& step) const noexcept {
  return has_part_of_sum(step) ? nullptr : bias_.data();
}

void RowParallelLinear::reduce(const LayerStep& step, Matrix out) const {
  add_over_ranks(step, out);
  if (bias_.empty() || !has_part_of_sum(step)) return;
  step.ops.add_bias(step.context, {.bias = bias_.data(), .out = out});
}

RmsNorm::RmsNorm(WeightLoader& loader, const std::string& name, std::int64_t size, NormStyle style)
    : weight_(loader.vector(name, size)), style_(style) {}

void RmsNorm::apply(const OpTable& ops, const OpContext& context, Matrix x) const {
  ops.rms_norm(context, {.x = x,
                         .weight = weight_.data(),
                         .weight_offset = style_.weight_offset,
                         .eps = style_.eps,
                         .out = x});
}

void RmsNorm::add_and_apply(const LayerStep& step, ConstMatrix x, Matrix residual,
                            Matrix out) const {
  step.ops.add_rms_norm(step.context, {.x = x,
                                       .residual = residual,
                                       .weight = weight_.data(),
                                       .weight_offset = style_.weight_offset,
                                       .eps = style_.eps,
                                       .out = out});
}

LayerNorm::LayerNorm(WeightLoader& loader, const std::string& name, std::int64_t size, float eps)
    : weight_(loader.vector(name, size)),
      bias_(loader.biases({{name, size, {0, size}}})),
      eps_(eps) {}

void LayerNorm::add_and_apply(const OpTable& ops, const OpContext& context, ConstMatrix x,
                              ConstMatrix residual, Matrix sum, Matrix out) const {
  ops.add_layer_norm(context, {.x = x,
                               .residual = residual,
                               .weight = weight_.data(),
                               .bias = bias_.data(),
                               .eps = eps_,
                               .sum = sum,
                               .out = out});
}

namespace {

std::string named(const std::string& layer, std::string_view matrix) {
  return layer + "." + std::string(matrix);
}

/// Of several matrices, or of the parts of one that holds them under each other, some rows of each.
struct RowsOf {
  std::string_view name;
  std::int64_t num_rows = 0;
  Slice rows;
  bool has_bias = true;
};
std::vector<WeightLoader::Part> parts_of(const std::string& layer, std::string_view fused_name,
                                         const std::vector<RowsOf>& matrices) {
  std::int64_t all_rows = 0;
  for (const RowsOf& matrix : matrices) all_rows += matrix.num_rows;
  std::vector<WeightLoader::Part> parts;
  std::int64_t first_row = 0;
  for (const RowsOf& matrix : matrices) {
    if (fused_name.empty())
      parts.push_back({named(layer, matrix.name), matrix.num_rows, matrix.rows});
    else
      parts.push_back(
          {named(layer, fused_name), all_rows, {first_row + matrix.rows.begin, matrix.rows.count}});
    parts.back().has_bias = matrix.has_bias;
    first_row += matrix.num_rows;
  }
  return parts;
}

/// The rows of q, k and v whose heads are this rank's; of q and k all, where a norm is over all.
std::vector<WeightLoader::Part> qkv_parts(const WeightLoader& loader, const std::string& name,
                                          const AttentionOptions& whole) {
  const std::int64_t q_rows = whole.num_heads * whole.head_dim;
  const std::int64_t kv_rows = whole.num_kv_heads * whole.head_dim;
  const Slice kv_heads = kv_heads_of_rank(whole.num_kv_heads, loader.parallel());
  const Slice kv_slice{kv_heads.begin * whole.head_dim, kv_heads.count * whole.head_dim};
  const bool has_all = whole.whole_qk_norm;
  return parts_of(name, whole.names.qkv,
                  {{whole.names.q, q_rows, has_all ? Slice{0, q_rows} : loader.shard(q_rows)},
                   {whole.names.k, kv_rows, has_all ? Slice{0, kv_rows} : kv_slice, whole.k_bias},
                   {whole.names.v, kv_rows, kv_slice}});
}

std::vector<WeightLoader::Part> gate_up_parts(const WeightLoader& loader, const std::string& name,
                                              const MlpNames& names,
                                              std::int64_t intermediate_size) {
  const Slice rows = loader.shard(intermediate_size);
  return parts_of(name, names.gate_up,
                  {{names.gate, intermediate_size, rows}, {names.up, intermediate_size, rows}});
}

std::int64_t input_size_of(const AttentionOptions& options) {
  return options.input_size != 0 ? options.input_size : options.hidden_size;
}

AttentionOptions options_of_rank(AttentionOptions options, const ParallelConfig& parallel) {
  options.num_heads /= parallel.tensor_parallel_size;
  options.num_kv_heads = kv_heads_of_rank(options.num_kv_heads, parallel).count;
  return options;
}

}  // namespace

Attention::Attention(WeightLoader& loader, const std::string& name, const AttentionOptions& options)
    : options_(options_of_rank(options, loader.parallel())),
      qkv_proj_(loader, qkv_parts(loader, name, options), input_size_of(options), options.qkv_bias),
      o_proj_(loader, named(name, options.names.output), options.hidden_size,
              options.num_heads * options.head_dim, options.output_bias, options.canonical_shards) {
  const std::int64_t input_size = input_size_of(options);
  adapted_qkv_.target =
      loader.add_adapter_target(qkv_parts(loader, name, options), input_size, {0, input_size});
  const std::int64_t attended_size = options.num_heads * options.head_dim;
  adapted_o_ =
      adapt_row_parallel(loader, named(name, options.names.output), options.hidden_size,
                         attended_size, loader.shard(attended_size), options.canonical_shards);
  projected_q_ = {.size = q_size()};
  projected_k_ = {.size = kv_size()};
  if (options.whole_qk_norm) {
    projected_q_ = {.size = options.num_heads * options.head_dim,
                    .begin = loader.shard(options.num_heads).begin * options.head_dim};
    projected_k_ = {.size = options.num_kv_heads * options.head_dim,
                    .begin = kv_heads_of_rank(options.num_kv_heads, loader.parallel()).begin *
                             options.head_dim};
    whole_q_norm_ = RmsNorm(loader, name + ".q_norm", projected_q_.size, options.norm);
    whole_k_norm_ = RmsNorm(loader, name + ".k_norm", projected_k_.size, options.norm);
  }
  if (options.has_sinks)
    sinks_ = loader.elements(name + ".sinks", options.num_heads, loader.shard(options.num_heads));
  if (!options_.qk_norm) return;
  q_norm_weight_ = loader.vector(name + ".q_norm", options_.head_dim);
  k_norm_weight_ = loader.vector(name + ".k_norm", options_.head_dim);
}

std::int64_t Attention::q_size() const noexcept { return options_.num_heads * options_.head_dim; }
std::int64_t Attention::kv_size() const noexcept {
  return options_.num_kv_heads * options_.head_dim;
}

void Attention::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  const ForwardBatch& batch = step.device_batch;
  const LayerKvCache& cache = step.caches[options_.layer];
  const auto* pages = std::get_if<KvCacheView>(&cache.pages);
  CHECK(pages != nullptr, options_.layer);
  const ForwardBatch::Group& group = batch.groups[cache.group];
  const std::int64_t num_tokens = batch.num_tokens();
  Scratch scratch = step.scratch;

  const Matrix qkv =
      scratch.take_spread(num_tokens, projected_q_.size + projected_k_.size + kv_size());
  const std::int64_t row_size = qkv.row_stride;
  qkv_proj_.apply(step.ops, step.context, x, qkv);
  if (step.adapters != nullptr) add_adapters(step, step.adapters->tokens, adapted_qkv_, x, qkv);
  float* const first_k = qkv.data + projected_q_.size;
  if (options_.whole_qk_norm) {
    whole_q_norm_.apply(step.ops, step.context,
                        {qkv.data, num_tokens, projected_q_.size, row_size});
    whole_k_norm_.apply(step.ops, step.context, {first_k, num_tokens, projected_k_.size, row_size});
  }
  Heads q(qkv.data + projected_q_.begin, num_tokens, options_.num_heads, options_.head_dim,
          row_size);
  const ConstHeads k(first_k + projected_k_.begin, num_tokens, options_.num_kv_heads,
                     options_.head_dim, row_size);
  const ConstHeads v(first_k + projected_k_.size, num_tokens, options_.num_kv_heads,
                     options_.head_dim, row_size);
  RopeAndWriteKvArgs prepared{.q = q,
                              .k = k,
                              .v = v,
                              .q_norm_weight = q_norm_weight_.data(),
                              .k_norm_weight = k_norm_weight_.data(),
                              .norm_weight_offset = options_.norm.weight_offset,
                              .norm_eps = options_.norm.eps,
                              .slots = group.slots,
                              .cache = *pages};
  if (options_.rope != nullptr) {
    prepared.rotary_dim = options_.rope->rotary_dim;
    prepared.style = options_.rope->style;
    prepared.cos = options_.rope->cos.data();
    prepared.sin = options_.rope->sin.data();
  }
  prepared.positions = batch.positions.data();
  prepared.norms_rotated = options_.norms_rotated;
  if (options_.q_scales != nullptr) prepared.q_scales = options_.q_scales->data();
  if (step.blend != nullptr) exchange_kv(step, prepared);
  step.ops.rope_and_write_kv(step.context, prepared);
  if (step.num_queries() == 0) return;
  q.num_tokens = keep_queries(step, {q.data, num_tokens, q_size(), row_size}).num_rows;
  const Matrix attended = scratch.take_spread(q.num_tokens, q_size());
  step.ops.attention(
      step.context,
      {.q = q,
       .cache = *pages,
       .query_start_loc = step.device_query_start_loc,
       .seq_lens = batch.seq_lens.data(),
       .block_tables = group.block_tables,
       .block_table_stride = group.block_table_stride,
       .block_table_rows = batch.block_table_rows.data(),
       .num_seqs = static_cast<std::int64_t>(batch.seq_lens.size()),
       .scale = options_.scale,
       .sliding_window = options_.sliding_window,
       .local_chunk = options_.local_chunk,
       .logit_softcap = options_.logit_softcap,
       .sinks = sinks_.data(),
       .two_way_spans = batch.two_way_spans.empty() ? nullptr : batch.two_way_spans.data(),
       .span_start_loc = batch.span_start_loc.data(),
       .out = Heads(attended.data, q.num_tokens, options_.num_heads, options_.head_dim,
                    attended.row_stride)});
  o_proj_.apply(step, attended, out);
  if (step.adapters != nullptr)
    add_adapters(step, step.adapter_queries(), adapted_o_, attended, out);
}

void Attention::exchange_kv(const LayerStep& step, const RopeAndWriteKvArgs& own) const {
  const auto layer = static_cast<std::int32_t>(options_.layer);
  const KvBlend::Rows* const rows =
      step.blend->put(layer, options_.num_kv_heads, options_.head_dim);
  if (rows != nullptr) {
    RopeAndWriteKvArgs others = own;
    others.q = Heads(nullptr, rows->k.num_tokens, 0, options_.head_dim, 0);
    others.k = rows->k;
    others.v = rows->v;
    others.positions = rows->positions;
    others.slots = rows->slots;
    step.ops.rope_and_write_kv(step.context, others);
  }
  step.blend->take(layer, own.k, own.v, options_.qk_norm);
}

std::string_view Attention::blend_obstacle() const noexcept {
  if (options_.sliding_window > 0) return "it attends within a sliding window";
  if (options_.local_chunk > 0) return "it attends within chunks";
  if (options_.rope == nullptr) return "it has no rotary embedding";
  return {};
}

std::optional<LayerCacheSpec> Attention::cache_spec(std::int32_t block_size, DType dtype) const {
  const TokenShape token{.num_kv_heads = static_cast<std::int32_t>(options_.num_kv_heads),
                         .head_dim = static_cast<std::int32_t>(options_.head_dim),
                         .dtype = dtype};
  LayerCacheSpec layer{.layer = static_cast<std::int32_t>(options_.layer),
                       .spec = {.kind = FullAttentionSpec{token}, .block_size = block_size}};
  if (options_.sliding_window > 0)
    layer.spec.kind = SlidingWindowSpec{token, {.num_tokens = options_.sliding_window}};
  if (options_.local_chunk > 0)
    layer.spec.kind = ChunkedLocalAttentionSpec{token, options_.local_chunk};
  return layer;
}

MixerMemory Attention::memory(Device& device, const MixerLimits& limits) const noexcept {
  const OpTable& ops = device.ops();
  const std::int64_t num_tokens = limits.max_num_tokens;
  return {.scratch_bytes =
              Scratch::padded_bytes(
                  num_tokens, Scratch::spread(projected_q_.size + projected_k_.size + kv_size())) +
              Scratch::padded_bytes(num_tokens, Scratch::spread(q_size())),
          .workspace_bytes =
              std::max({ops.matmul_workspace_bytes(qkv_proj_.spec(), num_tokens),
                        ops.matmul_workspace_bytes(o_proj_.spec(), num_tokens),
                        ops.attention_workspace_bytes({.num_heads = options_.num_heads,
                                                       .num_kv_heads = options_.num_kv_heads,
                                                       .head_dim = options_.head_dim,
                                                       .max_seq_len = limits.max_seq_len},
                                                      device.pool().num_threads())})};
}

GatedMlp::GatedMlp(WeightLoader& loader, const std::string& name, std::int64_t hidden_size,
                   std::int64_t intermediate_size, std::int32_t canonical_shards,
                   Activation activation, bool has_bias, const MlpNames& names)
    : activation_(activation),
      gate_up_proj_(loader, gate_up_parts(loader, name, names, intermediate_size), hidden_size,
                    has_bias, MatrixRole::kGateUp),
      down_proj_(loader, named(name, names.down), hidden_size, intermediate_size, has_bias,
                 canonical_shards) {
  adapted_gate_up_.target = loader.add_adapter_target(
      gate_up_parts(loader, name, names, intermediate_size), hidden_size, {0, hidden_size});
  adapted_down_ =
      adapt_row_parallel(loader, named(name, names.down), hidden_size, intermediate_size,
                         loader.shard(intermediate_size), canonical_shards);
}

namespace {

Slice inner_of_rank(const WeightLoader& loader, const MlpOptions& options) {
  return options.is_whole ? Slice{0, options.intermediate_size}
                          : loader.shard(options.intermediate_size);
}

std::vector<WeightLoader::Part> gate_up_parts(MlpParts parts, Slice rows) {
  parts.gate.rows = rows;
  parts.up.rows = rows;
  return {std::move(parts.gate), std::move(parts.up)};
}

}  // namespace

GatedMlp::GatedMlp(WeightLoader& loader, MlpParts parts, const MlpOptions& options)
    : activation_(options.activation),
      clamp_(options.clamp),
      gate_up_proj_(loader, gate_up_parts(parts, inner_of_rank(loader, options)),
                    options.hidden_size, options.has_bias, MatrixRole::kGateUp),
      down_proj_(loader, parts.down, options.intermediate_size, inner_of_rank(loader, options),
                 options.has_bias, options.canonical_shards) {
  if (!options.has_adapters) return;
  adapted_gate_up_.target =
      loader.add_adapter_target(gate_up_parts(parts, inner_of_rank(loader, options)),
                                options.hidden_size, {0, options.hidden_size});
  adapted_down_ =
      adapt_row_parallel(loader, parts.down.name, options.hidden_size, options.intermediate_size,
                         inner_of_rank(loader, options), options.canonical_shards);
}

void GatedMlp::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  if (step.adapters == nullptr || adapted_down_.target < 0) {
    multiply(step, {.x = x, .down_bias = down_proj_.kernel_bias(step), .out = out});
    return down_proj_.reduce(step, out);
  }
  const AdapterRows& rows = step.adapter_queries();
  Scratch scratch = step.scratch;
  const std::int64_t num_gates = down_proj_.spec().num_cols;
  const Matrix update = scratch.take(x.num_rows, 2 * num_gates);
  const Matrix hidden = scratch.take(x.num_rows, num_gates);
  step.device.fill_zero(
      update.data, static_cast<std::size_t>(update.num_rows * update.num_cols) * sizeof(float));
  add_adapters(step, rows, adapted_gate_up_, x, update);
  multiply(step, {.x = x,
                  .down_bias = down_proj_.kernel_bias(step),
                  .out = out,
                  .gate_up_update = update,
                  .hidden = hidden});
  down_proj_.reduce(step, out);
  add_adapters(step, rows, adapted_down_, hidden, out);
}

void GatedMlp::multiply(const LayerStep& step, GatedMlpArgs args) const {
  args.gate_up = gate_up_proj_.weight();
  args.gate_up_bias = gate_up_proj_.bias();
  args.activation = activation_;
  args.clamp = clamp_;
  args.down = down_proj_.weight();
  step.ops.gated_mlp(step.context, args);
}

MixerMemory GatedMlp::memory(Device& device, const MixerLimits& limits) const noexcept {
  MixerMemory memory{.workspace_bytes = device.ops().gated_mlp_workspace_bytes(
                         gate_up_proj_.spec(), down_proj_.spec(), limits.max_num_tokens)};
  if (limits.adapter_ranks > 0 && adapted_down_.target >= 0)
    memory.scratch_bytes =
        Scratch::padded_bytes(limits.max_num_tokens, 2 * down_proj_.spec().num_cols) +
        Scratch::padded_bytes(limits.max_num_tokens, down_proj_.spec().num_cols);
  return memory;
}

}  // namespace troupe
