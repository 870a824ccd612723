// Which requests are preempted for which others.

#include <boost/test/unit_test.hpp>

#include "tests/runtime/scheduler/scheduler_fixture.hpp"

namespace troupe {
namespace {

struct Urgency : SchedulerFixture {
  Urgency() : Urgency(by_priority(2)) {}
  explicit Urgency(SchedulerConfig config, std::int32_t num_blocks = 100)
      : SchedulerFixture(std::move(config), num_blocks) {}
  static SchedulerConfig by_priority(std::int32_t max_num_seqs) {
    SchedulerConfig config = small();
    config.policy = SchedulingPolicy::kPriority;
    config.priority_preemption = true;
    config.max_num_seqs = max_num_seqs;
    return config;
  }
  RequestId add_with(std::int32_t priority, std::int32_t num_prompt_tokens = 6,
                     std::int32_t max_tokens = 20) {
    EngineCoreRequest wanted = request(num_prompt_tokens, max_tokens);
    wanted.priority = priority;
    return add(std::move(wanted));
  }
  void run_to_the_end(std::size_t expected_tokens = 20) {
    for (int i = 0; scheduler->has_requests(); ++i) {
      BOOST_REQUIRE(i < 1000);
      step();
    }
    for (const auto& [id, output] : ended) {
      BOOST_TEST((output.finish_reason == FinishReason::kLength));
      BOOST_TEST(num_tokens[id] == expected_tokens);
    }
    BOOST_TEST(ended.size() == last_id);
    BOOST_TEST(all_blocks_free());
  }
};

BOOST_AUTO_TEST_CASE(an_urgent_request_preempts_the_least_urgent_one) {
  Urgency f;
  const RequestId middle = f.add_with(5), low = f.add_with(9);
  f.step(), f.step();
  const RequestId urgent = f.add_with(1);
  const SchedulerOutput planned = f.step();
  BOOST_TEST((planned.preempted_ids == std::vector<RequestId>{low}));
  BOOST_TEST((planned.scheduled_ids == std::vector<RequestId>{middle, urgent}));
  f.run_to_the_end();
}

BOOST_AUTO_TEST_CASE(without_the_option_it_waits_for_a_place) {
  SchedulerConfig config = Urgency::by_priority(2);
  config.priority_preemption = false;
  Urgency f(config);
  f.add_with(9), f.add_with(9);
  f.step();
  const RequestId urgent = f.add_with(1);
  BOOST_TEST(f.step().preempted_ids.empty());
  BOOST_TEST(!f.running(urgent));
  f.run_to_the_end();
}

BOOST_AUTO_TEST_CASE(equally_urgent_requests_do_not_displace_each_other) {
  Urgency f;
  f.add_with(3), f.add_with(3);
  f.step();
  f.add_with(3), f.add_with(4);
  for (int i = 0; i < 5; ++i) BOOST_TEST(f.step().preempted_ids.empty());
  f.run_to_the_end();
}

BOOST_AUTO_TEST_CASE(as_many_give_way_as_the_blocks_of_the_urgent_one_need) {
  Urgency f(Urgency::by_priority(4), 16);
  const RequestId low[] = {f.add_with(9, 19), f.add_with(8, 19), f.add_with(7, 19)};
  f.step();
  const RequestId urgent = f.add_with(1, 36);
  const SchedulerOutput planned = f.step();
  BOOST_TEST((planned.preempted_ids == std::vector<RequestId>{low[0], low[1]}));
  BOOST_TEST((planned.scheduled_ids == std::vector<RequestId>{low[2], urgent}));
  f.run_to_the_end();
}

BOOST_AUTO_TEST_CASE(the_tokens_of_a_displaced_prefill_go_to_the_urgent_request) {
  SchedulerConfig config = Urgency::by_priority(1);
  config.max_num_batched_tokens = 16;
  Urgency f(config);
  f.add_with(9, 40);
  f.step();  // 16 of 40 tokens
  const RequestId urgent = f.add_with(1, 16);
  // The running request has taken the whole budget: the next step that has some left is for the
  // urgent one.
  SchedulerOutput planned;
  for (int i = 0; i < 3 && planned.preempted_ids.empty(); ++i) planned = f.step();
  BOOST_TEST((planned.scheduled_ids == std::vector<RequestId>{urgent}));
  BOOST_TEST(planned.num_scheduled_tokens[0] == 16);
  f.run_to_the_end();
}

BOOST_AUTO_TEST_CASE(results_in_flight_of_a_displaced_request_are_delivered) {
  SchedulerConfig config = Urgency::by_priority(1);
  config.async_scheduling = true;
  Urgency f(config);
  const RequestId low = f.add_with(9, 6, 3);
  const SchedulerOutput first = run_now(f.scheduler->schedule(1));
  f.add_with(1, 6, 3);
  const SchedulerOutput second = run_now(f.scheduler->schedule(2));
  BOOST_TEST((second.preempted_ids == std::vector<RequestId>{low}));
  const ModelRunnerOutput result{.ids = {low}, .sampled_token_ids = {7}, .num_sampled = {1}};
  f.take(run_now(f.scheduler->update_from_output(first, result, 3)));
  BOOST_TEST(f.num_tokens[low] == 1u);
  BOOST_TEST(f.scheduler->request(low)->num_output_tokens() == 1);
}

/// vLLM takes it out of the queue after it has put it there, so that no chunk wakes it any more and
/// num_waiting_reqs is one less; here it continues.
BOOST_AUTO_TEST_CASE(a_displaced_session_whose_late_result_ends_its_turn_takes_its_next_chunk) {
  for (const bool chunk_is_there : {true, false}) {
    SchedulerConfig config = Urgency::by_priority(1);
    config.async_scheduling = true;
    Urgency f(config);
    EngineCoreRequest session = f.request(6, 1);
    session.priority = 9;
    session.resumable = true;
    const EngineCoreRequest chunk = [&] {
      EngineCoreRequest next = session;
      next.prompt_token_ids = {3, 4, 5};
      return next;
    }();
    const RequestId id = f.add(std::move(session));
    const SchedulerOutput first = run_now(f.scheduler->schedule(1));
    const RequestId urgent = f.add_with(1, 6, 1);
    SchedulerOutput second = run_now(f.scheduler->schedule(2));
    BOOST_TEST((second.preempted_ids == std::vector<RequestId>{id}));
    if (chunk_is_there) f.add(chunk);
    const ModelRunnerOutput late{.ids = {id}, .sampled_token_ids = {7}, .num_sampled = {1}};
    f.take(run_now(f.scheduler->update_from_output(first, late, 3)));
    BOOST_TEST((f.ended.at(id).finish_reason == FinishReason::kLength));
    BOOST_TEST(f.scheduler->num_waiting_requests() == 1);
    if (!chunk_is_there) f.add(chunk);
    const ModelRunnerOutput other{.ids = {urgent}, .sampled_token_ids = {7}, .num_sampled = {1}};
    f.take(run_now(f.scheduler->update_from_output(std::move(second), other, 4)));
    f.ended.clear();
    const SchedulerOutput third = run_now(f.scheduler->schedule(5));
    BOOST_TEST((third.scheduled_ids == std::vector<RequestId>{id}));
    const ModelRunnerOutput answer{.ids = {id}, .sampled_token_ids = {8}, .num_sampled = {1}};
    f.take(run_now(f.scheduler->update_from_output(third, answer, 6)));
    BOOST_TEST(f.ended.count(id) == 1u);
    BOOST_TEST(f.num_tokens[id] == 2u);
  }
}

struct Victims : SchedulerFixture {
  explicit Victims(PreemptionVictim victim) : SchedulerFixture(with(victim), 13) {}
  static SchedulerConfig with(PreemptionVictim victim) {
    SchedulerConfig config = small();
    config.preemption_victim = victim;
    return config;
  }
  /// A short and then a long request grow until there are no more blocks; who gives way first?
  std::vector<RequestId> first_victims() {
    add(request(4, 40));
    add(request(32, 30));
    SchedulerOutput planned;
    for (int i = 0; i < 40 && planned.preempted_ids.empty(); ++i) planned = step();
    return planned.preempted_ids;
  }
};

BOOST_AUTO_TEST_CASE(the_latest_request_is_preempted) {
  BOOST_TEST(
      (Victims(PreemptionVictim::kLast).first_victims() == std::vector<RequestId>{RequestId{2}}));
}

BOOST_AUTO_TEST_CASE(or_the_request_with_the_least_lost_work) {
  BOOST_TEST((Victims(PreemptionVictim::kLeastWork).first_victims() ==
              std::vector<RequestId>{RequestId{1}}));
}

BOOST_AUTO_TEST_CASE(cache_hits_do_not_count_as_work_of_the_request) {
  Victims f(PreemptionVictim::kLeastWork);
  EngineCoreRequest shared = f.request(32, 1);
  EngineCoreRequest again = shared;
  f.add(std::move(shared));
  while (f.scheduler->has_requests()) f.step();
  const RequestId small = f.add(f.request(12, 30));
  again.id = RequestId{++f.last_id};
  again.params.max_tokens = 30;
  const RequestId large = f.add(std::move(again));  // 28 of 32 tokens are there
  SchedulerOutput planned;
  for (int i = 0; i < 40 && planned.preempted_ids.empty(); ++i) planned = f.step();
  BOOST_TEST((planned.preempted_ids == std::vector<RequestId>{large}));
  BOOST_TEST(f.running(small));
}

}  // namespace
}  // namespace troupe
