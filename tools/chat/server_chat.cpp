#include "tools/chat/server_chat.hpp"

#include <chrono>
#include <utility>

#include "runtime/base/ordered_json.hpp"
#include "tools/bench/answer_stream.hpp"

namespace troupe::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kGreetingTimeoutS = 30;

std::string text_at(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The message of OpenAI's error object; any other body is returned unchanged.
std::string error_message(const std::string& body) {
  const Json parsed = Json::parse(body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error")) {
    const Json& error = parsed["error"];
    const std::string message =
        error.is_string() ? error.get<std::string>() : text_at(error, "message");
    const std::string code = text_at(error, "code");
    if (!message.empty()) return message + (code.empty() ? "" : " (" + code + ")");
  }
  return body;
}

/// Processes the events of one answer.
class AnswerReader {
 public:
  explicit AnswerReader(const std::function<void(const std::string&)>& on_text)
      : on_text_(on_text) {}

  void take(std::string_view data) {
    if (data == "[DONE]") return;
    const Json event = Json::parse(data, nullptr, false);
    if (!event.is_object()) return;
    if (event.contains("error") && !event["error"].is_null())
      error_ = error_message(std::string(data));
    if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
      answer_.num_prompt_tokens = usage->value("prompt_tokens", std::int64_t{0});
      answer_.num_tokens = usage->value("completion_tokens", std::int64_t{0});
      has_usage_ = true;
    }
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return;
    const Json& choice = choices->front();
    if (const std::string reason = text_at(choice, "finish_reason"); !reason.empty())
      answer_.finish_reason = reason;
    const std::string text =
        choice.is_object() && choice.contains("delta") ? text_at(choice["delta"], "content") : "";
    if (text.empty()) return;
    if (answer_.text.empty()) answer_.first_token_s = seconds();
    if (!has_usage_) ++answer_.num_tokens;
    answer_.text += text;
    on_text_(text);
  }

  [[nodiscard]] Result<Answer> finish() {
    if (!error_.empty()) return Error{ErrorCode::kUnavailable, error_};
    answer_.total_s = seconds();
    return std::move(answer_);
  }

 private:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }

  const std::function<void(const std::string&)>& on_text_;
  Answer answer_;
  std::string error_;
  bool has_usage_ = false;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

Result<std::unique_ptr<ServerChat>> ServerChat::connect(const std::string& url,
                                                        const std::string& api_key,
                                                        const std::string& model) {
  std::unique_ptr<ServerChat> chat(new ServerChat);
  ASSIGN_OR_RETURN(chat->server_, parse_url(url));
  if (chat->server_.path.ends_with("/v1")) chat->server_.path.resize(chat->server_.path.size() - 3);
  if (!api_key.empty()) chat->headers_.emplace_back("Authorization", "Bearer " + api_key);
  chat->model_ = model;
  if (!model.empty()) return chat;
  ASSIGN_OR_RETURN(const std::string body,
                   http_get(chat->server_, "/v1/models", chat->headers_, kGreetingTimeoutS));
  const Json models = Json::parse(body, nullptr, false);
  if (models.is_object() && models.contains("data") && models["data"].is_array() &&
      !models["data"].empty())
    chat->model_ = text_at(models["data"].front(), "id");
  if (chat->model_.empty())
    return Error{ErrorCode::kUnavailable, url + ": /v1/models lists no model"};
  return chat;
}

Result<Answer> ServerChat::answer(const std::string& body,
                                  const std::function<void(const std::string&)>& on_text,
                                  Interrupt& interrupt) {
  Json request = Json::parse(body);
  request["model"] = model_;
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  AnswerReader reader(on_text);
  EventStream events;
  const auto sent = http_post(
      server_, "/v1/chat/completions", headers_, request.dump(),
      [&](std::string_view bytes) {
        events.feed(bytes, [&](std::string_view data) { reader.take(data); });
      },
      interrupt.descriptor());
  static_cast<void>(interrupt.take());
  if (!sent.ok()) return sent.error();
  if (sent->status != 200) {
    return Error{sent->status == 400 ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
                 "HTTP " + std::to_string(sent->status) + ": " + error_message(sent->error_body)};
  }
  return reader.finish();
}

std::string ServerChat::name() const { return model_ + " at " + server_.url(); }

}  // namespace troupe::tools
