#include "runtime/worker/input_batch.hpp"

#include <boost/test/unit_test.hpp>
#include <numeric>

#include "runtime/worker/sampler.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kVocabSize = 100;

/// A request of so many tokens, four of them the prompt's, in blocks of 16 slots.
NewRequestData request(std::uint64_t id, std::size_t num_tokens, std::int32_t num_computed,
                       bool scores_prompt = false) {
  NewRequestData data;
  data.id = RequestId{id};
  data.token_ids.assign(num_tokens, 7);
  data.num_prompt_tokens = 4;
  data.num_computed_tokens = num_computed;
  if (scores_prompt) data.params.prompt_logprobs = 1;
  data.block_ids = {{static_cast<BlockId>(id)}};
  return data;
}

void update(InputBatch& batch, const SchedulerOutput& step) {
  batch.update(step);
  batch.build(kVocabSize, nullptr);
}

BOOST_AUTO_TEST_CASE(hidden_states_are_asked_for_where_a_token_is_sampled_or_scored) {
  struct Case {
    NewRequestData request;
    std::int32_t num_tokens = 0;
    std::int32_t num_drafts = 0;
    std::int32_t num_outputs = 0;  ///< expected
  };
  const std::vector<Case> cases = {
      {request(1, 4, 0), 4, 0, 1},        // a whole prompt
      {request(2, 4, 1), 2, 0, 0},        // a chunk that is not the last
      {request(3, 6, 0), 5, 0, 0},        // a preempted request, not yet where it was
      {request(4, 6, 5), 1, 0, 1},        // a decode
      {request(5, 6, 5), 3, 2, 3},        // and one with drafts
      {request(6, 4, 0, true), 4, 0, 4},  // a scored prompt
      {request(7, 4, 1, true), 2, 0, 2},  // and a chunk of one
      {request(8, 4, 3, true), 1, 0, 1},  // its last token scores nothing
      {request(9, 6, 4, true), 1, 0, 0},  // preempted behind its prompt
  };
  SchedulerOutput step;
  std::vector<std::int32_t> expected = {0};
  for (const Case& one : cases) {
    step.new_requests.push_back(one.request);
    step.scheduled_ids.push_back(one.request.id);
    step.num_scheduled_tokens.push_back(one.num_tokens);
    step.num_draft_tokens.push_back(one.num_drafts);
    step.draft_token_ids.insert(step.draft_token_ids.end(),
                                static_cast<std::size_t>(one.num_drafts), 8);
    expected.push_back(expected.back() + one.num_outputs);
  }
  InputBatch batch({16});
  update(batch, step);
  const ForwardBatch arrays = batch.forward_batch();
  BOOST_TEST(arrays.output_start_loc == expected, boost::test_tools::per_element());
  BOOST_TEST(arrays.num_outputs() == expected.back());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    BOOST_TEST(batch.rows()[i].first_output == expected[i]);
    BOOST_TEST(batch.rows()[i].num_outputs == cases[i].num_outputs);
  }

  // A request that has failed samples no more, so nothing of its stand-ins is asked for.
  InputBatch::append_token(*batch.find(RequestId{4}), kNoToken);
  SchedulerOutput next;
  next.scheduled_ids = next.cached_requests.ids = {RequestId{4}};
  next.num_scheduled_tokens = {1};
  next.cached_requests.num_computed_tokens = {6};
  next.cached_requests.num_output_tokens = {2};
  update(batch, next);
  BOOST_TEST(batch.forward_batch().num_outputs() == 0);
}

std::vector<BlockId> blocks_of(InputBatch& batch, std::size_t sequence) {
  const ForwardBatch arrays = batch.forward_batch();
  const ForwardBatch::Group& group = arrays.groups[0];
  const BlockId* const row =
      group.block_tables + arrays.block_table_rows[sequence] * group.block_table_stride;
  return {row, row + (arrays.seq_lens[sequence] + 15) / 16};
}

