// Rendering: prompts that an input processor of some group makes for a client.
#include "actors/deadlines.hpp"
#include "actors/router_state.hpp"
#include "runtime/base/guard.hpp"

namespace troupe::router {
namespace {

constexpr std::size_t kMaxRenders = 1024;  ///< unanswered
constexpr int kMaxRenderTries = 3;

void try_render(Self self, RequestId id) {
  RouterState& router = state(self);
  PendingRender& render = router.renders.at(id);
  ++render.num_tries;
  render.group = router.any_group(value(id));
  ask(self, router.groups[*render.group]->input_processor(value(id)), render.request)
      .then(
          [self, id](RenderReply& reply) {
            auto pending = state(self).renders.extract(id);
            if (pending.empty()) return;
            state(self).book.remove(id);
            pending.mapped().promise.deliver(std::move(reply));
          },
          [](const caf::error&) {});  // another group will be asked
}

}  // namespace

caf::result<RenderReply> take_render(Self self, RenderRequest& request) {
  RouterState& router = state(self);
  if (router.failure) return RenderReply{.error = router.failure};
  if (router.renders.size() >= kMaxRenders) {
    return RenderReply{
        .error = Error{ErrorCode::kOverloaded, std::to_string(kMaxRenders) +
                                                   " requests wait for an input processor, "
                                                   "which is the limit"}};
  }
  const auto client = sender_of(self);
  if (value(request.id) == 0 || !client) {
    request.id = router.book.allocate(1);
  } else {
    const auto id = router.book.add(*client, request.id, 1, false);
    if (!id.ok()) return RenderReply{.error = id.error()};
    request.id = *id;
  }
  const RequestId id = request.id;
  auto promise = self->make_response_promise<RenderReply>();
  auto thrown = guard([&] {
    router.renders.emplace(id, PendingRender{std::move(request), promise});
    if (router.has_ready_group()) try_render(self, id);
  });
  if (thrown) {
    router.renders.erase(id);
    router.book.remove(id);
    promise.deliver(RenderReply{.error = std::move(thrown)});
  }
  return promise;
}

void end_render(Self self, RequestId id, const Error& error) {
  RouterState& router = state(self);
  auto ended = router.renders.extract(id);
  if (ended.empty()) return;
  router.book.remove(id);
  PendingRender& render = ended.mapped();
  if (render.group && router.groups[*render.group]) {
    send(self, router.groups[*render.group]->input_processor(value(id)), AbortRequests{{id}});
  }
  render.promise.deliver(RenderReply{.error = error});
}

void end_renders(Self self, const Error& error) {
  while (!state(self).renders.empty()) end_render(self, state(self).renders.begin()->first, error);
}

void try_waiting_renders(Self self) {
  RouterState& router = state(self);
  if (!router.has_ready_group()) return;
  for (auto next = router.renders.begin(); next != router.renders.end();) {
    const auto current = next++;
    if (current->second.group) continue;
    if (current->second.num_tries < kMaxRenderTries) {
      try_render(self, current->first);
      continue;
    }
    auto ended = router.renders.extract(current);
    router.book.remove(ended.key());
    ended.mapped().promise.deliver(
        RenderReply{.error = Error{ErrorCode::kInternal,
                                   "the engine was lost " + std::to_string(kMaxRenderTries) +
                                       " times before it answered this request"}});
  }
}

}  // namespace troupe::router
