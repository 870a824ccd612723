#pragma once
// The functions of each instruction set's OpTable. See kernels/ops.hpp for their semantics.

#include "kernels/ops.hpp"

namespace troupe::TROUPE_ISA {

[[nodiscard]] const OpTable& op_table() noexcept;

TROUPE_OPERATIONS(TROUPE_OPERATION_DECLARATION)
TROUPE_COMPACT_OPERATIONS(TROUPE_OPERATION_DECLARATION)

}  // namespace troupe::TROUPE_ISA
