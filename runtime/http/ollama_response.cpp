#include <string>
#include <utility>

#include "runtime/base/clock.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/ollama.hpp"

namespace troupe {
namespace {

std::string ollama_error_body(int, const Error& error) {
  std::string json = "{\"error\":";
  append_json_string(json, error.message);
  return json + '}';
}

void append_ollama_error(std::string& out, const Error& error) {
  out += ollama_error_body(0, error) + '\n';
}

void append_nanoseconds(std::string& out, std::string_view name, double seconds) {
  out.append(",\"").append(name).append("\":");
  append_json_integer(out, static_cast<std::int64_t>(1e9 * seconds));
}

/// A line of a stream, or the whole answer, of /api/chat or /api/generate. Calls are written whole,
/// since their arguments are objects here.
class OllamaWriter final : public ChatWriter {
 public:
  OllamaWriter(const AnswerHead& head, bool is_chat) : head_(head), is_chat_(is_chat) {}

  void append_begin(std::string&, const ChatBegin&) override { first_ = now_seconds(); }

  void append_delta(std::string& out, const ChatChoice& choice, const ChoiceFormat&,
                    const Usage*) override {
    ChatMessage piece{.reasoning = choice.message.reasoning, .content = choice.message.content};
    for (const ShownToolCall& call : choice.message.tool_calls) {
      if (!call.name.empty()) {
        take_call(piece);
        call_ = call;
      } else {
        call_.arguments += call.arguments;
      }
    }
    if (choice.output.finish_reason) {
      take_call(piece);
      finish_ = *choice.output.finish_reason;
    }
    if (piece.reasoning.empty() && piece.content.empty() && piece.tool_calls.empty()) return;
    append_line_begin(out);
    append_message(out, piece);
    out += ",\"done\":false}\n";
  }

  void append_end(std::string& out, const Usage& usage) override {
    append_line_begin(out);
    append_message(out, {});
    append_last(out, usage);
    out += '\n';
  }

  std::string whole(const ChatAnswer& answer, const ChoiceFormat&) override {
    const ChatChoice& choice = answer.choices.front();
    finish_ = choice.output.finish_reason.value_or(FinishReason::kStop);
    first_ = begin_ + answer.first_token_s.value_or(0);
    std::string json;
    append_line_begin(json);
    append_message(json, choice.message);
    append_last(json, answer.usage);
    return json;
  }

 private:
  void take_call(ChatMessage& piece) {
    if (!call_.name.empty()) piece.tool_calls.push_back(std::exchange(call_, {}));
  }

  void append_line_begin(std::string& out) const {
    out += "{\"model\":";
    append_json_string(out, head_.model);
    out += ",\"created_at\":";
    append_json_string(out, utc_time_text(head_.created));
  }

  void append_message(std::string& out, const ChatMessage& message) const {
    if (!is_chat_) {
      out += ",\"response\":";
      append_json_string(out, message.content);
      if (message.reasoning.empty()) return;
      out += ",\"thinking\":";
      append_json_string(out, message.reasoning);
      return;
    }
    out += ",\"message\":{\"role\":\"assistant\",\"content\":";
    append_json_string(out, message.content);
    if (!message.reasoning.empty()) {
      out += ",\"thinking\":";
      append_json_string(out, message.reasoning);
    }
    if (!message.tool_calls.empty()) {
      out += ",\"tool_calls\":";
      append_json_array(out, message.tool_calls, [](std::string& json, const ShownToolCall& call) {
        json += "{\"function\":{\"name\":";
        append_json_string(json, call.name);
        json += ",\"arguments\":";
        // A truncated call has none.
        const bool is_object = parse_bounded_json<nlohmann::json>(call.arguments).is_object();
        json += (is_object ? call.arguments : "{}") + "}}";
      });
    }
    out += '}';
  }

  void append_last(std::string& out, const Usage& usage) const {
    const double now = now_seconds();
    out += ",\"done\":true,\"done_reason\":";
    out += finish_ == FinishReason::kStop ? "\"stop\"" : "\"length\"";
    append_nanoseconds(out, "total_duration", now - begin_);
    append_nanoseconds(out, "load_duration", 0);
    out += ",\"prompt_eval_count\":";
    append_json_integer(out, usage.num_prompt_tokens);
    append_nanoseconds(out, "prompt_eval_duration", first_ - begin_);
    out += ",\"eval_count\":";
    append_json_integer(out, usage.num_completion_tokens);
    append_nanoseconds(out, "eval_duration", now - first_);
    out += '}';
  }

