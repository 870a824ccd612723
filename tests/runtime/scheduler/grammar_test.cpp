// The masks of a step, and requests whose texts end.
#include "runtime/scheduler/grammar.hpp"

#include <boost/test/unit_test.hpp>
#include <vector>

#include "tests/runtime/scheduler/scheduler_fixture.hpp"
#include "tests/support/exact_grammar.hpp"

namespace troupe {
namespace {

/// Wants the tokens 0, 1, 2, ... in order, up to `end`.
class Counting final : public GrammarMasker {
 public:
  explicit Counting(TokenId next, TokenId end = 32, std::optional<Error> why = std::nullopt)
      : next_(next), end_(end), why_(std::move(why)) {}
  bool accept(TokenId token) override { return token == next_ && next_ < end_ && ++next_ > 0; }
  void rollback(std::size_t num_tokens) override { next_ -= static_cast<TokenId>(num_tokens); }
  [[nodiscard]] std::size_t words_per_row() const { return 1; }
  void fill_bitmask(std::span<std::int32_t> row) override {
    row[0] = next_ < end_ ? static_cast<std::int32_t>(std::uint32_t{1} << next_) : 0;
  }
  [[nodiscard]] std::optional<Error> why_nothing_fits() const override { return why_; }
  std::vector<TokenId> likely_tokens(std::size_t max_tokens) override {
    std::vector<TokenId> tokens;
    for (TokenId token = next_; token < end_ && tokens.size() < max_tokens; ++token)
      tokens.push_back(token);
    return tokens;
  }

