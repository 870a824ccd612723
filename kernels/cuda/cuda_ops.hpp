#pragma once
// The functions of the OpTable for NVIDIA GPUs. See kernels/ops.hpp for their semantics. They are
// compiled twice, each time in its own namespace (TROUPE_DEVICE): `cuda` by nvcc, and
// `cuda_emulated` for the CPU (kernels/cuda_emulation), which all tests use.
//
// Every pointer in the arguments is device memory, including index arrays and block tables, so host
// code cannot read them for planning. An operation is launched on OpContext::stream and returns
// before it has run. OpContext::pool is not used.

#include "kernels/ops.hpp"

namespace troupe::TROUPE_DEVICE {

// The functions that pack and those that return bytes run on the host and need no GPU. A weight is
// packed in host memory and copied to the device as bytes.
TROUPE_OPERATIONS(TROUPE_OPERATION_DECLARATION)
TROUPE_EXPERT_OPERATIONS(TROUPE_OPERATION_DECLARATION)

}  // namespace troupe::TROUPE_DEVICE
