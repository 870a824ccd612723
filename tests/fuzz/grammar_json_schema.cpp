// Arbitrary text as a JSON Schema: it must end with a grammar or an error, and a grammar's parser
// within its limits.
#include <cstdint>
#include <string>

#include "runtime/structured_output/json_schema.hpp"
#include "tests/fuzz/grammar_masks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string source(reinterpret_cast<const char*>(data), size);
  for (const bool any_order : {false, true})
    troupe::follow_masks(
        troupe::json_schema_grammar(source, {.any_order = any_order}, troupe::kFuzzGrammarLimits));
  return 0;
}
