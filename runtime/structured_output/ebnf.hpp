#pragma once
// Grammars as clients write them: EBNF in llama.cpp's form (GBNF), as xgrammar takes it.

#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

/// The texts of ebnf_grammar, as a part of a grammar. Throws GrammarRefused.
GrammarNodeId add_ebnf(GrammarBuilder& builder, std::string_view source);

/// rule ::= "text" [a-z\n] other-rule ( a | b )* c{2,3} . # a comment
///
/// The rule `root` is the start. Texts and classes have the escapes \n \r \t \\ \" \' \] \[ \- \xHH
/// \uHHHH \UHHHHHHHH; "." is any character. A rule continues over lines until the next `name ::=`.
/// Errors: kInvalidArgument: what is wrong and in which line, over a limit.
Result<GrammarBuilder> ebnf_grammar(std::string_view source, const GrammarLimits& limits = {});

}  // namespace troupe
