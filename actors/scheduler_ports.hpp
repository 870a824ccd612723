#pragma once
// The Scheduler's questions to the cache managers, as messages.

#include <memory>

#include "messages/actor_interfaces.hpp"
#include "runtime/scheduler/ports.hpp"

namespace troupe {

[[nodiscard]] std::unique_ptr<KVCachePort> make_kv_cache_port(SchedulerActor::pointer self,
                                                              KVCacheManagerActor manager);
[[nodiscard]] std::unique_ptr<EncoderCachePort> make_encoder_cache_port(
    SchedulerActor::pointer self, EncoderCacheManagerActor manager);

}  // namespace troupe
