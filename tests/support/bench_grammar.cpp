// bench_grammar TOKENIZER_FOLDER: for each line {"schema": text, "any_order": optional bool,
// "tests": [[token]]} of the input,
// compiles the schema and follows each test token by token. Answers with a line: {"error"}, or
// {"compile_us", "mask_us": [], "accepted": []}: what compiling and each mask with the token behind
// it took, and which tests are texts of the schema.
// The first answer is {"ready"}. tools/bench/bench_masks.py runs it beside other engines.

#include <time.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/compiled_grammar.hpp"
#include "runtime/structured_output/json_schema.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace {

using Json = nlohmann::ordered_json;

/// Of this thread's time: other programs on the machine do not count.
double now_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

Json measure(const std::shared_ptr<const troupe::GrammarVocabulary>& vocabulary,
             const Json& request) {
  const std::string schema = request["schema"];
  const double start = now_us();
  auto grammar =
      troupe::json_schema_grammar(schema, {.any_order = request.value("any_order", false)});
  if (!grammar.ok()) return {{"error", grammar.error().message}};
  const auto compiled = troupe::CompiledGrammar::compile(*std::move(grammar), vocabulary);
  if (!compiled.ok()) return {{"error", compiled.error().message}};
  Json result{
      {"compile_us", now_us() - start}, {"mask_us", Json::array()}, {"accepted", Json::array()}};
  std::vector<std::int32_t> row(vocabulary->num_words());
  for (const std::vector<troupe::TokenId> tokens : request["tests"]) {
    troupe::GrammarMatcher matcher(*compiled, {});
    bool fits = true;
    for (std::size_t i = 0; i < tokens.size() && fits; ++i) {
      const double mask_start = now_us();
      matcher.fill_bitmask(row);
      fits = matcher.accept(tokens[i]);
      result["mask_us"].push_back(now_us() - mask_start);
    }
    result["accepted"].push_back(fits && matcher.may_end());
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_grammar TOKENIZER_FOLDER\n");
    return 2;
  }
  const auto tokenizer = troupe::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  const auto vocabulary =
      troupe::GrammarVocabulary::from_tokenizer(**tokenizer, (*tokenizer)->id_limit());
  std::cout << Json{{"ready", true}}.dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);)
    std::cout << measure(vocabulary, Json::parse(line)).dump() << std::endl;
  return 0;
}
