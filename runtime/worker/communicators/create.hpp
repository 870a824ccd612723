#pragma once
// Where the ranks of a group meet.

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/models/communicator.hpp"

namespace troupe {

struct CommunicatorOptions {
  std::string rendezvous;  ///< "shm:NAME" on one host, "tcp:HOST:PORT" (of rank 0) between hosts
  /// Over TCP: ranks show each other that they know it (HMAC over nonces) before anything else, so
  /// that nobody else is let in. What they say afterwards is neither encrypted nor signed.
  std::string secret;
  /// Of the meeting: only ranks that come to the same one find each other, and who waits in an
  /// older one than another rank gives up.
  std::uint32_t generation = 0;
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::int32_t group_size = 1;  ///< ranks that do collective operations together
  double timeout_s = 300;       ///< for the meeting, and for every wait after it
  bool spin = false;            ///< a core is free for whoever waits
};

/// Returns when all ranks are there. Errors: kInvalidArgument (the rendezvous), kTimeout and
/// kUnavailable naming who is missing, or that there is a newer meeting, kIo, kUnsupported (a peer
/// of another build).
Result<std::unique_ptr<Communicator>> create_communicator(const CommunicatorOptions& options);

}  // namespace troupe
