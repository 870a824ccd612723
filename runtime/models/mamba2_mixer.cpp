#include "runtime/models/mamba2_mixer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/models/decoder.hpp"

namespace troupe {
namespace {

/// What a rank has of z, x, B, C and dt, which stand under each other in in_proj, or of some of
/// these.
struct Segment {
  std::int64_t num_rows = 0;  ///< of all ranks
  Slice rows;                 ///< of this one
};
struct Segments {
  Segment z, x, b, c, dt;
};

/// The ranks among which the states are divided, as a group of their own. Where heads cannot be
/// divided in as many parts as there are ranks, several neighbours have the same part, of which the
/// first one's goes into sums.
ParallelConfig states_parallel(const ParallelConfig& parallel, std::int32_t shards) {
  ParallelConfig states = parallel;
  states.pipeline_parallel_size = 1;
  states.tensor_parallel_size = std::min(parallel.tensor_parallel_size, shards);
  states.rank =
      parallel.tensor_rank() * states.tensor_parallel_size / parallel.tensor_parallel_size;
  return states;
}

Slice part_of_states(std::int64_t total, const ParallelConfig& states) {
  return part_of(total, states.tensor_rank(), states.tensor_parallel_size);
}

Segments segments_of(const ParallelConfig& states, const StateSpaceConfig& whole) {
  const std::int64_t inner = whole.num_heads * whole.head_dim;
  const std::int64_t groups = whole.num_groups * whole.state_size;
  const Slice mine = kv_heads_of_rank(whole.num_groups, states);
  const Segment of_heads{inner, part_of_states(inner, states)};
  const Segment of_groups{groups, {mine.begin * whole.state_size, mine.count * whole.state_size}};
  return {of_heads,
          of_heads,
          of_groups,
          of_groups,
          {whole.num_heads, part_of_states(whole.num_heads, states)}};
}

std::vector<WeightLoader::Part> projection_parts(const ParallelConfig& states,
                                                 const std::string& name,
                                                 const StateSpaceConfig& whole) {
  const Segments all = segments_of(states, whole);
  const Segment* const in_order[] = {&all.z, &all.x, &all.b, &all.c, &all.dt};
  std::int64_t num_rows = 0;
  for (const Segment* segment : in_order) num_rows += segment->num_rows;
  std::vector<WeightLoader::Part> parts;
  std::int64_t first = 0;
  for (const Segment* segment : in_order) {
    parts.push_back(
        {name + ".in_proj", num_rows, {first + segment->rows.begin, segment->rows.count}});
    first += segment->num_rows;
  }
  return parts;
}

/// Of a vector over all channels of the convolution, this rank's.
std::vector<float> channels_of_rank(const ParallelConfig& states, const StateSpaceConfig& whole,
                                    const std::vector<float>& all, std::int64_t stride,
                                    std::int64_t offset) {
  const Segments segments = segments_of(states, whole);
  std::vector<float> mine;
  std::int64_t first = 0;
  for (const Segment* segment : {&segments.x, &segments.b, &segments.c}) {
    for (std::int64_t row = segment->rows.begin; row < segment->rows.end(); ++row)
      mine.push_back(all[static_cast<std::size_t>((first + row) * stride + offset)]);
    first += segment->num_rows;
  }
  return mine;
}

/// [channels, 1, width] as [width, channels].
DeviceArray<float> load_conv_weight(WeightLoader& loader, const ParallelConfig& states,
                                    const std::string& name, const StateSpaceConfig& whole) {
  const std::int64_t shape[] = {
      whole.num_heads * whole.head_dim + 2 * whole.num_groups * whole.state_size, 1,
      whole.conv_width};
  const std::vector<float> all = loader.values(name + ".conv1d.weight", shape);
  std::vector<float> weight;
  for (std::int64_t k = 0; k < whole.conv_width; ++k) {
    const std::vector<float> row = channels_of_rank(states, whole, all, whole.conv_width, k);
    weight.insert(weight.end(), row.begin(), row.end());
  }
  return loader.upload(std::move(weight));
}

DeviceArray<float> load_conv_bias(WeightLoader& loader, const ParallelConfig& states,
                                  const std::string& name, const StateSpaceConfig& whole) {
  if (!whole.conv_bias) return {};
  const std::vector<float> all =
      loader.values(name + ".conv1d.bias",
                    whole.num_heads * whole.head_dim + 2 * whole.num_groups * whole.state_size);
  return loader.upload(channels_of_rank(states, whole, all, 1, 0));
}

std::vector<float> slice_of(const std::vector<float>& all, Slice slice) {
  return {all.begin() + slice.begin, all.begin() + slice.end()};
}

DeviceArray<float> load_of_heads(WeightLoader& loader, const ParallelConfig& states,
                                 const std::string& tensor, const StateSpaceConfig& whole) {
  return loader.upload(
      slice_of(loader.values(tensor, whole.num_heads), part_of_states(whole.num_heads, states)));
}

DeviceArray<float> load_a(WeightLoader& loader, const ParallelConfig& states,
                          const std::string& tensor, const StateSpaceConfig& whole) {
  // GGUF files have it, others its logarithm.
  const bool is_plain = loader.has(tensor);
  std::vector<float> a =
      slice_of(loader.values(is_plain ? tensor : tensor + "_log", whole.num_heads),
               part_of_states(whole.num_heads, states));
  if (!is_plain)
    for (float& each : a) each = -std::exp(each);
  return loader.upload(std::move(a));
}

DeviceArray<float> load_norm(WeightLoader& loader, const ParallelConfig& states,
                             const std::string& name, const StateSpaceConfig& whole) {
  if (!whole.has_norm) return {};
  const std::int64_t inner = whole.num_heads * whole.head_dim;
  return loader.upload(
      slice_of(loader.values(name + ".norm.weight", inner), part_of_states(inner, states)));
}

StateSpaceConfig config_of_rank(StateSpaceConfig config, const ParallelConfig& parallel) {
  config.num_heads /= parallel.tensor_parallel_size;
  config.num_groups = kv_heads_of_rank(config.num_groups, parallel).count;
  return config;
}

}  // namespace

Mamba2Mixer::Mamba2Mixer(WeightLoader& loader, const std::string& name,
                         const Mamba2Options& options)
    : Mamba2Mixer(loader, name, options,
                  options.config.canonical_shards(options.canonical_shards)) {}

Mamba2Mixer::Mamba2Mixer(WeightLoader& loader, const std::string& name,
                         const Mamba2Options& options, std::int32_t shards)
    : layer_(options.layer),
      states_(states_parallel(loader.parallel(), shards)),
      config_(config_of_rank(options.config, states_)),
      is_copy_(loader.parallel().tensor_rank() %
                   (loader.parallel().tensor_parallel_size / states_.tensor_parallel_size) !=
               0),
      num_norm_groups_(options.config.num_groups),
      num_norm_parts_(std::lcm(options.config.num_groups, std::int64_t{shards})),
      in_proj_(loader, projection_parts(states_, name, options.config), options.hidden_size,
               options.config.in_bias),
      conv_weight_(load_conv_weight(loader, states_, name, options.config)),
      conv_bias_(load_conv_bias(loader, states_, name, options.config)),
      dt_bias_(load_of_heads(loader, states_, name + ".dt_bias", options.config)),
      a_(load_a(loader, states_, name + ".A", options.config)),
      skip_(load_of_heads(loader, states_, name + ".D", options.config)),
      norm_weight_(load_norm(loader, states_, name, options.config)),
      out_proj_(loader, {name + ".out_proj", options.hidden_size, {0, options.hidden_size}},
                options.config.num_heads * options.config.head_dim,
                part_of_states(options.config.num_heads * options.config.head_dim, states_),
                options.config.out_bias, shards) {
  const std::vector<WeightLoader::Part> parts = projection_parts(states_, name, options.config);
  const auto bc = parts.begin() + 2;
  const Slice all_cols{0, options.hidden_size};
  adapted_zx_.target =
      loader.add_adapter_target({parts.begin(), bc}, options.hidden_size, all_cols);
  adapted_bcdt_.target =
      loader.add_adapter_target({bc, parts.end()}, options.hidden_size, all_cols);
  const std::int64_t inner = options.config.num_heads * options.config.head_dim;
  adapted_out_ = adapt_row_parallel(loader, name + ".out_proj", options.hidden_size, inner,
                                    part_of_states(inner, states_), shards);
}

void Mamba2Mixer::forward(const LayerStep& step, ConstMatrix x, Matrix out) const {
  const ForwardBatch& batch = step.device_batch;
  const LayerKvCache& cache = step.caches[layer_];
  const auto* pages = std::get_if<StateCacheView>(&cache.pages);
  CHECK(pages != nullptr, layer_);
  const ForwardBatch::Group& group = batch.groups[cache.group];
  const std::int64_t num_tokens = batch.num_tokens();
  Scratch scratch = step.scratch;

  const Matrix projected = scratch.take_spread(num_tokens, projected_size());
  const auto columns = [&](std::int64_t first, std::int64_t count) {
    return Matrix(projected.data + first, num_tokens, count, projected.row_stride);
  };
  const Matrix z = columns(0, inner_size());
  const Matrix channels = columns(inner_size(), num_channels());
  const Matrix dt = columns(inner_size() + num_channels(), config_.num_heads);
  in_proj_.apply(step.ops, step.context, x, projected);
  if (step.adapters != nullptr) {
    const AdapterRows& rows = step.adapters->tokens;
    add_adapters(step, rows, adapted_zx_, x, columns(0, 2 * inner_size()));
    add_adapters(step, rows, adapted_bcdt_, x,
                 columns(2 * inner_size(), projected_size() - 2 * inner_size()));
  }
  if (!config_.multipliers.empty()) {
    const std::int64_t sizes[] = {inner_size(), inner_size(), group_columns(), group_columns(),
                                  config_.num_heads};
    std::int64_t first = 0;
    for (std::size_t i = 0; i < std::size(sizes); ++i) {
      step.ops.scale(step.context,
                     {.scale = config_.multipliers[i], .out = columns(first, sizes[i])});
      first += sizes[i];
    }
  }

  StateSlots states{.data = pages->data,
                    .page_bytes = pages->page_bytes,
                    .query_start_loc = batch.query_start_loc.data(),
                    .num_seqs = static_cast<std::int64_t>(batch.seq_lens.size()),
                    .before = group.states_before,
                    .after = group.states_after};
  step.ops.causal_conv(step.context, {.x = channels,
                                      .weight = conv_weight_.data(),
                                      .bias = conv_bias_.data(),
                                      .width = config_.conv_width,
                                      .states = states,
                                      .out = channels});
  states.data += conv_state_floats() * static_cast<std::int64_t>(sizeof(float));
  const auto heads = [&](std::int64_t first, std::int64_t count, std::int64_t size) {
    return ConstHeads(channels.data + first, num_tokens, count, size, channels.row_stride);
  };
  Matrix y = scratch.take_spread(num_tokens, inner_size());
  step.ops.state_scan(
      step.context,
      {.x = heads(0, config_.num_heads, config_.head_dim),
       .b = heads(inner_size(), config_.num_groups, config_.state_size),
       .c = heads(inner_size() + group_columns(), config_.num_groups, config_.state_size),
       .dt = dt,
       .decay = scratch.take(num_tokens, config_.num_heads),
       .dt_bias = dt_bias_.data(),
       .a = a_.data(),
       .skip = skip_.data(),
       .min_dt = config_.min_dt,
       .max_dt = config_.max_dt,
       .states = states,
       .out = Heads(y.data, num_tokens, config_.num_heads, config_.head_dim, y.row_stride)});
  if (step.num_queries() == 0) return;
  y = keep_queries(step, y);
  gate_and_norm(step, y, keep_queries(step, z), scratch);
  // What goes into the sum is another rank's; y has room up to the end of its last row.
  if (is_copy_)
    step.device.fill_zero(y.data,
                          static_cast<std::size_t>(y.num_rows * y.row_stride) * sizeof(float));
  out_proj_.apply(step, y, out);
  if (step.adapters != nullptr) add_adapters(step, step.adapter_queries(), adapted_out_, y, out);
}

void Mamba2Mixer::gate_and_norm(const LayerStep& step, Matrix y, ConstMatrix z,
                                Scratch scratch) const {
  if (norm_weight_.empty()) return step.ops.gate(step.context, {.x = y, .gate = z, .squares = {}});
  const Matrix squares = scratch.take(y.num_rows, num_norm_parts());
  const std::int64_t num_own = num_norm_parts() / states_.tensor_parallel_size;
  // Sums with zeros, so each rank has the same bits.
  const bool is_shared = num_norm_groups_ % states_.tensor_parallel_size != 0;
  if (is_shared)
    step.device.fill_zero(
        squares.data,
        static_cast<std::size_t>(squares.num_rows * squares.num_cols) * sizeof(float));
  const ConstMatrix none;
  step.ops.gate(step.context, {.x = y,
                               .gate = config_.norm_before_gate ? none : z,
                               .squares = Matrix(squares.data + states_.tensor_rank() * num_own,
                                                 squares.num_rows, num_own, num_norm_parts())});
  if (is_shared) {
    if (is_copy_)
      step.device.fill_zero(
          squares.data,
          static_cast<std::size_t>(squares.num_rows * squares.num_cols) * sizeof(float));
    add_over_ranks(step, squares);
  }
  step.ops.group_norm(step.context,
                      {.x = y,
                       .squares = squares,
                       .num_groups = num_norm_groups_,
                       .group_size = inner_size() * states_.tensor_parallel_size / num_norm_groups_,
                       .first_col = states_.tensor_rank() * inner_size(),
                       .weight = norm_weight_.data(),
                       .eps = config_.norm_eps,
                       .gate = config_.norm_before_gate ? z : none});
}

std::optional<LayerCacheSpec> Mamba2Mixer::cache_spec(std::int32_t block_size, DType) const {
  const std::int64_t num_floats =
      conv_state_floats() + config_.num_heads * config_.state_size * config_.head_dim;
  return LayerCacheSpec{
      .layer = static_cast<std::int32_t>(layer_),
      .spec = {
          .kind = MambaSpec{.state_bytes = num_floats * static_cast<std::int64_t>(sizeof(float))},
          .block_size = block_size}};
}

MixerMemory Mamba2Mixer::memory(Device& device, const MixerLimits& limits) const noexcept {
  const OpTable& ops = device.ops();
  const std::int64_t num_tokens = limits.max_num_tokens;
  return {.scratch_bytes = Scratch::padded_bytes(num_tokens, Scratch::spread(projected_size())) +
                           Scratch::padded_bytes(num_tokens, Scratch::spread(inner_size())) +
                           Scratch::padded_bytes(num_tokens, config_.num_heads) +
                           Scratch::padded_bytes(num_tokens, num_norm_parts()),
          .workspace_bytes = std::max(ops.matmul_workspace_bytes(in_proj_.spec(), num_tokens),
                                      ops.matmul_workspace_bytes(out_proj_.spec(), num_tokens))};
}

std::unique_ptr<const Mixer> load_state_space_or_attention(
    WeightLoader& loader, const std::string& name, const ModelConfig& config, std::size_t layer,
    const std::shared_ptr<const RopeTables>& rope) {
  if (config.state_space->layers[layer])
    return std::make_unique<const Mamba2Mixer>(
        loader, name + ".mamba",
        Mamba2Options{.layer = layer,
                      .hidden_size = config.hidden_size,
                      .config = *config.state_space,
                      .canonical_shards = config.canonical_shards()});
  const bool is_rotated = config.is_unrotated.empty() || !config.is_unrotated[layer];
  AttentionOptions attention = attention_options(config, layer, is_rotated ? rope : nullptr);
  attention.qkv_bias = config.attention_bias;
  attention.output_bias = config.attention_output_bias;
  return std::make_unique<const Attention>(loader, name + ".self_attn", attention);
}

}  // namespace troupe
