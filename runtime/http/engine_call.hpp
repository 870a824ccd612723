#pragma once
// A request to the engine that has a single reply.

#include <functional>
#include <memory>
#include <utility>

#include "runtime/http/service_context.hpp"

namespace troupe {

/// Waits for the reply; a reply after the end of the exchange is dropped.
class EngineCall : public Exchange {
 public:
  EngineCall(ServiceContext& context, ResponseSink& sink)
      : count_(context),
        sink_(sink),
        post_(context.environment.post),
        self_(std::make_shared<EngineCall*>(this)) {}

  /// Call once, from any thread, with the engine's reply: `render` creates the response from it.
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
