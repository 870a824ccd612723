// Rotary position embedding, in place.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {
namespace {

void rotate_halves(float* x, const float* cos, const float* sin, std::int64_t half) {
  for_each_vector(half, [&](std::int64_t i, auto load_lanes, auto store_lanes) {
    const Vec a = load_lanes(x + i);
    const Vec b = load_lanes(x + half + i);
    const Vec c = load_lanes(cos + i);
    const Vec s = load_lanes(sin + i);
    store_lanes(x + i, a * c - b * s);
    store_lanes(x + half + i, b * c + a * s);
  });
}

void rotate_neighbours(float* x, const float* cos, const float* sin, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

}  // namespace

void rope(const OpContext& context, const RopeArgs& args) noexcept {
  const std::int64_t half = args.rotary_dim / 2;
  const std::int64_t num_heads = args.q.num_heads + args.k.num_heads;
  for_each_row(context, args.q.num_tokens, num_heads * args.rotary_dim, [&](std::int64_t token) {
    const float* cos = args.cos + args.positions[token] * half;
    const float* sin = args.sin + args.positions[token] * half;
    const auto rotate = args.style == RopeStyle::kHalves ? rotate_halves : rotate_neighbours;
    for (std::int64_t head = 0; head < args.q.num_heads; ++head) {
      rotate(args.q.row(token, head), cos, sin, half);
    }
    for (std::int64_t head = 0; head < args.k.num_heads; ++head) {
      rotate(args.k.row(token, head), cos, sin, half);
    }
  });
}

}  // namespace troupe::TROUPE_ISA
