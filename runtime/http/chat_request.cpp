#include "runtime/http/chat_fields.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/generation_fields.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/http/unsupported_fields.hpp"
#include "runtime/reasoning/reasoning_grammar.hpp"
#include "runtime/tool_parsers/tool_schemas.hpp"

namespace troupe {
namespace {

enum class ToolMode : std::uint8_t { kNone, kAuto, kRequired };

/// Which functions an answer may call, and whether it has to.
struct ToolChoice {
  ToolMode mode = ToolMode::kNone;
  std::string function = {};  ///< the one that must be called; empty: any that is allowed
  /// The only ones that may be called; none: all of them.
  std::optional<std::vector<std::string>> allowed = {};
};

ToolChoice wrong_choice(const JsonFields& fields, const std::string& what) {
  fields.wrong_value("tool_choice", what);
  return {};
}

/// {"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": ...}}, ...]}
ToolChoice read_allowed_tools(const JsonFields& fields, const JsonFields& allowed) {
  ToolChoice choice;
  const std::string mode = allowed.text("mode").value_or("");
  if (mode != "auto" && mode != "required")
    return wrong_choice(fields, "tool_choice.allowed_tools.mode must be auto or required");
  choice.mode = mode == "auto" ? ToolMode::kAuto : ToolMode::kRequired;
  choice.allowed.emplace();
  bool all_named = true;
  allowed.each_object("tools", [&](const JsonFields& tool) {
    const std::optional<JsonFields> function = tool.object("function");
    const auto name = function ? function->text("name") : std::nullopt;
    all_named &= name.has_value();
    if (name) choice.allowed->push_back(*name);
  });
  if (!all_named || choice.allowed->empty())
    return wrong_choice(fields,
                        "tool_choice.allowed_tools.tools must be an array of functions by name, "
                        "which is not empty");
  return choice;
}

ToolChoice read_tool_choice(const JsonFields& fields) {
  const bool has_tools = fields.has("tools");
  switch (fields.kind("tool_choice")) {
    case JsonKind::kAbsent:
    case JsonKind::kNull:
      return {.mode = has_tools ? ToolMode::kAuto : ToolMode::kNone};
    case JsonKind::kString: {
      const std::string choice = *fields.text("tool_choice");
      if (choice == "none") return {};
      if (choice != "auto" && choice != "required")
        return wrong_choice(fields,
                            "tool_choice must be none, auto, required, a named function or "
                            "allowed_tools");
      if (!has_tools) return wrong_choice(fields, "tool_choice needs tools");
      return {.mode = choice == "auto" ? ToolMode::kAuto : ToolMode::kRequired};
    }
    case JsonKind::kObject: {
      const std::optional<JsonFields> object = fields.object("tool_choice");
      const std::optional<JsonFields> allowed = object->object("allowed_tools");
      const std::optional<JsonFields> function = object->object("function");
      const auto name = function ? function->text("name") : std::nullopt;
      if (!allowed && !name)
        return wrong_choice(
            fields,
            R"(tool_choice must have the form {"type":"function","function":{"name":...}} or )"
            R"({"type":"allowed_tools","allowed_tools":{"mode":...,"tools":[...]}})");
      if (!has_tools) return wrong_choice(fields, "tool_choice needs tools");
      if (allowed) return read_allowed_tools(fields, *allowed);
      bool known = false;
      fields.each_object("tools", [&](const JsonFields& tool) {
        const std::optional<JsonFields> candidate = tool.object("function");
        known |= candidate && candidate->text("name") == name;
      });
      if (!known)
        return wrong_choice(fields, "tool_choice names the function " + name->substr(0, 64) +
                                        ", which is not in tools");
      return {.mode = ToolMode::kRequired, .function = *name};
    }
    default:
      fields.wrong_form("tool_choice", "a string or an object");
      return {};
  }
}

/// Holds the answer to calls of `tools` by a grammar: in the model's own format where that can be
/// held.
Result<void> force_calls(const std::string& function, const std::string& tools,
                         ChatRequest& request) {
  // response_format is for texts, as OpenAI has it: an answer of calls has none.
  if (request.params.structured_outputs &&
      request.params.structured_outputs->field == "response_format")
    request.params.structured_outputs.reset();
  if (request.params.structured_outputs) {
    return invalid_argument("tool_choice cannot force a call together with structured output",
                            "tool_choice");
  }
  AnswerFormat& answer = request.answer;
  const bool is_named = !function.empty();
  StructuredOutputsParams grammar{.kind = StructuredOutputKind::kStructuralTag, .field = "tools"};
  if (answer.tools != nullptr) {
    ASSIGN_OR_RETURN(auto tag, calls_tag(*answer.tools, tools,
                                         {.function = function,
                                          .required = true,
                                          .parallel = answer.parallel_tool_calls && !is_named}));
    if (tag) {
      answer.is_named_call = is_named;
      grammar.texts = {*std::move(tag)};
      request.params.structured_outputs = std::move(grammar);
      return {};
    }
  }
  std::string schema;
  if (is_named) {
    answer.tools = nullptr;
    answer.forced_function = function;
    ASSIGN_OR_RETURN(schema, parameters_schema(tools, function));
  } else {
    answer.tools = &json_tool_format();
    ASSIGN_OR_RETURN(schema, calls_schema(tools, answer.parallel_tool_calls));
  }
  grammar.kind = StructuredOutputKind::kJsonSchema;
  grammar.texts = {std::move(schema)};
  request.params.structured_outputs = std::move(grammar);
  return {};
}

/// Lets an answer that is held to a structure be calls instead, which are held to their schemas:
/// else there would be no place for them. False: the model's format of calls cannot be held.
Result<bool> allow_calls(const std::string& tools, ChatRequest& request) {
  const AnswerFormat& answer = request.answer;
  ASSIGN_OR_RETURN(
      const auto tag,
      calls_tag(*answer.tools, tools, {.required = true, .parallel = answer.parallel_tool_calls}));
  return tag && or_calls(*request.params.structured_outputs, answer.reasoning, *tag);
}

/// Holds calls that the model decides to make, as far as functions are strict or `level` says.
/// `tools`: those that it may call; where it cannot be held to some of those that the prompt shows,
/// the prompt shows these alone.
Result<void> hold_begun_calls(ToolStrictLevel level, const std::string& tools,
                              ChatRequest& request) {
  const AnswerFormat& answer = request.answer;
  const bool are_some = tools != request.prompt.tools_json;
  if (are_some) level = std::max(level, ToolStrictLevel::kFunction);
  const bool is_asked_for = has_strict_tool(tools);
  if (!is_asked_for && level == ToolStrictLevel::kAuto) return {};
  if (request.params.structured_outputs) {
    if (!is_asked_for) return {};  // the structure leaves no place for calls
    return invalid_argument(
        "a strict function cannot be held to its schema together with structured output", "tools");
  }
  std::optional<std::string> tag;
  if (answer.tools != nullptr) {
    ASSIGN_OR_RETURN(tag,
                     calls_tag(*answer.tools, tools,
                               {.parallel = answer.parallel_tool_calls, .strict_level = level}));
  }
  if (!tag) {
    if (are_some) request.prompt.tools_json = tools;
    if (!is_asked_for) return {};
    return unsupported("tools", "strict of a tool's function, with this model's format of calls,");
  }
  StructuredOutputsParams grammar{.kind = StructuredOutputKind::kStructuralTag, .field = "tools"};
  grammar.texts = {*std::move(tag)};
  request.params.structured_outputs = std::move(grammar);
  // Elsewhere markers tell calls from reasoning, and they may begin in it.
  if (answer.reasoning && has_calls_at_start(*answer.tools) &&
      !begin_with_reasoning(*request.params.structured_outputs, *answer.reasoning,
                            /*is_text=*/false))
    return invalid_argument("tools are nested too deep", "tools");
  return {};
}

/// Sets how the answer is parsed, and what follows from it for the prompt and for sampling.
void read_answer_format(const JsonFields& fields, const ServerDefaults& defaults,
                        ChatRequest& request) {
  AnswerFormat& answer = request.answer;
  answer.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  answer.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  answer.reasoning = defaults.answers.reasoning;
  if (answer.reasoning && !answer.reasoning->switch_variable.empty()) {
    const std::optional<JsonFields> kwargs = fields.object("chat_template_kwargs");
    const auto effort = fields.text("reasoning_effort");
    const bool is_on =
        (kwargs ? kwargs->boolean(answer.reasoning->switch_variable) : std::nullopt)
            .value_or(effort ? *effort != "none" : !answer.reasoning->is_off_by_default);
    if (!is_on) answer.reasoning.reset();
  }
  read_thinking_budget(fields, defaults, answer.reasoning, request.params);
  const ToolChoice choice = read_tool_choice(fields);
  if (choice.mode == ToolMode::kAuto && defaults.answers.tools == nullptr)
    fields.fail(invalid_argument(
        "tools with tool_choice auto need a format of calls, and this server has none for its "
        "model (see its options --tool-call-parser and --enable-auto-tool-choice)",
        "tools"));
  if (!fields.result().ok()) return;
  std::string callable = request.prompt.tools_json;
  if (choice.allowed) {
    auto allowed = only_tools(callable, *choice.allowed);
    if (!allowed.ok()) return fields.fail(allowed.error());
    callable = std::move(allowed).value();
  }
  if (choice.mode == ToolMode::kNone) {
    if (defaults.answers.exclude_tools_for_none) request.prompt.tools_json.clear();
    if (defaults.answers.tools != nullptr) answer.tools = defaults.answers.tools->without_tools;
  } else {
    auto declarations = ToolDeclarations::parse(callable);
    if (!declarations.ok()) return fields.fail(declarations.error());
    answer.declarations = std::make_shared<const ToolDeclarations>(std::move(declarations).value());
    answer.tools = defaults.answers.tools;
  }
  const bool is_forced = choice.mode == ToolMode::kRequired;
  if (is_forced) {
    if (const auto forced = force_calls(choice.function, callable, request); !forced.ok())
      return fields.fail(forced.error());
  }
  bool may_call = false;
  if (choice.mode == ToolMode::kAuto && request.params.structured_outputs) {
    const auto allowed = allow_calls(callable, request);
    if (!allowed.ok()) return fields.fail(allowed.error());
    may_call = allowed.value();
  }
  if (answer.reasoning && request.params.structured_outputs &&
      !begin_with_reasoning(*request.params.structured_outputs, *answer.reasoning,
                            /*is_text=*/!is_forced && !may_call)) {
    // The grammar holds from the first token.
    answer.reasoning.reset();
    request.params.thinking_budget.reset();
  }
  // These may begin anywhere, the reasoning included.
  if (choice.mode == ToolMode::kAuto && !may_call) {
    const auto held = hold_begun_calls(defaults.answers.strict_level, callable, request);
    if (!held.ok()) return fields.fail(held.error());
  }
  if (!request.prompt.tools_json.empty())
    request.prompt.tools_json = shown_tools(request.prompt.tools_json);
  // Markers that are special tokens must be seen.
  if ((answer.tools != nullptr && answer.tools->has_special_tokens) ||
      (answer.reasoning && answer.reasoning->has_special_tokens)) {
    request.params.skip_special_tokens = false;
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
  request.dialect = &kOpenAiDialect;
  request.api = &kOpenAiChat;
  read_generation_fields(fields, defaults, request);
  LastMessage last;
  request.prompt = read_chat_prompt(fields, defaults, last);
  request.cache_breakpoints = std::move(last.breakpoints);
  read_answer_format(fields, defaults, request);
  read_logprobs(fields, defaults, request);
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
