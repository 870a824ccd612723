#pragma once
// Ranks on one host, in one process or in several: they meet at a socket, and compute in memory
// that all of them map.

#include <memory>

#include "runtime/worker/communicators/create.hpp"

namespace troupe {

/// "shm:NAME". Rank 0 creates the memory (a memfd) and passes it to the others by a Unix socket of
/// the abstract namespace, so that nothing has a name in a file system and nothing is left after
/// the end of all ranks, even by kill -9. Only processes of the same user can connect.
Result<std::unique_ptr<Communicator>> create_shared_memory_communicator(
    const CommunicatorOptions& options);

}  // namespace troupe
