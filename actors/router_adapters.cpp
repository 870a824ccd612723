// Adapters, and calls of all workers: what the groups are asked on behalf of others.
#include <functional>

#include "actors/router_gather.hpp"
#include "runtime/base/log.hpp"

namespace troupe::router {
namespace {

/// Tells the Frontends which adapters requests may name.
void report_adapters(Self self) {
  report(self, {.healthy = state(self).healthy, .adapters = state(self).adapters.list()});
}

/// Asks the Schedulers; `done` gets the error of one of them, else the first list.
template <class Question>
void ask_adapters(Self self, const std::vector<SchedulerActor>& schedulers,
                  const Question& question, std::function<void(AdapterReply)> done) {
  const auto gathered = std::make_shared<Gathered<AdapterReply>>();
  gathered->done = [done = std::move(done)](Gathered<AdapterReply>& all) {
    AdapterReply joined{.adapters = {}, .error = std::move(all.error)};
    for (AdapterReply& reply : all.take_answers()) {
      if (!joined.error) joined.error = std::move(reply.error);
      if (joined.adapters.empty()) joined.adapters = std::move(reply.adapters);
    }
    done(std::move(joined));
  };
  for (const SchedulerActor& scheduler : schedulers) ask_one(self, scheduler, question, gathered);
}

}  // namespace

void match_adapters(Self self, const SchedulerActor& scheduler) {
  ask_adapters(self, {scheduler}, ListAdapters{}, [self, scheduler](const AdapterReply& reply) {
    if (reply.error)
      return log_warning("a group did not list its adapters", kv("error", reply.error->message));
    const AdapterRegistry::Difference difference = state(self).adapters.match(reply.adapters);
    for (const LoraRequest& missing : difference.to_load) {
      ask_adapters(self, {scheduler}, LoadAdapter{.name = missing.name, .path = missing.path},
                   [missing](const AdapterReply& loaded) {
                     if (loaded.error)
                       log_warning("an adapter could not be loaded again",
                                   kv("adapter", missing.name), kv("error", loaded.error->message));
                   });
    }
    for (const std::string& name : difference.to_unload)
      ask_adapters(self, {scheduler}, UnloadAdapter{name}, [](const AdapterReply&) {});
    report_adapters(self);
  });
}

caf::result<AdapterReply> load_adapter(Self self, const LoadAdapter& what) {
  RouterState& router = state(self);
  if (auto refusal = router.adapters.check_load(what))
    return AdapterReply{.adapters = {}, .error = std::move(refusal)};
  const std::vector<SchedulerActor> schedulers = schedulers_of(router, /*ready_only=*/true);
  if (!router.enable_adapters || schedulers.empty())
    return AdapterReply{
        .adapters = {},
        .error = router.enable_adapters
                     ? Error{ErrorCode::kUnavailable, "the engine is not ready"}
                     : Error{ErrorCode::kUnsupported, "adapters are not enabled, see enable-lora"}};
  auto promise = self->make_response_promise<AdapterReply>();
  ask_adapters(self, schedulers, what, [self, promise, what](AdapterReply reply) mutable {
    RouterState& now = state(self);
    if (!reply.error && reply.adapters.size() == 1) {
      reply.adapters = {now.adapters.add(std::move(reply.adapters.front()))};
      report_adapters(self);
    } else if (!now.adapters.find(what.name)) {
      // Another group may have loaded it.
      ask_adapters(self, schedulers_of(now, /*ready_only=*/true), UnloadAdapter{what.name},
                   [](const AdapterReply&) {});
    }
    promise.deliver(std::move(reply));
  });
  return promise;
}

caf::result<AdapterReply> unload_adapter(Self self, const UnloadAdapter& what) {
  RouterState& router = state(self);
  if (!router.adapters.remove(what.name))
    return AdapterReply{.adapters = {}, .error = unknown_adapter(what.name)};
  report_adapters(self);
  ask_adapters(self, schedulers_of(router, /*ready_only=*/true), what, [](const AdapterReply&) {});
  return AdapterReply{};
}

caf::result<CollectiveRpcReply> call_workers(Self self, const CollectiveRpc& what) {
  const std::vector<SchedulerActor> schedulers = schedulers_of(state(self), /*ready_only=*/true);
  if (schedulers.empty())
    return CollectiveRpcReply{.results = {},
                              .error = Error{ErrorCode::kUnavailable, "the engine is not ready"}};
  auto promise = self->make_response_promise<CollectiveRpcReply>();
  const auto gathered = std::make_shared<Gathered<CollectiveRpcReply>>();
  gathered->done = [promise](Gathered<CollectiveRpcReply>& all) mutable {
    CollectiveRpcReply joined{.results = {}, .error = std::move(all.error)};
    for (CollectiveRpcReply& reply : all.take_answers()) {
      if (!joined.error) joined.error = std::move(reply.error);
      joined.results.insert(joined.results.end(), reply.results.begin(), reply.results.end());
    }
    if (joined.error) joined.results.clear();
    promise.deliver(std::move(joined));
  };
  for (const SchedulerActor& scheduler : schedulers) ask_one(self, scheduler, what, gathered);
  return promise;
}

}  // namespace troupe::router
