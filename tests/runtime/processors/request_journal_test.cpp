#include "runtime/processors/request_journal.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>

namespace troupe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

GenerateRequest request_of(std::uint64_t id, std::int32_t n = 1) {
  GenerateRequest request;
  request.id = RequestId{id};
  request.prompt = TextPrompt{"prompt of " + std::to_string(id)};
  request.params.n = n;
  request.params.output_kind = OutputKind::kDelta;
  request.params.philox_key = 77;
  request.arrival_time = 100;
  return request;
}

RequestOutputs tokens_of(std::uint64_t id, std::vector<TokenId> tokens, std::int32_t index = 0,
                         std::optional<FinishReason> reason = std::nullopt) {
  RequestOutput output;
  output.id = RequestId{id};
  output.outputs.push_back({.index = index,
                            .token_ids = std::move(tokens),
                            .cumulative_logprob = -1.5,
                            .finish_reason = reason});
  RequestOutputs outputs;
  outputs.outputs.push_back(std::move(output));
  return outputs;
}

RequestOutputs end_of(std::uint64_t id) {
  RequestOutputs outputs = tokens_of(id, {9}, 0, FinishReason::kLength);
  outputs.outputs[0].finished = true;
  return outputs;
}

struct Fixture {
  RequestJournal journal;
  Coordinator coordinator{1};

  Fixture() { journal.group_ready(0); }

  void add(GenerateRequest request) { BOOST_REQUIRE(journal.add({std::move(request), {}}).ok()); }
  void add(std::uint64_t id) { add(request_of(id)); }
  auto record(RequestOutputs outputs) { return journal.record(outputs); }
  std::vector<std::uint64_t> submitted() {
    std::vector<std::uint64_t> ids;
    for (const GenerateRequest& request : submissions()) ids.push_back(value(request.id));
    return ids;
  }
  std::vector<GenerateRequest> submissions() {
    std::vector<GenerateRequest> requests;
    for (auto& submission : journal.take_submissions(coordinator))
      requests.push_back(std::move(submission.request));
    return requests;
  }
  RequestJournal::Lost lose(LossCause cause = LossCause::kOutside) {
    auto lost = journal.group_lost(0, cause, /*returns=*/true);
    BOOST_TEST(submitted().empty());
    return lost;
  }
  RequestJournal::Lost replace(LossCause cause = LossCause::kOutside) {
    auto lost = lose(cause);
    journal.group_ready(0);
    return lost;
  }
  RequestJournal::Aborted abort(std::uint64_t id) {
    const std::vector<RequestId> ids = {RequestId{id}};
    return journal.abort(ids);
  }
};

using Ids = std::vector<std::uint64_t>;

BOOST_FIXTURE_TEST_SUITE(request_journal, Fixture)

BOOST_AUTO_TEST_CASE(a_request_goes_to_the_engine_once_and_as_it_came) {
  add(1);
  const auto given = submissions();
  BOOST_REQUIRE_EQUAL(given.size(), 1u);
  BOOST_TEST((given[0] == request_of(1)));
  BOOST_TEST(submitted().empty());
  record(end_of(1));
  BOOST_TEST(journal.num_live() == 0u);
}

BOOST_AUTO_TEST_CASE(
    after_a_replacement_all_go_on_behind_what_their_clients_have_in_the_old_order) {
  for (const std::uint64_t id : {30, 20, 10, 40}) add(id);
  BOOST_TEST((submitted() == Ids{30, 20, 10, 40}));
  record(tokens_of(20, {1, 2}));
  record(tokens_of(20, {3}));
  record(end_of(40));
  record(tokens_of(10, {4}));
  const auto lost = lose();
  BOOST_TEST(lost.num_resubmissions == 3u);
  BOOST_TEST(lost.ended.outputs.empty());
  add(50);
  journal.group_ready(0);
  const auto given = submissions();
  BOOST_REQUIRE_EQUAL(given.size(), 4u);
  BOOST_TEST((given[0] == request_of(30)));
  GenerateRequest expected = request_of(20);
  expected.emitted = {{.token_ids = {1, 2, 3}, .cumulative_logprob = -1.5}};
  BOOST_TEST((given[1] == expected));
  BOOST_TEST((given[2].emitted.at(0).token_ids == std::vector<TokenId>{4}));
  BOOST_TEST(value(given[3].id) == 50u);
}

