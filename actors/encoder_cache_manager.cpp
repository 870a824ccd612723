// The EncoderCacheManager: forwards each request to the core and replies with the result.
#include "runtime/cache/encoder_cache_manager.hpp"

#include "actors/spawn.hpp"

namespace troupe {
namespace {

struct EncoderCacheManagerState {
  EncoderCacheManagerState() = default;
  static inline const char* name = "encoder_cache_manager";
  std::unique_ptr<EncoderCacheManager> core;
};

EncoderCacheManagerActor::behavior_type encoder_cache_manager_behavior(
    EncoderCacheManagerActor::stateful_pointer<EncoderCacheManagerState> self,
    const EncoderCacheSettings& settings) {
  state(self).core = make_encoder_cache_manager(settings);
  EncoderCacheManager& core = *state(self).core;
  return {
      [&core](const EncoderCacheUpdates& updates) { core.apply(updates); },
      [&core](const PlanEncoderInputs& question) { return core.plan(question); },
      [&core](const TakeFreedEncoderOutputs& question) { return core.take_freed(question); },
  };
}

}  // namespace

EncoderCacheManagerActor spawn_encoder_cache_manager(caf::actor_system& system,
                                                     const EncoderCacheSettings& settings) {
  return system.spawn(encoder_cache_manager_behavior, settings);
}

}  // namespace troupe
