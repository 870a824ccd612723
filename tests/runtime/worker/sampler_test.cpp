#include "runtime/worker/sampler.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "runtime/base/philox.hpp"
#include "runtime/worker/sampling_math.hpp"

namespace troupe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

SamplingParams greedy_params() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

/// The token that one row of logits gives after these outputs.
TokenId sample_one(std::vector<float> logits, const SamplingParams& params,
                   const std::vector<TokenId>& prompt = {},
                   const std::vector<TokenId>& outputs = {}, LogprobRows* out = nullptr) {
  std::vector<TokenId> tokens = prompt;
  tokens.insert(tokens.end(), outputs.begin(), outputs.end());
  const SamplingState state(params, tokens, prompt.size());
  LogprobRows rows;
  return Sampler().sample(logits, state, out != nullptr ? *out : rows).value();
}

std::vector<float> random_logits(std::size_t count, std::uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

BOOST_AUTO_TEST_CASE(greedy_takes_the_best_token_and_the_lowest_id_of_equal_ones) {
  BOOST_TEST(sample_one({0, 3, 2, 3}, greedy_params()) == 1);
}

BOOST_AUTO_TEST_CASE(the_largest_logit_is_found_and_a_broken_one_named_wherever_in_the_row_it_is) {
  for (const std::size_t count : {1, 15, 16, 17, 31, 32, 70}) {
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<float> logits(count, -kInfinity);
      logits[i] = -5;
      BOOST_TEST(index_of_largest(logits).value() == i);
      logits.back() = -5;  // an equal one later, or itself
      BOOST_TEST(index_of_largest(logits).value() == i);
      for (const float broken : {std::nanf(""), kInfinity}) {
        logits = random_logits(count, 7);
        logits[i] = broken;
        const auto found = index_of_largest(logits);
        BOOST_REQUIRE(!found.ok());
        BOOST_TEST(found.error().message.ends_with(" at token " + std::to_string(i)));
      }
    }
    const std::vector<float> none(count, -kInfinity);
    BOOST_TEST((index_of_largest(none).error().code == ErrorCode::kInvalidArgument));
  }
}

BOOST_AUTO_TEST_CASE(minimum_tokens_mask_every_stop_id_until_there_are_enough_outputs) {
  SamplingParams params = greedy_params();
  params.min_tokens = 2;
  params.all_stop_token_ids = {1, 3};
  BOOST_TEST(sample_one({0, 3, 2, 3}, params, {}, {0}) == 2);
  BOOST_TEST(sample_one({0, 3, 2, 3}, params, {}, {0, 0}) == 1);
  // A grammar may allow nothing else.
  BOOST_TEST(sample_one({-kInfinity, 3, -kInfinity, 2}, params, {}, {0}) == 1);
}

BOOST_AUTO_TEST_CASE(a_bad_word_is_forbidden_only_where_the_outputs_lead_up_to_it) {
  SamplingParams params = greedy_params();
  params.bad_words_token_ids = {{4, 5, 1}};
  BOOST_TEST(sample_one({0, 3, 2, 1, 0, 0}, params, {}, {4, 5}) == 2);
  BOOST_TEST(sample_one({0, 3, 2, 1, 0, 0}, params, {}, {5}) == 1);
  BOOST_TEST(sample_one({0, 3, 2, 1, 0, 0}, params, {4, 5}, {}) == 1);  // the prompt does not count
  BOOST_TEST(sample_one({0, 3, 2, 1, 0, 0}, params, {}, {0, 1, 2, 3, 3, 3, 3, 4, 5}) == 2);
}

