#pragma once
// What each instruction set provides: the functions behind one OpTable. See kernels/ops.hpp for
// what they do.

#include "kernels/ops.hpp"

namespace troupe::TROUPE_ISA {

[[nodiscard]] const OpTable& op_table() noexcept;

TROUPE_OPERATIONS(TROUPE_OPERATION_DECLARATION)
TROUPE_OPTIONAL_OPERATIONS(TROUPE_OPERATION_DECLARATION)

}  // namespace troupe::TROUPE_ISA
