#pragma once
// The APIs of the server: what is common to all responses of one.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/http/openai_response.hpp"

namespace troupe {

struct Dialect {
  std::string_view stream_type;  ///< media type of streams
  std::string_view keep_alive;   ///< is sent when nothing was for a while; empty: nothing
  std::string_view stream_end;   ///< follows the last event
  bool has_usage_event = false;  ///< streams may end with an event that has the usage only
  bool has_event_ids = false;    ///< events of resumable streams have ids
  /// The body of an error response.
  std::string (*error_body)(int status, const Error& error);
  void (*append_error_event)(std::string& out, const Error& error);
};

extern const Dialect kOpenAiDialect;
extern const Dialect kAnthropicDialect;
extern const Dialect kResponsesDialect;
extern const Dialect kOllamaDialect;

/// Begins the answer of one sample.
struct ChatBegin {
  std::int32_t index = 0;
  std::string_view role;
  const std::vector<TokenId>* prompt_token_ids = nullptr;  ///< null: not shown
  const std::string* prompt_text = nullptr;                ///< null: not shown
  const Usage* usage = nullptr;                            ///< so far; null: not shown
  Usage prompt_usage;                                      ///< of all samples
};

/// Writes the answer of one chat. A stream is a call of append_begin for each sample, of
/// append_delta for each piece of one, and of append_end; each appends whole events, or none.
class ChatWriter {
 public:
  virtual ~ChatWriter() = default;
  virtual void append_begin(std::string& out, const ChatBegin& begin) = 0;
  /// `choice.message`: what is added. `usage`: so far; null: not shown.
  virtual void append_delta(std::string& out, const ChatChoice& choice, const ChoiceFormat& format,
                            const Usage* usage) = 0;
  /// A piece that the client of a resumed stream has.
  virtual void skip_delta(const ChatChoice&, const ChoiceFormat&) {}
  /// The answer ends with an error: false, if as Dialect::append_error_event says.
  virtual bool append_error(std::string&, const Error&) { return false; }
  /// All samples have ended.
  virtual void append_end(std::string& out, const Usage& usage) = 0;
  [[nodiscard]] virtual std::string whole(const ChatAnswer& answer, const ChoiceFormat& format) = 0;
};

/// An API for chats. A new one is such a table, and a row of routes.
struct ChatApi {
  const Dialect& dialect;
  std::string_view id_prefix;
  bool is_resumable;  ///< its streams can be, see GET /v1/streams
  std::unique_ptr<ChatWriter> (*make_writer)(const AnswerHead& head, const ChatRequest& request);
};

extern const ChatApi kOpenAiChat;
extern const ChatApi kAnthropicMessages;
extern const ChatApi kResponses;
extern const ChatApi kOllamaChat;
extern const ChatApi kOllamaGenerate;

}  // namespace troupe