BOOST_AUTO_TEST_CASE(the_repetition_penalty_knows_the_prompt_and_the_other_two_do_not) {
  SamplingParams params = greedy_params();
  params.repetition_penalty = 2;
  BOOST_TEST(sample_one({3, 2}, params, {0}) == 1);
  BOOST_TEST(sample_one({-3, -4}, params, {0}) == 1);  // -6 against -4
  params.repetition_penalty = 1;
  params.presence_penalty = 2;
  BOOST_TEST(sample_one({3, 2}, params, {0}) == 0);
  BOOST_TEST(sample_one({3, 2}, params, {}, {0}) == 1);
  params.presence_penalty = 0;
  params.frequency_penalty = 0.6f;
  BOOST_TEST(sample_one({3, 2}, params, {}, {0}) == 0);
  BOOST_TEST(sample_one({3, 2}, params, {}, {0, 0}) == 1);
}

BOOST_AUTO_TEST_CASE(a_state_that_grew_token_by_token_equals_one_that_was_built_at_once) {
  SamplingParams params;
  params.repetition_penalty = 1.3f;
  params.frequency_penalty = 0.4f;
  params.presence_penalty = -0.2f;
  params.bad_words_token_ids = {{1, 2, 3}, {4}, {7, 7}};
  params.min_tokens = 20;
  params.all_stop_token_ids = {9};
  std::mt19937 random(5);
  std::vector<TokenId> tokens = {1, 2, 3};
  SamplingState grown(params, tokens, 3);
  for (int step = 0; step < 40; ++step) {
    tokens.push_back(static_cast<TokenId>(random() % 10));
    grown.append(tokens.back());
    std::vector<float> left = random_logits(10, 1);
    std::vector<float> right = left;
    grown.process_logits(left);
    SamplingState(params, tokens, 3).process_logits(right);
    BOOST_TEST((left == right));
    BOOST_TEST(grown.position() == tokens.size());
  }
}

BOOST_AUTO_TEST_CASE(ids_outside_the_vocabulary_are_ignored) {
  SamplingParams params = greedy_params();
  params.allowed_token_ids = {-1, 1, 99};
  params.logit_bias = {{99, 5.0f}, {-2, 5.0f}};
  params.bad_words_token_ids = {{99}};
  params.repetition_penalty = 2;
  BOOST_TEST(sample_one({5, 3, 2}, params, {77}) == 1);
}

BOOST_AUTO_TEST_CASE(a_bad_row_is_an_error_and_adds_no_logprobs) {
  SamplingParams impossible = greedy_params();
  impossible.allowed_token_ids = {1};
  impossible.bad_words_token_ids = {{1}};
  impossible.logprobs = 1;
  const SamplingState nothing_allowed(impossible, {}, 0);
  SamplingParams random;
  random.logprobs = 0;
  const SamplingState drawn(random, {}, 0);
  LogprobRows rows;
  const auto error_of = [&](std::vector<float> logits, const SamplingState& state) {
    const auto token = Sampler().sample(logits, state, rows);
    BOOST_REQUIRE(!token.ok());
    return token.error().code;
  };
  BOOST_TEST((error_of({0, std::nanf(""), 2}, drawn) == ErrorCode::kInternal));
  BOOST_TEST((error_of({kInfinity, 0, 0}, drawn) == ErrorCode::kInternal));
  // Finite with the penalty, and infinite when it is divided by the temperature.
  SamplingParams extreme;
  extreme.repetition_penalty = 1e-37f;
  extreme.temperature = 0.1f;
  extreme.top_p = 0.9f;
  const SamplingState overflowing(extreme, std::vector<TokenId>{2}, 1);
  BOOST_TEST((error_of({0, 1, 5}, overflowing) == ErrorCode::kInternal));
  BOOST_TEST((error_of({0, 1, 2}, nothing_allowed) == ErrorCode::kInvalidArgument));
  BOOST_TEST(rows.row_sizes.empty());
}

