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
    memcpy(args.out.row(i), args.x.row(args.rows[i]),
           static_cast<std::size_t>(num_cols) * sizeof(float));
  });
}

void scatter_rows(const OpContext& context, const ScatterRowsArgs& args) noexcept {
  const std::int64_t num_cols = args.x.num_cols;
  for_each_row(context, args.x.num_rows, num_cols, [&](std::int64_t i) {
    memcpy(args.out.row(args.rows[i]), args.x.row(i),
           static_cast<std::size_t>(num_cols) * sizeof(float));
  });
}

}  // namespace troupe::TROUPE_ISA
