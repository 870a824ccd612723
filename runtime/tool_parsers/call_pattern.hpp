#pragma once
// The patterns of a ToolFormat, compiled, and how the beginning of a call matches one.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tool_parsers/tool_declarations.hpp"
#include "runtime/tool_parsers/tool_format.hpp"

namespace troupe {

enum class PatternPartKind : std::uint8_t {
  kLiteral,
  kName,
  kId,
  kKey,
  kValue,
  // Arguments: the calls of a pattern begin before one of these.
  kJson,
  kObject,
  kObjects,
  kParameters,
  kPython,
  kEscaped,
};

struct PatternPart {
  PatternPartKind kind = PatternPartKind::kLiteral;
  std::string_view literal;
};
using CallPattern = std::vector<PatternPart>;

/// Pre: the placeholders are those of ToolFormat.
[[nodiscard]] CallPattern compile_pattern(std::string_view pattern);
/// The text that begins a call: the first literal up to its first whitespace; empty without one.
[[nodiscard]] std::string_view trigger_of(const CallPattern& pattern);

enum class Match : std::uint8_t {
  kNo,
  kYes,
  kMore  ///< it depends on text that is not there yet
};

/// The beginning of a call, up to its arguments.
struct CallHeader {
  std::size_t end = 0;   ///< position of the arguments, or of what follows them
  std::size_t part = 0;  ///< of the pattern: the arguments
  std::string name;
  std::string model_id;
  /// The whole object has been read: its arguments are here.
  bool is_complete = false;
  std::string arguments;
};

/// Matches the pattern up to the arguments at text[at]. Once a text matches or does not, every
/// longer text gives the same. Null `known`: any function is accepted.
[[nodiscard]] Match match_header(const CallPattern& pattern, std::string_view text, std::size_t at,
                                 const ToolDeclarations* known, CallHeader& header);
/// A further object of {objects}, or a further call of {python}.
[[nodiscard]] Match match_next(PatternPartKind kind, std::string_view text, std::size_t at,
                               CallHeader& header);

/// Of a parameter, up to its value.
struct ParameterHeader {
  std::size_t end = 0;
  std::string key;
  std::string model_id;
};
[[nodiscard]] Match match_parameter(const CallPattern& pattern, std::string_view text,
                                    std::size_t at, ParameterHeader& header);

/// `at` moves behind the literal if it matches.
[[nodiscard]] Match match_literal(std::string_view literal, std::string_view text, std::size_t& at);
[[nodiscard]] std::size_t skip_space(std::string_view text, std::size_t at);

}  // namespace troupe
