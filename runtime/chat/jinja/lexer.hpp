#pragma once
// Template source to tokens, with Jinja's whitespace rules: trim_blocks and lstrip_blocks on,
// keep_trailing_newline off.

#include <string>
#include <vector>

#include "runtime/chat/jinja/value.hpp"

namespace troupe::jinja {

struct Token {
  enum class Kind {
    kData,  ///< text outside of tags
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kNumber,
    kOperator,
    kEnd,  ///< of the template
  };
  Kind kind = Kind::kEnd;
  int line = 1;
  std::string text;  ///< of data, names, operators; of strings after unescaping
  Value number;
};

/// Fails (kSyntax) naming the line.
[[nodiscard]] std::vector<Token> tokenize(std::string_view source);
[[noreturn]] void fail_syntax(int line, const std::string& message);

}  // namespace troupe::jinja
