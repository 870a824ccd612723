// The KVCacheManager: forwards each request to the core and replies with the result; sends the
// prefix cache's events to the publisher.
#include "runtime/cache/kv_cache_manager.hpp"

#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"

namespace troupe {
namespace kv_cache_manager {
namespace {

struct KVCacheManagerState {
  KVCacheManagerState() = default;
  static inline const char* name = "kv_cache_manager";
  std::unique_ptr<KVCacheManager> core;
  KVEventPublisherActor publisher;  ///< null: events are disabled
};

using Self = KVCacheManagerActor::stateful_pointer<KVCacheManagerState>;

void publish_events(Self self) {
  KVCacheManagerState& manager = state(self);
  if (!manager.publisher) return;
  std::vector<KVCacheEvent> events = manager.core->take_events();
  if (!events.empty()) {
    send(self, manager.publisher, KVEventBatch{wall_seconds(), std::move(events)});
  }
}

/// The clock is read only with metrics.
void tell_time(Self self) {
  BlockMetrics* metrics = state(self).core->metrics();
  if (metrics != nullptr) metrics->set_time(now_seconds());
}

/// Updates of requests arrive after the result of a step: the events recorded until then are that
/// step's batch, and its blocks are computed.
void publish_step(Self self, const KVCacheUpdates& updates) {
  if (!updates.empty()) publish_events(self);
}

KVCacheManagerActor::behavior_type kv_cache_manager_behavior(
    Self self, const KVCacheSettings& settings, const KVEventPublisherActor& publisher) {
  state(self).core = std::make_unique<KVCacheManager>(settings);
  state(self).publisher = publisher;
  KVCacheManager& core = *state(self).core;
  const auto answer = [self](const auto& question, auto ask) {
    tell_time(self);
    publish_step(self, question.updates);
    return (state(self).core.get()->*ask)(question);
  };
  return {
      [self, &core](const KVCacheUpdates& updates) {
        tell_time(self);
        core.apply(updates);
        publish_events(self);  // no step follows
      },
      [=](const AllocateSlots& question) { return answer(question, &KVCacheManager::allocate); },
      [=](const LookupPrefix& question) { return answer(question, &KVCacheManager::lookup); },
      [=](const AdmitRequest& question) { return answer(question, &KVCacheManager::admit); },
      [=](const GetBlockOps& question) { return answer(question, &KVCacheManager::get_block_ops); },
      [=](const ReadBlockTable& question) {
        return answer(question, &KVCacheManager::read_block_table);
      },
      [=](const FindInvalidBlocks& question) {
        return answer(question, &KVCacheManager::find_invalid_blocks);
      },
      [self, answer](const ResetPrefixCache& question) {
        const PrefixCacheReset reset = answer(question, &KVCacheManager::reset);
        publish_events(self);
        return reset;
      },
      [self](KVEventBatch& events) {
        if (const auto& to = state(self).publisher) send(self, to, std::move(events));
      },
  };
}

}  // namespace
}  // namespace kv_cache_manager

KVCacheManagerActor spawn_kv_cache_manager(caf::actor_system& system,
                                           const KVCacheSettings& settings,
                                           KVEventPublisherActor publisher) {
  return system.spawn(kv_cache_manager::kv_cache_manager_behavior, settings, std::move(publisher));
}

}  // namespace troupe
