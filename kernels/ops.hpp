#pragma once
// OpTable: the operations that a device must implement to run the models. Porting to a new device
// means implementing one.
//
// Rules for every backend:
// - Batch invariance. A row of a result depends on that row's inputs only, bit for bit: not on the
//   number of rows computed with it, on its position among them, or on the number of threads.
// - No allocations. Scratch memory comes from OpContext::workspace.
// - Outputs do not overlap inputs unless "in place" is stated.
// - Arguments are trusted: shapes were checked when the model was loaded and the batch was built.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/tensor.hpp"

namespace troupe {

class ThreadPool;

/// The environment of an operation. The workspace is scratch memory: it is aligned to 64 bytes, has
/// no state between operations, and at least the size returned by the operation's
/// *_workspace_bytes.
struct OpContext {
  ThreadPool* pool = nullptr;
  std::span<std::byte> workspace;
  void* stream = nullptr;  ///< a cudaStream_t on which GPU operations are launched in order
};

enum class ComputeMode : std::uint8_t {
  kF32,   ///< weights widened exactly, f32 multiply and add
  kBF16,  ///< as kF32, but bf16 weights use the backend's bf16 matrix unit if it has one:
          ///< activations are rounded to bf16, accumulation is f32
};

/// Integer-quantised weights, in groups along K (of each of k_shards parts; the last group of a
/// part may be shorter): w[n, k] = scale[n, g] q[n, k] + minimum[n, g].
enum class QuantizedType : std::uint8_t {
  kNone,
  kInt8,  ///< q in [-128, 127]
  kInt4,  ///< q in [-8, 7]
  /// q is twice a number of E2M1 (OCP microscaling formats): 0, 1, 2, 3, 4, 6, 8 or 12 with a sign.
  /// Scales are 0 or powers of 2, from 2^-126 to 2^126, and there are no minimums.
  kFp4,
};

/// Shape and format of a weight matrix in the backend's own layout.
struct WeightSpec {
  std::int64_t num_rows = 0;             ///< outputs (N)
  std::int64_t num_cols = 0;             ///< inputs (K)
  ElementType type = ElementType::kF32;  ///< in memory; the checkpoint's may differ
  ComputeMode mode = ComputeMode::kF32;
  /// 1, 2 or 4, divides num_cols. The inputs are split into this many equal parts, each is reduced
  /// separately, and the partial sums are added as a tree: ((s0 + s1) + (s2 + s3)). Row-parallel
  /// layers use 4, so that 1, 2 and 4 tensor-parallel workers add the same numbers in the same
  /// order: a worker that holds 4 / T of the parts computes one subtree.
  std::int32_t k_shards = 1;
  /// If not kNone, `type` and `mode` are ignored. With integer weights, activations are quantised
  /// as well: per group of a row, symmetric, 8 bits. Sums within a group are exact, and groups are
  /// added in order, so that all instruction sets compute the same bits. kFp4 weights are
  /// dequantised and then computed as in mode kF32.
  QuantizedType quantized = QuantizedType::kNone;
  std::int32_t group_size = 0;  ///< kInt8: a multiple of 16 up to 16384; kInt4: of 32; kFp4: any
  bool has_minimums = false;
  /// For gated_mlp: the first half of the rows is the gate, the other half `up`.
  bool is_gated = false;
  /// Losslessly compressed: the result of OpTable::compact for a packed matrix.
  bool is_compact = false;

  bool operator==(const WeightSpec&) const = default;

