#include <optional>
#include <string>
#include <vector>

#include "runtime/base/log.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/responses.hpp"

namespace troupe {
namespace {

std::string responses_error_body(int status, const Error& error) {
  std::string json = R"({"error":{"message":)";
  append_json_string(json, error.message);
  json += status < 500 ? R"(,"type":"invalid_request_error","param":)"
                       : R"(,"type":"server_error","param":)";
  if (error.param.empty()) {
    json += "null";
  } else {
    append_json_string(json, error.param);
  }
  return json + ",\"code\":" + (status == 429 ? "\"rate_limit_exceeded\"" : "null") + "}}";
}

void append_responses_error(std::string& out, const Error& error) {
  out += "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":";
  append_json_string(out, error.message);
  out += ",\"param\":null}\n\n";
}

void append_member(std::string& out, std::string_view name, std::string_view text) {
  out.append(",\"").append(name).append("\":");
  append_json_string(out, text);
}

enum class ItemKind : std::uint8_t { kReasoning, kMessage, kCall };

/// An item of the output.
struct Item {
  ItemKind kind;
  std::string id;
  std::string call_id = {}, name = {};  ///< of a call
  std::string text = {};                ///< or the arguments of a call
  std::string logprobs = {};            ///< elements of a JSON array
  bool is_encrypted = false;            ///< return the reasoning in a form to send back
};

void append_part(std::string& out, const Item& item) {
  if (item.kind == ItemKind::kReasoning) {
    out += R"({"type":"reasoning_text")";
    append_member(out, "text", item.text);
    out += '}';
    return;
  }
  out += R"({"type":"output_text")";
  append_member(out, "text", item.text);
  out.append(",\"annotations\":[],\"logprobs\":[").append(item.logprobs).append("]}");
}

/// `status`: in_progress, completed or incomplete. Without content while it is in progress.
void append_item(std::string& out, const Item& item, std::string_view status) {
  const bool is_done = status != "in_progress";
  out += "{\"id\":";
  append_json_string(out, item.id);
  switch (item.kind) {
    case ItemKind::kReasoning:
      out += R"(,"type":"reasoning","summary":[],"content":[)";
      if (is_done) append_part(out, item);
      out += ']';
      if (is_done && item.is_encrypted)
        append_member(out, "encrypted_content", encoded_reasoning(item.text));
      break;
    case ItemKind::kMessage:
      out += R"(,"type":"message","role":"assistant","content":[)";
      if (is_done) append_part(out, item);
      out += ']';
      break;
    case ItemKind::kCall:
      out += R"(,"type":"function_call")";
      append_member(out, "call_id", item.call_id);
      append_member(out, "name", item.name);
      append_member(out, "arguments", item.text);
      break;
  }
  append_member(out, "status", status);
  out += '}';
}

class ResponsesWriter final : public ChatWriter {
 public:
  ResponsesWriter(const AnswerHead& head, const ChatRequest& request)
      : head_(head),
        settings_(request.response),
        temperature_(request.params.temperature),
        top_p_(request.params.top_p),
        presence_penalty_(request.params.presence_penalty),
        frequency_penalty_(request.params.frequency_penalty),
        num_events_(settings_->num_events) {}

  void append_begin(std::string& out, const ChatBegin&) override {
    std::string response = response_json("in_progress", nullptr);
    const std::string member = ",\"response\":" + response;
    if (settings_->progress == nullptr) append_event(out, "response.created", member);
    append_event(out, "response.in_progress", member);
    if (settings_->progress != nullptr) settings_->progress->response = std::move(response);
  }

  void skip_delta(const ChatChoice& choice, const ChoiceFormat& format) override {
    add(nullptr, choice, format);
  }

  bool append_error(std::string& out, const Error& error) override {
    if (settings_->progress == nullptr) return false;
    close(&out, "incomplete");
    std::string response = response_json("failed", nullptr, error.message);
    append_event(out, "response.failed", ",\"response\":" + response);
    settings_->progress->response = std::move(response);
    settings_->progress->is_final = true;
    return true;
  }

  [[nodiscard]] std::string queued() const { return response_json("queued", nullptr); }

  void append_delta(std::string& out, const ChatChoice& choice, const ChoiceFormat& format,
                    const Usage*) override {
    add(&out, choice, format);
  }

  void append_end(std::string& out, const Usage& usage) override {
    append_event(out, "response." + std::string(status()), ",\"response\":" + finish(&out, usage));
  }

  std::string whole(const ChatAnswer& answer, const ChoiceFormat& format) override {
    add(nullptr, answer.choices.front(), format);
    return finish(nullptr, answer.usage);
  }

