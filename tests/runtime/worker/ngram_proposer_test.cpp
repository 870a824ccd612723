#include "runtime/worker/ngram_proposer.hpp"

#include <boost/test/unit_test.hpp>
#include <random>

namespace troupe {
namespace {

std::vector<TokenId> propose(std::vector<TokenId> tokens, std::int32_t min, std::int32_t max,
                             std::size_t count) {
  const auto drafts = NgramProposer(min, max).propose(tokens, count);
  return {drafts.begin(), drafts.end()};
}

/// The definition, word by word.
std::vector<TokenId> propose_slowly(const std::vector<TokenId>& tokens, std::size_t min,
                                    std::size_t max, std::size_t count) {
  for (std::size_t n = std::min(max, tokens.size()); n >= min; --n) {
    for (std::size_t begin = 0; begin + n < tokens.size(); ++begin) {
      if (!std::equal(tokens.end() - static_cast<std::ptrdiff_t>(n), tokens.end(),
                      tokens.begin() + static_cast<std::ptrdiff_t>(begin)))
        continue;
      const std::size_t end = std::min(tokens.size(), begin + n + count);
      return {tokens.begin() + static_cast<std::ptrdiff_t>(begin + n),
              tokens.begin() + static_cast<std::ptrdiff_t>(end)};
    }
  }
  return {};
}

BOOST_AUTO_TEST_CASE(what_came_after_the_last_tokens_before_is_proposed) {
  BOOST_TEST(propose({1, 2, 3, 4, 1, 2, 3}, 2, 3, 2) == (std::vector<TokenId>{4, 1}),
             boost::test_tools::per_element());
  // Fewer where the text ends.
  BOOST_TEST(propose({7, 7, 7}, 1, 2, 5) == (std::vector<TokenId>{7}),
             boost::test_tools::per_element());
  BOOST_TEST(propose({1, 2, 3, 4, 1, 2, 3}, 4, 5, 2).empty());
  BOOST_TEST(propose({1}, 1, 5, 2).empty());
  BOOST_TEST(propose({}, 1, 5, 2).empty());
  BOOST_TEST(propose({1, 1, 1}, 1, 5, 0).empty());
}

BOOST_AUTO_TEST_CASE(of_all_matches_the_longest_counts_and_of_equal_ones_the_earliest) {
  BOOST_TEST(propose({5, 1, 2, 9, 3, 1, 2, 8, 3, 1, 2}, 1, 3, 1) == (std::vector<TokenId>{8}),
             boost::test_tools::per_element());
  BOOST_TEST(propose({1, 2, 9, 1, 2, 8, 1, 2}, 1, 2, 1) == (std::vector<TokenId>{9}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(random_texts_give_what_the_definition_gives) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<TokenId> tokens(random() % 40);
    const std::uint32_t vocabulary = 1 + random() % 4;
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocabulary);
    const auto min = static_cast<std::int32_t>(1 + random() % 4);
    const auto max = min + static_cast<std::int32_t>(random() % 4);
    const std::size_t count = 1 + random() % 5;
    BOOST_TEST(
        propose(tokens, min, max, count) == propose_slowly(tokens, static_cast<std::size_t>(min),
                                                           static_cast<std::size_t>(max), count),
        boost::test_tools::per_element());
  }
}

}  // namespace
}  // namespace troupe
