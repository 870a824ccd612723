// Operations on single elements.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::cuda {
namespace {

__device__ float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ float gelu_tanh_of(float x) {
  const float cubic = 0.044715f * (x * x) * x;
  const float inner = 0.79788456080286536f * (x + cubic);
  return 0.5f * x * (1.0f + tanhf(inner));
}

/// f(row, column) for every element of a matrix.
template <class F>
void for_each_place(const OpContext& context, std::int64_t num_rows, std::int64_t num_cols,
                    const F& f) {
  for_each_element(context, num_rows * num_cols,
                   [=] __device__(std::int64_t i) { f(i / num_cols, i % num_cols); });
}

}  // namespace

void silu_and_mul(const OpContext& context, const GatedArgs& args) noexcept {
  const std::int64_t n = args.out.num_cols;
  for_each_place(context, args.x.num_rows, n, [=] __device__(std::int64_t row, std::int64_t col) {
    const float* x = args.x.row(row);
    args.out.row(row)[col] = silu(x[col]) * x[n + col];
  });
}

void gelu_tanh_and_mul(const OpContext& context, const GatedArgs& args) noexcept {
  const std::int64_t n = args.out.num_cols;
  for_each_place(context, args.x.num_rows, n, [=] __device__(std::int64_t row, std::int64_t col) {
    const float* x = args.x.row(row);
    args.out.row(row)[col] = gelu_tanh_of(x[col]) * x[n + col];
  });
}

void gelu_tanh(const OpContext& context, const UnaryArgs& args) noexcept {
  for_each_place(context, args.x.num_rows, args.x.num_cols,
                 [=] __device__(std::int64_t row, std::int64_t col) {
                   args.out.row(row)[col] = gelu_tanh_of(args.x.row(row)[col]);
                 });
}

void scale(const OpContext& context, const ScaleArgs& args) noexcept {
  for_each_place(context, args.x.num_rows, args.x.num_cols,
                 [=] __device__(std::int64_t row, std::int64_t col) {
                   args.out.row(row)[col] = args.x.row(row)[col] * args.factor;
                 });
}

void add(const OpContext& context, const AddArgs& args) noexcept {
  for_each_place(context, args.a.num_rows, args.a.num_cols,
                 [=] __device__(std::int64_t row, std::int64_t col) {
                   args.out.row(row)[col] = args.a.row(row)[col] + args.b.row(row)[col];
                 });
}

}  // namespace troupe::cuda