 private:
  /// Adds a piece of the answer, and its events if `out` is not null.
  void add(std::string* out, const ChatChoice& choice, const ChoiceFormat& format) {
    const ChatMessage& message = choice.message;
    if (!message.reasoning.empty()) {
      if (items_.empty() || items_.back().kind != ItemKind::kReasoning)
        open(out, {.kind = ItemKind::kReasoning,
                   .id = item_id("rs_"),
                   .is_encrypted = settings_->encrypts_reasoning});
      extend(out, message.reasoning, "response.reasoning_text.delta");
    }
    if (!message.content.empty() || has_no_output(choice)) {
      if (items_.empty() || items_.back().kind != ItemKind::kMessage)
        open(out, {.kind = ItemKind::kMessage, .id = item_id("msg_")});
    }
    std::string logprobs;
    // Also those of a token without a text, such as the end.
    if (format.num_logprobs && !items_.empty() && items_.back().kind == ItemKind::kMessage) {
      append_token_logprobs(logprobs, choice.output.logprobs, format);
      logprobs = logprobs.substr(1, logprobs.size() - 2);
      std::string& all = items_.back().logprobs;
      all += (all.empty() || logprobs.empty() ? "" : ",") + logprobs;
    }
    if (!message.content.empty())
      extend(out, message.content, "response.output_text.delta",
             ",\"logprobs\":[" + logprobs + "]");
    for (const ShownToolCall& call : message.tool_calls) {
      if (!call.name.empty())
        open(
            out,
            {.kind = ItemKind::kCall, .id = item_id("fc_"), .call_id = call.id, .name = call.name});
      if (!call.arguments.empty())
        extend(out, call.arguments, "response.function_call_arguments.delta");
    }
    if (choice.output.finish_reason)
      is_complete_ = choice.output.finish_reason == FinishReason::kStop;
  }

  /// An answer of no text has an empty message.
  [[nodiscard]] bool has_no_output(const ChatChoice& choice) const {
    return choice.output.finish_reason && items_.empty() && choice.message.tool_calls.empty();
  }

  [[nodiscard]] std::string_view status() const {
    return is_complete_ ? "completed" : "incomplete";
  }

  /// Of an item of a response with this status.
  [[nodiscard]] std::string_view item_status(const Item& item, std::string_view status) const {
    if (&item != &items_.back()) return "completed";
    return status == "failed" ? "incomplete" : status;
  }

  [[nodiscard]] std::string item_id(std::string_view prefix) const {
    return std::string(prefix) + head_.id.substr(head_.id.find('_') + 1) + "_" +
           std::to_string(items_.size());
  }

  void open(std::string* out, Item item) {
    close(out, "completed");
    items_.push_back(std::move(item));
    is_open_ = true;
    if (out == nullptr) return;
    std::string json = place() + ",\"item\":";
    append_item(json, items_.back(), "in_progress");
    append_event(*out, "response.output_item.added", json);
    if (items_.back().kind == ItemKind::kCall) return;
    json = place_of(items_.back()) + ",\"part\":";
    append_part(json, items_.back());
    append_event(*out, "response.content_part.added", json);
  }

  void extend(std::string* out, const std::string& text, std::string_view event,
              const std::string& more = "") {
    Item& item = items_.back();
    item.text += text;
    if (out == nullptr) return;
    std::string json = place_of(item);
    append_member(json, "delta", text);
    append_event(*out, event, json + more);
  }

  void close(std::string* out, std::string_view status) {
    if (!std::exchange(is_open_, false) || out == nullptr) return;
    const Item& item = items_.back();
    std::string json = place_of(item);
    if (item.kind == ItemKind::kCall) {
      append_member(json, "name", item.name);
      append_member(json, "arguments", item.text);
      append_event(*out, "response.function_call_arguments.done", json);
    } else {
      append_member(json, "text", item.text);
      const bool is_message = item.kind == ItemKind::kMessage;
      if (is_message) json += ",\"logprobs\":[" + item.logprobs + "]";
      append_event(*out, is_message ? "response.output_text.done" : "response.reasoning_text.done",
                   json);
      json = place_of(item) + ",\"part\":";
      append_part(json, item);
      append_event(*out, "response.content_part.done", json);
    }
    json = place() + ",\"item\":";
    append_item(json, item, status);
    append_event(*out, "response.output_item.done", json);
  }

  /// Where the last item is.
  [[nodiscard]] std::string place() const {
    std::string json = ",\"output_index\":";
    append_json_integer(json, items_.size() - 1);
    return json;
  }
  /// The same, with the item's id and content part.
  [[nodiscard]] std::string place_of(const Item& item) const {
    std::string json = place();
    if (item.kind != ItemKind::kCall) json += ",\"content_index\":0";
    append_member(json, "item_id", item.id);
    return json;
  }

  /// Ends the last item, and stores the response. Returns it.
  std::string finish(std::string* out, const Usage& usage) {
    close(out, status());
    std::string json = response_json(status(), &usage);
    if (settings_->progress != nullptr) {
      settings_->progress->response = json;
      settings_->progress->messages = conversation();
      settings_->progress->is_final = true;
    } else if (settings_->store != nullptr) {
      const auto stored = settings_->store->put(head_.id, settings_->owner,
                                                {json, settings_->input, conversation()});
      if (!stored.ok())
        log_warning("response not stored", kv("response", head_.id),
                    kv("reason", stored.error().message));
    }
    return json;
  }

