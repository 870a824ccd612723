#pragma once
// The building blocks of decoder layers. Each owns its weights, is loaded by a WeightLoader, and
// computes with the kernels of the step's device.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.hpp"
#include "runtime/base/check.hpp"
#include "runtime/models/adapter_batch.hpp"
#include "runtime/models/model.hpp"
#include "runtime/models/rotary_embedding.hpp"
#include "runtime/models/weight_loader.hpp"

namespace troupe {

/// Hands out matrices from memory that the model owns. A copy starts where the original stands, so
/// a layer that takes from a copy leaves nothing behind.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(std::span<std::byte> bytes) : bytes_(bytes) {}
  /// [num_rows, num_cols], uninitialised.
  Matrix take(std::int64_t num_rows, std::int64_t num_cols) {
    const auto num_bytes = static_cast<std::size_t>(padded_bytes(num_rows, num_cols));
    CHECK(num_bytes <= bytes_.size(), num_rows, num_cols, bytes_.size());
    auto* data = reinterpret_cast<float*>(bytes_.data());
    bytes_ = bytes_.subspan(num_bytes);
    return {data, num_rows, num_cols};
  }
  /// The same with rows that do not begin a power of 2 apart: else all of them meet in the same few
  /// places of the CPU's caches.
  Matrix take_spread(std::int64_t num_rows, std::int64_t num_cols) {
    const Matrix padded = take(num_rows, spread(num_cols));
    return {padded.data, num_rows, num_cols, padded.num_cols};
  }
  /// Uninitialised, for what is not a matrix.
  [[nodiscard]] std::span<float> take_floats(std::int64_t count) {
    return {take(1, count).data, static_cast<std::size_t>(count)};
  }
  [[nodiscard]] std::span<std::int32_t> take_ints(std::int64_t count) {
    static_assert(sizeof(std::int32_t) == sizeof(float));
    auto* data = reinterpret_cast<std::int32_t*>(bytes_.data());
    (void)take(1, count);
    return {data, static_cast<std::size_t>(count)};
  }
  [[nodiscard]] static constexpr std::int64_t spread(std::int64_t num_cols) noexcept {
    constexpr std::int64_t kCacheLineFloats = 16;
    return num_cols + kCacheLineFloats;
  }
  /// What take() takes: whole cache lines.
  [[nodiscard]] static constexpr std::int64_t padded_bytes(std::int64_t num_rows,
                                                           std::int64_t num_cols) noexcept {
    constexpr std::int64_t kCacheLine = 64;
    const auto num_bytes = num_rows * num_cols * static_cast<std::int64_t>(sizeof(float));
    return (num_bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  }

 private:
  std::span<std::byte> bytes_;
};

/// What layers compute with in one step.
struct LayerStep {
  Device& device;
  const OpTable& ops;
  OpContext context;
  const ForwardBatch& batch;
  const ForwardBatch& device_batch;  ///< the same with addresses that kernels read
  /// [num_seqs + 1]: of each sequence, how many of its last tokens the layer computes beyond their
  /// K and V. All of them, unless no layer follows and not all are asked for.
  std::span<const std::int32_t> query_start_loc;
  const std::int32_t* device_query_start_loc;  ///< the same where kernels read it
  std::span<const LayerKvCache> caches;
  Communicator* peers;  ///< null: this rank has the whole model
  Scratch scratch;
  const StepAdapters* adapters = nullptr;  ///< null: no sequence has one
  KvBlend* blend = nullptr;                ///< null: the cache holds what the step computes