BOOST_AUTO_TEST_CASE(samples_are_known_one_by_one) {
  add(request_of(1, 3));
  BOOST_TEST((submitted() == Ids{1}));
  record(tokens_of(1, {5}, 2));
  record(tokens_of(1, {6, 7}, 1, FinishReason::kStop));
  static_cast<void>(replace());
  const auto given = submissions();
  BOOST_REQUIRE_EQUAL(given.size(), 1u);
  const std::vector<EmittedSample> expected = {
      {}, {{6, 7}, -1.5, /*finished=*/true}, {{5}, -1.5, /*finished=*/false}};
  BOOST_TEST((given[0].emitted == expected));
}

BOOST_AUTO_TEST_CASE(a_request_for_one_final_output_is_run_in_pieces_so_that_they_are_not_lost) {
  GenerateRequest request = request_of(1);
  request.params.output_kind = OutputKind::kFinalOnly;
  add(std::move(request));
  const auto given = submissions();
  BOOST_TEST((given.at(0).params.output_kind == OutputKind::kDelta));
  BOOST_TEST(given.at(0).params.stream_interval == RequestJournal::kFinalOnlyInterval);
}

BOOST_AUTO_TEST_CASE(a_cumulative_output_replaces_the_one_before) {
  GenerateRequest request = request_of(1);
  request.params.output_kind = OutputKind::kCumulative;
  add(std::move(request));
  BOOST_TEST((submitted() == Ids{1}));
  record(tokens_of(1, {1}));
  record(tokens_of(1, {1, 2}));
  static_cast<void>(replace());
  BOOST_TEST((submissions().at(0).emitted.at(0).token_ids == std::vector<TokenId>{1, 2}));
}

BOOST_AUTO_TEST_CASE(only_so_many_wait_for_an_engine) {
  add(1);
  BOOST_TEST((submitted() == Ids{1}));
  lose();
  for (std::uint64_t id = 2; id < 2 + RequestJournal::kMaxWaiting; ++id) add(id);
  const auto refused = journal.add({request_of(5000), {}});
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST((refused.error().code == ErrorCode::kOverloaded));
  BOOST_TEST(refused.error().message.find("the limit is 1024") != std::string::npos);
  BOOST_TEST(journal.num_live() == 1 + RequestJournal::kMaxWaiting);
}

BOOST_AUTO_TEST_CASE(the_engine_is_told_of_an_abort_and_ends_the_request) {
  add(request_of(4, 2));
  BOOST_TEST((submitted() == Ids{4}));
  const auto aborted = abort(4);
  BOOST_REQUIRE_EQUAL(aborted.to_engine.size(), 1u);
  BOOST_TEST((aborted.to_engine[0].samples.ids == std::vector{RequestId{4}, RequestId{5}}));
  BOOST_TEST(aborted.ended.outputs.empty());
  BOOST_TEST(journal.num_live() == 1u);
  BOOST_TEST(abort(99).to_engine.empty());
}

BOOST_AUTO_TEST_CASE(an_abort_that_the_lost_engine_did_not_answer_is_not_forgotten) {
  add(1);
  add(2);
  BOOST_TEST((submitted() == Ids{1, 2}));
  BOOST_TEST(abort(1).to_engine.size() == 1u);
  const auto replaced = replace();
  BOOST_REQUIRE_EQUAL(replaced.ended.outputs.size(), 1u);
  BOOST_TEST(replaced.ended.outputs[0].finished);
  BOOST_TEST((replaced.ended.outputs[0].outputs.at(0).finish_reason == FinishReason::kAbort));
  BOOST_TEST((submitted() == Ids{2}));
}

BOOST_AUTO_TEST_CASE(without_an_engine_an_abort_ends_the_samples_that_still_run) {
  add(request_of(1, 2));
  add(5);
  BOOST_TEST((submitted() == Ids{1, 5}));
  record(tokens_of(1, {6}, 1, FinishReason::kStop));
  lose();
  add(6);
  const auto aborted = journal.abort_all();
  BOOST_TEST(aborted.to_engine.empty());
  BOOST_TEST(aborted.ended.outputs.size() == 3u);
  for (const RequestOutput& output : aborted.ended.outputs) {
    BOOST_TEST(output.finished);
    BOOST_REQUIRE_EQUAL(output.outputs.size(), 1u);
    BOOST_TEST(output.outputs[0].index == 0);
    BOOST_TEST((output.outputs[0].finish_reason == FinishReason::kAbort));
  }
  BOOST_TEST(replace().num_resubmissions == 0u);
}

