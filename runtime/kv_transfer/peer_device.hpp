#pragma once
// How KV goes from the device of one rank to that of another, without the memory of the hosts.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/peer_link.hpp"

namespace troupe {

/// A part of a page in the memory of a device.
struct PeerPart {
  std::byte* data = nullptr;
  std::size_t num_bytes = 0;
};

/// One end of a pair of ranks, each with a device of its own; used by one thread. After an error it
/// is of no use any more. Every wait ends with its deadline.
class PeerDevice {
 public:
  enum class End : std::uint8_t { kServes, kLoads };

  virtual ~PeerDevice() = default;
  /// The same parts, by their sizes, in the same order on both ends. They are done when the call
  /// returns. What was enqueued on the device before is awaited first. Errors: kTimeout,
  /// kUnavailable with NCCL's reason.
  virtual Result<void> send(std::span<const PeerPart> parts, SteadyTime deadline) = 0;
  virtual Result<void> receive(std::span<const PeerPart> parts, SteadyTime deadline) = 0;
};

/// Whether this build has NCCL. Errors: kUnsupported.
[[nodiscard]] Result<void> check_peer_devices();
/// Of a new pair; the serving end makes it and tells the other one.
[[nodiscard]] Result<std::string> make_peer_device_id();
/// The device that the calling thread uses.
[[nodiscard]] int current_peer_device();
/// Returns when both ends are there. Errors: as of send; kUnsupported, both have the same device.
[[nodiscard]] Result<std::unique_ptr<PeerDevice>> meet_peer_device(const std::string& id,
                                                                   PeerDevice::End end, int device,
                                                                   SteadyTime deadline);

}  // namespace troupe
