#pragma once
// What the fuzz targets of grammar front ends share.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/structured_output/compiled_grammar.hpp"

namespace troupe {

/// Small, so that an input ends soon.
inline constexpr GrammarLimits kFuzzGrammarLimits{.max_source_bytes = 1 << 16,
                                                  .max_nodes = 20'000,
                                                  .max_bytes = 16 << 20,
                                                  .max_steps = 200'000,
                                                  .max_emptiness_steps = 500};

/// Special tokens of the vocabulary below.
inline const std::vector<std::string> kFuzzSpecialTokens{"[T]", "<t>"};

/// Compiles what a front end made of an input and follows its masks: each ends within the limits,
/// and a token that a mask allows is accepted.
inline void follow_masks(const auto& grammar) {
  if (!grammar.ok()) return;
  static const auto vocabulary = [] {
    std::vector<std::string> tokens{"\"", "{\"", ", \"", "\": ", "a", "ab",
                                    "1",  "12",  "}",    "]",    "[", "\xC3"};
    for (const std::string& token : kFuzzSpecialTokens)
      tokens.push_back(GrammarVocabulary::special_bytes(token));
    return GrammarVocabulary::make(tokens, tokens.size());
  }();
  const auto compiled = CompiledGrammar::compile(*grammar, vocabulary);
  if (!compiled.ok()) return;
  GrammarMatcher matcher(*compiled, {});
  std::int32_t row = 0;
  for (int step = 0; step < 16; ++step) {
    matcher.fill_bitmask(std::span(&row, 1));
    if (row == 0) break;
    // A token that the mask allows is accepted.
    const int token = __builtin_ctz(static_cast<unsigned>(row));
    if (!matcher.accept(token)) __builtin_trap();
  }
}

}  // namespace troupe