  /// Number of groups in one of the k_shards parts.
  [[nodiscard]] TROUPE_INLINE std::int64_t groups_per_shard() const noexcept {
    return (num_cols / k_shards + group_size - 1) / group_size;
  }
};

/// Rows of a quantised matrix, the input of pack_quantized_rows.
struct QuantizedRows {
  const std::int8_t* values = nullptr;  ///< [num_rows, num_cols]
  /// [num_rows, k_shards * groups_per_shard], kept as f16; of kFp4 as the exponents alone.
  const float* scales = nullptr;
  const float* minimums = nullptr;  ///< as the scales; only with has_minimums
  std::int64_t num_rows = 0;
};

/// A weight matrix after pack_rows, with packed_bytes(spec) bytes, or after compact; aligned to 64.
struct PackedWeight {
  WeightSpec spec;
  const std::byte* data = nullptr;
};

/// out[m, n] = sum_k x[m, k] w[n, k] + bias[n]. Pre: the weight is not gated.
struct MatmulArgs {
  ConstMatrix x;                ///< [M, K of the shards in use]
  PackedWeight weight;          ///< [N, K]
  const float* bias = nullptr;  ///< [N], or none
  Matrix out;                   ///< [M, N]
  /// Only these parts of K: the partial sum of a subtree. num_shards 0 means all; otherwise 1, 2 or
  /// 4, and first_shard is a multiple of it. x has the columns of these parts only.
  std::int32_t first_shard = 0;
  std::int32_t num_shards = 0;
};

enum class Activation : std::uint8_t {
  kSilu,      ///< x / (1 + exp(-x))
  kGeluTanh,  ///< x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  /// x / (1 + exp(-alpha x)) of gates that are at most the limit; `up` is clamped between -limit
  /// and limit, and 1 is added to it (gpt-oss).
  kClampedSwish,
};
/// The constants of Activation::kClampedSwish.
struct SwishClamp {
  float alpha = 1.0f;
  float limit = 0.0f;
};

/// GELU (arXiv 1606.08415): x times the standard normal CDF of x, or an approximation.
enum class Gelu : std::uint8_t {
  kErf,      ///< x / 2 (1 + erf(x / sqrt(2)))
  kTanh,     ///< Activation::kGeluTanh
  kSigmoid,  ///< x / (1 + exp(-1.702 x)): quick_gelu
};
struct GeluArgs {
  Gelu gelu = Gelu::kErf;
  Matrix out;  ///< in place
};

/// out = (act(x gate^T) * (x up^T)) down^T, each product with its bias (GLU variants, arXiv
/// 2002.05202).
struct GatedMlpArgs {
  ConstMatrix x;                        ///< [M, K]
  PackedWeight gate_up;                 ///< [2 I, K], gated, one shard
  const float* gate_up_bias = nullptr;  ///< [2 I], or none
  Activation activation = Activation::kSilu;
  SwishClamp clamp = {};
  PackedWeight down;                 ///< [N, I]
  const float* down_bias = nullptr;  ///< [N], or none
  Matrix out;                        ///< [M, N]
  /// The LoRA update of the gate and up projections, added before the activation: [M, 2 I], the
  /// gate first. Without data: none.
  ConstMatrix gate_up_update = {};
  /// Also receives act(x gate^T) * (x up^T), unrounded: [M, I]. Without data: not stored.
  Matrix hidden = {};
};

/// The B matrix, transposed, of one of the projections of an AdapterWeight, and its offsets.
struct AdapterPiece {
  const void* b = nullptr;      ///< [rank, num_cols]
  std::int32_t first_rank = 0;  ///< its first row in AdapterWeight::a
  std::int32_t rank = 0;        ///< at most up to the next piece's first_rank
  std::int64_t first_col = 0;   ///< in the output
  std::int64_t num_cols = 0;
  float scaling = 1;
};

/// The low-rank update of a weight matrix by an adapter (LoRA, arXiv 2106.09685): x W^T becomes
/// x W^T + scaling (x A^T) B^T. If W stacks several projections, A stacks theirs, and each has a
/// piece.
struct AdapterWeight {
  static constexpr std::int32_t kMaxPieces = 3;
  static constexpr std::int32_t kRankStep = 4;  ///< of first_rank and num_ranks