  /// All tokens of a batch, without adapters. Pre: `device_batch` is the same batch on the device.
  [[nodiscard]] static LayerStep of(Device& device, const ForwardBatch& batch,
                                    const ForwardBatch& device_batch,
                                    std::span<const LayerKvCache> caches, Communicator* peers,
                                    Scratch scratch);
  [[nodiscard]] std::int64_t num_queries() const noexcept { return query_start_loc.back(); }
  /// The rows of the queries that adapters update. Pre: there are adapters.
  [[nodiscard]] const AdapterRows& adapter_queries() const noexcept {
    return query_start_loc.data() == batch.output_start_loc.data() ? adapters->outputs
                                                                   : adapters->tokens;
  }
};

/// A matrix that adapters may update.
struct AdaptedMatrix {
  std::int32_t target = -1;      ///< WeightLoader::add_adapter_target; -1: none does
  std::int32_t k_shards = 1;     ///< of this rank's columns
  bool is_row_parallel = false;  ///< each rank has some columns, and the sum over ranks is updated
};
/// out += what the step's adapters add to the product of the matrix with `x`, for these rows. All
/// ranks do it.
void add_adapters(const LayerStep& step, const AdapterRows& rows, const AdaptedMatrix& matrix,
                  ConstMatrix x, Matrix out);

/// Says that adapters may update the row-parallel matrix `name`, [num_rows, num_cols] over all
/// ranks, of which this one has `cols`.
[[nodiscard]] AdaptedMatrix adapt_row_parallel(WeightLoader& loader, const std::string& name,
                                               std::int64_t num_rows, std::int64_t num_cols,
                                               Slice cols, std::int32_t canonical_shards);

[[nodiscard]] inline Matrix first_rows(Matrix x, std::int64_t num_rows) {
  return {x.data, num_rows, x.num_cols, x.row_stride};
}
/// Of `x`, with a row for each token, the rows of the step's queries, moved to the front in order.
[[nodiscard]] Matrix keep_queries(const LayerStep& step, Matrix x);
/// hidden = of `x`, with a row for each token of the batch, the rows of its outputs. `x` is used
/// up.
void copy_outputs(LayerStep step, Matrix x, Matrix hidden);

/// y = x W^T + b, with the rows of several checkpoint matrices as one W; of each the rows that this
/// rank has.
class Linear {
 public:
  Linear() = default;
  Linear(WeightLoader& loader, const std::vector<WeightLoader::Part>& parts, std::int64_t num_cols,
         bool has_bias, MatrixRole role = MatrixRole::kLayer);
  /// x: [M, num_cols], out: [M, rows of this rank].
  void apply(const OpTable& ops, const OpContext& context, ConstMatrix x, Matrix out) const;
  [[nodiscard]] const WeightSpec& spec() const noexcept { return weight_.spec; }
  [[nodiscard]] PackedWeight weight() const noexcept { return weight_.view(); }
  /// Null: none.
  [[nodiscard]] const float* bias() const noexcept { return bias_.data(); }

 private:
  PackedMatrix weight_;
  DeviceArray<float> bias_;
};

/// out = the sum of the ranks' `out`, whose rows follow each other. Nothing to do for a rank that
/// has all.
void add_over_ranks(const LayerStep& step, Matrix out);

/// y = x W^T + b, where this rank has a slice of the columns of W and of x. The sum over all
/// columns is the tree of canonical_shards parts, however many ranks hold them.
class RowParallelLinear {
 public:
  /// W: [num_rows, num_cols]. Pre: the ranks divide canonical_shards, and these num_cols.
  RowParallelLinear(WeightLoader& loader, const std::string& name, std::int64_t num_rows,
                    std::int64_t num_cols, bool has_bias, std::int32_t canonical_shards)
      : RowParallelLinear(loader, {name, num_rows, {0, num_rows}}, num_cols, loader.shard(num_cols),
                          has_bias, canonical_shards) {}
  /// The same of all rows of a part; cols: this rank's.
  RowParallelLinear(WeightLoader& loader, const WeightLoader::Part& part, std::int64_t num_cols,
                    Slice cols, bool has_bias, std::int32_t canonical_shards);
  /// x: [M, columns of this rank], out: [M, num_rows], the same on all ranks.
  void apply(const LayerStep& step, ConstMatrix x, Matrix out) const;
  [[nodiscard]] const WeightSpec& spec() const noexcept { return weight_.spec; }
  [[nodiscard]] PackedWeight weight() const noexcept { return weight_.view(); }
  /// Null: none.
  [[nodiscard]] const float* bias() const noexcept { return bias_.data(); }
  /// What a kernel adds to its product; null: nothing, as it is one rank's part of the sum.
  [[nodiscard]] const float* kernel_bias(const LayerStep& step) const noexcept;
  /// Of the ranks' parts of the sum, the sum, with the bias. Nothing to do for a rank that has all.
  void reduce(const LayerStep& step, Matrix out) const;

 private:
  PackedMatrix weight_;
  DeviceArray<float> bias_;
};

/// How a family writes its RMSNorm: y = x / rms(x) * (w + weight_offset).
struct NormStyle {
  float eps = 1e-6f;
  float weight_offset = 0;  ///< Gemma: 1
};

class RmsNorm {
 public:
  /// None: add_and_apply gives the sum as it is.
  RmsNorm() = default;
  RmsNorm(WeightLoader& loader, const std::string& name, std::int64_t size, NormStyle style);
  /// In place.
  void apply(const OpTable& ops, const OpContext& context, Matrix x) const;
  /// residual += x; out = norm(residual).
  void add_and_apply(const LayerStep& step, ConstMatrix x, Matrix residual, Matrix out) const;

