#pragma once
// Ranks on one host, in one process or in several: they meet at a socket, and compute in memory
// that all of them map.

#include <memory>

#include "runtime/worker/communicators/create.hpp"

namespace troupe {

/// "shm:NAME". Rank 0 makes the memory (a memfd) and hands it to the others through a Unix socket
/// of the abstract namespace, so that nothing has a name in a file system and nothing is left when
/// all are gone, however they went. Only processes of the same user are let in.
Result<std::unique_ptr<Communicator>> create_shared_memory_communicator(
    const CommunicatorOptions& options);

}  // namespace troupe
