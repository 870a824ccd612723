// How long a request may wait and take.

#include <boost/test/unit_test.hpp>

#include "tests/runtime/scheduler/scheduler_fixture.hpp"

namespace troupe {
namespace {

struct Deadlines : SchedulerFixture {
  Deadlines() : SchedulerFixture(one_at_a_time()) {}
  static SchedulerConfig one_at_a_time() {
    SchedulerConfig config = small();
    config.max_num_seqs = 1;
    return config;
  }
  RequestId add_limited(RequestLimits limits, double age_s = 0) {
    EngineCoreRequest limited = request(6, 40);
    limited.limits = limits;
    limited.age_s = age_s;
    return add(std::move(limited));
  }
  void expire() { take(scheduler->expire_requests(now)); }
};

BOOST_FIXTURE_TEST_SUITE(deadlines, Deadlines)

BOOST_AUTO_TEST_CASE(without_limits_there_is_no_deadline) {
  add_limited({});
  BOOST_TEST(scheduler->next_deadline() == kNever);
  step();
  now += 1e9;
  expire();
  BOOST_TEST(ended.empty());
}

BOOST_AUTO_TEST_CASE(a_request_that_waits_too_long_ends_with_value_and_limit) {
  add_limited({});
  const RequestId waits = add_limited({.max_queue_time_s = 5}, /*age_s=*/1.5);
  BOOST_TEST(scheduler->next_deadline() == 1003.5);
  step(), step(), step();
  expire();
  BOOST_TEST(ended.empty());
  now = 1003.5;
  expire();
  BOOST_REQUIRE(ended.contains(waits));
  const EngineCoreOutput& output = ended[waits];
  BOOST_TEST((output.finish_reason == FinishReason::kTimeout));
  BOOST_TEST((output.error->code == ErrorCode::kOverloaded));
  BOOST_TEST(output.error->message ==
             "the request has waited 5 s to be scheduled, max_queue_time_s is 5");
  BOOST_TEST(output.error->param == "max_queue_time_s");
  BOOST_TEST(scheduler->request(waits) == nullptr);
  BOOST_TEST(scheduler->num_waiting_requests() == 0);
  BOOST_TEST(scheduler->next_deadline() == kNever);
}

BOOST_AUTO_TEST_CASE(the_queue_time_is_over_with_the_first_step_also_after_a_preemption) {
  const RequestId id = add_limited({.max_queue_time_s = 5});
  step();
  BOOST_TEST(scheduler->next_deadline() == kNever);
  BOOST_TEST(run_now(scheduler->reset_prefix_cache(/*preempt_running=*/true, now)));
  now += 100;
  expire();
  BOOST_TEST(ended.empty());
  while (scheduler->has_requests()) step();
  BOOST_TEST((ended.at(id).finish_reason == FinishReason::kLength));
  BOOST_TEST(num_tokens[id] == 40u);
}

BOOST_AUTO_TEST_CASE(a_running_request_ends_with_its_time_and_gives_its_blocks_back) {
  const RequestId id = add_limited({.max_queue_time_s = 20, .max_request_time_s = 10});
  BOOST_TEST(scheduler->next_deadline() == 1010);
  while (now < 1010) step();
  expire();
  BOOST_REQUIRE(ended.contains(id));
  BOOST_TEST((ended[id].error->code == ErrorCode::kTimeout));
  BOOST_TEST(ended[id].error->message == "the request has taken 10 s, max_request_time_s is 10");
  BOOST_TEST(num_tokens[id] == 10u);
  BOOST_TEST(scheduler->running().empty());
  BOOST_TEST(all_blocks_free());
  BOOST_TEST(scheduler->has_requests());  // the workers are to forget it
  step();
  BOOST_TEST(!scheduler->has_requests());
}

BOOST_AUTO_TEST_CASE(results_of_a_step_in_flight_come_too_late) {
  const RequestId id = add_limited({.max_request_time_s = 2});
  step();
  const SchedulerOutput planned = run_now(scheduler->schedule(++now));
  expire();
  BOOST_TEST(ended.contains(id));
  const ModelRunnerOutput result{.ids = {id}, .sampled_token_ids = {7}, .num_sampled = {1}};
  const EngineCoreOutputs late = run_now(scheduler->update_from_output(planned, result, now));
  BOOST_TEST(late.outputs.empty());
  BOOST_TEST(all_blocks_free());
}

BOOST_AUTO_TEST_CASE(a_request_that_ends_in_time_leaves_no_deadline) {
  const RequestId id = add_limited({.max_queue_time_s = 50, .max_request_time_s = 100});
  while (scheduler->has_requests()) step();
  BOOST_TEST((ended.at(id).finish_reason == FinishReason::kLength));
  BOOST_TEST(scheduler->next_deadline() == kNever);
}

BOOST_AUTO_TEST_CASE(many_end_in_the_order_of_their_deadlines) {
  const RequestId last = add_limited({.max_request_time_s = 30});
  const RequestId first = add_limited({.max_request_time_s = 10});
  const RequestId second = add_limited({.max_request_time_s = 20});
  now += 25;
  const EngineCoreOutputs outputs = scheduler->expire_requests(now);
  BOOST_REQUIRE(outputs.outputs.size() == 2u);
  BOOST_TEST((outputs.outputs[0].id == first));
  BOOST_TEST((outputs.outputs[1].id == second));
  BOOST_TEST(outputs.outputs[0].events.size() == 1u);
  BOOST_TEST(outputs.stats.value().num_waiting_reqs == 1);
  BOOST_TEST(scheduler->request(last) != nullptr);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
