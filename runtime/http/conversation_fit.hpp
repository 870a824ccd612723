#pragma once
// truncation: auto of the Responses API. A conversation that is too long for the model loses its
// oldest messages, as few as possible.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "messages/control.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// Renders the conversation from its beginning and, if it is too long, from one of the user's later
/// messages, to find the first one from which it fits; then runs that request. If none fits, the
/// last one gets its usual error.
class ConversationFit final : public Exchange {
 public:
  /// The request with the messages from this one on.
  using Make = std::function<Result<ChatRequest>(std::size_t first)>;
  using GoOn = std::function<Result<Answer>(Result<ChatRequest> request)>;

  /// `starts`: messages with which a conversation may begin, in order; at least one.
  ConversationFit(ServiceContext& context, ResponseSink& sink, std::vector<std::size_t> starts,
                  Make make, GoOn go_on);
  ~ConversationFit() override;
  ConversationFit(const ConversationFit&) = delete;
  ConversationFit& operator=(const ConversationFit&) = delete;

  void on_ready() override;
  void on_silence() override;
  [[nodiscard]] WorkDone work_done() const override;

 private:
  void measure(std::size_t candidate);
  void take(const RenderReply& reply);
  void go_on(Result<ChatRequest> request);

  ServiceContext& context_;
  const ExchangeCount count_;
  ResponseSink& sink_;
  const std::vector<std::size_t> starts_;
  const Make make_;
  const GoOn go_on_;
  const std::shared_ptr<ConversationFit*> self_;
  RequestId id_{};
  bool is_waiting_ = false;
  // Positions in starts_: that which is measured, and those between which the first one is that
  // fits.
  std::size_t candidate_ = 0;
  std::size_t first_ = 0;
  std::size_t last_;
  std::int32_t num_reserved_ = 0;  ///< tokens for the answer
  Answer answer_;                  ///< once it is found
};

}  // namespace troupe
