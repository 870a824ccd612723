// The OpTable of one instruction set.

#include "kernels/cpu/cpu_ops.hpp"
#include "kernels/cpu/simd.hpp"

#define TROUPE_STRINGIFY_(name) #name
#define TROUPE_STRINGIFY(name) TROUPE_STRINGIFY_(name)

namespace troupe::TROUPE_ISA {

namespace {

constexpr OpTable make_table() {
  // clang-format off
  OpTable table = {.name = TROUPE_STRINGIFY(TROUPE_ISA), TROUPE_OPERATIONS(TROUPE_OPERATION_ENTRY)};
  // clang-format on
#if defined(TROUPE_BF16_DOT)
  table.compact_bytes = compact_bytes;
  table.compact = compact;
#endif
  return table;
}

}  // namespace

const OpTable& op_table() noexcept {
  static constexpr OpTable kTable = make_table();
  return kTable;
}

}  // namespace troupe::TROUPE_ISA
