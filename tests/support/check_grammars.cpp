// check_grammars TOKENIZER_FOLDER < cases.jsonl > results.jsonl: for each line {"kind":
// "json_schema" | "regex" | "grammar", "source", "any_order", "texts"}, either {"error"} or
// {"accepted": [bool]}: whether the grammar takes each text, token by token, each token being in
// the mask before it.

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "runtime/base/json.hpp"
#include "runtime/structured_output/compiled_grammar.hpp"
#include "runtime/structured_output/json_schema.hpp"
#include "runtime/structured_output/lark.hpp"
#include "runtime/structured_output/regex.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace {

using Json = nlohmann::json;

troupe::Result<troupe::GrammarBuilder> grammar_of(const std::string& kind,
                                                  const std::string& source, bool any_order) {
  if (kind == "regex") return troupe::regex_grammar(source);
  if (kind == "grammar") return troupe::ebnf_or_lark_grammar(source);
  return troupe::json_schema_grammar(source, {.any_order = any_order});
}

/// Exits where a mask and accept() differ.
bool accepts(const std::shared_ptr<troupe::CompiledGrammar>& grammar,
             const troupe::Tokenizer& tokenizer, const std::string& text) {
  troupe::GrammarMatcher matcher(grammar, {});
  std::vector<std::int32_t> row(matcher.words_per_row());
  const auto tokens = tokenizer.encode(text, false);
  for (const troupe::TokenId token : tokens.value()) {
    matcher.fill_bitmask(row);
    const bool allowed = (row[static_cast<std::size_t>(token) / 32] >> token % 32 & 1) != 0;
    if (matcher.accept(token) != allowed) {
      std::fprintf(stderr, "mask and parser differ in %s\n", text.c_str());
      std::exit(1);
    }
    if (!allowed) return false;
  }
  return matcher.may_end();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: check_grammars TOKENIZER_FOLDER\n");
    return 2;
  }
  const auto tokenizer = troupe::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  const auto vocabulary =
      troupe::GrammarVocabulary::from_tokenizer(**tokenizer, (*tokenizer)->id_limit());
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json request = Json::parse(line);
    Json result;
    const auto grammar =
        grammar_of(request["kind"], request["source"], request.value("any_order", false));
    if (!grammar.ok()) {
      result["error"] = grammar.error().message;
    } else if (auto compiled = troupe::CompiledGrammar::compile(*grammar, vocabulary);
               !compiled.ok()) {
      result["error"] = compiled.error().message;
    } else {
      result["accepted"] = Json::array();
      for (const std::string text : request["texts"])
        result["accepted"].push_back(accepts(*compiled, **tokenizer, text));
    }
    std::cout << result.dump() << '\n';
  }
  return 0;
}
