#pragma once
// Ranks on several hosts: a connection between every two of them.

#include <memory>

#include "runtime/worker/communicators/create.hpp"

namespace troupe {

/// "tcp:HOST:PORT": rank 0 listens there, the others come and learn where all are. What travels is
/// neither encrypted nor authenticated: for networks that only the engine's hosts reach.
Result<std::unique_ptr<Communicator>> create_tcp_communicator(const CommunicatorOptions& options);

}  // namespace troupe