 private:
  DeviceArray<float> weight_;
  NormStyle style_;
};

class LayerNorm {
 public:
  LayerNorm(WeightLoader& loader, const std::string& name, std::int64_t size, float eps);
  /// out = norm(x + residual); it may be one of them.
  void add_and_apply(const OpTable& ops, const OpContext& context, ConstMatrix x,
                     ConstMatrix residual, Matrix out) const {
    add_and_apply(ops, context, x, residual, {}, out);
  }
  /// The same, with the sum left in `sum`, which may be x or residual.
  void add_and_apply(const OpTable& ops, const OpContext& context, ConstMatrix x,
                     ConstMatrix residual, Matrix sum, Matrix out) const;

 private:
  DeviceArray<float> weight_;
  DeviceArray<float> bias_;
  float eps_;
};

/// What a mixer takes beside its weights for a step.
struct MixerMemory {
  std::int64_t scratch_bytes = 0;    ///< of LayerStep::scratch
  std::int64_t workspace_bytes = 0;  ///< of the kernels
};
struct MixerLimits {
  std::int64_t max_num_tokens = 0;  ///< of a step
  std::int64_t max_seq_len = 0;
  std::int64_t adapter_ranks = 0;  ///< most_adapter_ranks; 0: no step has adapters
};

/// What stands behind a norm in a layer, and gives what is added to the residual stream. Constant
/// after it is loaded.
class Mixer {
 public:
  Mixer() = default;
  virtual ~Mixer() = default;
  Mixer(const Mixer&) = delete;
  Mixer& operator=(const Mixer&) = delete;

  /// out: [num_queries, hidden_size]; x: the same, or [num_tokens, hidden_size] where it is the
  /// first mixer of its layer. May be called without queries only in that place.
  virtual void forward(const LayerStep& step, ConstMatrix x, Matrix out) const = 0;
  [[nodiscard]] virtual MixerMemory memory(Device& device,
                                           const MixerLimits& limits) const noexcept = 0;
  /// What it needs of the KV cache on this rank, with blocks of so many tokens in that type. Most
  /// need nothing.
  [[nodiscard]] virtual std::optional<LayerCacheSpec> cache_spec(std::int32_t block_size,
                                                                 DType dtype) const {
    static_cast<void>(block_size), static_cast<void>(dtype);
    return std::nullopt;
  }
  /// What keeps KvBlend from this mixer; empty: nothing.
  [[nodiscard]] virtual std::string_view blend_obstacle() const noexcept {
    return "its attention is not a plain one";
  }
  /// Appends that; of one that is made of several, what each of these needs.
  virtual void add_cache_specs(std::int32_t block_size, DType dtype,
                               std::vector<LayerCacheSpec>& specs) const {
    if (auto spec = cache_spec(block_size, dtype)) specs.push_back(*std::move(spec));
  }
};

/// What a family's checkpoints call the matrices of attention.
struct AttentionNames {
  std::string_view q = "q_proj";
  std::string_view k = "k_proj";
  std::string_view v = "v_proj";
  std::string_view output = "o_proj";
  std::string_view qkv = {};  ///< not empty: q, k and v are the rows of this matrix, in this order
};

struct AttentionOptions {
  std::size_t layer = 0;  ///< LayerCacheSpec::layer
  std::int64_t hidden_size = 0;
  std::int64_t input_size = 0;  ///< 0: hidden_size
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 1;
  float logit_softcap = 0;
  std::int32_t sliding_window = 0;
  std::int32_t local_chunk = 0;  ///< AttentionArgs::local_chunk
  bool has_sinks = false;        ///< AttentionArgs::sinks: the vector `sinks`
  bool qkv_bias = false;
  bool k_bias = true;  ///< where q and v have biases
  bool output_bias = false;
  bool qk_norm = false;               ///< RMSNorm on each head of q and k, before they are rotated
  bool whole_qk_norm = false;         ///< RMSNorm on all heads of q together, and of k
  std::int32_t canonical_shards = 1;  ///< of o_proj
  NormStyle norm;
  std::shared_ptr<const RopeTables> rope;              ///< null: q and k are not rotated
  bool norms_rotated = false;                          ///< RopeAndWriteKvArgs::norms_rotated
  std::shared_ptr<const DeviceArray<float>> q_scales;  ///< RopeAndWriteKvArgs::q_scales; or null
  AttentionNames names = {};
};

/// Self-attention, causal but for the batch's spans, with grouped queries (arXiv 2305.13245) over
/// the paged KV cache, for the heads of this rank. Where a norm is over all heads, each rank
/// projects all of q and k: so ranks need not wait for each other, and have the bits of one.
class Attention final : public Mixer {
 public:
  /// The options are those of the whole layer.
  Attention(WeightLoader& loader, const std::string& name, const AttentionOptions& options);
  /// x: [num_tokens, input_size], out: [num_queries, hidden_size]. Without queries, K and V are
  /// written and that is all.
  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override;
  [[nodiscard]] MixerMemory memory(Device& device,
                                   const MixerLimits& limits) const noexcept override;
  [[nodiscard]] std::optional<LayerCacheSpec> cache_spec(std::int32_t block_size,
                                                         DType dtype) const override;
  [[nodiscard]] std::string_view blend_obstacle() const noexcept override;