BOOST_AUTO_TEST_CASE(logprobs_are_those_of_the_logits_as_they_came) {
  SamplingParams params = greedy_params();
  params.logprobs = 2;
  params.logit_bias = {{2, 100.0f}};
  LogprobRows rows;
  BOOST_TEST(sample_one({1, 3, 0, 3}, params, {}, {}, &rows) == 2);
  BOOST_TEST(rows.token_ids == (std::vector<TokenId>{2, 1, 3}), boost::test_tools::per_element());
  BOOST_TEST(rows.ranks == (std::vector<std::int32_t>{4, 1, 2}), boost::test_tools::per_element());
  const double log_sum = std::log(std::exp(1.0) + 2 * std::exp(3.0) + 1);
  BOOST_TEST(static_cast<double>(rows.logprobs[0]) == 0 - log_sum,
             boost::test_tools::tolerance(1e-6));
  BOOST_TEST(static_cast<double>(rows.logprobs[1]) == 3 - log_sum,
             boost::test_tools::tolerance(1e-6));
}

BOOST_AUTO_TEST_CASE(a_rank_counts_what_is_equal_and_all_logprobs_cover_the_vocabulary) {
  LogprobRows rows;
  Sampler sampler;
  BOOST_TEST(sampler.append_logprobs(std::vector<float>{1, 3, -kInfinity, 3}, 1, 0, rows).ok());
  BOOST_TEST(sampler.append_logprobs(std::vector<float>{1, 3, -kInfinity, 3}, 0, -1, rows).ok());
  BOOST_TEST(sampler.append_logprobs(std::vector<float>{1, 3}, 0, 20, rows).ok());
  BOOST_TEST(rows.row_sizes == (std::vector<std::int32_t>{1, 5, 3}),
             boost::test_tools::per_element());
  BOOST_TEST(rows.token_ids == (std::vector<TokenId>{1, 0, 1, 3, 0, 2, 0, 1, 0}),
             boost::test_tools::per_element());
  BOOST_TEST(rows.ranks == (std::vector<std::int32_t>{2, 3, 1, 2, 3, 4, 2, 1, 2}),
             boost::test_tools::per_element());
  BOOST_TEST(rows.logprobs[5] == -kInfinity);
}

BOOST_AUTO_TEST_CASE(logprobs_of_listed_tokens_come_in_their_order_with_their_ranks) {
  SamplingParams params = greedy_params();
  params.logprobs = 2;
  params.logprob_token_ids = {4, 0, 1};
  LogprobRows rows;
  BOOST_TEST(sample_one({1, 3, 0, 3, -2}, params, {}, {}, &rows) == 1);
  BOOST_TEST(rows.row_sizes == (std::vector<std::int32_t>{4}), boost::test_tools::per_element());
  BOOST_TEST(rows.token_ids == (std::vector<TokenId>{1, 4, 0, 1}),
             boost::test_tools::per_element());
  BOOST_TEST(rows.ranks == (std::vector<std::int32_t>{2, 5, 3, 2}),
             boost::test_tools::per_element());
  // The numbers are those that the best tokens' would be.
  LogprobRows all;
  params.logprob_token_ids = {};
  params.logprobs = kAllLogprobs;
  sample_one({1, 3, 0, 3, -2}, params, {}, {}, &all);
  BOOST_TEST(rows.logprobs[0] == all.logprobs[0]);
  BOOST_TEST(rows.logprobs[1] == all.logprobs.back());
}

/// Markers: 7 8 begins, 9 or 5 6 ends; 4 9 is what ends it where the budget is spent.
SamplingParams budget_params(std::int32_t num_tokens, bool starts_inside) {
  SamplingParams params = greedy_params();
  params.thinking_budget = {.num_tokens = num_tokens, .starts_inside = starts_inside};
  params.thinking_budget->begin_token_ids = {7, 8};
  params.thinking_budget->end_token_ids = {{9}, {5, 6}};
  params.thinking_budget->forced_token_ids = {4, 9};
  return params;
}

