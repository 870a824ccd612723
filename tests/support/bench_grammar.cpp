// bench_grammar TOKENIZER_FOLDER CASES.jsonl: each line {"schema", "texts"}: compiles the schema,
// follows each text token by token, and prints what compiling, the first mask and each mask took.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/ordered_json.hpp"
#include "runtime/structured_output/compiled_grammar.hpp"
#include "runtime/structured_output/json_schema.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace {

/// Of this thread's time: other programs on the machine do not count.
double now_us() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

double us_since(double start) { return now_us() - start; }

void print(const char* name, std::vector<double> us) {
  if (us.empty()) return;
  std::ranges::sort(us);
  double sum = 0;
  for (const double x : us) sum += x;
  const auto at = [&](double p) {
    return us[std::min(us.size() - 1,
                       static_cast<std::size_t>(p * static_cast<double>(us.size())))];
  };
  std::printf("%-12s n %6zu  avg %8.1f us  p50 %8.1f  p99 %8.1f  p99.9 %8.1f  max %8.1f\n", name,
              us.size(), sum / static_cast<double>(us.size()), at(0.5), at(0.99), at(0.999),
              us.back());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_grammar TOKENIZER_FOLDER CASES.jsonl\n");
    return 2;
  }
  const auto tokenizer = troupe::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  auto start = now_us();
  const auto vocabulary =
      troupe::GrammarVocabulary::from_tokenizer(**tokenizer, (*tokenizer)->id_limit());
  std::printf("vocabulary of %zu tokens: %.1f ms\n", vocabulary->size(), us_since(start) / 1e3);
  std::vector<double> compile_us;
  std::vector<double> first_us;
  std::vector<double> mask_us;
  std::vector<double> accept_us;
  std::size_t num_refused = 0;
  std::size_t num_rejected = 0;
  std::ifstream cases(argv[2]);
  for (std::string line; std::getline(cases, line);) {
    const auto request = nlohmann::ordered_json::parse(line);
    const std::string schema = request["schema"].dump();
    start = now_us();
    const auto grammar = troupe::json_schema_grammar(schema);
    if (!grammar.ok()) {
      std::printf("refused: %s\n", grammar.error().message.c_str());
      ++num_refused;
      continue;
    }
    const auto compiled = troupe::CompiledGrammar::compile(*grammar, vocabulary);
    if (!compiled.ok()) {
      std::printf("refused: %s\n", compiled.error().message.c_str());
      ++num_refused;
      continue;
    }
    compile_us.push_back(us_since(start));
    std::vector<std::int32_t> row(vocabulary->num_words());
    bool is_first = true;
    for (const std::string text : request["texts"]) {
      troupe::GrammarMatcher matcher(*compiled, {});
      bool fits = true;
      const auto tokens = (*tokenizer)->encode(text, false);
      for (const troupe::TokenId token : tokens.value()) {
        const auto mask_start = now_us();
        matcher.fill_bitmask(row);
        mask_us.push_back(us_since(mask_start));
        if (is_first) first_us.push_back(us_since(start));
        if (is_first) is_first = false;
        const auto accept_start = now_us();
        fits = matcher.accept(token);
        accept_us.push_back(us_since(accept_start));
        if (!fits) break;
      }
      if (!fits || !matcher.may_end()) {
        std::printf("rejected: %s\n", text.substr(0, 200).c_str());
        ++num_rejected;
      }
    }
  }
  std::printf("%zu schemas refused, %zu texts rejected\n", num_refused, num_rejected);
  print("compile", compile_us);
  print("first mask", first_us);  // from the schema's text to the first mask
  print("mask", mask_us);
  print("accept", accept_us);
  return 0;
}