 private:
  /// Hands on K and V of the step's tokens, and writes those of tokens that it does not compute.
  void exchange_kv(const LayerStep& step, const RopeAndWriteKvArgs& own) const;
  [[nodiscard]] std::int64_t q_size() const noexcept;
  [[nodiscard]] std::int64_t kv_size() const noexcept;

  AttentionOptions options_;  ///< head counts are those of this rank
  /// Columns of qkv_proj_'s result: of q, and of k behind them; this rank's are those from `begin`
  /// on. v follows, of this rank alone.
  struct Projected {
    std::int64_t size = 0;
    std::int64_t begin = 0;
  };
  Projected projected_q_;
  Projected projected_k_;
  Linear qkv_proj_;
  RowParallelLinear o_proj_;
  AdaptedMatrix adapted_qkv_;
  AdaptedMatrix adapted_o_;
  DeviceArray<float> q_norm_weight_;  // empty: none
  DeviceArray<float> k_norm_weight_;
  RmsNorm whole_q_norm_;
  RmsNorm whole_k_norm_;
  DeviceArray<float> sinks_;  // of this rank's heads; empty: none
};

/// What a family's checkpoints call the matrices of a gated MLP.
struct MlpNames {
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view gate_up = {};  ///< not empty: gate and up are the rows of this matrix
};

/// The matrices of a gated MLP, all rows of them.
struct MlpParts {
  WeightLoader::Part gate;  ///< [intermediate_size, hidden_size]
  WeightLoader::Part up;
  WeightLoader::Part down;  ///< [hidden_size, intermediate_size]
};

/// Of a gated MLP, all of it.
struct MlpOptions {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int32_t canonical_shards = 1;
  Activation activation = Activation::kSilu;
  SwishClamp clamp = {};
  bool has_bias = false;
  bool is_whole = false;     ///< this rank has all of it, not its part
  bool has_adapters = true;  ///< adapters may update it
};

/// down(act(gate(x)) * up(x)) (GLU variants, arXiv 2002.05202).
class GatedMlp final : public Mixer {
 public:
  GatedMlp(WeightLoader& loader, const std::string& name, std::int64_t hidden_size,
           std::int64_t intermediate_size, std::int32_t canonical_shards, Activation activation,
           bool has_bias, const MlpNames& names = {});
  GatedMlp(WeightLoader& loader, MlpParts parts, const MlpOptions& options);
  /// x and out: [num_queries, hidden_size].
  void forward(const LayerStep& step, ConstMatrix x, Matrix out) const override;
  /// The same without adapters, the sum over ranks and down_proj's bias: `out` is this rank's part.
  /// Fills in the weights, and what is done between them.
  void multiply(const LayerStep& step, GatedMlpArgs args) const;
  [[nodiscard]] PackedWeight gate_up() const noexcept { return gate_up_proj_.weight(); }
  [[nodiscard]] PackedWeight down() const noexcept { return down_proj_.weight(); }
  /// Null: there are none.
  [[nodiscard]] const float* gate_up_bias() const noexcept { return gate_up_proj_.bias(); }
  [[nodiscard]] const float* down_bias() const noexcept { return down_proj_.bias(); }
  [[nodiscard]] MixerMemory memory(Device& device,
                                   const MixerLimits& limits) const noexcept override;

 private:
  Activation activation_;
  SwishClamp clamp_;
  Linear gate_up_proj_;
  RowParallelLinear down_proj_;
  AdaptedMatrix adapted_gate_up_;
  AdaptedMatrix adapted_down_;
};

}  // namespace troupe
