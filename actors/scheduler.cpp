// The Scheduler's actor: who may ask it what.
#include <utility>

#include "actors/scheduler_ports.hpp"
#include "actors/scheduler_state.hpp"
#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/multimodal/processor_cache.hpp"
#include "runtime/processors/adapter_registry.hpp"

namespace troupe {
namespace {

/// Adds the data of items that was sent with earlier requests; all samples share their items.
ItemsMissing complete_items(SchedulerSelf self, std::vector<EngineCoreRequest>& samples) {
  if (samples.empty() || samples.front().mm_features.empty()) return {};
  std::vector<MultiModalFeature>& items = samples.front().mm_features;
  ItemsMissing missing;
  if (ItemCache* const cache = state(self).peers.item_cache.get()) {
    missing.identifiers = cache->complete(items);
  } else {
    for (const MultiModalFeature& item : items)
      if (item.data == nullptr) missing.identifiers.push_back(item.identifier);
  }
  for (EngineCoreRequest& sample : samples)
    for (std::size_t i = 0; i < sample.mm_features.size(); ++i)
      sample.mm_features[i].data = items[i].data;
  return missing;
}

/// Loading reads files, perhaps from a network.
constexpr double kAdapterDeadlineS = 120;

/// Between two steps, on all workers; `render` makes the reply.
template <class Reply>
caf::result<Reply> call_workers(SchedulerSelf self, CollectiveRpc rpc,
                                Reply (*render)(CollectiveRpcReply)) {
  auto promise = self->make_response_promise<Reply>();
  const auto deadline = from_seconds(rpc.timeout_s + 1);
  ask(self, state(self).peers.executor, deadline, std::move(rpc))
      .then([promise, render](
                CollectiveRpcReply& reply) mutable { promise.deliver(render(std::move(reply))); },
            [self, promise, render](const caf::error& error) mutable {
              promise.deliver(render(
                  {.results = {},
                   .error = Error{ErrorCode::kUnavailable, "no reply from the workers: " +
                                                               to_text(error, self->system())}}));
            });
  return promise;
}

caf::result<AdapterReply> call_adapters(SchedulerSelf self, WorkerMethod method) {
  return call_workers<AdapterReply>(self, {std::move(method), kAdapterDeadlineS}, join_ranks);
}

CollectiveRpcReply as_it_is(CollectiveRpcReply reply) { return reply; }

SchedulerActor::behavior_type scheduler_behavior(SchedulerSelf self, const SchedulerConfig& config,
                                                 const SchedulerPeers& peers) {
  SchedulerState& scheduler = state(self);
  scheduler.peers = peers;
  scheduler.incarnation = config.incarnation;
  scheduler.max_open_steps = static_cast<std::size_t>(config.max_concurrent_batches());
  scheduler.kv_cache = make_kv_cache_port(self, peers.kv_cache_manager);
  if (peers.encoder_cache_manager)
    scheduler.encoder_cache = make_encoder_cache_port(self, peers.encoder_cache_manager);
  scheduler.core =
      std::make_unique<Scheduler>(config, *scheduler.kv_cache, scheduler.encoder_cache.get(),
                                  peers.kv_connector.get(), peers.ec_connector.get());
  return {
      [self](EngineCoreRequests& request) {
        static_cast<void>(complete_items(self, request.samples));
        for (EngineCoreRequest& sample : request.samples) receive(self, std::move(sample));
      },
      [self](CachedItemRequests& request) {
        ItemsMissing missing = complete_items(self, request.samples);
        if (missing.identifiers.empty())
          for (EngineCoreRequest& sample : request.samples) receive(self, std::move(sample));
        return missing;
      },
      [self](AbortRequests& abort) { receive(self, std::move(abort)); },
      [self](ModelRunnerOutput& result) { receive(self, std::move(result)); },
      [self](StepFailed& failure) { receive(self, std::move(failure)); },
      [self](GrammarCompiled& compiled) { receive(self, std::move(compiled)); },
      [self](const GrammarFilled& filled) { receive_masks(self, filled); },
      [self](WakeUp& wake_up) { receive(self, std::move(wake_up)); },
      [self](const ResetCaches& what) -> caf::result<CachesReset> {
        auto promise = self->make_response_promise<CachesReset>();
        receive(self, PendingReset{what, promise});
        return promise;
      },
      [self](MoveCache& what) -> caf::result<CacheMoved> {
        auto promise = self->make_response_promise<CacheMoved>();
        receive(self, PendingMove{std::move(what), promise});
        return promise;
      },
      [self](const PauseScheduler& what) -> caf::result<PauseStatus> {
        auto promise = self->make_response_promise<PauseStatus>();
        receive(self, PendingPause{what, promise});
        return promise;
      },
      [self](const ResumeScheduler&) -> caf::result<PauseStatus> {
        auto promise = self->make_response_promise<PauseStatus>();
        receive(self, PendingResume{promise});
        return promise;
      },
      [self](const AskPaused&) {
        return PauseStatus{state(self).core->pause_state() != PauseState::kUnpaused};
      },
      [self](const LoadAdapter& what) { return call_adapters(self, what); },
      [self](const UnloadAdapter& what) { return call_adapters(self, what); },
      [self](const ListAdapters& what) { return call_adapters(self, what); },
      [self](const CollectiveRpc& rpc) {
        return call_workers<CollectiveRpcReply>(self, rpc, as_it_is);
      },
  };
}

}  // namespace

SchedulerActor spawn_scheduler(caf::actor_system& system, const SchedulerConfig& config,
                               const SchedulerPeers& peers) {
  return system.spawn(scheduler_behavior, config, peers);
}

}  // namespace troupe
