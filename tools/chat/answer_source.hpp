#pragma once
// The source of answers in a conversation: an engine in this process, or a server.

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/base/result.hpp"
#include "tools/chat/interrupt.hpp"

namespace troupe::tools {

struct Answer {
  std::string text;
  std::string finish_reason;  ///< as in the API; empty: interrupted
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_tokens = 0;
  double first_token_s = 0;  ///< from the request to the first piece
  double total_s = 0;
};

class AnswerSource {
 public:
  virtual ~AnswerSource() = default;
  /// Answers `body`, a request to /v1/chat/completions without a model. `on_text` gets text as it
  /// arrives; an interrupt ends the answer early, which is not an error.
  [[nodiscard]] virtual Result<Answer> answer(
      const std::string& body, const std::function<void(const std::string&)>& on_text,
      Interrupt& interrupt) = 0;
  /// For the greeting.
  [[nodiscard]] virtual std::string name() const = 0;
};

}  // namespace troupe::tools
