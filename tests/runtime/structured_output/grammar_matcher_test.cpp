// The engine: what a parser takes, its masks, the way back.

#include <boost/test/unit_test.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/structured_output/choice.hpp"
#include "runtime/structured_output/compiled_grammar.hpp"
#include "runtime/structured_output/json_schema.hpp"
#include "runtime/structured_output/regex.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/support/grammar_checks.hpp"

namespace troupe {
namespace {

/// A cut of Llama 3's vocabulary: whole words, parts of characters, special tokens.
const Tokenizer& tokenizer() {
  static const auto loaded = Tokenizer::load(TROUPE_GOLDEN_DIR "/tokenizers/llama3");
  BOOST_REQUIRE(loaded.ok());
  return **loaded;
}

std::shared_ptr<const GrammarVocabulary> vocabulary() {
  static const auto made =
      GrammarVocabulary::from_tokenizer(tokenizer(), tokenizer().id_limit() + 40);
  return made;
}

std::shared_ptr<CompiledGrammar> compile(const Result<GrammarBuilder>& grammar) {
  BOOST_REQUIRE(grammar.ok());
  auto compiled = CompiledGrammar::compile(*grammar, vocabulary());
  BOOST_REQUIRE(compiled.ok());
  return *compiled;
}

bool allows(const std::vector<std::int32_t>& row, TokenId token) {
  return (row[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

/// Walks at random through the grammar; in each state the mask has to say of each token what
/// accept() says.
void check_masks(const std::shared_ptr<CompiledGrammar>& grammar, unsigned seed, int steps) {
  const TokenId stop = *tokenizer().token_to_id("<|end_of_text|>");
  std::mt19937 random(seed);
  GrammarMatcher matcher(grammar, {stop});
  std::vector<std::int32_t> row(matcher.words_per_row());
  for (int step = 0; step < steps && !matcher.has_ended(); ++step) {
    matcher.fill_bitmask(row);
    std::vector<TokenId> allowed;
    for (TokenId token = 0; token < static_cast<TokenId>(vocabulary()->size()); ++token) {
      GrammarMatcher copy = matcher;
      const bool accepted = copy.accept(token);
      BOOST_REQUIRE_EQUAL(accepted, allows(row, token));
      if (accepted) allowed.push_back(token);
    }
    BOOST_REQUIRE(!allowed.empty());
    BOOST_REQUIRE(matcher.accept(allowed[random() % allowed.size()]));
  }
}

/// E := E "+" E | E "*" E | "(" E ")" | "x" | A;  A := A B | "";  B := "b" | A "c"
GrammarBuilder left_recursive() {
  GrammarBuilder b;
  const GrammarRuleId e = b.add_rule();
  const GrammarRuleId a = b.add_rule();
  const GrammarRuleId c = b.add_rule();
  b.set_body(e, b.choice({b.sequence({b.rule(e), b.literal("+"), b.rule(e)}),
                          b.sequence({b.rule(e), b.literal("*"), b.rule(e)}),
                          b.sequence({b.literal("("), b.rule(e), b.literal(")")}), b.literal("x"),
                          b.rule(a)}));
  b.set_body(a, b.choice({b.sequence({b.rule(a), b.rule(c)}), b.empty()}));
  b.set_body(c, b.choice({b.literal("b"), b.sequence({b.rule(a), b.literal("c")})}));
  return b;
}

BOOST_AUTO_TEST_CASE(a_mask_allows_exactly_the_tokens_that_are_accepted) {
  check_masks(compile(choice_grammar(std::vector<std::string>{"yes", "no", "maybe not", "you"})), 1,
              20);
  check_masks(compile(regex_grammar("[a-z]+( [a-z]+){2,4}\\.")), 2, 12);
  check_masks(compile(regex_grammar("\"([^\"\\\\\\x00-\\x1f]|\\\\[\"n])*\"(, \"x{3}\")*")), 3, 12);
  check_masks(compile(regex_grammar("\"[^\"\\\\\\x00-\\x1f]{0,9}\"\\d*")), 4, 12);
  check_masks(compile(regex_grammar("\\w{4}[^a]{3,}")), 5, 8);
  check_masks(compile(left_recursive()), 6, 20);
}

BOOST_AUTO_TEST_CASE(rollback_and_copies_stand_where_the_tokens_before_led) {
  const auto grammar = compile(regex_grammar("(ab|cd)*e"));
  const auto id = [](std::string_view text) { return *tokenizer().token_to_id(text); };
  const TokenId stop = id("<|end_of_text|>");
  GrammarMatcher matcher(grammar, {stop});
  std::vector<std::vector<std::int32_t>> rows;
  const std::vector<TokenId> tokens{id("a"), id("b"), id("c"), id("d"), id("e"), stop};
  for (const TokenId token : tokens) {
    matcher.fill_bitmask(rows.emplace_back(matcher.words_per_row()));
    const bool ends = token == stop;
    BOOST_TEST(allows(rows.back(), stop) == ends);
    BOOST_TEST(matcher.may_end() == ends);
    BOOST_REQUIRE(matcher.accept(token));
  }
  BOOST_TEST(matcher.has_ended());
  BOOST_TEST(!matcher.accept(id("a")));
  for (std::size_t n = 1; n <= tokens.size(); ++n) {
    GrammarMatcher copy = matcher;
    copy.rollback(n);
    std::vector<std::int32_t> row(copy.words_per_row());
    copy.fill_bitmask(row);
    BOOST_TEST(row == rows[tokens.size() - n]);
    BOOST_TEST(copy.accept(tokens[tokens.size() - n]));
  }
  BOOST_TEST(matcher.has_ended());
  matcher.rollback(tokens.size());
  BOOST_TEST(!matcher.accept(id("b")));
  BOOST_TEST(matcher.accept(id("c")));
}

BOOST_AUTO_TEST_CASE(special_tokens_and_ids_that_are_none_are_never_allowed) {
  const auto grammar = compile(regex_grammar("(.|\\n)*"));
  const TokenId stop = *tokenizer().token_to_id("<|end_of_text|>");
  GrammarMatcher matcher(grammar, {stop, 5'000'000, -1});
  std::vector<std::int32_t> row(matcher.words_per_row());
  matcher.fill_bitmask(row);
  BOOST_TEST(allows(row, stop));
  const TokenId other = *tokenizer().token_to_id("<|begin_of_text|>");
  BOOST_TEST(!allows(row, other));
  BOOST_TEST(!matcher.accept(other));
  const auto limit = static_cast<TokenId>(tokenizer().id_limit());
  BOOST_TEST(!allows(row, limit));
  for (const TokenId none : {limit, TokenId{-7}, TokenId{1 << 30}})
    BOOST_TEST(!matcher.accept(none));
}

BOOST_AUTO_TEST_CASE(rules_may_begin_with_themselves_and_be_empty) {
  const auto grammar = compile_for_bytes(left_recursive());
  for (const std::string_view text :
       {"", "x", "x+x", "x+x*x+(x)", "((x+x)*x)", "b", "bcb+c", "+", "x+", "(ccb)"})
    BOOST_TEST(accepts_bytes(*grammar, text), text);
  for (const std::string_view text : {"(", "xx", "x(", "xb", "())", "a"})
    BOOST_TEST(!accepts_bytes(*grammar, text), text);
}

BOOST_AUTO_TEST_CASE(rules_without_a_text_are_no_dead_ends) {
  GrammarBuilder b;
  const GrammarRuleId root = b.add_rule();
  const GrammarRuleId endless = b.add_rule();
  b.set_body(endless, b.sequence({b.literal("a"), b.rule(endless)}));
  b.set_body(root, b.choice({b.literal("b"), b.sequence({b.literal("a"), b.rule(endless)})}));
  const auto grammar = compile_for_bytes(b);
  BOOST_TEST(!grammar->advance(grammar->start(), "a").has_value());
  BOOST_TEST(accepts_bytes(*grammar, "b"));
  b.set_body(root, b.rule(endless));
  const auto refused = CompiledGrammar::compile(b, byte_vocabulary());
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message == "no text fits the grammar");
}

BOOST_AUTO_TEST_CASE(intersections_without_a_text_are_no_dead_ends) {
  GrammarBuilder b;
  const GrammarRuleId root = b.add_rule();
  const GrammarNodeId even = b.repeat(b.repeat(b.byte('a'), 2, 2), 0);
  const GrammarNodeId odd = b.sequence({b.byte('a'), even});
  b.set_body(root, b.choice({b.byte('b'), b.sequence({b.byte('c'), b.intersection(even, odd)})}));
  const auto grammar = compile_for_bytes(b);
  BOOST_TEST(!grammar->advance(grammar->start(), "c").has_value());
}

BOOST_AUTO_TEST_CASE(multiples_are_numbers_of_digits) {
  GrammarBuilder b;
  const GrammarRuleId root = b.add_rule();
  b.set_body(root, b.intersection(b.repeat(b.bytes(byte_range('0', '9')), 1, 3), b.multiple_of(7)));
  const auto grammar = compile_for_bytes(b);
  for (int i = 0; i < 1000; ++i)
    BOOST_TEST(accepts_bytes(*grammar, std::to_string(i)) == (i % 7 == 0), i);
}

/// Every nesting makes states of its own.
GrammarBuilder nested(const GrammarLimits& limits) {
  GrammarBuilder b(limits);
  const GrammarRuleId list = b.add_rule();
  std::vector<GrammarNodeId> kinds;
  for (const char* brackets : {"()", "[]", "{}", "<>"})
    kinds.push_back(b.sequence({b.byte(static_cast<unsigned char>(brackets[0])), b.rule(list),
                                b.byte(static_cast<unsigned char>(brackets[1]))}));
  b.set_body(list, b.repeat(b.choice(kinds), 0));
  return b;
}

BOOST_AUTO_TEST_CASE(where_a_grammar_is_full_its_parsers_go_on_with_another_one) {
  const auto grammar = compile_for_bytes(nested({.max_bytes = 256 << 10}));
  const auto unlimited = compile_for_bytes(nested({}));
  GrammarMatcher matcher(grammar, {256});
  GrammarMatcher reference(unlimited, {256});
  std::vector<std::int32_t> row(matcher.words_per_row());
  std::vector<std::int32_t> expected(row.size());
  std::mt19937 random(7);
  std::string open;
  for (int i = 0; i < 30000; ++i) {
    matcher.fill_bitmask(row);
    reference.fill_bitmask(expected);
    BOOST_REQUIRE(row == expected);
    const bool closes = !open.empty() && (random() % 2 == 0 || open.size() > 60);
    const char next = closes ? open.back() : "([{<"[random() % 4];
    if (closes) {
      open.pop_back();
    } else {
      open.push_back(next == '(' ? ')' : next == '[' ? ']' : next == '{' ? '}' : '>');
    }
    BOOST_REQUIRE(matcher.accept(next));
    BOOST_REQUIRE(reference.accept(next));
    BOOST_REQUIRE(!matcher.failure());
    if (i % 100 == 0) {  // drafts
      BOOST_REQUIRE(matcher.accept('('));
      BOOST_REQUIRE(!matcher.accept(']'));
      matcher.rollback(1);
    }
  }
  BOOST_TEST(unlimited->num_bytes() > (512u << 10));
  BOOST_TEST(grammar->num_bytes() < (384u << 10));
  const auto latest = CompiledGrammar::latest(grammar);
  BOOST_TEST(latest != grammar);
  BOOST_TEST(latest->num_bytes() < (384u << 10));
  // What one text alone takes is no matter of others.
  GrammarMatcher deep(grammar, {256});
  bool accepted = true;
  for (int i = 0; i < 100000 && accepted; ++i) accepted = deep.accept("([{<"[random() % 4]);
  BOOST_TEST(!accepted);
  BOOST_REQUIRE(deep.failure().has_value());
  BOOST_TEST(deep.failure()->message.find("262144 bytes") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(brackets_nest_to_any_depth_and_many_stacks_share_their_ends) {
  // S := "a" S "b" | "a" S "c" | "": after n letters a, 2^n stacks.
  GrammarBuilder b;
  const GrammarRuleId s = b.add_rule();
  b.set_body(s, b.choice({b.sequence({b.literal("a"), b.rule(s), b.literal("b")}),
                          b.sequence({b.literal("a"), b.rule(s), b.literal("c")}), b.empty()}));
  const auto grammar = compile_for_bytes(b);
  std::string text(500, 'a');
  for (int i = 0; i < 500; ++i) text += i % 3 == 0 ? 'b' : 'c';
  BOOST_TEST(accepts_bytes(*grammar, text));
  BOOST_TEST(!accepts_bytes(*grammar, text + "c"));
  BOOST_TEST(grammar->num_bytes() < (2u << 20));
}

BOOST_AUTO_TEST_CASE(patterns_and_a_length_that_hold_at_once_allow_what_leaves_room_for_all) {
  const auto vocabulary = GrammarVocabulary::make({"\"", "k", " t", "1", "e", "1e", "ke"}, 7);
  auto grammar = json_schema_grammar(
      R"({"allOf": [{"type": "string", "pattern": "[0-9]"}, {"pattern": "e", "maxLength": 4}]})");
  const auto compiled = CompiledGrammar::compile(*std::move(grammar), vocabulary).value();
  const auto mask_behind = [&](std::string_view text) {
    std::int32_t row = 0;
    compiled->fill_bitmask(compiled->advance(compiled->start(), text).value(), std::span(&row, 1));
    return row;
  };
  BOOST_TEST(mask_behind("\"") == 0b1111110);
  BOOST_TEST(mask_behind("\"kk") == 0b0111000);
  BOOST_TEST(mask_behind("\"k") == 0b1111010);  // behind " t" there would be room for one of both
}

BOOST_AUTO_TEST_CASE(masks_of_patterns_and_lengths_have_the_tokens_that_fit_and_no_others) {
  for (
      const std::string_view schema :
      {R"({"type": "string", "pattern": "[0-9]{3}", "minLength": 5, "maxLength": 9})",
       R"({"type": "string", "pattern": "^.*$", "maxLength": 20, "not": {"enum": ["ab", "the"]}})",
       R"({"allOf": [{"type": "string", "pattern": "[0-9]"}, {"pattern": "e", "maxLength": 6}]})",
       R"({"allOf": [{"type": "string", "pattern": "^[^e]+$"}, {"pattern": "e|[0-9]"}]})",
       R"({"type": "string", "minLength": 6, "maxLength": 6, "not": {"pattern": "^[^x][\\s\\S]{5}$"}})"}) {
    const auto compiled = compile(json_schema_grammar(schema));
    std::vector<std::int32_t> row(vocabulary()->num_words());
    for (const std::string_view text : {"\"", "\"x", "\"1a", "\"the ", "\"x1234"}) {
      const auto state = compiled->advance(compiled->start(), text);
      if (!state) continue;
      compiled->fill_bitmask(*state, row);
      std::size_t num_wrong = 0;
      for (std::size_t id = 0; id < vocabulary()->size(); ++id) {
        const auto token = static_cast<TokenId>(id);
        const std::string_view bytes = vocabulary()->bytes(token);
        const bool fits = !bytes.empty() && compiled->advance(*state, bytes).has_value();
        num_wrong += static_cast<std::size_t>(fits != allows(row, token));
      }
      BOOST_TEST(num_wrong == 0u, schema << " behind " << text);
    }
  }
}

BOOST_AUTO_TEST_CASE(forced_text_goes_as_far_as_there_is_no_choice) {
  const auto grammar = compile_for_bytes(json_schema_grammar(
      R"({"type": "object", "properties": {"first": {"const": "one"}, "second": {"type": "integer"}},
          "required": ["first", "second"], "additionalProperties": false})",
      {.any_whitespace = false}));
  const auto forced = [&](std::string_view before, std::size_t max_bytes = 100) {
    const auto state = grammar->advance(grammar->start(), before);
    return grammar->forced_text(state.value(), max_bytes);
  };
  BOOST_TEST(forced("") == R"({"first":"one","second":)");
  BOOST_TEST(forced(R"({"fi)") == R"(rst":"one","second":)");
  BOOST_TEST(forced(R"({"first":"one","second":)").empty());
  BOOST_TEST(forced(R"({"first":"one","second":1)").empty());
  BOOST_TEST(forced(R"({"first":"one","second":1})").empty());
  BOOST_TEST(forced("", 8) == R"({"first")");
  // White space is a choice.
  const auto spaced = compile_for_bytes(json_schema_grammar(R"({"enum": [["a", "b"]]})"));
  BOOST_TEST(spaced->forced_text(spaced->start(), 100) == "[");
}

}  // namespace
}  // namespace troupe