BOOST_AUTO_TEST_CASE(deadlines_hold_while_there_is_no_engine) {
  GenerateRequest queued = request_of(1);
  queued.limits.max_queue_time_s = 5;
  GenerateRequest begun = request_of(2);
  begun.limits = {.max_queue_time_s = 5, .max_request_time_s = 20};
  GenerateRequest in_vain = request_of(3);
  in_vain.limits.max_request_time_s = 10;
  for (const GenerateRequest& request : {queued, begun, in_vain, request_of(4)}) add(request);
  BOOST_TEST(journal.next_deadline() == 105);
  BOOST_TEST((submitted() == Ids{1, 2, 3, 4}));
  BOOST_TEST(journal.next_deadline() == kNever);  // the engine watches them
  BOOST_TEST(journal.expire(1000).outputs.empty());
  record(tokens_of(2, {8}));
  lose();
  BOOST_TEST(journal.next_deadline() == 105);

  const auto first = journal.expire(105.5);
  BOOST_REQUIRE_EQUAL(first.outputs.size(), 1u);
  BOOST_TEST(first.outputs[0].error->message ==
             "the request has waited 5.5 s to be scheduled, max_queue_time_s is 5");
  BOOST_TEST((first.outputs[0].error->code == ErrorCode::kOverloaded));
  BOOST_TEST(journal.next_deadline() == 110);
  const auto second = journal.expire(110);
  BOOST_REQUIRE_EQUAL(second.outputs.size(), 1u);
  BOOST_TEST((second.outputs[0].error->code == ErrorCode::kTimeout));
  BOOST_TEST(second.outputs[0].outputs.empty());
  const auto third = journal.expire(120);
  BOOST_REQUIRE_EQUAL(third.outputs.size(), 1u);
  BOOST_TEST(!third.outputs[0].error.has_value());
  BOOST_TEST((third.outputs[0].outputs.at(0).finish_reason == FinishReason::kTimeout));
  BOOST_TEST(journal.next_deadline() == kNever);
  BOOST_TEST(journal.num_live() == 1u);
}

BOOST_AUTO_TEST_CASE(engines_that_end_for_external_reasons_create_no_suspects) {
  add(1);
  for (int i = 0; i < 10; ++i) {
    BOOST_TEST((submitted() == Ids{1}));
    BOOST_TEST(replace().num_resubmissions == 1u);
    BOOST_TEST(!journal.in_quarantine());
  }
}

BOOST_AUTO_TEST_CASE(kills_do_not_fail_requests_that_make_progress_between_them) {
  const std::vector<TokenId> progress(RequestJournal::kMinProgress);
  add(1);
  add(2);
  for (int i = 0; i < 40; ++i) {
    BOOST_TEST((submitted() == Ids{1, 2}));
    const bool slow = i % 2 == 0;  // 2 gets nowhere every other time
    record(tokens_of(1, progress));
    if (!slow) record(tokens_of(2, progress));
    BOOST_TEST(replace(LossCause::kKilled).num_resubmissions == 2u);
    BOOST_TEST(!journal.in_quarantine());
  }
}

