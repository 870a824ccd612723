// Arbitrary text as a grammar in EBNF: it must end with a
// grammar or an error, and a grammar's parser within its limits.
#include <cstdint>
#include <string>

#include "runtime/structured_output/compiled_grammar.hpp"
#include "runtime/structured_output/ebnf.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr troupe::GrammarLimits kLimits{.max_source_bytes = 1 << 16,
                                          .max_nodes = 20'000,
                                          .max_bytes = 16 << 20,
                                          .max_steps = 200'000,
                                          .max_emptiness_steps = 500};
  static const auto vocabulary = [] {
    std::vector<std::string> tokens{"\"", "{\"", "\": ", "a", "ab",  "1",
                                    "12", "}",   "]",    "[", "\xC3"};
    return troupe::GrammarVocabulary::make(tokens, tokens.size());
  }();
  const std::string source(reinterpret_cast<const char*>(data), size);
  const auto grammar = troupe::ebnf_grammar(source, kLimits);
  if (!grammar.ok()) return 0;
  const auto compiled = troupe::CompiledGrammar::compile(*grammar, vocabulary);
  if (!compiled.ok()) return 0;
  troupe::GrammarMatcher matcher(*compiled, {});
  std::int32_t row = 0;
  for (int step = 0; step < 16; ++step) {
    matcher.fill_bitmask(std::span(&row, 1));
    if (row == 0) break;
    // A token that the mask allows is accepted.
    const int token = __builtin_ctz(static_cast<unsigned>(row));
    if (!matcher.accept(token)) __builtin_trap();
  }
  return 0;
}
