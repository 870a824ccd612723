// Which request is to blame for steps that give no result.
#include "runtime/scheduler/suspects.hpp"

#include <boost/test/unit_test.hpp>

#include "tests/runtime/scheduler/scheduler_fixture.hpp"

namespace troupe {
namespace {

using Ids = std::vector<RequestId>;

Ids ids(std::initializer_list<std::uint64_t> numbers) {
  Ids result;
  for (const std::uint64_t number : numbers) result.push_back(RequestId{number});
  return result;
}

/// Of a step in which each of these samples so many tokens.
ModelRunnerOutput result(const Ids& ids, std::int32_t num_sampled = 1) {
  return {.ids = ids, .num_sampled = std::vector<std::int32_t>(ids.size(), num_sampled)};
}

BOOST_AUTO_TEST_CASE(one_failure_creates_no_suspects) {
  Suspects suspects;
  BOOST_TEST(!suspects.record_failure(ids({1, 2})));
  BOOST_TEST(!suspects.current());
  suspects.record_result(result(ids({1, 2})));
  BOOST_TEST(!suspects.record_failure(ids({1, 2})));
  BOOST_TEST(!suspects.current());
  BOOST_TEST(!suspects.skip());
}

BOOST_AUTO_TEST_CASE(a_request_that_has_always_been_alone_fails_at_the_third_failure) {
  Suspects suspects;
  for (int i = 0; i < Suspects::kMaxFailures; ++i) BOOST_TEST(!suspects.record_failure(ids({1})));
  BOOST_TEST((suspects.record_failure(ids({1})) == RequestId{1}));
  BOOST_TEST(suspects.size() == 0u);
  BOOST_TEST(suspects.num_failures() == 0);
}

BOOST_AUTO_TEST_CASE(suspects_take_turns_until_one_fails_alone_and_a_token_clears) {
  Suspects suspects;
  BOOST_TEST(!suspects.record_failure(ids({4, 1, 2, 3})));
  BOOST_TEST(!suspects.record_failure(ids({1, 2, 3})));
  BOOST_TEST((suspects.current() == RequestId{1}));
  suspects.record_result(result(ids({1}), 0));  // a piece of its prompt
  BOOST_TEST((suspects.current() == RequestId{1}));
  suspects.record_result(result(ids({1})));
  BOOST_TEST((suspects.current() == RequestId{2}));
  BOOST_TEST((suspects.record_failure(ids({2})) == RequestId{2}));
  BOOST_TEST(!suspects.current());
}

BOOST_AUTO_TEST_CASE(suspects_that_have_ended_or_cannot_run_are_passed_over) {
  Suspects suspects;
  for (int i = 0; i < Suspects::kMaxFailures; ++i)
    BOOST_TEST(!suspects.record_failure(ids({1, 2, 3, 4})));
  suspects.drop_ended([](RequestId id) { return value(id) <= 2; });
  BOOST_TEST((suspects.current() == RequestId{3}));
  BOOST_TEST(suspects.skip());
  BOOST_TEST((suspects.current() == RequestId{4}));
  BOOST_TEST(suspects.skip());
  BOOST_TEST(!suspects.current());
}

struct FailingSteps : SchedulerFixture {
  FailingSteps() : SchedulerFixture(small()) {}

  /// Plans a step that gives no result; what it would have computed.
  Ids fail() {
    now += 1;
    const SchedulerOutput planned = run_now(scheduler->schedule(now));
    take(scheduler->blame_failed_step(planned, {ErrorCode::kInternal, "made to fail", ""}, now));
    BOOST_TEST(run_now(scheduler->recover_from_failed_steps({&planned, 1}, now)));
    return planned.scheduled_ids;
  }
};

BOOST_FIXTURE_TEST_CASE(the_scheduler_computes_suspects_alone_and_blames_the_one_that_fails,
                        FailingSteps) {
  Ids all;
  for (int i = 0; i < 3; ++i) all.push_back(add(request(6, 5)));
  BOOST_TEST((fail() == all));
  BOOST_TEST((fail() == all));
  BOOST_TEST((step().scheduled_ids == Ids{all[0]}));
  BOOST_TEST((fail() == Ids{all[1]}));
  BOOST_REQUIRE(ended.contains(all[1]));
  BOOST_TEST((ended[all[1]].finish_reason == FinishReason::kError));
  BOOST_TEST(ended[all[1]].error->message == "made to fail");
  // The others run together again, and end with all of their tokens.
  BOOST_TEST((step().scheduled_ids == Ids{all[0], all[2]}));
  while (scheduler->has_requests()) step();
  BOOST_TEST(num_tokens[all[0]] == 5u);
  BOOST_TEST(num_tokens[all[2]] == 5u);
  BOOST_TEST(all_blocks_free());
}

BOOST_FIXTURE_TEST_CASE(a_suspect_that_ends_meanwhile_is_neither_waited_for_nor_blamed,
                        FailingSteps) {
  const RequestId first = add(request(6, 5));
  const RequestId second = add(request(6, 5));
  fail();
  fail();
  scheduler->finish_requests({&first, 1}, RequestStatus::kFinishedAborted);
  BOOST_TEST((step().scheduled_ids == Ids{second}));
  BOOST_TEST(!scheduler->suspects().current());

  fail();
  fail();
  const SchedulerOutput planned = run_now(scheduler->schedule(now));
  BOOST_TEST((planned.scheduled_ids == Ids{second}));
  scheduler->finish_requests({&second, 1}, RequestStatus::kFinishedAborted);
  BOOST_TEST(scheduler->blame_failed_step(planned, {}, now).outputs.empty());
}

}  // namespace
}  // namespace troupe