BOOST_AUTO_TEST_CASE(a_token_that_the_scheduler_discards_is_sampled_again) {
  SchedulerOutput step;
  step.new_requests = {request(1, 4, 0)};
  step.scheduled_ids = {RequestId{1}};
  step.num_scheduled_tokens = {4};
  InputBatch batch({16});
  update(batch, step);
  BOOST_TEST(batch.rows()[0].samples);
  InputBatch::append_token(*batch.find(RequestId{1}), 9);
  SchedulerOutput next;
  next.scheduled_ids = next.cached_requests.ids = {RequestId{1}};
  next.num_scheduled_tokens = {4};
  next.cached_requests.num_computed_tokens = {0};
  next.cached_requests.num_output_tokens = {0};
  update(batch, next);
  BOOST_TEST(batch.rows()[0].samples);
  BOOST_TEST(batch.find(RequestId{1})->token_ids.size() == 4u);
  BOOST_TEST(batch.find(RequestId{1})->sampling.position() == 4u);
}

BOOST_AUTO_TEST_CASE(a_block_table_stays_where_it_is_while_others_come_grow_and_go) {
  InputBatch batch({16});
  SchedulerOutput step;
  for (const std::uint64_t id : {1, 2, 3}) {
    step.new_requests.push_back(request(id, 16, 0));
    step.scheduled_ids.push_back(RequestId{id});
    step.num_scheduled_tokens.push_back(16);
  }
  update(batch, step);
  const std::vector<std::int32_t> rows(batch.forward_batch().block_table_rows.begin(),
                                       batch.forward_batch().block_table_rows.end());
  for (const std::uint64_t id : {1, 2, 3}) InputBatch::append_token(*batch.find(RequestId{id}), 9);

  // The first one ends, the second sits out, the third grows; what is new takes the free row, and
  // is longer than all rows before.
  NewRequestData longer = request(4, 16 * 40, 0);
  longer.block_ids = {std::vector<BlockId>(40)};
  std::iota(longer.block_ids[0].begin(), longer.block_ids[0].end(), 100);
  SchedulerOutput next;
  next.finished_ids = {RequestId{1}};
  next.new_requests = {longer};
  next.scheduled_ids = {RequestId{3}, RequestId{4}};
  next.num_scheduled_tokens = {1, 16 * 40};
  next.cached_requests.ids = {RequestId{3}};
  next.cached_requests.num_computed_tokens = {16};
  next.cached_requests.num_output_tokens = {1};
  next.cached_requests.new_block_ids = {33};
  next.cached_requests.new_block_counts = {1};
  update(batch, next);
  BOOST_TEST(batch.forward_batch().block_table_rows[0] == rows[2]);
  BOOST_TEST(batch.forward_batch().block_table_rows[1] == rows[0]);
  BOOST_TEST(blocks_of(batch, 0) == (std::vector<BlockId>{3, 33}),
             boost::test_tools::per_element());
  BOOST_TEST(blocks_of(batch, 1) == longer.block_ids[0], boost::test_tools::per_element());
  BOOST_TEST(batch.forward_batch().groups[0].slots[0] == 33 * 16);

  // A preempted one comes back with other blocks: none of the old ones are left.
  NewRequestData back = request(4, 16 * 40, 0);
  back.block_ids = {{7}};
  SchedulerOutput third;
  third.preempted_ids = {RequestId{4}};
  third.new_requests = {back};
  third.scheduled_ids = {RequestId{2}, RequestId{4}};
  third.num_scheduled_tokens = {1, 16};
  third.cached_requests.ids = {RequestId{2}};
  third.cached_requests.num_computed_tokens = {16};
  third.cached_requests.num_output_tokens = {1};
  third.cached_requests.new_block_ids = {22};
  third.cached_requests.new_block_counts = {1};
  update(batch, third);
  BOOST_TEST(batch.forward_batch().block_table_rows[0] == rows[1]);
  BOOST_TEST(blocks_of(batch, 0) == (std::vector<BlockId>{2, 22}),
             boost::test_tools::per_element());
  BOOST_TEST(blocks_of(batch, 1) == (std::vector<BlockId>{7}), boost::test_tools::per_element());
  BOOST_TEST(batch.tables().num_slots(batch.forward_batch().block_table_rows[1]) == 16);
}

