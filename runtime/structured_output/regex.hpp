#pragma once
// Regular expressions as grammars: the regular part of Python's `re` and of ECMAScript's. What is
// not regular or cannot be held (look-around, back references, word boundaries, flags) is refused
// by name.

#include <functional>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

enum class RegexDialect : std::uint8_t {
  kPython,  ///< of str: \d, \w and \s are Unicode's
  kEcma,    ///< with the flag u, as JSON Schema's `pattern`
};

struct RegexOptions {
  RegexDialect dialect = RegexDialect::kPython;
  /// The expression may match anywhere in the text, instead of the whole of it.
  bool search = false;
  /// "." is any character, also a line's end.
  bool dot_all = false;
  /// How a character of a set is written; UTF-8 if empty.
  std::function<GrammarNodeId(const CodePointSet&)> characters;
};

/// The texts that the pattern matches. Throws GrammarRefused.
GrammarNodeId add_regex(GrammarBuilder& builder, std::string_view pattern,
                        const RegexOptions& options);

/// What Python's re.fullmatch() takes. Errors: kInvalidArgument: what is wrong, refused or over a
/// limit, and where.
Result<GrammarBuilder> regex_grammar(std::string_view pattern, const GrammarLimits& limits = {});

}  // namespace troupe
