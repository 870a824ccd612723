#include "runtime/http/chat_fields.hpp"
#include "runtime/http/generation_fields.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/http/unsupported_fields.hpp"

namespace troupe {
namespace {

/// Tools are shown to the model through the template, and its calls are returned as text: a choice
/// that would force a call is rejected.
void check_tool_choice(const JsonFields& fields) {
  const auto must_have_tools = [&] {
    if (!fields.has("tools")) {
      fields.wrong_value("tool_choice", "tool_choice needs tools");
      return false;
    }
    return true;
  };
  const auto refuse = [&](const std::string& what) {
    fields.fail({ErrorCode::kUnsupported,
                 "tool_choice " + what + " is not supported by this server, use none or auto",
                 "tool_choice"});
  };
  switch (fields.kind("tool_choice")) {
    case JsonKind::kAbsent:
    case JsonKind::kNull:
      return;
    case JsonKind::kString: {
      const std::string choice = *fields.text("tool_choice");
      if (choice == "none") return;
      if (choice != "auto" && choice != "required") {
        fields.wrong_value("tool_choice",
                           "tool_choice must be none, auto, required or a named function");
      } else if (must_have_tools() && choice == "required") {
        refuse(choice);
      }
      return;
    }
    case JsonKind::kObject: {
      const std::optional<JsonFields> function = fields.object("tool_choice")->object("function");
      const auto name = function ? function->text("name") : std::nullopt;
      if (!name) {
        fields.wrong_value(
            "tool_choice",
            R"(tool_choice must have the form {"type":"function","function":{"name":...}})");
        return;
      }
      if (!must_have_tools()) return;
      bool known = false;
      fields.each_object("tools", [&](const JsonFields& tool) {
        const std::optional<JsonFields> candidate = tool.object("function");
        known |= candidate && candidate->text("name") == name;
      });
      if (known) {
        refuse("of a named function");
      } else {
        fields.wrong_value("tool_choice", "tool_choice names a function that is not in tools");
      }
      return;
    }
    default:
      fields.wrong_form("tool_choice", "a string or an object");
  }
}

void read_logprobs(const JsonFields& fields, const ServerDefaults& defaults, ChatRequest& request) {
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", {kAllLogprobs, kAnyInt32.max});
  if (top.value_or(0) != 0 && !logprobs) {
    fields.wrong_value("top_logprobs", "top_logprobs can only be set when logprobs is true");
  }
  if (!logprobs) return;
  check_num_logprobs(fields, "top_logprobs", defaults, top.value_or(0));
  request.top_logprobs = static_cast<std::int32_t>(top.value_or(0));
  request.params.logprobs = request.top_logprobs;
}

PromptSizes sizes_of(const ChatRequest& request) {
  PromptSizes sizes{.count = 1};
  sizes.num_bytes = static_cast<std::int64_t>(request.prompt.messages_json.size());
  sizes.num_shown_bytes = static_cast<std::int64_t>(request.echo_text.size());
  // A stream repeats the prompt at the start of each sample.
  if (request.return_prompt_text && request.stream) sizes.num_shown_bytes += sizes.num_bytes;
  if (request.return_token_ids && request.stream) sizes.num_shown_ids = 1;
  return sizes;
}

}  // namespace

Result<ChatRequest> parse_chat_request(std::string_view body, const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  ChatRequest request;
  read_generation_fields(fields, defaults, request);
  LastMessage last;
  request.prompt = read_chat_prompt(fields, defaults, last);
  check_tool_choice(fields);
  read_logprobs(fields, defaults, request);
  if (!fields.boolean("parallel_tool_calls").value_or(true) && fields.has("tools"))
    fields.fail(unsupported("parallel_tool_calls", "parallel_tool_calls false"));
  if (!fields.boolean("include_reasoning").value_or(true))
    fields.fail(unsupported("include_reasoning", "include_reasoning false"));
  request.return_prompt_text = fields.boolean("return_prompt_text").value_or(false);

  const Interval allowed = {1, kAnyInt32.max};
  std::optional<std::int64_t> max_tokens = fields.integer("max_tokens", allowed);
  if (const auto newer = fields.integer("max_completion_tokens", allowed)) max_tokens = newer;
  request.params.max_tokens = capped_max_tokens(max_tokens, defaults);

  request.role = request.prompt.add_generation_prompt ? defaults.response_role : last.role;
  if (request.echo && last.role == request.role) request.echo_text = last.text;
  finish_sampling_params(fields, defaults, request);
  check_request_size(fields, defaults, request, sizes_of(request));
  RETURN_IF_ERROR(fields.result());
  return request;
}

}  // namespace troupe
