#pragma once
// Grammars over a vocabulary of single bytes, for tests of what they take.

#include <boost/test/unit_test.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/structured_output/compiled_grammar.hpp"

namespace troupe {

/// Token b is the byte b; token 256 is special.
inline std::shared_ptr<const GrammarVocabulary> byte_vocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> bytes;
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
    return GrammarVocabulary::make(std::move(bytes), 257);
  }();
  return vocabulary;
}

/// The text as a grammar has it, with these special tokens of the vocabulary.
inline std::string with_marks(std::string text, const std::vector<std::string>& special_tokens) {
  for (const std::string& token : special_tokens) {
    const std::string marked = GrammarVocabulary::special_bytes(token);
    for (std::size_t at = text.find(token); at != std::string::npos;
         at = text.find(token, at + marked.size()))
      text.replace(at, token.size(), marked);
  }
  return text;
}

/// Fails the test where the grammar is refused.
inline std::shared_ptr<CompiledGrammar> compile_for_bytes(const Result<GrammarBuilder>& grammar) {
  BOOST_REQUIRE_MESSAGE(grammar.ok(), (grammar.ok() ? "" : grammar.error().message));
  auto compiled = CompiledGrammar::compile(*grammar, byte_vocabulary());
  BOOST_REQUIRE_MESSAGE(compiled.ok(), (compiled.ok() ? "" : compiled.error().message));
  return *compiled;
}

/// Is `text` one of the grammar's texts?
inline bool accepts_bytes(CompiledGrammar& grammar, std::string_view text) {
  const auto state = grammar.advance(grammar.start(), text);
  return state && grammar.may_end(*state);
}

}  // namespace troupe