/// Steps that were planned before the result of the last one: they count on all of its drafts.
BOOST_AUTO_TEST_CASE(
    a_step_with_placeholders_begins_behind_the_last_token_with_the_drafts_made_there) {
  constexpr RequestId kId{1};
  InputBatch batch({16});
  SchedulerOutput step;
  step.new_requests = {request(1, 4, 0)};
  step.scheduled_ids = {kId};
  step.num_scheduled_tokens = {4};
  update(batch, step);
  std::int32_t num_planned = 4;
  /// In the last step these were sampled, and these are the drafts behind them.
  const auto next_step = [&](const std::vector<TokenId>& sampled,
                             const std::vector<TokenId>& drafts) {
    for (const TokenId token : sampled) InputBatch::append_token(*batch.find(kId), token);
    batch.find(kId)->next_drafts = drafts;
    SchedulerOutput next;
    next.scheduled_ids = next.cached_requests.ids = {kId};
    next.num_scheduled_tokens = {4};
    next.num_draft_tokens = {3};
    next.draft_token_ids = {-1, -1, -1};
    next.cached_requests.num_computed_tokens = {num_planned};
    next.cached_requests.num_output_tokens = {num_planned + 1 - 4};
    update(batch, next);
    num_planned += 4;
  };
  const auto computes = [&](std::int32_t begin, const std::vector<TokenId>& tokens) {
    const ForwardBatch arrays = batch.forward_batch();
    BOOST_TEST(arrays.token_ids == tokens, boost::test_tools::per_element());
    for (std::size_t i = 0; i < tokens.size(); ++i)
      BOOST_TEST(arrays.positions[i] == begin + static_cast<std::int32_t>(i));
    BOOST_TEST(arrays.num_outputs() == 4);
    BOOST_TEST(batch.rows()[0].samples);
  };
  next_step({10}, {11, 12, 13});
  computes(4, {10, 11, 12, 13});
  BOOST_TEST(batch.rows()[0].drafts[2] == 13);
  // One of the three came true: the plan is two ahead. It hears of that, and counts on all of the
  // next ones.
  next_step({11, 20}, {21});
  num_planned -= 2;
  computes(6, {20, 21, 0, 0});
  BOOST_TEST(batch.rows()[0].drafts[1] == -1);
  // None, and no draft is made: those of before are not used again.
  next_step({30}, {});
  num_planned -= 3;
  computes(7, {30, 0, 0, 0});
}

BOOST_AUTO_TEST_CASE(states_adapters_and_the_spans_of_images_go_with_their_sequences) {
  NewRequestData first = request(1, 40, 0);
  first.block_ids = {{5, 6, 7}};
  first.lora = LoraRequest{.name = "poet", .int_id = 3};
  // An image whose tokens stand in two rows, and one that is a row of its own beside it.
  first.mm_features = {{.modality = "image", .offset = 2, .length = 5, .is_embed = {0, 1, 1, 0, 1}},
                       {.modality = "image", .offset = 7, .length = 10}};
  NewRequestData second = request(2, 40, 33);
  second.block_ids = {{8, 9, 10}};
  SchedulerOutput step;
  step.new_requests = {first, second};
  step.scheduled_ids = {RequestId{1}, RequestId{2}};
  step.num_scheduled_tokens = {17, 1};
  InputBatch batch({{16, 16, BlockContent::kStates}}, InputBatch::Options{.two_way_items = true});
  update(batch, step);
  ForwardBatch arrays = batch.forward_batch();
  const std::vector<TwoWaySpan> spans = {{3, 5}, {6, 7}, {7, 17}};
  BOOST_TEST(std::ranges::equal(arrays.two_way_spans, spans));
  BOOST_TEST(arrays.span_start_loc == (std::vector<std::int32_t>{0, 3, 3}),
             boost::test_tools::per_element());
  BOOST_TEST(arrays.adapter_ids == (std::vector<std::int32_t>{3, 0}),
             boost::test_tools::per_element());
  // Of each sequence the state behind its last token is kept.
  std::vector<BlockId> kept(17, kNullBlock);
  kept[16] = 6;
  kept.push_back(10);
  BOOST_TEST(arrays.groups[0].states_before[0] == kNullBlock);
  BOOST_TEST(arrays.groups[0].states_before[1] == 10);
  BOOST_TEST(std::ranges::equal(std::span(arrays.groups[0].states_after, kept.size()), kept));

  // Images that are behind the step's tokens are none of its business.
  SchedulerOutput next;
  next.scheduled_ids = next.cached_requests.ids = {RequestId{1}};
  next.num_scheduled_tokens = {16};
  next.cached_requests.num_computed_tokens = {17};
  next.cached_requests.num_output_tokens = {0};
  update(batch, next);
  arrays = batch.forward_batch();
  BOOST_TEST(arrays.two_way_spans.empty());
  BOOST_TEST(arrays.groups[0].states_before[0] == 6);
  BOOST_TEST(arrays.groups[0].states_after[14] == kNullBlock);
  BOOST_TEST(arrays.groups[0].states_after[15] == 7);

  // Runs that are too long for a window are causal.
  InputBatch windowed({16}, InputBatch::Options{.two_way_items = true, .max_two_way_span = 9});
  update(windowed, step);
  BOOST_TEST(std::ranges::equal(windowed.forward_batch().two_way_spans, std::span(spans).first(2)));

  // Where the model attends causally there are none.
  InputBatch causal({16});
  update(causal, step);
  BOOST_TEST(causal.forward_batch().two_way_spans.empty());
}

