// Questions of clients that the RequestRouter answers: the caches, pausing, adapters, the topology.
#include "actors/frontend_state.hpp"

namespace troupe::frontend {
namespace {

template <class Answer, class Question>
caf::result<Answer> hand_on(Self self, const Question& question) {
  FrontendState& frontend = state(self);
  if (!frontend.router) return exit_reason_of("the request router is gone");
  auto promise = self->make_response_promise<Answer>();
  const std::uint64_t number = frontend.num_questions++;
  frontend.questions.emplace(
      number, [promise](const caf::error& error) mutable { promise.deliver(error); });
  ask(self, frontend.router, question)
      .then(
          [self, number, promise](Answer& answer) mutable {
            if (state(self).questions.erase(number) > 0) promise.deliver(std::move(answer));
          },
          [self, number](const caf::error& error) {
            auto waiting = state(self).questions.extract(number);
            if (!waiting.empty()) waiting.mapped()(error);
          });
  return promise;
}

}  // namespace

caf::result<RenderReply> ask_router(Self self, const RenderRequest& what) {
  return hand_on<RenderReply>(self, what);
}
caf::result<CachesReset> ask_router(Self self, const ResetCaches& what) {
  return hand_on<CachesReset>(self, what);
}
caf::result<CacheMoved> ask_router(Self self, const MoveCache& what) {
  return hand_on<CacheMoved>(self, what);
}
caf::result<PauseStatus> ask_router(Self self, const PauseScheduler& what) {
  return hand_on<PauseStatus>(self, what);
}
caf::result<PauseStatus> ask_router(Self self, const ResumeScheduler& what) {
  return hand_on<PauseStatus>(self, what);
}
caf::result<PauseStatus> ask_router(Self self, const AskPaused& what) {
  return hand_on<PauseStatus>(self, what);
}
caf::result<Status> ask_router(Self self, const DrainGroup& what) {
  return hand_on<Status>(self, what);
}
caf::result<TopologyStatus> ask_router(Self self, const AskTopology& what) {
  return hand_on<TopologyStatus>(self, what);
}
caf::result<AdapterReply> ask_router(Self self, const LoadAdapter& what) {
  return hand_on<AdapterReply>(self, what);
}
caf::result<AdapterReply> ask_router(Self self, const UnloadAdapter& what) {
  return hand_on<AdapterReply>(self, what);
}
caf::result<CollectiveRpcReply> ask_router(Self self, const CollectiveRpc& what) {
  return hand_on<CollectiveRpcReply>(self, what);
}

}  // namespace troupe::frontend
