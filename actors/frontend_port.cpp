#include "actors/frontend_port.hpp"

#include "actors/deadlines.hpp"
#include "runtime/base/clock.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

/// A prompt may have to wait for others; the time of its own processing is limited separately.
constexpr auto kRenderDeadline = 600s;

}  // namespace

template <class Answer, class Question>
void FrontendPort::ask_frontend(std::chrono::nanoseconds deadline, Question question,
                                std::function<void(Result<Answer>)> reply) {
  system_.spawn<caf::hidden>([to = frontend_, deadline, question = std::move(question),
                              reply = std::move(reply)](caf::event_based_actor* self) {
    ask(self, to, deadline, question)
        .then([reply](Answer& answer) { reply(std::move(answer)); },
              [reply, self](const caf::error& error) {
                const bool late = error == caf::sec::request_timeout;
                reply(Error{late ? ErrorCode::kTimeout : ErrorCode::kUnavailable,
                            "no reply from the engine: " + to_text(error, self->system())});
              });
  });
}

RequestId FrontendPort::allocate_ids(std::int32_t count) {
  return RequestId{next_id_.fetch_add(static_cast<std::uint64_t>(count))};
}

std::uint64_t FrontendPort::draw_key() { return keys_->draw(); }

void FrontendPort::submit(SubmitRequest submission) { post(frontend_, std::move(submission)); }

void FrontendPort::abort(std::vector<RequestId> ids) {
  post(frontend_, AbortRequests{std::move(ids)});
}

void FrontendPort::render(RenderRequest request, std::function<void(RenderReply)> reply) {
  const RequestId id = request.id;
  ask_frontend<RenderReply>(
      kRenderDeadline, std::move(request),
      [id, frontend = frontend_, reply = std::move(reply)](Result<RenderReply> answer) {
        if (!answer.ok()) post(frontend, AbortRequests{{id}});
        reply(answer.ok() ? std::move(answer).value() : RenderReply{.error = answer.error()});
      });
}

void FrontendPort::reset_caches(ResetCaches what, std::function<void(Result<CachesReset>)> reply) {
  ask_frontend<CachesReset>(kControlDeadline, what, std::move(reply));
}

void FrontendPort::move_cache(MoveCache what, std::function<void(Result<CacheMoved>)> reply) {
  ask_frontend<CacheMoved>(kPauseDeadline, std::move(what), std::move(reply));
}

void FrontendPort::pause(PauseScheduler what, PauseReply reply) {
  ask_frontend<PauseStatus>(kPauseDeadline, what, std::move(reply));
}

void FrontendPort::resume(PauseReply reply) {
  ask_frontend<PauseStatus>(kControlDeadline, ResumeScheduler{}, std::move(reply));
}

void FrontendPort::ask_paused(PauseReply reply) {
  ask_frontend<PauseStatus>(kControlDeadline, AskPaused{}, std::move(reply));
}

void FrontendPort::drain_group(DrainGroup what, std::function<void(Result<Status>)> reply) {
  ask_frontend<Status>(from_seconds(what.timeout_s) + kControlDeadline, what, std::move(reply));
}

void FrontendPort::ask_topology(std::function<void(Result<TopologyStatus>)> reply) {
  ask_frontend<TopologyStatus>(kControlDeadline, AskTopology{}, std::move(reply));
}

void FrontendPort::load_adapter(LoadAdapter what, AdapterCallback reply) {
  ask_frontend<AdapterReply>(kPauseDeadline, std::move(what), std::move(reply));
}

void FrontendPort::unload_adapter(UnloadAdapter what, AdapterCallback reply) {
  ask_frontend<AdapterReply>(kPauseDeadline, std::move(what), std::move(reply));
}

void FrontendPort::call_workers(CollectiveRpc what,
                                std::function<void(Result<CollectiveRpcReply>)> reply) {
  const auto deadline = from_seconds(what.timeout_s) + kControlDeadline;
  ask_frontend<CollectiveRpcReply>(deadline, std::move(what), std::move(reply));
}

}  // namespace troupe
