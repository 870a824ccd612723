#pragma once
// Answers from a running server, over OpenAI's API.

#include <memory>

#include "tools/bench/openai_client.hpp"
#include "tools/chat/answer_source.hpp"

namespace troupe::tools {

class ServerChat final : public AnswerSource {
 public:
  /// `url` is as for OpenAI's clients, with or without /v1. The default model is the server's first
  /// one. Errors: no response, an incompatible response, or a rejected key.
  [[nodiscard]] static Result<std::unique_ptr<ServerChat>> connect(const std::string& url,
                                                                   const std::string& api_key,
                                                                   const std::string& model);

  [[nodiscard]] Result<Answer> answer(const std::string& body,
                                      const std::function<void(const std::string&)>& on_text,
                                      Interrupt& interrupt) override;
  [[nodiscard]] std::string name() const override;

 private:
  ServerChat() = default;

  ServerAddress server_;
  ClientHeaders headers_;
  std::string model_;
};

}  // namespace troupe::tools
