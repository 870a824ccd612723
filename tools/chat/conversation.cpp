#include "tools/chat/conversation.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>

#include "runtime/base/base64.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/ordered_json.hpp"

namespace troupe::tools {

Conversation::Conversation(AnswerSource& source, const ChatOptions& options)
    : source_(source), options_(options) {
  clear();
}

void Conversation::clear() {
  messages_.clear();
  images_.clear();
  if (!options_.system.empty()) messages_.push_back({"system", options_.system});
}

std::size_t Conversation::num_pairs() const { return (messages_.size() - num_fixed()) / 2; }

std::string Conversation::body(const std::vector<Message>& messages) const {
  using Json = nlohmann::ordered_json;
  Json body = {{"messages", Json::array()}};
  for (const Message& message : messages) {
    Json content = message.content;
    if (!message.images.empty()) {
      content = Json::array();
      for (const std::string& url : message.images)
        content.push_back({{"type", "image_url"}, {"image_url", {{"url", url}}}});
      content.push_back({{"type", "text"}, {"text", message.content}});
    }
    body["messages"].push_back({{"role", message.role}, {"content", std::move(content)}});
  }
  if (options_.temperature != ChatOptions::kOwnTemperature)
    body["temperature"] = options_.temperature;
  if (options_.max_tokens > 0) body["max_tokens"] = options_.max_tokens;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Conversation::Said> Conversation::say(const std::string& text,
                                             const std::function<void(const std::string&)>& on_text,
                                             Interrupt& interrupt) {
  std::vector<Message> messages = messages_;
  messages.push_back({"user", text, std::exchange(images_, {})});
  for (std::size_t num_forgotten = 0;; ++num_forgotten) {
    auto answer = source_.answer(body(messages), on_text, interrupt);
    if (answer.ok() && answer->text.empty() && answer->finish_reason.empty())
      return Said{std::move(answer).value()};  // interrupted before it began
    if (answer.ok()) {
      messages.push_back({"assistant", answer->text});
      messages_ = std::move(messages);
      return Said{std::move(answer).value(), num_forgotten};
    }
    if (!is_too_long(answer.error()) || num_forgotten == num_pairs()) return answer.error();
    const auto oldest = messages.begin() + static_cast<std::ptrdiff_t>(num_fixed());
    messages.erase(oldest, oldest + 2);
  }
}

Result<std::string> image_file_url(const std::string& path) {
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  ASSIGN_OR_RETURN(const std::string content, read_file(path));
  if (content.size() > kMaxBytes)
    return invalid_argument(path + " has " + std::to_string(content.size()) +
                            " bytes, the limit is " + std::to_string(kMaxBytes));
  // What kind of image it is, its bytes say.
  return "data:image/*;base64," + to_base64(std::as_bytes(std::span(content)));
}

bool is_too_long(const Error& error) {
  constexpr std::array<std::string_view, 5> kSigns = {
      "max_model_len is", "maximum context length", "maximum model length",
      "context_length_exceeded", "exceeds the available context"};
  std::string text = error.message;
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(kSigns.begin(), kSigns.end(),
                     [&](std::string_view sign) { return text.find(sign) != std::string::npos; });
}

}  // namespace troupe::tools
