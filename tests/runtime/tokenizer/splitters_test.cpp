#include "runtime/tokenizer/splitters.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/regex.hpp"
#include "tests/runtime/tokenizer/random_text.hpp"

namespace troupe {
namespace {

constexpr std::string_view kExpressions[] = {
    byte_level::kPattern,
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"(\p{N}{1,3})",
    "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
};

std::string describe(std::optional<ByteRange> match) {
  if (!match) return "none";
  return std::to_string(match->begin) + ".." + std::to_string(match->end);
}

/// Empty if both find the same matches from every position on the way.
std::string first_difference(Splitter splitter, const Regex& regex, const std::string& text) {
  WorkBudget work;
  for (std::size_t from = 0; from <= text.size();) {
    const auto expected = regex.find(text, from, work);
    const auto actual = splitter(text, from);
    if (expected != actual) {
      return "at byte " + std::to_string(from) + " of \"" + text + "\": " + describe(actual) +
             ", expected " + describe(expected);
    }
    if (!expected) break;
    from = expected->end;
  }
  return {};
}

BOOST_AUTO_TEST_CASE(hand_written_splitters_find_what_the_expressions_find) {
  std::mt19937 random(20240611);
  for (const std::string_view expression : kExpressions) {
    const Splitter splitter = splitter_for(expression);
    BOOST_REQUIRE(splitter != nullptr);
    const auto regex = Regex::compile(expression);
    BOOST_REQUIRE(regex.ok());
    for (int i = 0; i < 4000; ++i) {
      const std::string difference =
          first_difference(splitter, **regex, testing::random_text(random, 40));
      BOOST_REQUIRE_MESSAGE(difference.empty(), expression << " " << difference);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_expression_without_a_splitter_runs_as_it_is) {
  BOOST_TEST((splitter_for(R"(\p{L}+)") == nullptr));
}

}  // namespace
}  // namespace troupe
