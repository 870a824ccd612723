// OpenAI's API, as far as dialects differ.
#include "runtime/http/dialect.hpp"

namespace troupe {
namespace {

std::string error_body(int, const Error& error) { return error_json(error); }

void append_error_event(std::string& out, const Error& error) {
  out.append("data: ").append(error_json(error)).append("\n\n");
}

class OpenAiChatWriter final : public ChatWriter {
 public:
  explicit OpenAiChatWriter(const AnswerHead& head) : head_(head) {}

  void append_begin(std::string& out, const ChatBegin& begin) override {
    append_chat_role_event(out, head_, begin.index, begin.role, begin.prompt_token_ids,
                           begin.prompt_text, begin.usage);
  }
  void append_delta(std::string& out, const ChatChoice& choice, const ChoiceFormat& format,
                    const Usage* usage) override {
    append_chat_event(out, head_, choice, format, usage);
  }
  void append_end(std::string&, const Usage&) override {}
  std::string whole(const ChatAnswer& answer, const ChoiceFormat& format) override {
    return chat_json(answer, format);
  }

 private:
  const AnswerHead& head_;
};

}  // namespace

const Dialect kOpenAiDialect = {.stream_type = "text/event-stream; charset=utf-8",
                                .keep_alive = ": keep-alive\n\n",
                                .stream_end = "data: [DONE]\n\n",
                                .has_usage_event = true,
                                .has_event_ids = true,
                                .error_body = error_body,
                                .append_error_event = append_error_event};

const ChatApi kOpenAiChat = {.dialect = kOpenAiDialect,
                             .id_prefix = "chatcmpl-",
                             .is_resumable = true,
                             .make_writer = [](const AnswerHead& head, const ChatRequest&) {
                               return std::unique_ptr<ChatWriter>(new OpenAiChatWriter(head));
                             }};

}  // namespace troupe
