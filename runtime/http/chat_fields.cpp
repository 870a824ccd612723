#include "runtime/http/chat_fields.hpp"

#include <algorithm>

#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

constexpr std::string_view kReasoningEfforts[] = {"none", "minimal", "low", "medium",
                                                  "high", "xhigh",   "max"};

void check_messages(const JsonFields& fields, LastMessage& last) {
  fields.require("messages");
  const auto messages = fields.objects("messages");
  if (!messages) return;
  if (messages->empty()) fields.wrong_value("messages", "messages must not be empty");
  for (const JsonFields& message : *messages) {
    message.require("role");
    last.role = message.text("role").value_or("");
    last.text.clear();
    switch (message.kind("content")) {
      case JsonKind::kString:
        last.text = *message.text("content");
        break;
      case JsonKind::kArray:
        message.objects("content");
        break;
      case JsonKind::kAbsent:
      case JsonKind::kNull:
        break;
      default:
        message.wrong_form("content", "a string, an array of content parts or null");
    }
    message.objects("tool_calls");
  }
}

void check_tools(const JsonFields& fields) {
  const auto tools = fields.objects("tools");
  if (!tools) return;
  if (tools->empty()) fields.wrong_value("tools", "tools must not be an empty array");
  for (const JsonFields& tool : *tools) {
    tool.require("function");
    if (const auto function = tool.object("function")) {
      function->require("name");
      function->text("name");
    }
  }
}

/// chat_template_kwargs, to which reasoning_effort is added as one more variable.
std::string read_template_kwargs(const JsonFields& fields) {
  std::string kwargs = fields.raw("chat_template_kwargs", JsonKind::kObject).value_or("");
  const auto effort = fields.text("reasoning_effort");
  if (!effort) return kwargs;
  if (std::find(std::begin(kReasoningEfforts), std::end(kReasoningEfforts), *effort) ==
      std::end(kReasoningEfforts)) {
    fields.wrong_value("reasoning_effort",
                       "reasoning_effort must be none, minimal, low, medium, high, xhigh or max");
  }
  std::string merged = "{\"reasoning_effort\":";
  append_json_string(merged, *effort);
  const bool others = kwargs.size() > std::string_view("{}").size();
  return merged + (others ? "," + kwargs.substr(1) : "}");
}

}  // namespace

ChatPrompt read_chat_prompt(const JsonFields& fields, const ServerDefaults& defaults,
                            LastMessage& last) {
  check_messages(fields, last);
  check_tools(fields);
  if (fields.has("documents")) fields.objects("documents");
  ChatPrompt prompt;
  prompt.messages_json = fields.raw("messages", JsonKind::kArray).value_or("");
  prompt.tools_json = fields.raw("tools", JsonKind::kArray).value_or("");
  prompt.documents_json = fields.raw("documents", JsonKind::kArray).value_or("");
  prompt.template_kwargs_json = read_template_kwargs(fields);
  prompt.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  prompt.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  prompt.add_special_tokens = fields.boolean("add_special_tokens").value_or(false);
  if (prompt.continue_final_message && prompt.add_generation_prompt) {
    fields.wrong_value("continue_final_message",
                       "continue_final_message and add_generation_prompt cannot both be true");
  }
  prompt.chat_template = fields.text("chat_template").value_or("");
  if (!prompt.chat_template.empty() && !defaults.trust_request_chat_template) {
    fields.fail(
        invalid_argument("a request may bring a chat_template only if the server was "
                         "started with --trust-request-chat-template",
                         "chat_template"));
  }
  for (const std::string_view name : {"media_io_kwargs", "mm_processor_kwargs"}) {
    if (fields.has(name)) {
      fields.fail({ErrorCode::kUnsupported, std::string(name) + " is not supported by this server",
                   std::string(name)});
    }
  }
  return prompt;
}

}  // namespace troupe
