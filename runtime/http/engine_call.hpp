#pragma once
// A request that the engine answers with a single message, while the engine is at it.

#include <functional>
#include <memory>
#include <utility>

#include "runtime/http/service_context.hpp"

namespace troupe {

/// The client waits for a reply; one that comes when the exchange is gone finds nobody.
class EngineCall : public Exchange {
 public:
  EngineCall(ServiceContext& context, ResponseSink& sink)
      : count_(context),
        sink_(sink),
        post_(context.environment.post),
        self_(std::make_shared<EngineCall*>(this)) {}

  /// To be called once, from any thread, with the engine's reply: `render` makes the answer of it.
  template <class Answer>
  [[nodiscard]] std::function<void(Result<Answer>)> reply(
      std::function<HttpResponse(const Answer&)> render) {
    return [waiting = std::weak_ptr(self_), post = post_,
            render = std::move(render)](Result<Answer> reply) {
      post([waiting, render, reply = std::move(reply)] {
        const auto self = waiting.lock();
        if (!self) return;
        ResponseSink& sink = (*self)->sink_;
        contain(sink,
                [&] { sink.respond(reply.ok() ? render(*reply) : error_response(reply.error())); });
      });
    };
  }

 private:
  const ExchangeCount count_;
  ResponseSink& sink_;
  const std::function<void(std::function<void()>)> post_;
  const std::shared_ptr<EngineCall*> self_;
};

}  // namespace troupe
