#pragma once
// Where the ranks of a group meet.

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/models/communicator.hpp"

namespace troupe {

struct CommunicatorOptions {
  std::string rendezvous;  ///< "shm:NAME" on one host, "tcp:HOST:PORT" (of rank 0) between hosts
  /// Over TCP: ranks first authenticate each other with it (HMAC over nonces); peers without it are
  /// rejected. Later traffic is neither encrypted nor signed.
  std::string secret;
  /// Of the rendezvous: only ranks of the same generation connect, and a rank that waits in an
  /// older one than another rank fails.
  std::uint32_t generation = 0;
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::int32_t group_size = 1;  ///< ranks that do collective operations together
  double timeout_s = 300;       ///< for the rendezvous, and for every wait after it
  bool spin = false;            ///< busy waiting: a core is free for it
};

/// Returns when all ranks are connected. Errors: kInvalidArgument (the rendezvous), kTimeout and
/// kUnavailable (missing ranks, or a newer generation), kIo, kUnsupported (a peer of another
/// build).
Result<std::unique_ptr<Communicator>> create_communicator(const CommunicatorOptions& options);

}  // namespace troupe