BOOST_AUTO_TEST_CASE(a_request_that_gets_nowhere_before_each_kill_runs_alone_and_fails) {
  const std::vector<TokenId> progress(RequestJournal::kMinProgress);
  for (const std::uint64_t id : {1, 2, 3}) add(id);
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST((submitted() == Ids{1, 2, 3}));
    record(tokens_of(3, progress));
    BOOST_TEST(replace(LossCause::kKilled).num_resubmissions == 3u);
  }
  BOOST_TEST((submitted() == Ids{1}));  // 2 is suspect too, and waits for its turn
  // Alone it continues: it did not cause the crash of this group.
  record(tokens_of(1, progress));
  static_cast<void>(replace(LossCause::kKilled));
  for (int i = 2; i < 16; ++i) {
    BOOST_TEST((submitted() == Ids{2}));
    if (i == 3) {  // what the Supervisor ends counts neither way
      static_cast<void>(replace(LossCause::kOutside));
      BOOST_TEST((submitted() == Ids{2}));
    }
    BOOST_TEST(replace(LossCause::kKilled).ended.outputs.empty());
  }
  BOOST_TEST((submitted() == Ids{2}));
  const auto lost = replace(LossCause::kKilled);
  BOOST_REQUIRE_EQUAL(lost.ended.outputs.size(), 1u);
  BOOST_TEST(value(lost.ended.outputs[0].id) == 2u);
  BOOST_TEST(lost.ended.outputs[0].error->message.starts_with(
      "the engine was killed 17 times in a row as soon as it ran this request"));
  BOOST_TEST(!journal.in_quarantine());
  BOOST_TEST((submitted() == Ids{1, 3}));
}

BOOST_AUTO_TEST_CASE(a_request_that_gets_a_token_before_each_kill_fails_later) {
  add(1);
  int num_kills = 0;
  while (journal.num_live() > 0) {
    BOOST_REQUIRE((submitted() == Ids{1}));
    record(tokens_of(1, {5}));
    static_cast<void>(replace(LossCause::kKilled));
    ++num_kills;
  }
  BOOST_TEST(num_kills == 64);
}

BOOST_AUTO_TEST_CASE(a_request_with_two_crashes_runs_alone_and_fails_at_the_third) {
  add(1);
  add(2);
  BOOST_TEST((submitted() == Ids{1, 2}));
  BOOST_TEST(replace(LossCause::kCrashed).num_resubmissions == 2u);
  add(3);
  BOOST_TEST((submitted() == Ids{1, 2, 3}));
  BOOST_TEST(replace(LossCause::kCrashed).num_resubmissions == 3u);
  add(4);
  // 1 and 2 are suspect; 3 has seen one crash only, 4 none.
  BOOST_TEST(journal.in_quarantine());
  BOOST_TEST((submitted() == Ids{1}));
  BOOST_TEST(submitted().empty());
  record(end_of(1));
  BOOST_TEST((submitted() == Ids{2}));
  BOOST_TEST(replace(LossCause::kOutside).num_resubmissions == 1u);  // not its fault
  BOOST_TEST((submitted() == Ids{2}));
  const auto replaced = replace(LossCause::kCrashed);
  BOOST_TEST(replaced.num_resubmissions == 0u);
  BOOST_REQUIRE_EQUAL(replaced.ended.outputs.size(), 1u);
  BOOST_TEST(value(replaced.ended.outputs[0].id) == 2u);
  BOOST_TEST((replaced.ended.outputs[0].error->code == ErrorCode::kInternal));
  BOOST_TEST(replaced.ended.outputs[0].error->message.find("3 times") != std::string::npos);
  BOOST_TEST(!journal.in_quarantine());
  BOOST_TEST((submitted() == Ids{3, 4}));
}

BOOST_AUTO_TEST_CASE(an_aborted_suspect_is_replaced_by_the_next) {
  for (const std::uint64_t id : {1, 2, 3}) add(id);
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST((submitted() == Ids{1, 2, 3}));
    static_cast<void>(replace(LossCause::kCrashed));
  }
  BOOST_TEST((submitted() == Ids{1}));
  BOOST_TEST(abort(2).ended.outputs.size() == 1u);
  BOOST_TEST(abort(1).to_engine.size() == 1u);
  BOOST_TEST(submitted().empty());  // still in the engine
  record(end_of(1));
  BOOST_TEST((submitted() == Ids{3}));
}

