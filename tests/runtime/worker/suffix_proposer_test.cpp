#include "runtime/worker/suffix_proposer.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/worker/draft_limit.hpp"
#include "tests/support/replay_models_driver.hpp"

namespace troupe {
namespace {

using Tokens = std::vector<TokenId>;

/// What follows `tokens`, of which the first two are the prompt.
Tokens proposed(SuffixProposer& proposer, std::uint64_t id, const Tokens& tokens,
                std::size_t most = 8) {
  return proposer.propose(RequestId{id}, tokens, 2, most);
}

BOOST_AUTO_TEST_CASE(drafts_follow_the_longest_match_and_are_no_longer_than_it) {
  SuffixProposer proposer({});
  const auto per_element = boost::test_tools::per_element();
  BOOST_TEST(proposed(proposer, 1, {1}).empty());
  BOOST_TEST(proposed(proposer, 1, {1, 2, 3, 4}).empty());
  // Two tokens agree, so there are two drafts; then three.
  BOOST_TEST(proposed(proposer, 1, {1, 2, 3, 4, 5, 6, 2, 3}) == (Tokens{4, 5}), per_element);
  BOOST_TEST(proposed(proposer, 1, {1, 2, 3, 4, 5, 6, 2, 3, 4}) == (Tokens{5, 6, 2}), per_element);
  BOOST_TEST(proposed(proposer, 1, {1, 2, 3, 4, 5, 6, 2, 3, 4}, 1) == Tokens{5}, per_element);
}

BOOST_AUTO_TEST_CASE(the_most_frequent_goes_on_and_unlikely_ones_end_the_drafts) {
  SuffixProposer often({.max_spec_factor = 4, .min_token_prob = 0.5});
  const Tokens tokens = {1, 2, 7, 9, 1, 2, 8, 9, 1, 2, 7, 6, 1, 2};
  // 7 two times of three; behind it 9 and 6 once each, a third of all.
  BOOST_TEST(proposed(often, 1, tokens) == Tokens{7}, boost::test_tools::per_element());
  SuffixProposer always({.max_spec_factor = 4, .min_token_prob = 0.7});
  BOOST_TEST(proposed(always, 1, tokens).empty());
}

BOOST_AUTO_TEST_CASE(answers_of_finished_requests_serve_others_and_prompts_do_not) {
  SuffixProposer proposer({.max_cached_requests = 4});
  static_cast<void>(proposed(proposer, 1, {50, 51, 10, 11, 12, 13}));
  BOOST_TEST(proposed(proposer, 2, {1, 10, 11}).empty());  // it still runs
  proposer.finish(RequestId{1});
  BOOST_TEST(proposed(proposer, 2, {1, 10, 11, 12}) == Tokens{13},
             boost::test_tools::per_element());
  BOOST_TEST(proposed(proposer, 3, {1, 50, 51}).empty());
  // Of more than four the oldest are forgotten.
  for (std::uint64_t id = 10; id < 16; ++id) {
    const auto token = static_cast<TokenId>(id * 100);
    static_cast<void>(proposed(proposer, id, {1, 2, token, token + 1, token + 2}));
    proposer.finish(RequestId{id});
  }
  BOOST_TEST(proposed(proposer, 4, {1, 10, 11}).empty());
  BOOST_TEST(!proposed(proposer, 5, {1, 1500, 1501}).empty());
}

BOOST_AUTO_TEST_CASE(guesses_that_fail_become_rare_and_those_that_come_true_become_many) {
  DraftLimit limit;
  std::int32_t num_drafted = 0;
  for (int step = 0; step < 1000; ++step) {
    const std::int32_t next = limit.next(32);
    num_drafted += next;
    limit.observe(next, 0);
  }
  BOOST_TEST(num_drafted < 30);
  for (int step = 0; step < 200; ++step) {
    const std::int32_t next = limit.next(32);
    limit.observe(next, next);
  }
  BOOST_TEST(limit.next(32) == 32);
}

BOOST_AUTO_TEST_CASE(suffix_decoding_changes_no_token_and_a_question_asked_again_is_guessed) {
  DriverModelOptions options{.folder = TROUPE_GOLDEN_DIR "/models/models/llama"};
  std::vector<DriverJob> jobs;
  for (const TokenId first : {5, 17, 5, 17}) {
    DriverJob job{.prompt = {first, 2, 77, 300, 41}, .params = {}, .num_outputs = 40, .items = {}};
    job.params.temperature = 0;
    job.params.ignore_eos = true;
    jobs.push_back(std::move(job));
  }
  DrivenRunner plain = load_driven_runner(options);
  const auto expected = drive(plain, jobs, {.max_running = 1});
  for (const bool adaptive : {false, true}) {
    options.speculative = {.num_draft_tokens = 24,
                           .suffix_max_depth = 24,
                           .suffix_max_cached_requests = 100,
                           .suffix_min_token_prob = 0.1,
                           .adaptive = adaptive};
    DrivenRunner drafting = load_driven_runner(options);
    BOOST_TEST((drive(drafting, jobs, {.max_running = 1}) == expected));
    BOOST_TEST(drafting.num_accepted >= 40);  // of the 80 tokens that are said again
    BOOST_TEST(drafting.num_drafted <= 2 * drafting.num_accepted);
  }
}

}  // namespace
}  // namespace troupe
