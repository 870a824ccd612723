// Row lookup in tables.

#include <string.h>

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/rows.hpp"

namespace troupe::TROUPE_ISA {

void embedding(const OpContext& context, const EmbeddingArgs& args) noexcept {
  const std::int64_t num_cols = args.table.num_cols;
  with_element_type(args.table.type, [&](auto type) {
    constexpr ElementType kType = decltype(type)::value;
    for_each_row(context, args.out.num_rows, num_cols, [&](std::int64_t token) {
      const std::int64_t first = args.ids[token] * num_cols;
      float* out = args.out.row(token);
      const Vec factor = broadcast(args.scale);
      std::int64_t i = 0;
      for (; i + kLanes <= num_cols; i += kLanes) {
        store(out + i, load_as<kType>(args.table.data, first + i) * factor);
      }
      for (; i < num_cols; ++i) {
        out[i] = load_element<kType>(args.table.data, first + i) * args.scale;
      }
    });
  });
}

void gather_rows(const OpContext& context, const GatherRowsArgs& args) noexcept {
  const std::int64_t num_cols = args.out.num_cols;
  for_each_row(context, args.out.num_rows, num_cols, [&](std::int64_t i) {
    const float* from = args.x.row(args.rows == nullptr ? i : args.rows[i]);
    float* to = args.out.row(i);
    if (args.factors == nullptr) {
      memcpy(to, from, static_cast<std::size_t>(num_cols) * sizeof(float));
      return;
    }
    const Vec factor = broadcast(args.factors[i]);
    for_each_vector(num_cols, [&](std::int64_t col, auto load_lanes, auto store_lanes) {
      store_lanes(to + col, load_lanes(from + col) * factor);
    });
  });
}

void copy_rows(const OpContext& context, const CopyRowsArgs& args) noexcept {
  const std::int64_t num_cols = args.x.num_cols;
  for_each_row(context, args.count, num_cols, [&](std::int64_t i) {
    memcpy(args.out.row(args.to[i]), args.x.row(args.from[i]),
           static_cast<std::size_t>(num_cols) * sizeof(float));
  });
}

void mean_rows(const OpContext& context, const MeanRowsArgs& args) noexcept {
  const std::int64_t num_cols = args.out.num_cols;
  const Vec factor = broadcast(1.0f / static_cast<float>(args.count));
  for_each_row(context, args.out.num_rows, num_cols * args.count, [&](std::int64_t row) {
    const std::int32_t* rows = args.rows + row * args.count;
    float* out = args.out.row(row);
    for_each_vector(num_cols, [&](std::int64_t col, auto load_lanes, auto store_lanes) {
      Vec sum = load_lanes(args.x.row(rows[0]) + col);
      for (std::int64_t i = 1; i < args.count; ++i)
        sum = sum + load_lanes(args.x.row(rows[i]) + col);
      store_lanes(out + col, sum * factor);
    });
  });
}

}  // namespace troupe::TROUPE_ISA
