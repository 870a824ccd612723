#include "runtime/worker/device_communicator.hpp"

#include "runtime/worker/staged_communicator.hpp"
#if defined(TROUPE_NCCL)
#include "runtime/worker/communicators/nccl/nccl.hpp"
#endif

namespace troupe {

Result<std::unique_ptr<Communicator>> create_device_communicator(const CommunicatorOptions& options,
                                                                 Device& device,
                                                                 Communicator& hosts) {
  if (device.is_host()) return std::unique_ptr<Communicator>();
#if defined(TROUPE_NCCL)
  const bool on_one_host = options.rendezvous.starts_with("shm:");
  if (device.name() == "cuda" && on_one_host && !device.is_shared())
    return create_nccl_communicator(hosts, options.timeout_s, device.context().stream);
#else
  static_cast<void>(options);
#endif
  return std::unique_ptr<Communicator>(std::make_unique<StagedCommunicator>(device, hosts));
}

}  // namespace troupe
