// Operations on single elements.

#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/math.cuh"

namespace troupe::cuda {
namespace {

/// f(row, column) for every element of a matrix.
template <class F>
void for_each_place(const OpContext& context, std::int64_t num_rows, std::int64_t num_cols,
                    const F& f) {
  for_each_element(context, num_rows * num_cols,
                   [=] __device__(std::int64_t i) { f(i / num_cols, i % num_cols); });
}

}  // namespace

void gelu_tanh(const OpContext& context, const UnaryArgs& args) noexcept {
  for_each_place(context, args.x.num_rows, args.x.num_cols,
                 [=] __device__(std::int64_t row, std::int64_t col) {
                   args.out.row(row)[col] = math::gelu_tanh(args.x.row(row)[col]);
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