BOOST_AUTO_TEST_CASE(reasoning_that_has_spent_its_budget_is_ended) {
  using Tokens = std::vector<TokenId>;
  const std::vector<float> logits = {0, 5, 0, 0, 1, 0, 0, 0, 0, 0};
  const auto next = [&](const SamplingParams& params, const Tokens& prompt, const Tokens& outputs) {
    return sample_one(logits, params, prompt, outputs);
  };
  const SamplingParams two = budget_params(2, false);
  // Reasoning begins in the prompt, or in the output, or with it.
  BOOST_TEST(next(two, {7, 8}, {1}) == 1);
  BOOST_TEST(next(two, {7, 8}, {1, 1}) == 4);
  BOOST_TEST(next(two, {7, 8, 1}, {1}) == 4);
  BOOST_TEST(next(two, {7, 8}, {1, 1, 4}) == 9);
  BOOST_TEST(next(two, {7, 8}, {1, 1, 4, 9}) == 1);
  BOOST_TEST(next(two, {2}, {7, 8, 1}) == 1);
  BOOST_TEST(next(two, {2}, {7, 8, 1, 1}) == 4);
  const SamplingParams inside = budget_params(2, true);
  BOOST_TEST(next(inside, {2}, {1, 1}) == 4);
  BOOST_TEST(next(inside, {2}, {7, 8, 1}) == 1);  // the marker does not count
  BOOST_TEST(next(inside, {2}, {7, 8, 1, 1}) == 4);
  // It ends by itself, also by a call.
  BOOST_TEST(next(two, {7, 8}, {1, 9, 1, 1}) == 1);
  BOOST_TEST(next(two, {7, 8}, {5, 6, 1, 1}) == 1);
  // Nothing begins it, or the prompt has ended it; what earlier answers have thought does not
  // count.
  BOOST_TEST(next(two, {2}, {1, 1, 1}) == 1);
  BOOST_TEST(next(two, {7, 8, 1, 1, 1, 9, 7, 8}, {1}) == 1);
  BOOST_TEST(next(two, {7, 8, 1, 1, 1, 9}, {1, 1, 1}) == 1);
  BOOST_TEST(next(two, {7, 8, 1, 1, 1, 9}, {7, 8, 1, 1}) == 4);
  // Several sections have one budget.
  BOOST_TEST(next(two, {7, 8}, {1, 9, 2, 7, 8}) == 4);
  BOOST_TEST(next(budget_params(0, true), {2}, {}) == 4);
  // A state that was built anew goes on like the one that has seen the tokens one by one, and a
  // copy that has seen drafts leaves it as it is.
  SamplingState state(two, Tokens{7, 8}, 2);
  state.append(1);
  SamplingState drafted(state);
  for (const TokenId draft : {1, 4}) drafted.append(draft);
  std::vector<float> row = logits;
  BOOST_TEST(Sampler().draw(row, drafted).value() == 9);
  row = logits;
  BOOST_TEST(Sampler().draw(row, state).value() == 1);
}

BOOST_AUTO_TEST_CASE(the_end_of_reasoning_waits_until_a_grammar_takes_it) {
  const SamplingParams params = budget_params(1, true);
  std::vector<float> logits = {0, 5, 0, 0, 1, 0, 0, 0, 0, 0};
  logits[4] = -kInfinity;
  BOOST_TEST(sample_one(logits, params, {2}, {1, 1}) == 1);
  logits[4] = -3;
  BOOST_TEST(sample_one(logits, params, {2}, {1, 1, 1}) == 4);
}

/// What transformers' WhisperTimeStampLogitsProcessor leaves, behind its two SuppressTokens
/// processors, of logits[i] = (7 i + 3 k) mod 11 / divisor, with the ids of kRules.
struct TranscriptCase {
  std::vector<TokenId> outputs;
  int k;
  std::int32_t max_initial_timestamp;  // -1: no limit
  float divisor;
  std::vector<TokenId> allowed;
};