 private:
  TokenId next_;
  TokenId end_;
  std::optional<Error> why_;
};

GrammarStep::Request request(std::uint64_t id, Counting masker, std::vector<TokenId> drafts = {}) {
  return {.id = RequestId{id},
          .sequence = 10 * id,
          .words_per_row = 1,
          .masker = std::make_unique<Counting>(std::move(masker)),
          .drafts = std::move(drafts)};
}

BOOST_AUTO_TEST_CASE(each_draft_has_a_row_and_so_has_what_follows) {
  GrammarStep step{.step = 5, .requests = {}};
  step.requests.push_back(request(1, Counting(3)));
  step.requests.push_back(request(2, Counting(0), {0, 1}));
  step.requests.push_back(request(3, Counting(0), {0, 7, 8}));    // the second is not accepted
  step.requests.push_back(request(4, Counting(0), {0, -1, -1}));  // nor known
  const GrammarMasks masks = fill_masks(std::move(step));
  BOOST_TEST(masks.ended.empty());
  const GrammarOutput& output = masks.output;
  BOOST_TEST(output.step == 5u);
  BOOST_TEST(output.words_per_row == 1);
  BOOST_TEST((output.ids == std::vector{RequestId{1}, RequestId{2}, RequestId{3}, RequestId{4}}));
  BOOST_TEST((output.num_rows == std::vector<std::int32_t>{1, 3, 4, 4}));
  BOOST_TEST((output.num_acceptable_drafts == std::vector<std::int32_t>{0, 2, 3, 1}));
  const std::vector<std::int32_t> expected{8, 1, 2, 4, 1, 2, 2, 2, 1, 2, -1, -1};
  BOOST_TEST(output.bitmask == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_request_with_nothing_to_sample_has_ended_and_may_sample_anything) {
  GrammarStep step{.step = 1, .requests = {}};
  step.requests.push_back(request(1, Counting(2, 2), {2}));
  step.requests.push_back(request(2, Counting(4, 4, invalid_argument("why"))));
  step.requests.push_back(request(3, Counting(1, 2), {1}));  // complete with its draft
  const GrammarMasks masks = fill_masks(std::move(step));
  BOOST_REQUIRE_EQUAL(masks.ended.size(), 3u);
  BOOST_TEST((masks.ended[0].id == RequestId{1}));
  BOOST_TEST(masks.ended[0].sequence == 10u);
  BOOST_TEST(!masks.ended[0].error);
  BOOST_TEST(masks.ended[1].error.value().message == "why");
  BOOST_TEST(masks.ended[1].num_tokens == 0u);
  BOOST_TEST((masks.ended[2].id == RequestId{3}));
  BOOST_TEST(masks.ended[2].num_tokens == 1u);
  BOOST_TEST(!masks.ended[2].error);
  const std::vector<std::int32_t> expected{0, 0, 0, 2, 0};
  BOOST_TEST(masks.output.bitmask == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_likely_behind_the_drafts_is_proposed_where_it_is_wanted) {
  GrammarStep step{.step = 1, .requests = {}};
  step.requests.push_back(request(1, Counting(3)));
  step.requests.push_back(request(2, Counting(0), {0}));
  step.requests.push_back(request(3, Counting(0), {9}));  // not accepted
  step.requests[1].num_tokens = step.requests[2].num_tokens = 10;
  step.requests[1].max_proposed_tokens = step.requests[2].max_proposed_tokens = 3;
  const GrammarMasks masks = fill_masks(std::move(step));
  BOOST_REQUIRE_EQUAL(masks.proposals.size(), 1u);
  BOOST_TEST((masks.proposals[0].id == RequestId{2}));
  BOOST_TEST(masks.proposals[0].sequence == 20u);
  BOOST_TEST(masks.proposals[0].num_tokens == 11u);
  BOOST_TEST((masks.proposals[0].tokens == std::vector<TokenId>{1, 2, 3}));
}

/// A step of one request, which samples these tokens.
EngineCoreOutputs sample(SchedulerFixture& test, const SchedulerOutput& step,
                         std::vector<TokenId> tokens) {
  ModelRunnerOutput result;
  result.ids = step.scheduled_ids;
  result.num_sampled = {static_cast<std::int32_t>(tokens.size())};
  result.sampled_token_ids = std::move(tokens);
  return run_now(test.scheduler->update_from_output(step, result, test.now));
}

BOOST_AUTO_TEST_CASE(proposed_tokens_are_drafts_once_the_first_ones_have_come_true) {
  for (const bool comes_true : {true, false}) {
    SchedulerConfig config = SchedulerFixture::small();
    config.max_proposed_tokens = 8;
    SchedulerFixture test(config);
    EngineCoreRequest structured = test.request(8, 10);
    structured.params.structured_outputs.emplace();
    const RequestId id = test.add(std::move(structured));
    test.scheduler->set_grammar(id, exact_grammar(Counting(7)));
    test.step();
    const SchedulerOutput second = run_now(test.scheduler->schedule(test.now));
    GrammarMasks masks = fill_masks(test.scheduler->grammar_step(second).value());
    BOOST_REQUIRE_EQUAL(masks.proposals.size(), 1u);
    BOOST_TEST(masks.proposals[0].num_tokens == 9u);
    if (!comes_true) masks.proposals[0].tokens[0] = 20;
    test.scheduler->set_proposals(std::move(masks.proposals));
    sample(test, second, {8});
    const SchedulerOutput third = run_now(test.scheduler->schedule(test.now));
    if (!comes_true) {
      BOOST_TEST(third.draft_token_ids.empty());
      continue;
    }
    BOOST_TEST((third.draft_token_ids == std::vector<TokenId>{9, 10, 11, 12, 13, 14, 15}));
    BOOST_TEST((third.num_draft_tokens == std::vector<std::int32_t>{7}));
    BOOST_TEST((third.num_scheduled_tokens == std::vector<std::int32_t>{8}));
    const EngineCoreOutputs outputs = sample(test, third, {9, 10, 11, 12});
    BOOST_REQUIRE_EQUAL(outputs.outputs.size(), 1u);
    BOOST_TEST(outputs.outputs[0].new_token_ids.size() == 4u);
    BOOST_TEST(outputs.stats->spec_decoding.num_draft_tokens == 7);
    BOOST_TEST(outputs.stats->spec_decoding.num_accepted_tokens == 3);
    const SchedulerOutput fourth = run_now(test.scheduler->schedule(test.now));
    BOOST_TEST((fourth.cached_requests.num_computed_tokens == std::vector<std::int32_t>{13}));
    BOOST_TEST((fourth.draft_token_ids == std::vector<TokenId>{13, 14, 15}));
  }
}

/// Of a request with three tokens, in a step that is still open.
void check_end(const std::optional<Error>& error, FinishReason reason) {
  SchedulerFixture test(SchedulerFixture::small());
  EngineCoreRequest structured = test.request(8, 10);
  structured.params.structured_outputs.emplace();
  const RequestId id = test.add(std::move(structured));
  const RequestId other = test.add(test.request(8, 5));
  test.scheduler->set_grammar(id, exact_grammar(Counting(7, 8)));
  test.step();
  BOOST_TEST_REQUIRE(test.running(id));
  const std::uint64_t sequence = test.scheduler->request(id)->sequence;
  GrammarMasks stale;
  stale.ended = {{.id = id, .sequence = sequence + 1, .error = error},
                 {.id = RequestId{99}, .error = error}};
  BOOST_TEST(test.scheduler->end_structured(stale, test.now).outputs.empty());
  SchedulerOutput open = run_now(test.scheduler->schedule(test.now));
  const std::size_t num_tokens = test.num_tokens[id];
  GrammarMasks masks;
  masks.output.ids = {id, other};
  masks.output.num_rows = {1, 1};
  masks.output.words_per_row = 2;
  masks.output.bitmask = {0, 0, 5, 5};
  masks.ended = {{.id = id, .sequence = sequence, .step = open.step, .error = error}};
  test.take(test.scheduler->end_structured(masks, test.now));
  BOOST_TEST((masks.output.bitmask == std::vector<std::int32_t>{-1, -1, 5, 5}));
  BOOST_REQUIRE(test.ended.contains(id));
  BOOST_TEST((test.ended.at(id).finish_reason == reason));
  BOOST_TEST(test.ended.at(id).error.has_value() == error.has_value());
  ModelRunnerOutput result;
  result.ids = open.scheduled_ids;
  result.num_sampled.assign(result.ids.size(), 1);
  result.sampled_token_ids.assign(result.ids.size(), 7);
  test.take(run_now(test.scheduler->update_from_output(open, result, test.now)));
  BOOST_TEST(test.num_tokens[id] == num_tokens);
  for (int i = 0; i < 10 && !test.ended.contains(other); ++i) test.step();
  BOOST_TEST(test.num_tokens[other] == 5u);
  test.step();
  BOOST_TEST(test.all_blocks_free());
}

BOOST_AUTO_TEST_CASE(a_text_that_is_complete_ends_its_request_alone) {
  check_end(std::nullopt, FinishReason::kStop);
  check_end(invalid_argument("nothing fits"), FinishReason::kError);
}

}  // namespace
}  // namespace troupe
