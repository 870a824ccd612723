#pragma once
// Ranks on NVIDIA GPUs, one each.

#include <memory>

#include "runtime/worker/communicators/create.hpp"

namespace troupe {

/// Data are in the memory of the current device. Operations are enqueued on `stream` (a
/// cudaStream_t) and done in its order; barrier and status wait for it, until the deadline. recv is
/// true when it is enqueued.
///
/// The ranks meet at the rendezvous of the host's communicators, which also carries aborts. Where
/// NCCL would choose an order of additions by itself, only pairs are summed: the pairs of
/// neighbours, then the pairs of these, which is the canonical tree.
/// Errors: those of create_communicator; kUnsupported with NCCL's reason (two ranks on one device).
Result<std::unique_ptr<Communicator>> create_nccl_communicator(const CommunicatorOptions& options,
                                                               void* stream);

}  // namespace troupe
