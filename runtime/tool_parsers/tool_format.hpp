#pragma once
// How families of models write tool calls in their answers.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// How the ids of calls look; templates of some models accept only their own.
enum class CallIds : std::uint8_t {
  kOpenAi,   ///< chatcmpl-tool-<16 hexadecimal digits>
  kNine,     ///< 9 letters and digits
  kNumbered  ///< functions.<name>:<number>
};

/// A format is a list of patterns for one call, tried in order. A pattern is literal text with
/// placeholders; whitespace in it stands for any whitespace, also none, and literals after the
/// arguments may be missing.
///
///   {name}        the function
///   {id}          the model's own id or number of the call
///   {json}        the arguments: a JSON object
///   {object}      {"name": ..., "arguments" or "parameters": ...}, keys in any order
///   {objects}     a JSON array of those
///   {parameters}  the arguments one by one, each by `parameter`, which has {key} and {value}, and
///                 may have {id}: true if the value is a string as it is, false if it is JSON
///   {python}      f(a=1, b="x"), g(): calls with Python literals
///   {escaped}     a:1,b:<escape>x<escape>: FunctionGemma's arguments
struct ToolFormat {
  std::string_view name;  ///< as --tool-call-parser has it
  std::vector<std::string_view> aliases = {};
  /// The text before the first placeholder begins a call wherever it occurs. A pattern without such
  /// text counts at the beginning of the answer and after another call, for known functions only.
  std::vector<std::string_view> patterns = {};
  std::string_view parameter = {};  ///< of {parameters}
  /// Around all calls of an answer: no part of its text.
  std::string_view section_begin = {};
  std::string_view section_end = {};
  /// Other markers around and between calls.
  std::vector<std::string_view> markers = {};
  /// May stand between two calls.
  std::string_view separator = {};
  CallIds ids = CallIds::kOpenAi;
  /// Its markers are special tokens in the vocabularies of its models: of all of them, or, where a
  /// vocabulary tells (format_with), of one.
  bool has_special_tokens = false;
  /// Of `patterns`: those that its models write. Calls are held to them.
  std::vector<std::size_t> held = {0};
  /// Others that they may write. Where a model decides whether it calls, these are held, too.
  std::vector<std::size_t> also_held = {};
  /// What its models write between two calls that are not in a list.
  std::string_view between = "\n";
  std::string_view arguments_key =
      "arguments";  ///< of {object} and {objects}, as its models have it
  /// Parses answers to requests without tools; null: they are text.
  const ToolFormat* without_tools = nullptr;
  /// A chat template that contains all texts of one of these rows renders calls in this format.
  std::vector<std::vector<std::string_view>> templates = {};
};

/// What answers to requests with tools are held to, unless a request asks for more: the levels of
/// vLLM's --tool-strict-level.
enum class ToolStrictLevel : std::uint8_t {
  kAuto,      ///< forced calls, and those of functions that are strict
  kFunction,  ///< all calls to the format and to the names of functions
  kParameter  ///< all calls also to the schemas of their functions
};
/// Nullopt: there is none of this name.
[[nodiscard]] std::optional<ToolStrictLevel> find_tool_strict_level(std::string_view name);

/// All formats; the first one whose `templates` fit a chat template is the right one.
[[nodiscard]] std::span<const ToolFormat> tool_formats();
/// By name or alias; null if there is none.
[[nodiscard]] const ToolFormat* find_tool_format(std::string_view name);
/// The same format, with has_special_tokens if one of these tokens is in its markers.
[[nodiscard]] const ToolFormat* format_with(const ToolFormat& format,
                                            std::span<const std::string> special_tokens);
/// By the source of a chat template; null if it renders no calls, or in an unknown format.
[[nodiscard]] const ToolFormat* detect_tool_format(std::string_view chat_template);

}  // namespace troupe
