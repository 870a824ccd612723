#include "runtime/http/chat_fields.hpp"

#include <set>

#include "runtime/http/cache_control.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/unsupported_fields.hpp"

namespace troupe {
namespace {

/// Each value takes some hundred bytes in the template interpreter.
constexpr std::size_t kMaxTemplateValues = 1 << 16;
/// The variable of most templates that turns reasoning on or off.
constexpr std::string_view kEnableThinking = "enable_thinking";
constexpr std::string_view kReasoningEfforts[] = {"none", "minimal", "low", "medium",
                                                  "high", "xhigh",   "max"};

void check_objects(const JsonFields& fields, std::string_view name) {
  fields.each_object(name, [](const JsonFields&) {});
}

/// Adds the place if it is marked.
void read_breakpoint(const JsonFields& marked, CacheBreakpoint place, LastMessage& last) {
  const auto ttl_s = read_cache_control(marked);
  if (!ttl_s) return;
  place.ttl_s = *ttl_s;
  last.breakpoints.push_back(place);
}

/// Calls of a message: results name them by their ids.
void check_tool_calls(const JsonFields& message) {
  std::set<std::string> ids;
  message.each_object("tool_calls", [&](const JsonFields& call) {
    const std::string id = call.text("id").value_or("");
    if (!id.empty() && !ids.insert(id).second)
      call.wrong_value("id", "the ids of a message's calls must differ");
    const auto function = call.object("function");
    if (!function) return;
    function->text("name");
    switch (function->kind("arguments")) {
      case JsonKind::kAbsent:
      case JsonKind::kNull:
      case JsonKind::kString:
      case JsonKind::kObject:
        break;
      default:
        function->wrong_form("arguments", "a string of JSON, or an object");
    }
  });
}

void check_messages(const JsonFields& fields, LastMessage& last) {
  fields.require("messages");
  std::int32_t num_messages = 0;
  const auto count = fields.each_object("messages", [&](const JsonFields& message) {
    message.require("role");
    const std::int32_t index = num_messages++;
    read_breakpoint(message, {.message = index}, last);
    last.role = message.text("role").value_or("");
    last.text.clear();
    switch (message.kind("content")) {
      case JsonKind::kString:
        last.text = *message.text("content");
        break;
      case JsonKind::kArray:
        message.each_object("content", [&, num_parts = 0](const JsonFields& part) mutable {
          read_breakpoint(part, {.message = index, .length = ++num_parts}, last);
        });
        break;
      case JsonKind::kAbsent:
      case JsonKind::kNull:
        break;
      default:
        message.wrong_form("content", "a string, an array of content parts or null");
    }
    check_tool_calls(message);
  });
  if (count == 0u) fields.wrong_value("messages", "messages must not be empty");
}

void check_tools(const JsonFields& fields, LastMessage& last) {
  std::set<std::string> names;
  const auto count = fields.each_object("tools", [&](const JsonFields& tool) {
    read_breakpoint(tool, {.message = 0, .length = 0}, last);
    if (const auto type = tool.text("type"); type && *type != "function")
      return tool.fail(unsupported("tools", "a tool of another type than function"));
    tool.require("function");
    const auto function = tool.object("function");
    if (!function) return;
    function->require("name");
    const auto name = function->text("name");
    if (name && !names.insert(*name).second)
      function->wrong_value("name", "the names of functions must differ");
    function->boolean("strict");
  });
  if (count == 0u) fields.wrong_value("tools", "tools must not be an empty array");
}

bool check_num_values(const JsonFields& fields) {
  std::size_t num_values = 0;
  for (const std::string_view part : {"messages", "tools", "documents", "chat_template_kwargs"})
    num_values += fields.count_values(part);
  if (num_values <= kMaxTemplateValues) return true;
  fields.fail(invalid_argument("messages, tools, documents and chat_template_kwargs have " +
                                   std::to_string(num_values) + " values, the limit is " +
                                   std::to_string(kMaxTemplateValues),
                               "messages"));
  return false;
}

/// chat_template_kwargs, with variables for reasoning_effort: its value, and whether the model
/// reasons, unless the client says that itself.
std::string read_template_kwargs(const JsonFields& fields, const AnswerDefaults& answers) {
  std::string kwargs = fields.raw("chat_template_kwargs", JsonKind::kObject).value_or("");
  // Objects with more fields are not read by name; the last of two equal names holds.
  const bool is_small = fields.count_values("chat_template_kwargs") <= JsonFields::kMaxFields;
  const auto given = is_small ? fields.object("chat_template_kwargs") : std::nullopt;
  // What they would mean is not left to templates.
  for (const std::string_view name : {"chat_template", "tokenize"})
    if (given && given->has(name))
      given->wrong_value(name, std::string(name) + " is not a variable of chat templates");
  const auto effort = fields.choice("reasoning_effort", kReasoningEfforts);
  if (!effort) return kwargs;
  std::string merged = "{\"reasoning_effort\":";
  append_json_string(merged, *effort);
  const auto add_switch = [&](std::string_view name) {
    if (given && given->kind(name) != JsonKind::kAbsent) return;
    merged += ",\"" + std::string(name) + (*effort == "none" ? "\":false" : "\":true");
  };
  add_switch(kEnableThinking);
  if (answers.reasoning && !answers.reasoning->switch_variable.empty() &&
      answers.reasoning->switch_variable != kEnableThinking)
    add_switch(answers.reasoning->switch_variable);
  const bool others = kwargs.size() > std::string_view("{}").size();
  return merged + (others ? "," + kwargs.substr(1) : "}");
}

}  // namespace

ChatPrompt read_chat_prompt(const JsonFields& fields, const ServerDefaults& defaults,
                            LastMessage& last) {
  check_messages(fields, last);
  check_tools(fields, last);
  if (last.breakpoints.size() > kMaxCacheBreakpoints)
    fields.fail(too_many_breakpoints(last.breakpoints.size()));
  check_objects(fields, "documents");
  ChatPrompt prompt;
  if (!check_num_values(fields)) return prompt;
  prompt.messages_json = fields.raw("messages", JsonKind::kArray).value_or("");
  prompt.tools_json = fields.raw("tools", JsonKind::kArray).value_or("");
  prompt.documents_json = fields.raw("documents", JsonKind::kArray).value_or("");
  prompt.template_kwargs_json = read_template_kwargs(fields, defaults.answers);
  prompt.mm_processor_kwargs_json =
      fields.raw("mm_processor_kwargs", JsonKind::kObject).value_or("");
  prompt.media_io_kwargs_json = fields.raw("media_io_kwargs", JsonKind::kObject).value_or("");
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
        invalid_argument("chat_template is accepted in requests only if the server was "
                         "started with --trust-request-chat-template",
                         "chat_template"));
  }
  return prompt;
}

}  // namespace troupe
