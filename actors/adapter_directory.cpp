// Watches a folder of adapters for the RequestRouter.
#include "runtime/processors/adapter_directory.hpp"

#include <chrono>
#include <memory>

#include "actors/deadlines.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace adapter_directory {
namespace {

using namespace std::chrono_literals;

constexpr auto kScanInterval = 1s;

struct AdapterDirectoryState {
  AdapterDirectoryState() = default;
  static inline const char* name = "adapter_directory";
  std::unique_ptr<AdapterDirectory> directory;
};

using Self = AdapterDirectoryActor::stateful_pointer<AdapterDirectoryState>;

void scan(Self self, const RequestRouterActor& router) {
  const AdapterDirectory::Changes changes = state(self).directory->scan();
  for (const LoadAdapter& load : changes.to_load) {
    ask(self, router, kPauseDeadline, load)
        .then(
            [self, name = load.name](const AdapterReply& reply) {
              if (!reply.error) return;
              if (reply.error->code == ErrorCode::kUnavailable)
                return state(self).directory->retry(name);
              log_warning("an adapter of the folder cannot be loaded", kv("adapter", name),
                          kv("error", reply.error->message));
            },
            [self, name = load.name](const caf::error&) { state(self).directory->retry(name); });
  }
  for (const std::string& name : changes.to_unload)
    ask(self, router, kPauseDeadline, UnloadAdapter{name})
        .then([](const AdapterReply&) {}, [](const caf::error&) {});
  const AdapterDirectoryActor me = self;
  send_after(self, kScanInterval, me, WakeUp{});
}

AdapterDirectoryActor::behavior_type adapter_directory_behavior(Self self,
                                                                const std::string& folder,
                                                                const RequestRouterActor& router) {
  state(self).directory = std::make_unique<AdapterDirectory>(folder);
  // Not kept alive by this actor, which ends with it.
  const auto address = router.address();
  self->monitor(router);
  self->set_down_handler([self](const caf::down_msg& down) { self->quit(down.reason); });
  const AdapterDirectoryActor me = self;
  post(me, WakeUp{});
  return {[self, address](const WakeUp&) {
    const auto router =
        caf::actor_cast<RequestRouterActor>(caf::actor_cast<caf::strong_actor_ptr>(address));
    if (router) scan(self, router);
  }};
}

}  // namespace
}  // namespace adapter_directory

AdapterDirectoryActor spawn_adapter_directory(caf::actor_system& system, std::string folder,
                                              const RequestRouterActor& router) {
  return system.spawn<caf::detached>(adapter_directory::adapter_directory_behavior,
                                     std::move(folder), router);
}

}  // namespace troupe
