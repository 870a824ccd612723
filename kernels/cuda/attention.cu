// Attention over paged keys and values.
//
// The tokens of a sequence are split into chunks of kChunkTokens counted from position 0,
// independent of the block size and of how queries are batched. The result of a chunk is an
// online-softmax state (largest score, sum of exponentials, weighted values), and the chunks are
// merged in order. So the bits of a query's output depend only on its position and its keys.

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/kv_layout.cuh"
#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

constexpr std::int64_t kChunkTokens = 256;
static_assert(kChunkTokens == kBlockThreads, "a thread scores one token of a chunk");

/// Elements of the output that a thread sums: threadIdx.x and every kBlockThreads further.
constexpr int kThreadElements = static_cast<int>(kMaxHeadDim) / kBlockThreads;

/// The visible keys of one query head of one token.
struct Query {
  const float* q;
  const std::int32_t* block_table;
  std::int64_t kv_head;
  VisibleRange visible;
};

/// The sequence that a row of q belongs to: the last one that starts at or before it, since
/// sequences without queries start where the next one does.
__device__ std::int64_t sequence_of(const AttentionArgs& args, std::int64_t token) {
  std::int64_t low = 0;
  std::int64_t high = args.num_seqs;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (args.query_start_loc[middle] <= token ? low : high) = middle;
  }
  return low;
}

__device__ Query make_query(const AttentionArgs& args, std::int64_t token, std::int64_t head) {
  const std::int64_t seq = sequence_of(args, token);
  const std::int64_t tokens_after = args.query_start_loc[seq + 1] - 1 - token;
  Query query;
  query.q = args.q.row(token, head);
  query.block_table = args.block_tables + args.block_table_rows[seq] * args.block_table_stride;
  query.kv_head = head / (args.q.num_heads / args.cache.num_kv_heads);
  query.visible = visible_range(args, seq, args.seq_lens[seq] - 1 - tokens_after);
  return query;
}

/// sum + factor(0) * load(0) + factor(1) * load(1) ..., added in order; several are loaded before
/// the first is added.
template <class T, class Factor, class Load>
__device__ float add_products(std::int64_t n, const Factor& factor, const Load& load, float sum) {
  constexpr int kAhead = 8;
  std::int64_t i = 0;
  for (; i + kAhead <= n; i += kAhead) {
    T loaded[kAhead];
    for (int e = 0; e < kAhead; ++e) loaded[e] = load(i + e);
    for (int e = 0; e < kAhead; ++e) sum = __fmaf_rn(factor(i + e), to_float(loaded[e]), sum);
  }
  for (; i < n; ++i) sum = __fmaf_rn(factor(i), to_float(load(i)), sum);
  return sum;
}

/// The score of the key at a position.
template <class T>
__device__ float score_key(const AttentionArgs& args, const Query& query, const float* q,
                           std::int64_t position) {
  const std::int64_t block_size = args.cache.block_size;
  T* const block =
      key_block<T>(args.cache, query.block_table[position / block_size], query.kv_head);
  const T* keys = block + position % block_size;
  float score = add_products<T>(
      args.cache.head_dim, [&](std::int64_t d) { return q[d]; },
      [&](std::int64_t d) { return keys[d * block_size]; }, 0.0f);
  if constexpr (kHasScale<T>) score *= token_scales(args.cache, block)[position % block_size];
  score *= args.scale;
  return args.logit_softcap > 0.0f ? args.logit_softcap * tanhf(score / args.logit_softcap) : score;
}

/// The scale of the value at a position.
template <class T>
__device__ float value_scale(const AttentionArgs& args, const Query& query, std::int64_t position) {
  if constexpr (!kHasScale<T>) return 1.0f;
  const std::int64_t block_size = args.cache.block_size;
  const std::int64_t number = query.block_table[position / block_size];
  T* const block = args.cache.latent_dim != 0 ? key_block<T>(args.cache, number, query.kv_head)
                                              : value_block<T>(args.cache, number, query.kv_head);
  return token_scales(args.cache, block)[position % block_size];
}

/// The values of the tokens of a block: element d of token t is data[d * element_stride + t *
/// token_stride].
template <class T>
struct Values {
  const T* data;
  std::int64_t element_stride;
  std::int64_t token_stride;
};
template <class T>
__device__ Values<T> values_of(const KvCacheView& cache, std::int64_t block, std::int64_t kv_head) {
  if (cache.latent_dim == 0) return {value_block<T>(cache, block, kv_head), 1, cache.head_dim};
  const std::int64_t first = cache.head_dim - cache.latent_dim;
  return {key_block<T>(cache, block, kv_head) + first * cache.block_size, cache.block_size, 1};
}

