// The publisher of KV events: passes each batch to the core, whose thread sends it to subscribers.
#include "runtime/kv_events/publisher.hpp"

#include "actors/spawn.hpp"

namespace troupe {
namespace {

struct KVEventPublisherState {
  KVEventPublisherState() = default;
  static inline const char* name = "kv_event_publisher";
  std::shared_ptr<KVEventPublisher> core;
};

KVEventPublisherActor::behavior_type kv_event_publisher_behavior(
    KVEventPublisherActor::stateful_pointer<KVEventPublisherState> self,
    const std::shared_ptr<KVEventPublisher>& core) {
  state(self).core = core;
  return {[self](KVEventBatch& batch) { state(self).core->publish(std::move(batch)); }};
}

}  // namespace

KVEventPublisherActor spawn_kv_event_publisher(caf::actor_system& system,
                                               std::shared_ptr<KVEventPublisher> core) {
  return system.spawn(kv_event_publisher_behavior, std::move(core));
}

}  // namespace troupe
