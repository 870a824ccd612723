// The grammars of a model: compiled once, shared, dropped where they take too much.

#include "runtime/structured_output/grammar_cache.hpp"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "runtime/structured_output/grammar_pool.hpp"
#include "runtime/structured_output/request_grammar.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {
namespace {

using Kind = StructuredOutputKind;

std::shared_ptr<const Tokenizer> tokenizer() {
  static const auto loaded = Tokenizer::load(TROUPE_GOLDEN_DIR "/tokenizers/llama3");
  BOOST_REQUIRE(loaded.ok());
  return *loaded;
}

std::shared_ptr<GrammarCache> make_cache(const GrammarCacheOptions& options = {}) {
  return std::make_shared<GrammarCache>(tokenizer(), tokenizer()->id_limit(), options);
}

StructuredOutputsParams regex(const std::string& pattern) {
  StructuredOutputsParams what{.kind = Kind::kRegex};
  what.texts = {pattern};
  return what;
}

StructuredOutputsParams schema(const std::string& text) {
  StructuredOutputsParams what = regex(text);
  what.kind = Kind::kJsonSchema;
  return what;
}

BOOST_AUTO_TEST_CASE(what_means_the_same_is_compiled_once) {
  const auto cache = make_cache();
  const auto first = cache->get(regex("ab*")).value();
  StructuredOutputsParams same = regex("ab*");
  same.field = "guided_regex";
  BOOST_TEST(cache->get(same).value() == first);
  BOOST_TEST(cache->find(same) == first);
  StructuredOutputsParams json = schema(R"({"type":"object","properties":{"a":{}}})");
  BOOST_TEST(cache->find(json) == nullptr);
  std::vector<std::shared_ptr<CompiledGrammar>> different{first, cache->get(json).value()};
  json.disable_any_whitespace = true;
  different.push_back(cache->get(json).value());
  json.disable_additional_properties = true;
  different.push_back(cache->get(json).value());
  json.whitespace_pattern = " ";
  different.push_back(cache->get(json).value());
  different.push_back(cache->get(regex("b")).value());
  StructuredOutputsParams choice = regex("b");
  choice.kind = Kind::kChoice;
  different.push_back(cache->get(choice).value());
  choice.texts = {"b", "c"};
  different.push_back(cache->get(choice).value());
  for (std::size_t i = 0; i < different.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) BOOST_TEST(different[i] != different[j]);
  BOOST_TEST(cache->size() == different.size());
}

BOOST_AUTO_TEST_CASE(threads_that_want_the_same_grammar_get_one) {
  const auto cache = make_cache();
  std::vector<std::shared_ptr<CompiledGrammar>> found(8);
  std::vector<std::thread> threads;
  for (auto& place : found)
    threads.emplace_back([&] { place = cache->get(regex("(a|b){3,9}c")).value(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : found) BOOST_TEST(each == found.front());
  BOOST_TEST(cache->size() == 1u);
}

BOOST_AUTO_TEST_CASE(those_used_last_stay_within_the_limits) {
  const auto few = make_cache({.max_grammars = 2});
  const auto a = few->get(regex("a")).value();
  static_cast<void>(few->get(regex("b")));
  static_cast<void>(few->get(regex("a")));
  static_cast<void>(few->get(regex("c")));
  BOOST_TEST(few->find(regex("a")) == a);
  BOOST_TEST(few->find(regex("b")) == nullptr);
  // One alone may be larger.
  const auto small = make_cache({.max_bytes = 1});
  for (const char* pattern : {"a", "b", "c"}) {
    BOOST_TEST(small->get(regex(pattern)).ok());
    BOOST_TEST(small->size() == 1u);
  }
}

BOOST_AUTO_TEST_CASE(errors_name_the_field_and_are_not_kept) {
  const auto cache = make_cache();
  const auto error_of = [&](StructuredOutputsParams what) {
    what.field = "response_format";
    const auto result = cache->get(what);
    BOOST_REQUIRE(!result.ok());
    BOOST_TEST(result.error().param == "response_format");
    return result.error().message;
  };
  BOOST_TEST(error_of(schema(R"({"$dynamicRef":"#"})")).find("'$dynamicRef'") != std::string::npos);
  BOOST_TEST(error_of(schema("{")).find("no JSON") != std::string::npos);
  BOOST_TEST(error_of(regex("(?=a)")).starts_with("regex"));
  StructuredOutputsParams grammar = regex("%declare A");
  grammar.kind = Kind::kGrammar;
  BOOST_TEST(error_of(grammar).find("'%declare'") != std::string::npos);
  grammar.texts = {"root ::= other"};
  BOOST_TEST(error_of(grammar).find("other") != std::string::npos);
  StructuredOutputsParams tag = regex("{}");
  tag.kind = Kind::kStructuralTag;
  BOOST_TEST(error_of(tag).find("structural_tag") != std::string::npos);
  StructuredOutputsParams blanks = schema("{}");
  blanks.whitespace_pattern = std::string(5000, ' ');
  BOOST_TEST(error_of(blanks).find("5000 bytes, the limit is 4096") != std::string::npos);
  StructuredOutputsParams none{.kind = Kind::kRegex};
  BOOST_TEST(error_of(none).find("0 texts") != std::string::npos);
  BOOST_TEST(cache->size() == 0u);
}

BOOST_AUTO_TEST_CASE(the_pool_compiles_for_the_scheduler) {
  const auto cache = make_cache();
  GrammarPool pool(cache, /*proposes=*/false, 2);
  const auto compile = [&](SamplingParams params) {
    std::promise<Result<std::unique_ptr<Grammar>>> promise;
    pool.compile(params, [&](auto grammar) { promise.set_value(std::move(grammar)); });
    return promise.get_future().get();
  };
  const TokenId eos = *tokenizer()->token_to_id("<|end_of_text|>");
  const TokenId a = *tokenizer()->token_to_id("a");
  const TokenId b = *tokenizer()->token_to_id("b");
  SamplingParams params;
  params.structured_outputs = regex("(ab)*");
  params.eos_token_id = eos;
  for (int i = 0; i < 2; ++i) {  // compiled, then kept
    const auto masker = compile(params).value()->masker();
    BOOST_TEST(masker->accept(a));
    BOOST_TEST(!masker->accept(eos));
    BOOST_TEST(masker->accept(b));
    BOOST_TEST(masker->accept(eos));
  }
  // A stop token that stands for a text is that text, and ends it where it may end.
  params.eos_token_id.reset();
  params.stop_token_ids = {a};
  const auto masker = compile(params).value()->masker();
  BOOST_TEST(masker->accept(a));
  BOOST_TEST(!masker->accept(a));
  BOOST_TEST(masker->accept(b));
  BOOST_TEST(!masker->accept(eos));
  params.structured_outputs = regex("(b*");
  BOOST_TEST(!compile(params).ok());
}

BOOST_AUTO_TEST_CASE(forced_text_has_the_tokens_that_the_tokenizer_gives_it) {
  const auto cache = make_cache();
  const auto grammar = cache->get(regex("Hello, world! Good (day|night)")).value();
  const auto masker = RequestGrammar(GrammarMatcher(grammar, {}), cache->tokenizer()).masker();
  const auto tokens = masker->likely_tokens(100);
  // The word that "Good " goes on with takes its space along.
  BOOST_TEST((tokens == tokenizer()->encode("Hello, world! Good", false).value()));
  BOOST_TEST((masker->likely_tokens(2) == std::vector(tokens.begin(), tokens.begin() + 2)));
  for (const TokenId token : tokens) BOOST_TEST(masker->accept(token));
  masker->rollback(tokens.size());
  BOOST_TEST((masker->likely_tokens(100) == tokens));
  std::vector<std::int32_t> row(grammar->vocabulary().num_words());
  const auto num_allowed = [&](GrammarMasker& of) {
    of.fill_bitmask(row);
    int count = 0;
    for (const std::int32_t word : row) count += std::popcount(static_cast<std::uint32_t>(word));
    return count;
  };
  for (const TokenId token : tokens) {
    BOOST_TEST(num_allowed(*masker) == 1);
    BOOST_TEST(masker->accept(token));
  }
  BOOST_TEST(num_allowed(*masker) > 1);  // " ", " da", " night", ...
  // Without the tokenizer, any tokens that spell it.
  const auto plain = RequestGrammar(GrammarMatcher(grammar, {})).masker();
  BOOST_TEST(plain->likely_tokens(100).empty());
}

}  // namespace
}  // namespace troupe