  const AnswerHead& head_;
  const bool is_chat_;
  const double begin_ = now_seconds();
  double first_ = 0;
  ShownToolCall call_;  ///< whose arguments are not complete
  FinishReason finish_ = FinishReason::kStop;
};

}  // namespace

const Dialect kOllamaDialect = {.stream_type = "application/x-ndjson",
                                .keep_alive = "",
                                .stream_end = "",
                                .error_body = ollama_error_body,
                                .append_error_event = append_ollama_error};

const ChatApi kOllamaChat = {.dialect = kOllamaDialect,
                             .id_prefix = "ollama-",
                             .is_resumable = false,
                             .make_writer = [](const AnswerHead& head, const ChatRequest&) {
                               return std::unique_ptr<ChatWriter>(new OllamaWriter(head, true));
                             }};

const ChatApi kOllamaGenerate = {
    .dialect = kOllamaDialect,
    .id_prefix = "ollama-",
    .is_resumable = false,
    .make_writer = [](const AnswerHead& head, const ChatRequest&) {
      return std::unique_ptr<ChatWriter>(new OllamaWriter(head, false));
    }};

// ---- What clients ask about models

namespace {

void append_details(std::string& json, const std::string& family) {
  json += R"("details":{"parent_model":"","format":"safetensors","family":)";
  append_json_string(json, family);
  json += ",\"families\":[";
  append_json_string(json, family);
  json += R"(],"parameter_size":"","quantization_level":""})";
}

/// What clients offer their users for a model depends on these.
std::string capabilities(const ServerDefaults& defaults) {
  if (defaults.pooler.type != PoolingType::kNone) return R"(["embedding"])";
  std::string json = R"(["completion")";
  if (defaults.answers.tools != nullptr) json += ",\"tools\"";
  if (defaults.answers.reasoning) json += ",\"thinking\"";
  if (defaults.takes_images) json += ",\"vision\"";
  return json + ']';
}

}  // namespace

Answer answer_ollama_tags(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  const std::string now =
      utc_time_text(static_cast<std::int64_t>(context.environment.wall_clock()));
  std::string json = "{\"models\":";
  append_json_array(json, context.config.model_names,
                    [&](std::string& out, const std::string& name) {
                      for (const char* field : {"{\"name\":", ",\"model\":"}) {
                        out += field;
                        append_json_string(out, name);
                      }
                      out += ",\"modified_at\":\"" + now + "\",\"size\":0,\"digest\":\"\",";
                      append_details(out, context.config.defaults.architecture);
                      out += '}';
                    });
  sink.respond(json_response(json + '}'));
  return nullptr;
}

Prepared prepare_ollama_show(std::string_view body, const ServerDefaults&) {
  std::string name;
  const auto json = parse_bounded_json<nlohmann::json>(body);
  for (const char* field : {"name", "model"})
    if (json.is_object() && json.contains(field) && json[field].is_string())
      name = json[field].get<std::string>();
  return [name](ServiceContext& context, const HttpRequest&, ResponseSink& sink) -> Result<Answer> {
    if (name.empty())
      return invalid_argument("the body must be a JSON object with the field model", "model");
    RETURN_IF_ERROR(context.resolve_model(std::string(without_latest(name))));
    const ServerDefaults& defaults = context.config.defaults;
    std::string shown = R"({"license":"","modelfile":"","parameters":"","template":"",)";
    append_details(shown, defaults.architecture);
    shown += R"(,"model_info":{"general.architecture":)";
    append_json_string(shown, defaults.architecture);
    shown += ',';
    append_json_string(shown, defaults.architecture + ".context_length");
    shown += ':';
    append_json_integer(shown, defaults.max_model_len);
    shown += "},\"capabilities\":" + capabilities(defaults) + '}';
    sink.respond(json_response(std::move(shown)));
    return Answer(nullptr);
  };
}

}  // namespace troupe