BOOST_AUTO_TEST_CASE(without_hope_of_an_engine_all_fail) {
  add(1);
  add(2);
  BOOST_TEST((submitted() == Ids{1, 2}));
  add(3);
  const auto failed = journal.fail_all({ErrorCode::kUnavailable, "the engine stopped: why", ""});
  BOOST_TEST(failed.outputs.size() == 3u);
  for (const RequestOutput& output : failed.outputs) {
    BOOST_TEST(output.finished);
    BOOST_TEST((output.error->code == ErrorCode::kUnavailable));
  }
  BOOST_TEST(journal.num_live() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

struct TwoGroups {
  RequestJournal journal{2};
  Coordinator coordinator{2};

  TwoGroups() {
    for (const std::size_t group : {0, 1}) journal.group_ready(group);
  }
  void add(std::uint64_t id, std::int32_t group) {
    BOOST_REQUIRE(journal.add({request_of(id), {.data_parallel_rank = group}}).ok());
  }
  /// Group and request.
  std::vector<std::pair<std::size_t, std::uint64_t>> submitted() {
    std::vector<std::pair<std::size_t, std::uint64_t>> all;
    for (const auto& submission : journal.take_submissions(coordinator))
      all.emplace_back(submission.group, value(submission.request.id));
    return all;
  }
  RequestJournal::Lost lose(std::size_t group, LossCause cause = LossCause::kOutside,
                            bool returns = true) {
    return journal.group_lost(group, cause, returns);
  }
  auto record(RequestOutputs outputs) { return journal.record(outputs); }
};

using Submitted = std::vector<std::pair<std::size_t, std::uint64_t>>;

BOOST_FIXTURE_TEST_SUITE(request_journal_of_groups, TwoGroups)

BOOST_AUTO_TEST_CASE(requests_of_a_lost_group_continue_in_another_one_at_once) {
  add(1, 1);
  add(2, 0);
  add(3, 1);
  BOOST_TEST((submitted() == Submitted{{1, 1}, {0, 2}, {1, 3}}));
  record(tokens_of(3, {7}));
  BOOST_TEST(lose(1).num_resubmissions == 2u);
  BOOST_TEST((submitted() == Submitted{{0, 1}, {0, 3}}));
  BOOST_TEST(journal.num_in(0) == 3u);
  journal.group_ready(1);
  BOOST_TEST(submitted().empty());
  add(4, 1);
  BOOST_TEST((submitted() == Submitted{{1, 4}}));
  const std::vector<RequestId> left = {RequestId{3}, RequestId{4}};
  const auto aborted = journal.abort(left);
  BOOST_REQUIRE_EQUAL(aborted.to_engine.size(), 2u);
  BOOST_TEST(aborted.to_engine[0].group == 0u);
  BOOST_TEST(aborted.to_engine[1].group == 1u);
}

BOOST_AUTO_TEST_CASE(a_closed_group_gets_nothing_and_keeps_what_it_has) {
  add(1, 1);
  BOOST_TEST((submitted() == Submitted{{1, 1}}));
  journal.close_group(1);
  add(2, 1);
  BOOST_TEST((submitted() == Submitted{{0, 2}}));
  BOOST_TEST(journal.num_in(1) == 1u);
  record(end_of(1));
  BOOST_TEST(journal.num_in(1) == 0u);
  BOOST_TEST(lose(1, LossCause::kOutside, /*returns=*/false).num_resubmissions == 0u);
  lose(0);
  add(3, 0);
  BOOST_TEST(submitted().empty());
  BOOST_TEST(journal.has_waiting());
  journal.group_ready(1);  // it was added again
  BOOST_TEST((submitted() == Submitted{{1, 2}, {1, 3}}));
}

BOOST_AUTO_TEST_CASE(suspects_run_alone_in_a_group_while_the_others_continue) {
  add(1, 1);
  add(2, 0);
  BOOST_TEST((submitted() == Submitted{{1, 1}, {0, 2}}));
  lose(1, LossCause::kCrashed);
  BOOST_TEST((submitted() == Submitted{{0, 1}}));
  journal.group_ready(1);
  lose(0, LossCause::kCrashed);  // 1 is suspect, 2 has seen one crash
  // Group 1 is empty: it is kept for the suspect; 2 waits for the other one, which returns.
  BOOST_TEST((submitted() == Submitted{{1, 1}}));
  add(3, 1);
  BOOST_TEST(submitted().empty());
  journal.group_ready(0);
  BOOST_TEST((submitted() == Submitted{{0, 2}, {0, 3}}));
  const auto lost = lose(1, LossCause::kCrashed);
  BOOST_TEST(lost.ended.outputs.size() == 1u);
  BOOST_TEST(!journal.in_quarantine());
  journal.group_ready(1);
  add(4, 1);
  BOOST_TEST((submitted() == Submitted{{1, 4}}));
}

BOOST_AUTO_TEST_CASE(without_an_empty_group_suspects_wait_for_one_that_returns_or_empties) {
  add(1, 1);
  BOOST_TEST((submitted() == Submitted{{1, 1}}));
  lose(1, LossCause::kCrashed);
  BOOST_TEST((submitted() == Submitted{{0, 1}}));
  journal.group_ready(1);
  add(2, 1);
  BOOST_TEST((submitted() == Submitted{{1, 2}}));
  lose(0, LossCause::kCrashed);
  add(3, 1);
  BOOST_TEST((submitted() == Submitted{{1, 3}}));   // 1 waits for group 0
  lose(0, LossCause::kOutside, /*returns=*/false);  // which was given up
  add(4, 1);
  BOOST_TEST(submitted().empty());
  record(end_of(2));
  record(end_of(3));
  BOOST_TEST((submitted() == Submitted{{1, 1}}));
  record(end_of(1));
  BOOST_TEST((submitted() == Submitted{{1, 4}}));
}

// ---- prefill apart from decode ----

struct Split {
  static constexpr std::uint64_t kFirstPrompt = 100;
  RequestJournal journal{2, RequestId{kFirstPrompt}};
  Coordinator coordinator{{GroupRole::kPrefill, GroupRole::kDecode}, 1};

  Split() {
    journal.group_ready(0);
    journal.group_ready(1);
    GenerateRequest request = request_of(5, 2);
    request.params.max_tokens = 20;
    request.params.stop = {"end"};
    BOOST_REQUIRE(journal.add({std::move(request), {}}).ok());
  }
  std::vector<RequestJournal::Submission> take() { return journal.take_submissions(coordinator); }
  /// What the prefill group answers; returns what the client gets.
  RequestOutputs answer(FinishReason reason = FinishReason::kLength) {
    RequestOutputs outputs = tokens_of(kFirstPrompt, {9}, 0, reason);
    outputs.outputs[0].finished = true;
    outputs.outputs[0].kv_transfer_params = "{\"where\": 1}";
    BOOST_TEST(journal.record(outputs).empty());
    return outputs;
  }
};

BOOST_FIXTURE_TEST_CASE(a_prompt_is_computed_by_one_group_and_continued_by_another, Split) {
  auto first = take();
  BOOST_REQUIRE(first.size() == 1u);
  BOOST_TEST(first[0].group == 0u);
  BOOST_TEST((first[0].request.id == RequestId{kFirstPrompt}));
  BOOST_TEST(first[0].request.params.n == 1);
  BOOST_TEST(first[0].request.params.max_tokens.value() == 1);
  BOOST_TEST(first[0].request.params.stop.empty());
  BOOST_TEST(first[0].placement.kv_transfer_params.find("do_remote_decode") != std::string::npos);
  BOOST_TEST(answer().outputs.empty());
  BOOST_TEST(journal.num_in(0) == 0u);
  auto second = take();
  BOOST_REQUIRE(second.size() == 1u);
  BOOST_TEST(second[0].group == 1u);
  BOOST_TEST((second[0].request.id == RequestId{5}));
  BOOST_TEST(!second[0].again);
  BOOST_TEST(second[0].request.params.n == 2);
  BOOST_TEST(second[0].request.params.max_tokens.value() == 20);
  BOOST_TEST(second[0].placement.kv_transfer_params == "{\"where\": 1}");
  // The group that has it is lost: it starts again, with nothing to load.
  BOOST_TEST(journal.group_lost(1, LossCause::kOutside, true).num_resubmissions == 1u);
  journal.group_ready(1);
  const auto third = take();
  BOOST_TEST(third[0].group == 0u);
  // The first group may still hold the blocks of the first one.
  BOOST_TEST((third[0].request.id == RequestId{kFirstPrompt + 1}));
  BOOST_TEST(third[0].placement.kv_transfer_params.find("where") == std::string::npos);
  BOOST_TEST(journal.num_live() == 1u);
}

BOOST_FIXTURE_TEST_CASE(both_groups_are_at_a_prompt_that_can_be_loaded_early, Split) {
  BOOST_TEST(take()[0].group == 0u);
  const auto answer_early = [&] {
    RequestOutputs outputs;
    outputs.outputs.push_back(
        {.id = RequestId{kFirstPrompt}, .kv_transfer_params = "{\"where\": 2}"});
    BOOST_TEST(journal.record(outputs).empty());
    BOOST_TEST(outputs.outputs.empty());
  };
  answer_early();
  const auto second = take();
  BOOST_REQUIRE(second.size() == 1u);
  BOOST_TEST(second[0].group == 1u);
  BOOST_TEST(second[0].placement.kv_transfer_params == "{\"where\": 2}");
  BOOST_TEST(journal.num_in(0) == 1u);
  BOOST_TEST(journal.num_in(1) == 1u);
  // Its client leaves: both hear of it.
  const RequestId id{5};
  const auto aborted = journal.abort({&id, 1});
  BOOST_REQUIRE(aborted.to_engine.size() == 2u);
  BOOST_TEST(aborted.to_engine[0].group == 0u);
  BOOST_TEST((aborted.to_engine[0].samples.ids == std::vector{RequestId{kFirstPrompt}}));
  BOOST_TEST(aborted.to_engine[1].group == 1u);
  // The end of the prompt is nothing to anybody.
  BOOST_TEST(answer().outputs.empty());
  BOOST_TEST(journal.num_in(0) == 0u);
  BOOST_TEST(journal.num_in(1) == 1u);
  BOOST_TEST(take().empty());
}

BOOST_FIXTURE_TEST_CASE(a_group_that_has_answered_early_may_be_lost, Split) {
  BOOST_TEST(take()[0].group == 0u);
  RequestOutputs outputs;
  outputs.outputs.push_back({.id = RequestId{kFirstPrompt}, .kv_transfer_params = "{}"});
  BOOST_TEST(journal.record(outputs).empty());
  BOOST_TEST(take().size() == 1u);
  BOOST_TEST(journal.group_lost(0, LossCause::kOutside, true).num_resubmissions == 0u);
  BOOST_TEST(journal.num_in(0) == 0u);
  BOOST_TEST(journal.num_in(1) == 1u);
  const RequestId id{5};
  BOOST_TEST(journal.abort({&id, 1}).to_engine.size() == 1u);
}

BOOST_FIXTURE_TEST_CASE(a_request_whose_prefill_group_is_lost_goes_on_elsewhere, Split) {
  BOOST_TEST(take()[0].group == 0u);
  BOOST_TEST(journal.group_lost(0, LossCause::kOutside, true).num_resubmissions == 1u);
  const auto second = take();
  BOOST_REQUIRE(second.size() == 1u);
  BOOST_TEST(second[0].group == 1u);
  BOOST_TEST(second[0].request.params.n == 2);
  BOOST_TEST(second[0].placement.kv_transfer_params.empty());
}

BOOST_FIXTURE_TEST_CASE(a_prompt_that_fails_or_is_aborted_ends_the_request, Split) {
  BOOST_TEST(take()[0].group == 0u);
  const RequestId id{5};
  const auto aborted = journal.abort({&id, 1});
  BOOST_REQUIRE(aborted.to_engine.size() == 1u);
  BOOST_TEST((aborted.to_engine[0].samples.ids == std::vector{RequestId{kFirstPrompt}}));
  // It had been computed when the abort came.
  const RequestOutputs ended = answer();
  BOOST_REQUIRE(ended.outputs.size() == 1u);
  BOOST_TEST(ended.outputs[0].finished);
  BOOST_TEST((ended.outputs[0].id == id));
  BOOST_TEST((ended.outputs[0].outputs.at(1).finish_reason == FinishReason::kAbort));
  BOOST_TEST(journal.num_live() == 0u);
}

BOOST_FIXTURE_TEST_CASE(an_error_of_the_prompt_reaches_the_client, Split) {
  BOOST_TEST(take()[0].group == 0u);
  RequestOutputs outputs;
  outputs.outputs.push_back(
      {.id = RequestId{kFirstPrompt}, .finished = true, .error = invalid_argument("too long")});
  BOOST_TEST(journal.record(outputs).empty());
  BOOST_REQUIRE(outputs.outputs.size() == 1u);
  BOOST_TEST((outputs.outputs[0].id == RequestId{5}));
  BOOST_TEST(journal.num_live() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
