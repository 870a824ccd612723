// The KVCacheManager: carries each question to the core and its answer back.
#include "runtime/cache/kv_cache_manager.hpp"

#include "actors/spawn.hpp"

namespace troupe {
namespace {

struct KVCacheManagerState {
  KVCacheManagerState() = default;
  static inline const char* name = "kv_cache_manager";
  std::unique_ptr<KVCacheManager> core;
};

KVCacheManagerActor::behavior_type kv_cache_manager_behavior(
    KVCacheManagerActor::stateful_pointer<KVCacheManagerState> self,
    const KVCacheSettings& settings) {
  state(self).core = std::make_unique<KVCacheManager>(settings);
  KVCacheManager& core = *state(self).core;
  return {
      [&core](const KVCacheUpdates& updates) { core.apply(updates); },
      [&core](const AllocateSlots& question) { return core.allocate(question); },
      [&core](const LookupPrefix& question) { return core.lookup(question); },
      [&core](const AdmitRequest& question) { return core.admit(question); },
      [&core](const TakeBlockWork& question) { return core.take_block_work(question); },
      [&core](const ResetPrefixCache& question) { return core.reset(question); },
  };
}

}  // namespace

KVCacheManagerActor spawn_kv_cache_manager(caf::actor_system& system,
                                           const KVCacheSettings& settings) {
  return system.spawn(kv_cache_manager_behavior, settings);
}

}  // namespace troupe
