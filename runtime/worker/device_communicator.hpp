#pragma once
// How ranks exchange data that lie on their devices.

#include <memory>

#include "runtime/models/communicator.hpp"
#include "runtime/models/device.hpp"
#include "runtime/worker/communicators/create.hpp"

namespace troupe {

/// Of ranks that have met as `hosts`, by these options: NCCL between the GPUs of one host where
/// this build has it and each rank has a GPU of its own, else over the host's memory. Null: the
/// device is the CPU, whose data `hosts` moves. All ranks choose alike, as they are of one build
/// and on one kind of device. Device and hosts outlive the result. Errors: those of NCCL, which
/// fail `hosts` as well.
Result<std::unique_ptr<Communicator>> create_device_communicator(const CommunicatorOptions& options,
                                                                 Device& device,
                                                                 Communicator& hosts);

}  // namespace troupe
