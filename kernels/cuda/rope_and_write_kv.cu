// Norm and rotary embedding of queries in place; of keys when they are written to their pages; and
// writing of values.

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/kv_layout.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm_rows.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

/// Calls put(d, element d of the head, normed and rotated) for each d, on all threads of a block.
/// Each thread reads what it puts, so put may write to x.
template <class Put>
__device__ void norm_weighted_and_rotate(const RopeAndWriteKvArgs& args, std::int64_t token,
                                         const float* x, const float* norm_weight, const Put& put) {
  const std::int64_t head_dim = args.q.head_dim;
  const float factor = norm_weight == nullptr ? 1.0f : rms_norm_factor(x, head_dim, args.norm_eps);
  const auto normed = [&](std::int64_t d) {
    return norm_weight == nullptr ? x[d]
                                  : x[d] * factor * (norm_weight[d] + args.norm_weight_offset);
  };
  const std::int64_t half = args.rotary_dim / 2;
  // The pairs, then the part that is not rotated.
  for_each_of_block(head_dim - half, [&](std::int64_t i) {
    if (i >= half) return put(half + i, normed(half + i));
    const bool neox = args.style == RopeStyle::kNeox;
    const std::int64_t first = neox ? i : 2 * i;
    const std::int64_t second = neox ? half + i : 2 * i + 1;
    const std::int64_t angle = args.positions[token] * half + i;
    const float c = args.cos[angle];
    const float s = args.sin[angle];
    const float a = normed(first);
    const float b = normed(second);
    put(first, a * c - b * s);
    put(second, b * c + a * s);
  });
}

/// The same, with what comes behind the rotation; scale: of the head.
template <class Put>
__device__ void norm_and_rotate(const RopeAndWriteKvArgs& args, std::int64_t token, const float* x,
                                const float* norm_weight, float scale, const Put& put) {
  if (args.norms_rotated) {
    float squares = 0.0f;
    norm_weighted_and_rotate(args, token, x, norm_weight,
                             [&](std::int64_t, float value) { squares += value * value; });
    squares = reduce_block(squares, Sum{});
    scale /= sqrtf(squares / static_cast<float>(args.q.head_dim) + args.norm_eps);
  }
  norm_weighted_and_rotate(args, token, x, norm_weight,
                           [&](std::int64_t d, float value) { put(d, value * scale); });
}

/// Calls put(d, number) for each element of a head's row, on all threads of a block. Returns the
/// scale: scale * number approximates row[d]; NaN if any is not finite.
template <class T, class Put>
__device__ float quantize_row(const float* row, std::int64_t head_dim, const Put& put) {
  // As an integer, the size of a number that is not finite is the largest.
  constexpr unsigned kInfinityBits = 0x7f800000u;
  constexpr unsigned kNanBits = 0x7fc00000u;
  constexpr float kSmallest = 1e-30f;  // smaller ones count as zero: the inverse could overflow
  unsigned bits = 0;
  for_each_of_block(
      head_dim, [&](std::int64_t d) { bits = max(bits, __float_as_uint(row[d]) & 0x7fffffffu); });
  bits = reduce_block(bits, [](unsigned a, unsigned b) { return max(a, b); });
  const bool is_finite = bits < kInfinityBits;
  const float size = __uint_as_float(is_finite ? bits : kNanBits);
  const float inverse = size > kSmallest ? __fdiv_rn(kLargestNumber<T>, size) : 0.0f;
  for_each_of_block(head_dim, [&](std::int64_t d) {
    put(d, from_scaled<T>(is_finite ? __fmul_rn(row[d], inverse) : 0.0f));
  });
  return __fdiv_rn(size, kLargestNumber<T>);
}

template <class T>
void rope_and_write_kv_as(const OpContext& context, const RopeAndWriteKvArgs& args) {
  // A row is a head of q, k or v of a token.
  const std::int64_t num_heads = args.q.num_heads;
  const std::int64_t num_kv_heads = args.cache.num_kv_heads;
  const std::int64_t rows_per_token = num_heads + 2 * num_kv_heads;
  for_each_row(context, args.q.num_tokens * rows_per_token, [=] __device__(std::int64_t row) {
    const std::int64_t token = row / rows_per_token;
    const std::int64_t row_of_token = row % rows_per_token;
    if (row_of_token < num_heads) {
      float* q = args.q.row(token, row_of_token);
      const float scale = args.q_scales == nullptr ? 1.0f : args.q_scales[args.positions[token]];
      norm_and_rotate(args, token, q, args.q_norm_weight, scale,
                      [q](std::int64_t d, float value) { q[d] = value; });
      return;
    }
    const std::int64_t slot = args.slots[token];
    if (slot < 0) return;
    const std::int64_t head = (row_of_token - num_heads) % num_kv_heads;
    const std::int64_t block = slot / args.cache.block_size;
    const std::int64_t offset = slot % args.cache.block_size;
    if (row_of_token < num_heads + num_kv_heads) {
      T* const key_page = key_block<T>(args.cache, block, head);
      T* const keys = key_page + offset;
      const std::int64_t block_size = args.cache.block_size;
      const float* k = args.k.row(token, head);
      if constexpr (kHasScale<T>) {
        TROUPE_SHARED(rotated, float[kMaxLatentKeyDim]);
        norm_and_rotate(args, token, k, args.k_norm_weight, 1.0f,
                        [&](std::int64_t d, float value) { rotated[d] = value; });
        __syncthreads();
        const float scale =
            quantize_row<T>(rotated, args.cache.head_dim,
                            [&](std::int64_t d, T number) { keys[d * block_size] = number; });
        if (threadIdx.x == 0) token_scales(args.cache, key_page)[offset] = scale;
      } else {
        norm_and_rotate(args, token, k, args.k_norm_weight, 1.0f, [&](std::int64_t d, float value) {
          keys[d * block_size] = from_float<T>(value);
        });
      }
    } else if (args.cache.latent_dim == 0) {
      const float* v = args.v.row(token, head);
      T* const value_page = value_block<T>(args.cache, block, head);
      T* const values = value_page + offset * args.cache.head_dim;
      if constexpr (kHasScale<T>) {
        const float scale = quantize_row<T>(v, args.cache.head_dim,
                                            [&](std::int64_t d, T number) { values[d] = number; });
        if (threadIdx.x == 0) token_scales(args.cache, value_page)[offset] = scale;
      } else {
        for_each_of_block(args.cache.head_dim,
                          [&](std::int64_t d) { values[d] = from_float<T>(v[d]); });
      }
    }
  });
}

}  // namespace

void rope_and_write_kv(const OpContext& context, const RopeAndWriteKvArgs& args) noexcept {
  with_cache_type(args.cache.type,
                  [&](auto zero) { rope_and_write_kv_as<decltype(zero)>(context, args); });
}

}  // namespace troupe::TROUPE_DEVICE
