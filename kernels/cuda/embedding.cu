// Row lookup in tables.

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/cuda_ops.hpp"
#include "kernels/cuda/launch.cuh"

namespace troupe::TROUPE_DEVICE {
namespace {

template <class T>
void embedding_of(const OpContext& context, const EmbeddingArgs& args) {
  const std::int64_t num_cols = args.table.num_cols;
  const T* table = static_cast<const T*>(args.table.data);
  for_each_element(context, args.out.num_rows * num_cols, [=] __device__(std::int64_t i) {
    const std::int64_t token = i / num_cols;
    const std::int64_t col = i % num_cols;
    args.out.row(token)[col] = to_float(table[args.ids[token] * num_cols + col]) * args.scale;
  });
}

}  // namespace

void embedding(const OpContext& context, const EmbeddingArgs& args) noexcept {
  with_element_type(args.table.type,
                    [&](auto zero) { embedding_of<decltype(zero)>(context, args); });
}

void gather_rows(const OpContext& context, const GatherRowsArgs& args) noexcept {
  const std::int64_t num_cols = args.out.num_cols;
  for_each_element(context, args.out.num_rows * num_cols, [=] __device__(std::int64_t i) {
    const std::int64_t row = i / num_cols;
    const std::int64_t col = i % num_cols;
    const float value = args.x.row(args.rows == nullptr ? row : args.rows[row])[col];
    args.out.row(row)[col] = args.factors == nullptr ? value : value * args.factors[row];
  });
}

void copy_rows(const OpContext& context, const CopyRowsArgs& args) noexcept {
  const std::int64_t num_cols = args.x.num_cols;
  for_each_element(context, args.count * num_cols, [=] __device__(std::int64_t element) {
    const std::int64_t i = element / num_cols;
    const std::int64_t col = element % num_cols;
    args.out.row(args.to[i])[col] = args.x.row(args.from[i])[col];
  });
}

void mean_rows(const OpContext& context, const MeanRowsArgs& args) noexcept {
  const std::int64_t num_cols = args.out.num_cols;
  const float factor = 1.0f / static_cast<float>(args.count);
  for_each_element(context, args.out.num_rows * num_cols, [=] __device__(std::int64_t element) {
    const std::int64_t row = element / num_cols;
    const std::int64_t col = element % num_cols;
    const std::int32_t* rows = args.rows + row * args.count;
    float sum = args.x.row(rows[0])[col];
    for (std::int64_t i = 1; i < args.count; ++i) sum += args.x.row(rows[i])[col];
    args.out.row(row)[col] = sum * factor;
  });
}

}  // namespace troupe::TROUPE_DEVICE
