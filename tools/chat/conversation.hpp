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
  std::vector<std::string> images;  ///< files with images, before the first message
  double temperature = kOwnTemperature;
  std::int64_t max_tokens = 0;  ///< 0: the model's default
};

/// Owns the messages. Invariant: pairs of a message and its answer, after the system message.
class Conversation {
 public:
  Conversation(AnswerSource& source, const ChatOptions& options);

  void clear();
  /// Puts an image before the next message: a data: URL. clear() drops it.
  void attach(std::string image_url) { images_.push_back(std::move(image_url)); }

  struct Said {
    Answer answer;
    std::size_t num_forgotten = 0;  ///< oldest pairs that were dropped because the context was full
  };
  /// Gets an answer. If the conversation is too long for the model, its oldest pairs are dropped.
  /// On errors, also for a message that is too long by itself, the conversation is unchanged but
  /// for the attached images, which are dropped.
  [[nodiscard]] Result<Said> say(const std::string& text,
                                 const std::function<void(const std::string&)>& on_text,
                                 Interrupt& interrupt);
  [[nodiscard]] std::size_t num_pairs() const;

 private:
  struct Message {
    std::string role;
    std::string content;
    std::vector<std::string> images = {};  ///< URLs
  };
  [[nodiscard]] std::string body(const std::vector<Message>& messages) const;
  [[nodiscard]] std::size_t num_fixed() const { return options_.system.empty() ? 0 : 1; }

  AnswerSource& source_;
  const ChatOptions& options_;
  std::vector<Message> messages_;
  std::vector<std::string> images_;  ///< of the next message
};

/// A file's content as a data: URL. Errors: those of reading it; kInvalidArgument: it is too large.
[[nodiscard]] Result<std::string> image_file_url(const std::string& path);

/// Whether a request failed because its messages exceed the model's context, by the error texts of
/// Troupe, vLLM, llama.cpp and OpenAI.
[[nodiscard]] bool is_too_long(const Error& error);

}  // namespace troupe::tools
