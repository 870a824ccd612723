#pragma once
// JSON Schemas and structural tags that hold a model to calls.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/tool_parsers/tool_format.hpp"

namespace troupe {

/// The parameters of one function; an object without properties if it declares none. `tools_json`
/// is the array `tools` of a chat request. Errors: kNotFound.
[[nodiscard]] Result<std::string> parameters_schema(std::string_view tools_json,
                                                    std::string_view function);

/// An array of one or more {"name", "parameters"} of any of the tools; exactly one without
/// `parallel`. Definitions of the tools' schemas move to the root, under names of their own.
[[nodiscard]] Result<std::string> calls_schema(std::string_view tools_json, bool parallel);

/// What calls an answer may have.
struct CallRule {
  std::string function;   ///< the only one; empty: any of the tools
  bool required = false;  ///< the answer is calls; false: text in which calls may begin
  bool parallel = true;   ///< any number of calls; false: one
  ToolStrictLevel strict_level = ToolStrictLevel::kAuto;
};

/// The structural tag that holds an answer to the rule in the model's own format, made of the same
/// patterns that parse it. The arguments of a function match its schema, if the call is required,
/// the function is `strict` or the level says so, and are an object otherwise. Where no marker
/// tells calls from text, an answer that begins as a call of one of the functions does is held to
/// it; an object whose first key is not the name is text. Nullopt: the format cannot be held, or
/// not for these parameters (names that the format cannot write). Errors: as parameters_schema.
[[nodiscard]] Result<std::optional<std::string>> calls_tag(const ToolFormat& format,
                                                           std::string_view tools_json,
                                                           const CallRule& rule);

/// Whether an answer of calls in this format may begin with one, and nothing else tells that it is
/// one: reasoning has to be told apart before that.
[[nodiscard]] bool has_calls_at_start(const ToolFormat& format);

/// Those of the tools that have one of the names, in their order. Errors: kInvalidArgument, none
/// has this name.
[[nodiscard]] Result<std::string> only_tools(std::string_view tools_json,
                                             const std::vector<std::string>& names);

/// Whether one of the tools is `strict`.
[[nodiscard]] bool has_strict_tool(std::string_view tools_json);
/// The tools as a chat template shows them: `strict` is for the server, not for the model, and a
/// function without `parameters` takes none, which templates expect to be said.
[[nodiscard]] std::string shown_tools(std::string_view tools_json);

}  // namespace troupe