BOOST_AUTO_TEST_CASE(a_transcript_has_the_tokens_that_the_reference_allows) {
  const TranscriptCase cases[] = {
      {{}, 0, -1, 2.0f, {12, 13, 14, 15, 16, 17, 18, 19}},
      {{}, 0, 3, 2.0f, {12, 13, 14, 15}},
      {{12}, 1, -1, 2.0f, {0, 1, 2, 4, 5, 7, 8, 9, 10}},
      {{12, 4}, 1, -1, 2.0f, {13, 14, 15, 16, 17, 18, 19}},
      {{12, 4}, 1, -1, 40.0f, {13, 14, 15, 16, 17, 18, 19}},
      {{12, 4, 15}, 2, -1, 2.0f, {9, 10, 15, 16, 17, 18, 19}},
      {{12, 4, 15, 15}, 2, -1, 2.0f, {0, 1, 2, 4, 5, 7, 8, 9, 10}},
      {{12, 4, 15, 15, 5}, 3, -1, 2.0f, {16, 17, 18, 19}},
      {{12, 4, 15, 15, 5}, 3, -1, 40.0f, {16, 17, 18, 19}},
      {{12, 4, 19}, 0, -1, 2.0f, {9, 10, 19}},
      {{4}, 5, -1, 2.0f, {12, 13, 14, 15, 16, 17, 18, 19}},
      {{12, 4, 1}, 7, -1, 0.5f, {0, 1, 2, 4, 5, 7, 8, 9, 10, 13, 14, 15, 16, 17, 18, 19}},
  };
  for (const TranscriptCase& each : cases) {
    TranscriptionRules rules{.suppressed = {3, 6, 1000},
                             .suppressed_first = {9, 2},
                             .end = 9,
                             .no_timestamps = 11,
                             .max_initial_timestamp = {}};
    if (each.max_initial_timestamp >= 0) rules.max_initial_timestamp = each.max_initial_timestamp;
    std::vector<TokenId> tokens = {10, 8};
    tokens.insert(tokens.end(), each.outputs.begin(), each.outputs.end());
    std::vector<float> logits;
    for (int i = 0; i < 20; ++i)
      logits.push_back(static_cast<float>((7 * i + 3 * each.k) % 11) / each.divisor);
    SamplingState(greedy_params(), tokens, 2, &rules).process_logits(logits);
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < 20; ++id)
      if (logits[static_cast<std::size_t>(id)] != -kInfinity) allowed.push_back(id);
    BOOST_TEST(allowed == each.allowed, boost::test_tools::per_element());
  }
  // A prompt that asks for no timestamps: only what is suppressed.
  const TranscriptionRules rules{.suppressed = {3},
                                 .suppressed_first = {9},
                                 .end = 9,
                                 .no_timestamps = 11,
                                 .max_initial_timestamp = {}};
  std::vector<float> logits(20);
  SamplingState(greedy_params(), std::vector<TokenId>{10, 11}, 2, &rules).process_logits(logits);
  for (TokenId id = 0; id < 20; ++id)
    BOOST_TEST((logits[static_cast<std::size_t>(id)] == -kInfinity) == (id == 3 || id == 9), id);
}

BOOST_AUTO_TEST_CASE(a_row_gives_the_same_token_whatever_was_sampled_before) {
  constexpr std::size_t kVocabulary = 300;
  std::vector<SamplingState> states;
  std::vector<std::vector<float>> logits;
  for (std::uint32_t row = 0; row < 24; ++row) {
    SamplingParams params;
    params.temperature = 0.5f + 0.1f * static_cast<float>(row % 7);
    params.top_k = row % 3 == 0 ? 20 : 0;
    params.top_p = row % 4 == 0 ? 0.9f : 1.0f;
    params.min_p = row % 5 == 0 ? 0.02f : 0.0f;
    params.logprobs = row % 2 == 0 ? std::optional(3) : std::nullopt;
    params.repetition_penalty = row % 6 == 0 ? 1.2f : 1.0f;
    params.philox_key = 1000 + row;
    const std::vector<TokenId> tokens(row + 1, static_cast<TokenId>(row));
    states.emplace_back(params, tokens, row / 2);
    logits.push_back(random_logits(kVocabulary, row));
  }
  Sampler sampler;
  for (std::size_t row = 0; row < states.size(); ++row) {
    LogprobRows rows;
    LogprobRows rows_alone;
    std::vector<float> workspace = logits[row];
    const TokenId token = sampler.sample(workspace, states[row], rows).value();
    BOOST_TEST(Sampler().sample(logits[row], states[row], rows_alone).value() == token);
    BOOST_TEST((rows == rows_alone));
  }
}

