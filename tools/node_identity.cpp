// CAF 0.17 derives a process's id from the host's MAC addresses, its root file system and the
// process id: two containers with process id 1 each get the same one, and cannot connect. This
// definition overrides the library's and uses a random id.
#include <sys/random.h>
#include <unistd.h>

#include <caf/node_id.hpp>

#include "messages/caf_compat.hpp"

#if !TROUPE_CAF_TYPE_IDS

caf::node_id caf::node_id::default_data::local(const caf::actor_system_config&) {
  host_id_type host{};
  if (getrandom(host.data(), host.size(), 0) != static_cast<ssize_t>(host.size())) std::abort();
  return make_node_id(static_cast<std::uint32_t>(getpid()), host);
}

#endif