BOOST_AUTO_TEST_CASE(tokens_of_images_take_the_rows_of_the_encoder_that_are_theirs) {
  const auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
  EncoderOutputs outputs = EncoderOutputs::create(*device, 16, 4).value();
  outputs.add("other", 2);
  outputs.add("cat", 3);
  outputs.remove("other");
  outputs.add("dog", 4);
  NewRequestData data = request(1, 40, 3);
  data.block_ids = {{5, 6, 7}};
  data.mm_features = {{.modality = "image",
                       .identifier = "cat",
                       .offset = 2,
                       .length = 5,
                       .is_embed = {0, 1, 1, 0, 1}},
                      {.modality = "image", .identifier = "dog", .offset = 10, .length = 4},
                      {.modality = "image", .identifier = "cow", .offset = 20, .length = 4}};
  SchedulerOutput step;
  step.new_requests = {request(2, 5, 0), data};
  step.scheduled_ids = {RequestId{2}, RequestId{1}};
  step.num_scheduled_tokens = {5, 9};
  InputBatch batch({16});
  batch.update(step);
  const auto needed = batch.needed_items();
  BOOST_REQUIRE(needed.size() == 2u);
  BOOST_TEST(needed[0]->identifier == "cat");
  BOOST_TEST(needed[1]->identifier == "dog");
  batch.build(kVocabSize, &outputs);
  // Positions 3 to 11 are tokens 5 to 13 of the batch.
  const auto& given = batch.forward_batch().input_embeddings;
  BOOST_TEST(given.tokens == (std::vector<std::int32_t>{5, 6, 8, 12, 13}),
             boost::test_tools::per_element());
  const auto cat = outputs.rows_of("cat");
  const auto dog = outputs.rows_of("dog");
  BOOST_TEST(given.rows == (std::vector<std::int32_t>{cat[0], cat[1], cat[2], dog[0], dog[1]}),
             boost::test_tools::per_element());
  BOOST_TEST(given.outputs.data == outputs.memory().data);
}

BOOST_AUTO_TEST_CASE(a_block_of_the_manager_is_several_of_the_kernels) {
  BlockTables tables({{64, 16}, {16, 16}});
  const std::int32_t row = tables.add({{3}, {9, 4}});
  tables.append(row, 0, std::vector<BlockId>{1});
  const auto first = tables.blocks(row, 0);
  BOOST_TEST((std::vector<BlockId>(first.begin(), first.end()) ==
              std::vector<BlockId>{12, 13, 14, 15, 4, 5, 6, 7}));
  BOOST_TEST(tables.block_size(0) == 16);
  BOOST_TEST(tables.num_slots(row) == 32);
  // The slots are those of whole blocks.
  FlatBatch batch(tables);
  const std::vector<TokenId> tokens(20);
  batch.clear();
  batch.add(tokens, 0, row, 1);
  BOOST_TEST(batch.view().groups[0].slots[17] == 3 * 64 + 17);
  tables.remove(row);
  BOOST_TEST(tables.blocks(row, 0).empty());
}

}  // namespace
}  // namespace troupe
