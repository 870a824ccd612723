#include "runtime/scheduler/draft_budget.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>

namespace troupe {
namespace {

constexpr std::int32_t kMost = 8;

/// Steps of so many requests, one after the other, that take 30 ms and 1 ms for each row.
struct Steps {
  DraftBudget budget;
  double now = 10;
  std::int64_t num_drafts = 0;

  void run(std::int32_t num_rows) {
    budget.on_planned(now);
    now += 0.030 + 0.001 * num_rows;
    budget.on_done(now, num_rows);
  }
  /// Of each request's drafts so many come true at most.
  void draft(std::int32_t num_requests, std::int32_t num_right, int num_steps) {
    std::int32_t count = 0;
    for (int step = 0; step < num_steps; ++step) {
      run(num_requests * (1 + count));
      for (std::int32_t i = 0; i < num_requests && count > 0; ++i)
        budget.on_verified(count, std::min(count, num_right));
      count = budget.next(num_requests, kMost);
      num_drafts += std::int64_t{num_requests} * count;
    }
  }
};

BOOST_AUTO_TEST_CASE(drafts_that_come_true_are_made_whatever_the_load) {
  for (const std::int32_t num_requests : {1, 8, 64}) {
    Steps steps;
    steps.run(512);
    steps.draft(num_requests, kMost, 20);
    BOOST_TEST(steps.budget.next(num_requests, kMost) == kMost);
    BOOST_TEST(steps.budget.next(num_requests, 3) == 3);
  }
}

BOOST_AUTO_TEST_CASE(where_none_comes_true_one_step_in_many_tries_again) {
  Steps steps;
  steps.run(512);
  steps.draft(4, 0, 50);
  steps.num_drafts = 0;
  steps.draft(4, 0, 20 * DraftBudget::kProbeSteps);
  BOOST_TEST(steps.num_drafts >= 4 * 18);
  BOOST_TEST(steps.num_drafts <= 4 * 21);
  steps.draft(4, kMost, 4 * DraftBudget::kProbeSteps);
  BOOST_TEST(steps.budget.next(4, kMost) == kMost);
}

BOOST_AUTO_TEST_CASE(the_more_requests_run_the_fewer_drafts_does_each_get) {
  // One comes true, and the next one not.
  std::int32_t before = kMost;
  for (const std::int32_t num_requests : {1, 4, 16, 128}) {
    Steps steps;
    steps.run(512);
    steps.draft(num_requests, 1, 200);
    const std::int32_t count = steps.budget.next(num_requests, kMost);
    BOOST_TEST(count <= before);
    before = count;
  }
  BOOST_TEST(before == 0);
}

BOOST_AUTO_TEST_CASE(steps_that_overlap_and_steps_that_fail_are_not_taken_for_long_ones) {
  DraftBudget budget;
  budget.on_planned(0);
  budget.on_planned(0.1);
  budget.on_done(1, 512);  // 1 s
  budget.on_done(2, 512);  // and not 1.9
  budget.on_planned(3);
  budget.on_failed();
  budget.on_planned(1000);
  budget.on_done(1000.5, 1);  // and not 997
  // A row takes 2 ms of the small step's 500.
  for (int i = 0; i < 200; ++i) budget.on_verified(1, i % 20 == 0 ? 1 : 0);
  BOOST_TEST(budget.next(1, kMost) == 1);
}

}  // namespace
}  // namespace troupe
