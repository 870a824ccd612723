#pragma once
// Ranks on NVIDIA GPUs, one each.

#include <memory>

#include "runtime/models/communicator.hpp"

namespace troupe {

/// Data are in the memory of the current device. Operations are enqueued on `stream` (a
/// cudaStream_t) and done in its order; barrier and status wait for it, until the deadline. recv is
/// true when it is enqueued.
///
/// The ranks have met as `hosts`, which outlives the result: it carries NCCL's id, and aborts.
/// Where NCCL would choose an order of additions by itself, only pairs are summed: the pairs of
/// neighbours, then the pairs of these, which is the canonical tree.
/// timeout_s: for each wait. Errors: those of `hosts`; kUnsupported with NCCL's reason (two ranks
/// on one device).
Result<std::unique_ptr<Communicator>> create_nccl_communicator(Communicator& hosts,
                                                               double timeout_s, void* stream);

}  // namespace troupe