  /// The messages of the request and the answer, as elements of a JSON array.
  [[nodiscard]] std::string conversation() const {
    std::string content, reasoning, calls;
    for (const Item& item : items_) {
      if (item.kind == ItemKind::kMessage) content += item.text;
      if (item.kind == ItemKind::kReasoning) reasoning += item.text;
      if (item.kind != ItemKind::kCall) continue;
      calls += calls.empty() ? "{\"id\":" : ",{\"id\":";
      append_json_string(calls, item.call_id);
      calls += R"(,"type":"function","function":{"name":)";
      append_json_string(calls, item.name);
      append_member(calls, "arguments", item.text);
      calls += "}}";
    }
    std::string json = settings_->conversation + R"(,{"role":"assistant")";
    append_member(json, "content", content);
    if (!reasoning.empty()) {
      append_member(json, "reasoning", reasoning);
      append_member(json, "reasoning_content", reasoning);
    }
    if (!calls.empty()) json += ",\"tool_calls\":[" + calls + "]";
    return json + '}';
  }

  [[nodiscard]] std::string response_json(std::string_view status, const Usage* usage,
                                          std::string_view error = {}) const {
    std::string json = "{\"id\":";
    append_json_string(json, head_.id);
    json += ",\"object\":\"response\",\"created_at\":";
    append_json_integer(json, head_.created);
    json += ",\"completed_at\":";
    if (status == "completed") {
      append_json_integer(json, head_.completed);
    } else {
      json += "null";
    }
    append_member(json, "status", status);
    json += settings_->in_background ? ",\"background\":true" : ",\"background\":false";
    json += ",\"error\":";
    if (error.empty()) {
      json += "null";
    } else {
      json += R"({"code":"server_error","message":)";
      append_json_string(json, error);
      json += '}';
    }
    json += ",\"incomplete_details\":";
    json += status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null";
    append_member(json, "model", head_.model);
    json += ",\"output\":[";
    for (const Item& item : items_) {
      if (json.back() != '[') json += ',';
      append_item(json, item, item_status(item, status));
    }
    json += "],\"temperature\":";
    append_json_float(json, temperature_);
    json += ",\"top_p\":";
    append_json_float(json, top_p_);
    json += ",\"presence_penalty\":";
    append_json_float(json, presence_penalty_);
    json += ",\"frequency_penalty\":";
    append_json_float(json, frequency_penalty_);
    json += ',' + settings_->fields + ",\"usage\":";
    if (usage == nullptr) return json + "null}";
    json += "{\"input_tokens\":";
    append_json_integer(json, usage->num_prompt_tokens);
    json += ",\"input_tokens_details\":{\"cached_tokens\":";
    append_json_integer(json, usage->num_cached_tokens);
    append_blended_tokens(json, *usage);
    json += "},\"output_tokens\":";
    append_json_integer(json, usage->num_completion_tokens);
    json += ",\"output_tokens_details\":{\"reasoning_tokens\":";
    append_json_integer(json, usage->num_reasoning_tokens.value_or(0));
    json += "},\"total_tokens\":";
    append_json_integer(json, usage->num_prompt_tokens + usage->num_completion_tokens);
    return json + "}}";
  }

  /// `members` of the event, each with a comma before it.
  void append_event(std::string& out, std::string_view type, const std::string& members) {
    append_response_event(out, type, num_events_++, members);
  }

  const AnswerHead& head_;
  const std::shared_ptr<const ResponseSettings> settings_;
  const double temperature_;
  const double top_p_;
  const double presence_penalty_;
  const double frequency_penalty_;
  std::vector<Item> items_;
  bool is_open_ = false;  ///< the last item
  bool is_complete_ = false;
  std::int64_t num_events_;
};

}  // namespace

void append_response_event(std::string& out, std::string_view type, std::int64_t number,
                           std::string_view members) {
  out.append("event: ").append(type).append("\ndata: {\"type\":\"").append(type);
  out += "\",\"sequence_number\":";
  append_json_integer(out, number);
  out.append(members).append("}\n\n");
}

std::string queued_response(const AnswerHead& head, const ChatRequest& request) {
  return ResponsesWriter(head, request).queued();
}

const Dialect kResponsesDialect = {.stream_type = "text/event-stream; charset=utf-8",
                                   .keep_alive = ": keep-alive\n\n",
                                   .stream_end = "",
                                   .error_body = responses_error_body,
                                   .append_error_event = append_responses_error};

const ChatApi kResponses = {
    .dialect = kResponsesDialect,
    .id_prefix = "resp_",
    .is_resumable = false,
    .make_writer = [](const AnswerHead& head, const ChatRequest& request) {
      return std::unique_ptr<ChatWriter>(new ResponsesWriter(head, request));
    }};

}  // namespace troupe
