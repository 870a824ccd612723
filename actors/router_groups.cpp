// The engines of the groups: connecting, losing and draining them.
#include <algorithm>
#include <chrono>

#include "actors/deadlines.hpp"
#include "actors/router_state.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"

namespace troupe::router {
namespace {

using namespace std::chrono_literals;

constexpr auto kSubscribeDeadline = 60s;

/// The group's outputs arrive here from now on, so it can be sent requests.
void on_subscribed(Self self, std::size_t group) {
  RouterState& router = state(self);
  router.groups[group]->ready = true;
  if (router.paused) pause_again(self, *router.groups[group]);
  if (router.enable_adapters) match_adapters(self, router.groups[group]->scheduler);
  report(self, {.healthy = true});
  router.journal->group_ready(group);
  submit_waiting(self);
  try_waiting_renders(self);
}

void connect_engine(Self self, std::size_t group, EngineLink engine) {
  const OutputProcessorActor to = engine.output_processor;
  state(self).groups[group] = std::move(engine);
  ask(self, to, kSubscribeDeadline, Subscribe{})
      .then(
          [self, group, to](const Status&) {
            const std::optional<EngineLink>& link = state(self).groups[group];
            if (link && link->output_processor == to) on_subscribed(self, group);
          },
          [self](const caf::error& error) {
            // The Supervisor monitors it and replaces its engine.
            log_warning("the output processor did not accept the subscription",
                        kv("error", to_text(error, self->system())));
          });
}

/// The Supervisor did not end the group: it is used again, unless it has been lost meanwhile. If
/// only the answer was late, the group is lost like any other when it ends.
void reopen_group(Self self, std::uint32_t group, const std::string& reason) {
  log_warning("drained group not ended", kv("group", group), kv("reason", reason));
  const std::optional<EngineLink>& link = state(self).groups[group];
  if (!link || !link->ready) return;
  state(self).journal->group_ready(group);
  submit_waiting(self);
}

/// Why the group cannot be drained.
std::optional<Error> refuse_drain(const RouterState& router, std::uint32_t group) {
  const std::string name = "group " + std::to_string(group);
  if (group >= router.groups.size()) {
    return invalid_argument(
        name + ": the groups are 0 to " + std::to_string(router.groups.size() - 1), "group");
  }
  if (router.draining.contains(group))
    return invalid_argument(name + " is being drained already", "group");
  for (std::size_t other = 0; other < router.groups.size(); ++other) {
    const std::optional<EngineLink>& link = router.groups[other];
    const bool drains = router.draining.contains(static_cast<std::uint32_t>(other));
    if (other != group && link && link->ready && !drains) return std::nullopt;
  }
  return invalid_argument("no group other than " + std::to_string(group) + " accepts requests",
                          "group");
}

}  // namespace

void take_engine(Self self, const EngineReady& ready, EngineLink engine) {
  RouterState& router = state(self);
  router.supervisor = caf::actor_cast<SupervisorActor>(self->current_sender());
  if (engine.output_processor.address() == router.lost_engines[ready.group]) {
    // A Supervisor died before it could end this engine, and the next one found it running. The
    // requests that it still runs are run by others under the same ids.
    if (router.supervisor)
      send(self, router.supervisor, EngineRefused{ready.group, ready.incarnation});
    return;
  }
  if (const auto& link = router.groups[ready.group]) {
    // Another Supervisor has found it running.
    if (link->output_processor == engine.output_processor && link->scheduler == engine.scheduler)
      return;
    lose_engine(self, {.group = ready.group, .reason = "replaced by another engine"});
  }
  connect_engine(self, ready.group, std::move(engine));
}

void lose_engine(Self self, const EngineLost& lost) {
  RouterState& router = state(self);
  const std::optional<EngineLink> link = std::exchange(router.groups[lost.group], std::nullopt);
  if (link) router.lost_engines[lost.group] = link->output_processor.address();
  router.coordinator->forget(lost.group);
  report(self, {.healthy = router.has_ready_group(), .lost_group = lost.group});
  RequestJournal::Lost taken_back =
      router.journal->group_lost(lost.group, lost.cause, lost.returns);
  log_warning("engine lost", kv("group", lost.group), kv("reason", lost.reason),
              kv("crashed", lost.cause == LossCause::kCrashed), kv("returns", lost.returns),
              kv("requests", taken_back.num_resubmissions),
              kv("ended", taken_back.ended.outputs.size()),
              kv("quarantine", router.journal->in_quarantine()));
  hand_out(self, std::move(taken_back.ended));
  if (link) end_questions(self, *link, lost.reason);
  answer_drains(self);
  submit_waiting(self);
  for (auto& [id, render] : router.renders) {
    if (render.group == lost.group) render.group.reset();
  }
  try_waiting_renders(self);
}

caf::result<Status> drain_group(Self self, const DrainGroup& what) {
  RouterState& router = state(self);
  if (auto refusal = refuse_drain(router, what.group)) return Status{*std::move(refusal)};
  auto promise = self->make_response_promise<Status>();
  const std::uint64_t number = ++router.num_drains;
  router.draining.emplace(what.group, GroupDrain{promise, number});
  router.journal->close_group(what.group);
  const RequestRouterActor me = self;
  send_after(self, from_seconds(what.timeout_s), me, GroupDrainTimeout{what.group, number});
  end_idle_groups(self);
  return promise;
}

void end_drained_group(Self self, std::uint32_t group) {
  RouterState& router = state(self);
  auto promise = std::move(router.draining.extract(group).mapped().promise);
  log_info("group drained", kv("group", group), kv("moved", router.journal->num_in(group)));
  ask(self, router.supervisor, kControlDeadline, EndGroup{group})
      .then(
          [self, group, promise](const Status& status) mutable {
            if (status.error) reopen_group(self, group, status.error->message);
            promise.deliver(status);
          },
          [self, group, promise](const caf::error& error) mutable {
            reopen_group(self, group, to_text(error, self->system()));
            promise.deliver(error);
          });
}

void end_idle_groups(Self self) {
  std::vector<std::uint32_t> idle;
  for (const auto& [group, drain] : state(self).draining) {
    if (state(self).journal->num_in(group) == 0) idle.push_back(group);
  }
  for (const std::uint32_t group : idle) end_drained_group(self, group);
}

}  // namespace troupe::router
