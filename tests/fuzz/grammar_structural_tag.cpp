// Arbitrary text as a structural tag: it must end with a grammar or an error, and a grammar's
// parser within its limits.
#include <cstdint>
#include <string>

#include "runtime/structured_output/structural_tag.hpp"
#include "tests/fuzz/grammar_masks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string source(reinterpret_cast<const char*>(data), size);
  troupe::follow_masks(troupe::structural_tag_grammar(source, {}, troupe::kFuzzGrammarLimits,
                                                      troupe::kFuzzSpecialTokens));
  return 0;
}
