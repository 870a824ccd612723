#pragma once
// The functions behind the OpTable of NVIDIA GPUs. See kernels/ops.hpp for what they do. They are
// compiled twice, each time in a namespace of its own (TROUPE_DEVICE): `cuda` by nvcc, and
// `cuda_emulated` for the CPU (kernels/cuda_emulation), where all tests run them.
//
// Every pointer in the arguments is device memory, index arrays and block tables too; so nothing
// here can plan by what they hold. An operation is launched on OpContext::stream and returns before
// it ran. OpContext::pool is not used, and of the operations only gated_mlp uses ::workspace.

#include "kernels/ops.hpp"

namespace troupe::TROUPE_DEVICE {

// pack_rows and the functions that return bytes run on the host and need no GPU. A weight is packed
// in host memory and copied to the device as bytes.
TROUPE_OPERATIONS(TROUPE_OPERATION_DECLARATION)

}  // namespace troupe::TROUPE_DEVICE
