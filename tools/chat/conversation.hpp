#pragma once
// A conversation: its messages, and the next answer.

#include <cstddef>
#include <string>
#include <vector>

#include "tools/chat/answer_source.hpp"

namespace troupe::tools {

struct ChatOptions {
  static constexpr double kOwnTemperature = -1;  ///< the model's own
  std::string system;
  double temperature = kOwnTemperature;
  std::int64_t max_tokens = 0;  ///< 0: the model's default
};

/// Owns the messages. Invariant: pairs of a message and its answer, after the system message.
class Conversation {
 public:
  Conversation(AnswerSource& source, const ChatOptions& options);

  void clear();

  struct Said {
    Answer answer;
    std::size_t num_forgotten = 0;  ///< oldest pairs that were dropped because the context was full
  };
  /// Gets an answer. If the conversation is too long for the model, its oldest pairs are dropped.
  /// On errors, also for a message that is too long by itself, the conversation is unchanged.
  [[nodiscard]] Result<Said> say(const std::string& text,
                                 const std::function<void(const std::string&)>& on_text,
                                 Interrupt& interrupt);
  [[nodiscard]] std::size_t num_pairs() const;

 private:
  struct Message {
    std::string role;
    std::string content;
  };
  [[nodiscard]] std::string body(const std::vector<Message>& messages) const;
  [[nodiscard]] std::size_t num_fixed() const { return options_.system.empty() ? 0 : 1; }

  AnswerSource& source_;
  const ChatOptions& options_;
  std::vector<Message> messages_;
};

/// Whether a request failed because its messages exceed the model's context, by the error texts of
/// Troupe, vLLM, llama.cpp and OpenAI.
[[nodiscard]] bool is_too_long(const Error& error);

}  // namespace troupe::tools