/// Frequencies of draws over many positions against the distribution's own probabilities:
/// Pearson's chi-square stays below its mean + 4 standard deviations.
void check_frequencies(const SamplingParams& params, std::size_t vocab_size, std::uint32_t seed) {
  constexpr int kNumDraws = 40000;
  SamplingDistribution distribution;
  BOOST_REQUIRE(distribution.set(random_logits(vocab_size, seed, 1.5f), params).ok());
  std::map<TokenId, int> counts;
  for (int position = 0; position < kNumDraws; ++position) {
    ++counts[distribution.draw(
        philox_uniform(params.philox_key, static_cast<std::uint64_t>(position), 0))];
  }
  double chi_square = 0;
  double degrees = -1;
  double rare_expected = 0;
  double rare_count = 0;
  int num_seen = 0;
  for (std::size_t i = 0; i < distribution.tokens().size(); ++i) {
    const double expected =
        kNumDraws * static_cast<double>(distribution.weights()[i]) / distribution.total_weight();
    const auto count = counts.find(distribution.tokens()[i]);
    const double seen = count == counts.end() ? 0 : count->second;
    num_seen += static_cast<int>(seen);
    if (expected < 10) {
      rare_expected += expected;
      rare_count += seen;
      continue;
    }
    chi_square += (seen - expected) * (seen - expected) / expected;
    degrees += 1;
  }
  if (rare_expected > 0) {
    chi_square += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
    degrees += 1;
  }
  BOOST_TEST(num_seen == kNumDraws);  // nothing else was drawn
  BOOST_TEST(degrees > 5);
  BOOST_TEST(chi_square < degrees + 4 * std::sqrt(2 * degrees));
}

BOOST_AUTO_TEST_CASE(tokens_are_drawn_as_often_as_their_probability_says) {
  SamplingParams params;
  for (std::uint64_t key = 1; key <= 3; ++key) {
    params.philox_key = key;
    params.top_k = 0;
    params.top_p = 1;
    params.min_p = 0;
    check_frequencies(params, 200, 7);
    params.top_k = 25;
    check_frequencies(params, 200, 8);
    params.top_p = 0.8f;
    params.top_k = 0;
    check_frequencies(params, 200, 9);
    params.min_p = 0.05f;
    check_frequencies(params, 500, 10);
  }
}

/// The cuts by the book: everything sorted, float32 as the reference does it.
std::vector<TokenId> candidates_by_sorting(const std::vector<float>& logits,
                                           const SamplingParams& params) {
  std::vector<double> values;
  for (const float logit : logits)
    values.push_back(static_cast<double>(logit / params.temperature));
  const double largest = *std::max_element(values.begin(), values.end());
  std::vector<std::size_t> ascending(values.size());
  std::iota(ascending.begin(), ascending.end(), 0);
  std::stable_sort(ascending.begin(), ascending.end(), [&](std::size_t left, std::size_t right) {
    return values[left] < values[right];
  });
  std::vector<bool> kept(values.size(), true);
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < values.size()) {
    const double kth = values[ascending[values.size() - static_cast<std::size_t>(params.top_k)]];
    for (std::size_t i = 0; i < values.size(); ++i) kept[i] = values[i] >= kth;
  }
  double total = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (kept[i] && std::exp(values[i] - largest) < static_cast<double>(params.min_p))
      kept[i] = false;
    if (kept[i]) total += std::exp(values[i] - largest);
  }
  double dropped = 0;
  for (const std::size_t i : ascending) {
    if (!kept[i] || i == ascending.back()) continue;
    dropped += std::exp(values[i] - largest) / total;
    if (dropped <= 1 - static_cast<double>(params.top_p)) kept[i] = false;
  }
  std::vector<TokenId> tokens;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i]) tokens.push_back(static_cast<TokenId>(i));
  }
  return tokens;
}

