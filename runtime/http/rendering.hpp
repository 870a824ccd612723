#pragma once
// A request for tokens or text in an InputProcessor: /tokenize, /detokenize,
// /v1/messages/count_tokens, /v1/responses/input_tokens.

#include <cstdint>
#include <memory>

#include "runtime/http/service_context.hpp"

namespace troupe {

/// In the service's table during its lifetime; later replies are dropped. Destroying it without a
/// reply aborts the work.
class Rendering : public Exchange {
 public:
  enum class Kind : std::uint8_t { kTokenize, kDetokenize, kCountTokens, kInputTokens };
  Rendering(ServiceContext& context, ResponseSink& sink, Kind kind, RenderRequest request);
  ~Rendering() override;
  Rendering(const Rendering&) = delete;
  Rendering& operator=(const Rendering&) = delete;
  [[nodiscard]] ResponseSink& sink() const noexcept { return sink_; }

 private:
  void answer(const RenderReply& reply);

  ServiceContext& context_;
  const ExchangeCount count_;
  ResponseSink& sink_;
  const Kind kind_;
  const bool show_strings_;
  const std::uint64_t number_;
  const RequestId id_;
  bool answered_ = false;
};

}  // namespace troupe
