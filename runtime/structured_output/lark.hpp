#pragma once
// Grammars in the language of the Python package lark, as guidance and vLLM take them.

#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/structured_output/grammar_builder.hpp"

namespace troupe {

/// start: "text"i other_rule (A | /regex/s)* [b] c~2..3 -> alias   // a comment
/// A: "a".."z"+
/// %import common.INT
/// %ignore " "
///
/// The rule `start` is the start, the first rule if there is none. The grammar takes what lark's
/// Earley parser takes with the lexer dynamic_complete: no terminal is longest by rule, and what is
/// ignored may stand between any two terminals, at the beginning and at the end. Signs for trees
/// (?rule, !rule, aliases, priorities) say nothing of texts. Not supported, and refused by name:
/// templates, %declare, %extend, %override, imports from elsewhere than `common`, look-around and
/// flags other than s of regular expressions.
/// Errors: kInvalidArgument: what is wrong and in which line, over a limit.
Result<GrammarBuilder> lark_grammar(std::string_view source, const GrammarLimits& limits = {});

/// The texts of a grammar in EBNF, or in Lark if no line has a `::=`: that is how vLLM tells them
/// apart. Throws GrammarRefused.
GrammarNodeId add_ebnf_or_lark(GrammarBuilder& builder, std::string_view source);
/// The same as a grammar of its own. Errors: as above, and as ebnf_grammar.
Result<GrammarBuilder> ebnf_or_lark_grammar(std::string_view source,
                                            const GrammarLimits& limits = {});

}  // namespace troupe