  const void* a = nullptr;  ///< [num_ranks, K], zero-padded; null: no update
  std::int32_t num_ranks = 0;
  std::int32_t num_pieces = 0;
  AdapterPiece pieces[kMaxPieces];
};

/// The rows of a step that adapters apply to, sorted by adapter.
struct AdapterRows {
  const AdapterWeight* const* adapters = nullptr;  ///< [num_adapters]: weights by target
  const std::int32_t* first_row = nullptr;         ///< [num_adapters + 1], in the next two
  const std::int32_t* rows = nullptr;              ///< [num_rows]: of x and of the product
  const std::int32_t* adapter_of_row = nullptr;    ///< [num_rows]
  std::int64_t num_adapters = 0;
  std::int64_t num_rows = 0;
};

/// out[i] = x[rows[i]] A^T, with the adapter of row i. The columns of x are split into k_shards
/// equal parts, whose partial sums are added as a tree (WeightSpec::k_shards); the summation order
/// in a part depends on its length only.
struct AdapterShrinkArgs {
  ConstMatrix x;  ///< [M, K]
  AdapterRows rows;
  std::int32_t target = 0;               ///< AdapterRows::adapters[i][target] is the weight
  ElementType type = ElementType::kF32;  ///< of A and B
  std::int32_t k_shards = 1;             ///< 1, 2 or 4
  Matrix out;  ///< [num_rows, max num_ranks]; columns beyond an adapter's rank are unchanged
};

/// out[rows[i]] += scaling x[i] B^T, piece by piece, with the adapter of row i; summed over the
/// ranks in order.
struct AdapterExpandArgs {
  ConstMatrix x;  ///< of AdapterShrinkArgs
  AdapterRows rows;
  std::int32_t target = 0;
  ElementType type = ElementType::kF32;
  Matrix out;  ///< [M, N], in place
};

/// How a router's logits select experts and their weights (top-k routing).
struct ExpertRouting {
  std::int64_t num_chosen = 0;  ///< for each token
  /// Scores are sigmoid(logit) per expert; otherwise the softmax over all experts.
  bool is_sigmoid = false;
  /// The weights are divided by their sum: for softmax, it is over the chosen experts alone.
  bool normalises_weights = false;
  float weight_scale = 1.0f;  ///< then they are multiplied by it
  /// The experts' inputs are multiplied by the weights, and their outputs are added unweighted
  /// (Llama 4).
  bool scales_input = false;
  /// num_groups > 1: group-limited routing. The experts form num_groups equal groups of consecutive
  /// ones, and are chosen from the num_chosen_groups groups with the largest best score, or sum of
  /// the two best (sums_two_best): DeepSeek-V2, arXiv 2405.04434; V3, arXiv 2412.19437.
  std::int64_t num_groups = 1;
  std::int64_t num_chosen_groups = 1;
  bool sums_two_best = false;
  /// [num_experts], or none: a correction bias on the scores for the choice of groups and experts;
  /// the weights do not include it.
  const float* choice_bias = nullptr;
};

/// Chooses for each token the num_chosen experts with the largest scores (on ties the first) and
/// their weights (ExpertRouting). A pair is a token and one of its experts; pairs are
/// sorted by expert, then by token. Pre: num_chosen <= kMaxChosenExperts, and no more than the
/// experts of the chosen groups; num_groups <= kMaxExpertGroups.
struct RouteExpertsArgs {
  ConstMatrix logits;  ///< [num_tokens, num_experts]
  ExpertRouting routing;
  std::int32_t* experts = nullptr;     ///< [num_tokens, num_chosen], ascending
  float* weights = nullptr;            ///< [num_tokens, num_chosen], in that order
  float* pair_weights = nullptr;       ///< [num_tokens * num_chosen]: of each pair
  std::int32_t* pairs = nullptr;       ///< [num_tokens, num_chosen]: the pair indices
  std::int32_t* first_pair = nullptr;  ///< [num_experts + 1]: offsets of the experts
  std::int32_t* tokens = nullptr;      ///< [num_tokens * num_chosen]: of each pair
};
inline constexpr std::int64_t kMaxChosenExperts = 32;
inline constexpr std::int64_t kMaxExpertGroups = 64;

/// out[p] = the gated MLP of pair p's expert (GatedMlpArgs, without down_bias) for row tokens[p] of
/// x. All experts' weights have the same format. Rows of experts without weights are unchanged.
struct ExpertsMlpArgs {
  ConstMatrix x;  ///< [num_tokens, K]
  WeightSpec gate_up;
  WeightSpec down;
  const std::byte* const* gate_up_data = nullptr;  ///< [num_experts]: PackedWeight::data, or null
  const std::byte* const* down_data = nullptr;     ///< [num_experts]: the same
  const float* const* gate_up_biases = nullptr;    ///< [num_experts]: each [2 I]; or none
  std::int64_t num_experts = 0;
  const std::int32_t* first_pair = nullptr;  ///< as in RouteExpertsArgs
  const std::int32_t* tokens = nullptr;      ///< null: x has a row for each pair
  Activation activation = Activation::kSilu;
  SwishClamp clamp = {};
  Matrix out;  ///< [num_pairs, N]
};

/// out[t] = sum over the pairs p of t of weight * (rows[p] + bias), in the order of the experts.
struct AddExpertsArgs {
  ConstMatrix rows;  ///< [num_pairs, C]
  std::int64_t num_chosen = 0;
  const std::int32_t* pairs = nullptr;  ///< as in RouteExpertsArgs
  const float* weights = nullptr;       ///< the same; null: all are 1
  const std::int32_t* experts = nullptr;
  const float* const* biases = nullptr;  ///< [num_experts]: each [C]; or none
  Matrix out;                            ///< [num_tokens, C]
};

/// out[t] = table[ids[t]] * scale. ids: [num_tokens], each in [0, table.num_rows).
struct EmbeddingArgs {
  StoredMatrix table;
  const std::int32_t* ids = nullptr;
  float scale = 1.0f;
  Matrix out;
};

/// out[i] = factors[i] * x[rows[i]]. rows: [out.num_rows], each in [0, x.num_rows); null: i.
struct GatherRowsArgs {
  ConstMatrix x;
  const std::int32_t* rows = nullptr;
  const float* factors = nullptr;  ///< [out.num_rows]; null: 1
  Matrix out;
};

/// out[to[i]] = x[from[i]], i < count; the other rows are unchanged. from: each in [0,
/// x.num_rows); to: each in [0, out.num_rows), none twice.
struct CopyRowsArgs {
  ConstMatrix x;
  const std::int32_t* from = nullptr;
  const std::int32_t* to = nullptr;
  std::int64_t count = 0;
  Matrix out;
};

/// out[i] = the mean of x[rows[i * count]] .. x[rows[i * count + count - 1]], added in this order.
/// rows: [out.num_rows, count], each in [0, x.num_rows).
struct MeanRowsArgs {
  ConstMatrix x;
  const std::int32_t* rows = nullptr;
  std::int64_t count = 1;
  Matrix out;
};

/// out[i] += bias. bias: [out.num_cols].
struct AddBiasArgs {
  const float* bias = nullptr;
  Matrix out;  ///< in place
};

/// out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset) per row (RMSNorm, arXiv 1910.07467).
/// weight: [C]. In place allowed. Gemma stores weight - 1: offset 1.
struct RmsNormArgs {
  ConstMatrix x;
  const float* weight = nullptr;
  float weight_offset = 0.0f;
  float eps = 1e-6f;
  Matrix out;
};

/// out *= scale, and with a soft cap c > 0 then out = c tanh(out / c). In place.
struct ScaleArgs {
  float scale = 1.0f;
  float softcap = 0.0f;
  Matrix out;  ///< in place
};

/// out[t] += sigmoid(gate[t]) * x[t].
struct AddGatedArgs {
  ConstMatrix x;     ///< [M, C]
  ConstMatrix gate;  ///< [M, 1]
  Matrix out;        ///< [M, C], in place
};

/// residual += x, then out = RmsNorm(residual), or without a weight out = residual. All [M, C].
struct AddRmsNormArgs {
  ConstMatrix x;
  Matrix residual;                ///< in place
  const float* weight = nullptr;  ///< [C], or none
  float weight_offset = 0.0f;
  float eps = 1e-6f;
  Matrix out;
};

/// out = (s - mean(s)) / sqrt(variance(s) + eps) * weight + bias per row of s = x + residual
/// (LayerNorm, arXiv 1607.06450). weight, bias: [C]. `out` may be x or residual; so may `sum`,
/// which receives s, but it must not alias `out`.
struct AddLayerNormArgs {
  ConstMatrix x;
  ConstMatrix residual;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 1e-12f;
  Matrix sum = {};  ///< without data: s is not stored
  Matrix out;
};

/// The recurrent states that a step reads and writes: the state of block b is the page at data +
/// b * page_bytes. The tokens of sequence s are rows query_start_loc[s] .. query_start_loc[s + 1] -
/// 1. Block 0 means none: in `before`, the sequence starts with a zero state; in `after`, the state
/// after that token is not stored. A block in both is read before it is written.
struct StateSlots {
  std::byte* data = nullptr;
  std::int64_t page_bytes = 0;
  const std::int32_t* query_start_loc = nullptr;  ///< [num_seqs + 1], from 0
  std::int64_t num_seqs = 0;
  const std::int32_t* before = nullptr;  ///< [num_seqs]
  const std::int32_t* after = nullptr;   ///< [num_tokens]
};

/// A causal convolution along each sequence with a filter per channel, and SiLU:
/// out[t, c] = silu(bias[c] + sum_k weight[k, c] x[t - width + 1 + k, c]), added in this order; x
/// is 0 before the sequence. A state is f32 [width - 1, C], the rows of x before the next token. In
/// place allowed. Pre: 2 <= width <= kMaxConvWidth.
struct CausalConvArgs {
  ConstMatrix x;                  ///< [num_tokens, C]
  const float* weight = nullptr;  ///< [width, C]
  const float* bias = nullptr;    ///< [C], or none
  std::int64_t width = 0;
  StateSlots states;
  Matrix out;  ///< [num_tokens, C]
};
inline constexpr std::int64_t kMaxConvWidth = 8;

/// The selective state space of Mamba-2 (arXiv 2405.21060, section 7), head by head, from a state
/// f32 [H, N, P]. With d = clamp(softplus(dt[t] + dt_bias), min_dt, max_dt), token after token:
///   state[n, p] = state[n, p] exp(d a) + d x[t, p] b[t, n]
///   out[t, p] = skip x[t, p] + sum_n state[n, p] c[t, n], added in this order.
/// A sequential scan, not chunks for matrix units: the bits do not depend on how steps split a
/// sequence. Group g of b and c serves the heads g * H / G .. (g + 1) * H / G - 1.
struct StateScanArgs {
  ConstHeads x;                    ///< [num_tokens, H, P]
  ConstHeads b;                    ///< [num_tokens, G, N]
  ConstHeads c;                    ///< as b
  Matrix dt;                       ///< [num_tokens, H]; d afterwards
  Matrix decay;                    ///< [num_tokens, H], scratch
  const float* dt_bias = nullptr;  ///< [H]
  const float* a = nullptr;        ///< [H], below 0
  const float* skip = nullptr;     ///< [H]
  float min_dt = 0.0f;
  float max_dt = __builtin_huge_valf();
  StateSlots states;
  Heads out;  ///< as x; does not alias it
};

/// x *= silu(gate), if there is a gate; then, if requested, squares[t, i] = the sum of x^2 over the
/// i-th of `squares.num_cols` equal parts of a row.
struct GateArgs {
  Matrix x;          ///< [M, C], in place
  ConstMatrix gate;  ///< as x; without data: none
  Matrix squares;    ///< without data: none
};

/// Grouped RMSNorm (RmsNormArgs) with num_groups groups, then times silu(gate), if there is a gate.
/// x is a shard of the row, C columns from first_col on; `squares` holds the sums of squares of the
/// whole row in equal parts, which are added in order.
struct GroupNormArgs {
  Matrix x;             ///< [M, C], in place
  ConstMatrix squares;  ///< [M, a multiple of num_groups]: as GateArgs
  std::int64_t num_groups = 1;
  std::int64_t group_size = 0;  ///< columns
  std::int64_t first_col = 0;
  const float* weight = nullptr;  ///< [C]
  float eps = 1e-5f;
  ConstMatrix gate;  ///< as x; without data: none
};

enum class RopeStyle : std::uint8_t {
  kNeox,         ///< pairs (i, i + rotary_dim / 2): Llama as published by Hugging Face, GPT-NeoX
  kInterleaved,  ///< pairs (2i, 2i + 1): GPT-J, Llama 4
};

/// Prepares a step's queries, keys and values for attention, separately for each head of each
/// token:
/// - q and k: RMSNorm if a weight is given (qk-norm), as in RmsNormArgs;
/// - then RoPE (arXiv 2104.09864): each pair (a, b) of the first rotary_dim elements is rotated by
///   its position's angle to (a cos - b sin, b cos + a sin);
/// - q and k: with norms_rotated, x / sqrt(mean(x^2) + norm_eps) (the L2 norm of Llama 4);
/// - q: with q_scales, q_scales[position] times it;
/// - k[t] and v[t] are written to slot slots[t] = block * block_size + offset in block. A negative
///   slot means that the token is not written; its q is prepared nevertheless.
/// q is changed in place, k and v are not modified; v is not read where the cache has latent
/// vectors. Pre: head_dim <= kMaxHeadDim, of latent vectors kMaxLatentKeyDim.
struct RopeAndWriteKvArgs {
  Heads q;                               ///< [num_tokens, num_heads, head_dim]
  ConstHeads k;                          ///< [num_tokens, num_kv_heads, head_dim]
  ConstHeads v;                          ///< as k
  const float* q_norm_weight = nullptr;  ///< [head_dim], or none
  const float* k_norm_weight = nullptr;  ///< [head_dim], or none
  float norm_weight_offset = 0.0f;
  float norm_eps = 1e-6f;
  std::int64_t rotary_dim = 0;  ///< even, at most head_dim; 0: nothing is rotated
  RopeStyle style = RopeStyle::kNeox;
  const std::int32_t* positions = nullptr;  ///< [num_tokens], each in [0, max_position)
  const float* cos = nullptr;               ///< [max_position, rotary_dim / 2]
  const float* sin = nullptr;               ///< [max_position, rotary_dim / 2]
  bool norms_rotated = false;
  const float* q_scales = nullptr;      ///< [max_position], or none
  const std::int64_t* slots = nullptr;  ///< [num_tokens]
  KvCacheView cache;
};

/// Positions [begin, end) of a sequence whose tokens attend to each other bidirectionally: the
/// tokens of one image.
struct TwoWaySpan {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  bool operator==(const TwoWaySpan&) const = default;
};

/// out[t] = softmax(q[t] k^T * scale) v over the pages of t's sequence (PagedAttention, arXiv
/// 2309.06180, section 4.1), causal except within bidirectional spans, for a batch that mixes
/// prefill and decode.
/// The queries of sequence s are rows query_start_loc[s] .. query_start_loc[s + 1] - 1 of q and are
/// its last tokens: the last one is at position seq_lens[s] - 1; there may be none. KV head h
/// serves the query heads h * G .. h * G + G - 1, G = num_heads / num_kv_heads.
/// Pre: this step's K and V are written; head_dim <= kMaxHeadDim, of latent vectors
/// kMaxLatentKeyDim and latent_dim <= kMaxHeadDim; a span that holds a query's position ends with
/// the sequence's last token or before it.
struct AttentionArgs {
  ConstHeads q;  ///< [num_queries, num_heads, head_dim]
  KvCacheView cache;
  const std::int32_t* query_start_loc = nullptr;  ///< [num_seqs + 1], from 0
  const std::int32_t* seq_lens = nullptr;         ///< [num_seqs], including this step's tokens
  const std::int32_t* block_tables = nullptr;     ///< [rows, stride]: block of each block_size
                                                  ///< tokens; not read before the window
  std::int64_t block_table_stride = 0;
  const std::int32_t* block_table_rows = nullptr;  ///< [num_seqs]: rows of block_tables
  std::int64_t num_seqs = 0;
  float scale = 1.0f;
  std::int32_t sliding_window = 0;  ///< w > 0: a token attends to itself and the w - 1 before it
  /// c > 0: a token attends to itself and those before it in its chunk of c tokens, which are
  /// counted from position 0.
  std::int32_t local_chunk = 0;
  float logit_softcap = 0.0f;  ///< c > 0: scores become c tanh(score / c)
  /// [num_heads], or none: attention sinks, per head the score of a key with value 0 (gpt-oss).
  const float* sinks = nullptr;
  /// Sequence s has the spans span_start_loc[s] .. span_start_loc[s + 1] - 1, sorted, disjoint. A
  /// token in a span attends to all of it in addition to its causal (windowed) range. Null: there
  /// are no spans.
  const TwoWaySpan* two_way_spans = nullptr;
  const std::int32_t* span_start_loc = nullptr;  ///< [num_seqs + 1], from 0
  Heads out;                                     ///< [num_queries, num_heads, cache.value_dim()]
};

/// The positions that a query attends to, [first, last].
struct VisibleRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
TROUPE_INLINE VisibleRange visible_range(const AttentionArgs& args, std::int64_t seq,
                                         std::int64_t position) {
  VisibleRange range{0, position};
  if (args.sliding_window > 0 && position >= args.sliding_window)
    range.first = position - args.sliding_window + 1;
  if (args.local_chunk > 0) range.first = position / args.local_chunk * args.local_chunk;
  if (args.two_way_spans == nullptr) return range;
  for (std::int32_t i = args.span_start_loc[seq]; i < args.span_start_loc[seq + 1]; ++i) {
    const TwoWaySpan& span = args.two_way_spans[i];
    if (position < span.begin || position >= span.end) continue;
    if (span.begin < range.first) range.first = span.begin;
    range.last = span.end - 1;
  }
  return range;
}
inline constexpr std::int64_t kMaxHeadDim = 512;
inline constexpr std::int64_t kMaxLatentKeyDim = kMaxHeadDim + 128;

/// The properties that determine the workspace of attention.
struct AttentionShape {
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;  ///< of the values
  std::int64_t max_seq_len = 0;
};

// The operations of a backend, one entry (result, name, parameters) each. The tables, and the
// declarations of the implementations (kernels/cpu/cpu_ops.hpp, kernels/cuda/cuda_ops.hpp), are
// generated from this list.
//
// packed_bytes: bytes of a matrix in this backend's layout, a multiple of 64.
// pack_rows: packs the rows of `part` to rows first_row, first_row + 1, ... of the packed matrix,
//   converting to spec.type (round to nearest even). Several checkpoint tensors (q, k, v) are
//   combined into one matrix by packing each at its offset; disjoint rows may be packed at the
//   same time.
//   Pre: part.num_cols == spec.num_cols; `packed` was zero-filled.
// pack_quantized_rows: pack_rows for a quantised matrix.
// matmul_workspace_bytes, gated_mlp_workspace_bytes: workspace for at most max_rows rows of x.
// attention_head_dim_unit: attention to a cache of this type is fastest where head_dim is a
// multiple
//   of it. Others work too.
// attention_workspace_bytes: workspace for distributing long sequences over num_threads threads.
// All others: see the comments of their arguments.
#define TROUPE_OPERATIONS(X)                                                                       \
  X(std::int64_t, packed_bytes, (const WeightSpec& spec))                                          \
  X(void, pack_rows,                                                                               \
    (const WeightSpec& spec, const StoredMatrix& part, std::int64_t first_row, std::byte* packed)) \
  X(void, pack_quantized_rows,                                                                     \
    (const WeightSpec& spec, const QuantizedRows& part, std::int64_t first_row,                    \
     std::byte* packed))                                                                           \
  X(std::int64_t, matmul_workspace_bytes, (const WeightSpec& spec, std::int64_t max_rows))         \
  X(void, matmul, (const OpContext& context, const MatmulArgs& args))                              \
  X(std::int64_t, gated_mlp_workspace_bytes,                                                       \
    (const WeightSpec& gate_up, const WeightSpec& down, std::int64_t max_rows))                    \
  X(void, gated_mlp, (const OpContext& context, const GatedMlpArgs& args))                         \
  X(void, adapter_shrink, (const OpContext& context, const AdapterShrinkArgs& args))               \
  X(void, adapter_expand, (const OpContext& context, const AdapterExpandArgs& args))               \
  X(void, embedding, (const OpContext& context, const EmbeddingArgs& args))                        \
  X(void, gather_rows, (const OpContext& context, const GatherRowsArgs& args))                     \
  X(void, copy_rows, (const OpContext& context, const CopyRowsArgs& args))                         \
  X(void, mean_rows, (const OpContext& context, const MeanRowsArgs& args))                         \
  X(void, add_bias, (const OpContext& context, const AddBiasArgs& args))                           \
  X(void, scale, (const OpContext& context, const ScaleArgs& args))                                \
  X(void, add_gated, (const OpContext& context, const AddGatedArgs& args))                         \
  X(void, rms_norm, (const OpContext& context, const RmsNormArgs& args))                           \
  X(void, add_rms_norm, (const OpContext& context, const AddRmsNormArgs& args))                    \
  X(void, add_layer_norm, (const OpContext& context, const AddLayerNormArgs& args))                \
  X(void, gelu, (const OpContext& context, const GeluArgs& args))                                  \
  X(void, causal_conv, (const OpContext& context, const CausalConvArgs& args))                     \
  X(void, state_scan, (const OpContext& context, const StateScanArgs& args))                       \
  X(void, gate, (const OpContext& context, const GateArgs& args))                                  \
  X(void, group_norm, (const OpContext& context, const GroupNormArgs& args))                       \
  X(void, rope_and_write_kv, (const OpContext& context, const RopeAndWriteKvArgs& args))           \
  X(std::int64_t, attention_head_dim_unit, (ElementType cache_type))                               \
  X(std::int64_t, attention_workspace_bytes, (const AttentionShape& shape, int num_threads))       \
  X(void, attention, (const OpContext& context, const AttentionArgs& args))

// Operations of backends that can store weights in fewer bits, else null.
//
// compact_bytes: size of a packed matrix after lossless compression, a multiple of 64. 0: not worth
//   compressing.
// compact: compresses a packed matrix; the spec with is_compact is that of `out`.
//   Pre: compact_bytes was not 0; both are aligned to 64.
#define TROUPE_COMPACT_OPERATIONS(X)                                             \
  X(std::int64_t, compact_bytes,                                                 \
    (const OpContext& context, const WeightSpec& spec, const std::byte* packed)) \
  X(void, compact,                                                               \
    (const OpContext& context, const WeightSpec& spec, const std::byte* packed, std::byte* out))

// Mixture of experts for devices whose memory the host cannot read; null on the CPU, where the host
// runs one expert after the other.
//
// experts_mlp_workspace_bytes: workspace for at most this many tokens and pairs.
#define TROUPE_EXPERT_OPERATIONS(X)                                                \
  X(void, route_experts, (const OpContext& context, const RouteExpertsArgs& args)) \
  X(std::int64_t, experts_mlp_workspace_bytes,                                     \
    (const WeightSpec& gate_up, const WeightSpec& down, std::int64_t max_tokens,   \
     std::int64_t max_pairs))                                                      \
  X(void, experts_mlp, (const OpContext& context, const ExpertsMlpArgs& args))     \
  X(void, add_experts, (const OpContext& context, const AddExpertsArgs& args))

#define TROUPE_OPERATION_MEMBER(result, operation, parameters) \
  result(*operation) parameters noexcept = nullptr;
#define TROUPE_OPERATION_DECLARATION(result, operation, parameters) \
  result operation parameters noexcept;
#define TROUPE_OPERATION_ENTRY(result, operation, parameters) .operation = operation,

/// The operations of one backend.
struct OpTable {
  const char* name = nullptr;
  TROUPE_OPERATIONS(TROUPE_OPERATION_MEMBER)
  TROUPE_COMPACT_OPERATIONS(TROUPE_OPERATION_MEMBER)
  TROUPE_EXPERT_OPERATIONS(TROUPE_OPERATION_MEMBER)
};

}  // namespace troupe
