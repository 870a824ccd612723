#pragma once
// Parses tokens to a syntax tree: Jinja 3.1's grammar with loop controls and generation blocks.

#include "runtime/chat/jinja/ast.hpp"

namespace troupe::jinja {

struct SyntaxTree {
  Body body;
  Blocks blocks;
};

/// Fails (kSyntax) naming the line, also for unknown filters and tests, and for sources that are
/// nested too deeply.
[[nodiscard]] SyntaxTree parse(std::string_view source);

}  // namespace troupe::jinja