BOOST_AUTO_TEST_CASE(partial_selection_keeps_what_a_full_sort_keeps) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> uniform(0, 1);
  SamplingDistribution distribution;
  for (int round = 0; round < 400; ++round) {
    SamplingParams params;
    params.temperature = 0.3f + uniform(random);
    if (random() % 2 == 0) params.top_k = static_cast<std::int32_t>(random() % 300 + 1);
    if (random() % 2 == 0) params.top_p = 0.01f + 0.98f * uniform(random);
    if (random() % 3 == 0) params.min_p = 0.1f * uniform(random);
    const std::size_t vocab_size = 1 + random() % 700;
    std::vector<float> logits =
        random_logits(vocab_size, static_cast<std::uint32_t>(round), round % 5 == 0 ? 20.0f : 2.0f);
    if (round % 3 == 0) {  // equal values, as bfloat16 logits have
      for (float& logit : logits) logit = std::round(logit * 2) / 2;
    }
    BOOST_REQUIRE(distribution.set(logits, params).ok());
    const std::vector<TokenId> expected = candidates_by_sorting(logits, params);
    BOOST_TEST_CONTEXT("round " << round) {
      BOOST_TEST(std::equal(distribution.tokens().begin(), distribution.tokens().end(),
                            expected.begin(), expected.end()));
    }
  }
}

BOOST_AUTO_TEST_CASE(our_exponential_is_within_its_error_bound) {
  std::vector<float> values;
  for (float x = 5; x > -110; x -= 0.00371f) values.push_back(x);
  values.push_back(-kInfinity);
  std::vector<float> results(values.size());
  exp_differences(values, 5, results);
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double expected = std::exp(static_cast<double>(values[i] - 5));
    sum += expected;
    if (values[i] - 5 < -87) {
      BOOST_TEST(results[i] == results.back());
      BOOST_TEST(results[i] < 2e-38f);
    } else {
      BOOST_TEST(std::abs(static_cast<double>(results[i]) / expected - 1) < 1e-6);
    }
  }
  BOOST_TEST(results[0] == 1);
  BOOST_TEST(sum_of_exp(values, 5) == sum, boost::test_tools::tolerance(1e-7));
}

BOOST_AUTO_TEST_CASE(the_ends_of_the_unit_interval_draw_the_first_and_the_last_token) {
  SamplingDistribution distribution;
  std::vector<float> logits = random_logits(1000, 4);
  logits.back() = -kInfinity;
  BOOST_REQUIRE(distribution.set(logits, SamplingParams{}).ok());
  BOOST_TEST(distribution.draw(0) == 0);
  BOOST_TEST(distribution.draw(1 - 0x1p-53) == 998);
}

BOOST_AUTO_TEST_CASE(the_kth_largest_value_is_found_for_every_k) {
  std::vector<float> scratch;
  std::vector<float> values = random_logits(97, 3);
  for (std::size_t i = 0; i < 30; ++i) values[3 * i] = std::round(values[3 * i]);
  std::vector<float> sorted = values;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (std::size_t k = 1; k <= values.size(); ++k) {
    BOOST_TEST(kth_largest(values, k, scratch) == sorted[k - 1]);
  }
  const std::vector<float> masked = {-kInfinity, 1, -kInfinity};
  BOOST_TEST(kth_largest(masked, 2, scratch) == -kInfinity);
}

}  // namespace
}  // namespace troupe
