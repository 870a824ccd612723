#include "tools/bench/prompts.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

namespace troupe::tools {
namespace {

const std::vector<TokenId>& ids_of(const BenchPrompt& prompt) {
  return std::get<TokensPrompt>(prompt.prompt).token_ids;
}

BOOST_AUTO_TEST_CASE(random_prompts_have_the_lengths_and_the_prefix_that_were_asked_for) {
  const RandomPromptOptions options = {.num_prompts = 50,
                                       .input_len = 20,
                                       .output_len = 10,
                                       .prefix_len = 5,
                                       .range_ratio = 0.5,
                                       .seed = 7};
  const std::vector<BenchPrompt> prompts = random_token_prompts(options, {11, 12, 13, 14});
  BOOST_TEST(prompts.size() == 50u);
  std::set<std::size_t> lengths;
  for (const BenchPrompt& prompt : prompts) {
    const std::vector<TokenId>& ids = ids_of(prompt);
    BOOST_TEST(std::equal(ids.begin(), ids.begin() + 5, ids_of(prompts[0]).begin()));
    BOOST_TEST((ids.size() >= 5 + 10 && ids.size() <= 5 + 30));
    BOOST_TEST((prompt.num_output_tokens >= 5 && prompt.num_output_tokens <= 15));
    BOOST_TEST(prompt.num_input_tokens == static_cast<std::int64_t>(ids.size()));
    BOOST_TEST(
        std::all_of(ids.begin(), ids.end(), [](TokenId id) { return id >= 11 && id <= 14; }));
    lengths.insert(ids.size());
  }
  BOOST_TEST(lengths.size() > 5u);
  BOOST_TEST((ids_of(prompts[0]) != ids_of(prompts[1])));
}

BOOST_AUTO_TEST_CASE(prompts_repeat_their_first_tokens_behind_the_prefix) {
  const std::vector<TokenId> ids = ids_of(
      random_token_prompts({.num_prompts = 1, .input_len = 11, .prefix_len = 2, .repeat_len = 4},
                           {11, 12, 13, 14, 15, 16, 17, 18})
          .front());
  BOOST_REQUIRE(ids.size() == 13u);
  BOOST_TEST(std::equal(ids.begin() + 6, ids.end(), ids.begin() + 2));
}

BOOST_AUTO_TEST_CASE(a_seed_gives_the_same_prompts_and_another_seed_others) {
  RandomPromptOptions options = {.num_prompts = 3, .input_len = 30};
  std::vector<TokenId> vocabulary(1000);
  for (std::size_t i = 0; i < vocabulary.size(); ++i) vocabulary[i] = static_cast<TokenId>(i);
  const auto first = random_token_prompts(options, vocabulary);
  BOOST_TEST((ids_of(first[2]) == ids_of(random_token_prompts(options, vocabulary)[2])));
  options.seed = 1;
  BOOST_TEST((ids_of(first[2]) != ids_of(random_token_prompts(options, vocabulary)[2])));
}

BOOST_AUTO_TEST_CASE(prompts_of_words_have_one_word_per_token) {
  const auto prompts = random_word_prompts({.num_prompts = 2, .input_len = 12, .prefix_len = 3});
  const std::string& text = std::get<TextPrompt>(prompts[0].prompt).text;
  BOOST_TEST(std::count(text.begin(), text.end(), ' ') == 14);
  BOOST_TEST(prompts[0].num_input_tokens == 0);
}

BOOST_AUTO_TEST_CASE(a_dataset_is_read_line_by_line_and_its_errors_name_the_line) {
  std::istringstream good(
      "{\"prompt\": \"one\"}\n\n{\"prompt\": \"two\", \"output_tokens\": 3, \"other\": []}\n");
  const auto prompts = read_prompts(good, 64);
  BOOST_REQUIRE(prompts.ok());
  BOOST_TEST(prompts->size() == 2u);
  BOOST_TEST(prompts->at(0).num_output_tokens == 64);
  BOOST_TEST(prompts->at(1).num_output_tokens == 3);
  BOOST_TEST(std::get<TextPrompt>(prompts->at(1).prompt).text == "two");
  for (const char* line :
       {"{", "[]", "{\"prompt\": 1}", "{\"text\": \"a\"}", R"({"prompt": "a", "output_tokens": 0})",
        R"({"prompt": "a", "output_tokens": "9"})"}) {
    std::istringstream bad("{\"prompt\": \"one\"}\n" + std::string(line) + "\n");
    const auto result = read_prompts(bad, 64);
    BOOST_REQUIRE_MESSAGE(!result.ok(), line);
    BOOST_TEST(result.error().message.starts_with("line 2: "), result.error().message);
  }
}

BOOST_AUTO_TEST_CASE(arrivals_end_when_the_rate_says_and_an_infinite_rate_has_none) {
  for (const double burstiness : {0.2, 1.0, 50.0}) {
    const std::vector<double> times = arrival_times(200, 10, burstiness, 3);
    BOOST_TEST(std::is_sorted(times.begin(), times.end()));
    BOOST_TEST(times.back() == 20.0, boost::test_tools::tolerance(1e-9));
  }
  const auto at_once = arrival_times(5, std::numeric_limits<double>::infinity(), 1, 0);
  BOOST_TEST((at_once == std::vector<double>(5)));
}

BOOST_AUTO_TEST_CASE(small_burstiness_makes_gaps_uneven) {
  const auto deviation_of_gaps = [](double burstiness) {
    const std::vector<double> times = arrival_times(1000, 1, burstiness, 5);
    double sum = 0;
    for (std::size_t i = 1; i < times.size(); ++i) sum += std::pow(times[i] - times[i - 1] - 1, 2);
    return std::sqrt(sum / 999);
  };
  BOOST_TEST(deviation_of_gaps(100) < 0.2);  // shape k: 1/sqrt(k)
  BOOST_TEST(deviation_of_gaps(0.1) > 2.0);
}

}  // namespace
}  // namespace troupe::tools