/// sum + the weighted values of positions [first, last], their elements d. weights: of first and
/// on.
template <class T>
__device__ float add_values(const AttentionArgs& args, const Query& query, const float* weights,
                            std::int64_t first, std::int64_t last, std::int64_t d, float sum) {
  const std::int64_t block_size = args.cache.block_size;
  std::int64_t offset = first % block_size;
  for (std::int64_t block = first / block_size; first <= last; ++block) {
    const std::int64_t n = min(block_size - offset, last + 1 - first);
    const Values<T> values = values_of<T>(args.cache, query.block_table[block], query.kv_head);
    const T* data = values.data + d * values.element_stride + offset * values.token_stride;
    sum = add_products<T>(
        n, [&](std::int64_t t) { return weights[t]; },
        [&](std::int64_t t) { return data[t * values.token_stride]; }, sum);
    first += n;
    weights += n;
    offset = 0;
  }
  return sum;
}

/// Online-softmax state of the positions so far: `out` is not yet divided by `sum`. All threads of
/// a block have the same max and sum, and each its own elements of out.
struct SoftmaxState {
  float max = -kInfinity;
  float sum = 0.0f;
  float out[kThreadElements] = {};
};

/// The softmax over the chunk's visible positions [first, last]; nothing outside of them is read.
template <class T>
__device__ SoftmaxState attend_chunk(const AttentionArgs& args, const Query& query, const float* q,
                                     std::int64_t chunk_start, std::int64_t first,
                                     std::int64_t last) {
  TROUPE_SHARED(weights, float[kChunkTokens]);
  const std::int64_t position = chunk_start + threadIdx.x;
  const bool visible = position >= first && position <= last;
  const float score = visible ? score_key<T>(args, query, q, position) : -kInfinity;
  SoftmaxState state;
  state.max = reduce_block(score, Max{});
  const float weight = visible ? expf(score - state.max) : 0.0f;
  state.sum = reduce_block(weight, Sum{});
  weights[threadIdx.x] = visible ? weight * value_scale<T>(args, query, position) : 0.0f;
  __syncthreads();
  const std::int64_t value_dim = args.cache.value_dim();
  for (int e = 0; e < kThreadElements; ++e) {
    const std::int64_t d = threadIdx.x + e * kBlockThreads;
    if (d >= value_dim) break;
    state.out[e] =
        add_values<T>(args, query, weights + (first - chunk_start), first, last, d, 0.0f);
  }
  __syncthreads();  // The next chunk writes weights again.
  return state;
}

__device__ void merge(const SoftmaxState& part, SoftmaxState& total) {
  const float max = fmaxf(total.max, part.max);
  const float total_factor = expf(total.max - max);
  const float part_factor = expf(part.max - max);
  total.max = max;
  total.sum = total.sum * total_factor + part.sum * part_factor;
  for (int e = 0; e < kThreadElements; ++e) {
    total.out[e] = total.out[e] * total_factor + part.out[e] * part_factor;
  }
}

/// A block computes one head of one token.
template <class T>
__device__ void attend(const AttentionArgs& args, std::int64_t token, std::int64_t head) {
  TROUPE_SHARED(q, float[kMaxLatentKeyDim]);
  const std::int64_t head_dim = args.cache.head_dim;
  const Query query = make_query(args, token, head);
  for_each_of_block(head_dim, [&](std::int64_t d) { q[d] = query.q[d]; });
  __syncthreads();
  SoftmaxState total;
  const std::int64_t first_chunk_start = query.visible.first / kChunkTokens * kChunkTokens;
  for (std::int64_t start = first_chunk_start; start <= query.visible.last; start += kChunkTokens) {
    const std::int64_t first = max(query.visible.first, start);
    const std::int64_t last = min(query.visible.last, start + kChunkTokens - 1);
    merge(attend_chunk<T>(args, query, q, start, first, last), total);
  }
  // The sink is one more key, whose value is 0.
  if (args.sinks != nullptr) {
    SoftmaxState sink;
    sink.max = args.sinks[head];
    sink.sum = 1.0f;
    merge(sink, total);
  }
  float* out = args.out.row(token, head);
  for (int e = 0; e < kThreadElements; ++e) {
    const std::int64_t d = threadIdx.x + e * kBlockThreads;
    if (d < args.cache.value_dim()) out[d] = total.out[e] / total.sum;
  }
}

template <class T>
void attention_over(const OpContext& context, const AttentionArgs& args) {
  const std::int64_t num_heads = args.q.num_heads;
  for_each_row(context, args.q.num_tokens * num_heads, [=] __device__(std::int64_t row) {
    attend<T>(args, row / num_heads, row % num_heads);
  });
}

}  // namespace

std::int64_t attention_head_dim_unit(ElementType) noexcept { return 1; }

std::int64_t attention_workspace_bytes(const AttentionShape&, int) noexcept { return 0; }

void attention(const OpContext& context, const AttentionArgs& args) noexcept {
  with_cache_type(args.cache.type,
                  [&](auto zero) { attention_over<decltype(zero)>(context, args); });
}

}  // namespace troupe::TROUPE_DEVICE
