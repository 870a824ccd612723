#include "runtime/worker/communicators/create.hpp"

#include "runtime/worker/communicators/shared_memory.hpp"
#include "runtime/worker/communicators/tcp.hpp"

namespace troupe {

Result<std::unique_ptr<Communicator>> create_communicator(const CommunicatorOptions& options) {
  CHECK(options.rank >= 0 && options.rank < options.size, options.rank, options.size);
  CHECK(options.group_size > 0 && options.size % options.group_size == 0, options.group_size,
        options.size);
  if (options.rendezvous.starts_with("shm:")) return create_shared_memory_communicator(options);
  if (options.rendezvous.starts_with("tcp:")) return create_tcp_communicator(options);
  return invalid_argument(
      "rendezvous is '" + options.rendezvous + "', neither shm:NAME nor tcp:HOST:PORT",
      "rendezvous");
}

}  // namespace troupe
