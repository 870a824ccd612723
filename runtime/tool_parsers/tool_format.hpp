#pragma once
// How families of models write tool calls in their answers.

#include <cstdint>
#include <span>
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
///   {parameters}  the arguments one by one, each by `parameter`, which has {key} and {value}
///   {python}      f(a=1, b="x"), g(): calls with Python literals
///   {escaped}     a:1,b:<escape>x<escape>: FunctionGemma's arguments
struct ToolFormat {
  std::string_view name;  ///< as --tool-call-parser has it
  std::vector<std::string_view> aliases = {};
  /// The text before the first placeholder begins a call wherever it occurs. A pattern without such
  /// text counts at the beginning of the answer and after another call, for known functions only.
  std::vector<std::string_view> patterns = {};
  std::string_view parameter = {};  ///< of {parameters}
  /// Markers around and between calls: no part of the answer's text.
  std::vector<std::string_view> markers = {};
  /// May stand between two calls.
  std::string_view separator = {};
  CallIds ids = CallIds::kOpenAi;
  /// Its markers are special tokens in the vocabularies of its models.
  bool has_special_tokens = false;
  /// A chat template that contains all texts of one of these rows renders calls in this format.
  std::vector<std::vector<std::string_view>> templates = {};
};

/// All formats; the first one whose `templates` fit a chat template is the right one.
[[nodiscard]] std::span<const ToolFormat> tool_formats();
/// By name or alias; null if there is none.
[[nodiscard]] const ToolFormat* find_tool_format(std::string_view name);
/// By the source of a chat template; null if it renders no calls, or in an unknown format.
[[nodiscard]] const ToolFormat* detect_tool_format(std::string_view chat_template);

}  // namespace troupe
