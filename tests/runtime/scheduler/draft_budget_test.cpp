#include "runtime/scheduler/draft_budget.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>

namespace troupe {
namespace {

constexpr std::int32_t kMost = 8;

/// Steps of so many requests, one after the other, that take `fixed_s` and 1 ms for each row but
/// the first few; those of a draft model, if there is one, take `draft_cost` times as long. Of a
/// head: each request is so many steps long (head_request).
struct Steps {
  double draft_cost = 0;
  int head_request = 0;
  double fixed_s = 0.030;
  std::int32_t num_free_rows = 0;
  DraftBudget budget = {};
  double now = 10;
  std::int64_t num_drafts = 0;
  std::int64_t num_tokens = 0;
  std::int32_t num_missed = 0;  ///< tokens of each request, by the draft model
  DraftBudget::Plan plan = {};
  int num_steps = 0;
  int num_head_passes = 0;
  bool is_undrafted = false;  ///< the head has skipped tokens

  std::int32_t next(std::int32_t num_requests, std::int32_t most = kMost,
                    std::int32_t num_tokens = 1) {
    plan = budget.next({.num_requests = num_requests,
                        .num_tokens = num_requests * num_tokens,
                        .max_drafts = is_undrafted ? 0 : most,
                        .computes = draft_cost > 0,
                        .catches_up = head_request == 0});
    return plan.num_drafts;
  }
  [[nodiscard]] double step_s(std::int32_t num_rows) const {
    return fixed_s + 0.001 * std::max(num_rows - num_free_rows, 0);
  }
  void run(std::int32_t num_requests, std::int32_t num_rows, std::int32_t num_new = 0,
           std::int32_t num_drafted = 0) {
    budget.on_planned(now);
    now += step_s(num_rows);
    DraftReport report;
    num_missed += num_new;
    if (head_request > 0) {
      is_undrafted |= plan.max_rows == 0;
      if (!is_undrafted) {
        report.num_passes = std::max(plan.num_drafts, 1);
        report.num_rows = num_requests * report.num_passes;
        num_head_passes += report.num_passes;
        const double seconds = draft_cost * (fixed_s * report.num_passes + 0.001 * report.num_rows);
        report.us = static_cast<std::int64_t>(seconds * 1e6);
        now += seconds;
      }
      if (++num_steps % head_request == 0) is_undrafted = false;
    } else if (draft_cost > 0) {
      // Requests that fit whole, and then as many passes as there are drafts.
      const std::int32_t num_fit =
          std::min(num_requests, num_missed > 0 ? plan.max_rows / num_missed : num_requests);
      if (plan.num_drafts > 0 && num_fit > 0) {
        report.num_passes = plan.num_drafts;
        report.num_rows = num_fit * (num_missed + plan.num_drafts - 1);
        const double seconds = draft_cost * (fixed_s * report.num_passes + 0.001 * report.num_rows);
        report.us = static_cast<std::int64_t>(seconds * 1e6);
        now += seconds;
        if (num_fit == num_requests) num_missed = 0;
      }
      report.least_behind = num_missed;
    }
    budget.on_done(now, num_requests, num_rows, num_drafted, report);
  }
  /// Of each request's drafts so many come true at most.
  void draft(std::int32_t num_requests, std::int32_t num_right, int num_steps) {
    for (int step = 0; step < num_steps; ++step) {
      const std::int32_t count = plan.num_drafts;
      const std::int32_t num_accepted = std::min(count, num_right);
      run(num_requests, num_requests * (1 + count), 1 + num_accepted, num_requests * count);
      for (std::int32_t i = 0; i < num_requests && count > 0; ++i)
        budget.on_verified(count, num_accepted);
      num_tokens += std::int64_t{num_requests} * (1 + num_accepted);
      num_drafts += std::int64_t{num_requests} * next(num_requests);
    }
  }
  /// Times as many tokens as in steps without drafts.
  double gain(std::int32_t num_requests, std::int32_t num_right, int num_steps) {
    const double begin = now;
    num_tokens = 0;
    draft(num_requests, num_right, num_steps);
    return static_cast<double>(num_tokens) / num_requests * step_s(num_requests) / (now - begin);
  }
};

BOOST_AUTO_TEST_CASE(drafts_that_come_true_are_made_whatever_the_load) {
  for (const std::int32_t num_requests : {1, 8, 64}) {
    Steps steps;
    steps.run(1, 512);
    steps.draft(num_requests, kMost, 20);
    BOOST_TEST(steps.next(num_requests) == kMost);
    BOOST_TEST(steps.next(num_requests, 3) == 3);
  }
}

BOOST_AUTO_TEST_CASE(where_none_comes_true_one_step_in_many_tries_again) {
  Steps steps;
  steps.run(1, 512);
  steps.draft(4, 0, 50);
  steps.num_drafts = 0;
  steps.draft(4, 0, 20 * DraftBudget::kProbeSteps);
  BOOST_TEST(steps.num_drafts >= 4 * 18);
  BOOST_TEST(steps.num_drafts <= 4 * 21);
  steps.draft(4, kMost, 4 * DraftBudget::kProbeSteps);
  BOOST_TEST(steps.next(4) == kMost);
}

BOOST_AUTO_TEST_CASE(the_more_requests_run_the_fewer_drafts_does_each_get) {
  // One comes true, and the next one not.
  std::int32_t before = kMost;
  for (const std::int32_t num_requests : {1, 4, 16, 128}) {
    Steps steps;
    steps.run(1, 512);
    steps.draft(num_requests, 1, 200);
    const std::int32_t count = steps.next(num_requests);
    BOOST_TEST(count <= before);
    before = count;
  }
  BOOST_TEST(before == 0);
}

BOOST_AUTO_TEST_CASE(steps_that_overlap_and_steps_that_fail_are_not_taken_for_long_ones) {
  DraftBudget budget;
  budget.on_planned(0);
  budget.on_planned(0.1);
  budget.on_done(1, 1, 512);  // 1 s
  budget.on_done(2, 1, 512);  // and not 1.9
  budget.on_planned(3);
  budget.on_failed();
  budget.on_planned(1000);
  budget.on_done(1000.5, 1, 1);  // and not 997
  // A row takes 2 ms of the small step's 500.
  for (int i = 0; i < 200; ++i) budget.on_verified(1, i % 20 == 0 ? 1 : 0);
  BOOST_TEST(budget.next({.num_requests = 1, .num_tokens = 1, .max_drafts = kMost}).num_drafts ==
             1);
}

BOOST_AUTO_TEST_CASE(a_draft_model_is_never_slower_than_none_whatever_it_costs) {
  for (const double cost : {0.05, 0.3, 0.7, 1.0, 3.0}) {
    for (const std::int32_t num_requests : {1, 16}) {
      for (const std::int32_t num_right : {0, 1, kMost}) {
        Steps steps{.draft_cost = cost};
        BOOST_TEST_CONTEXT(cost << " times a step, " << num_requests << " requests, " << num_right
                                << " drafts come true") {
          BOOST_TEST(steps.gain(num_requests, num_right, 2000) >= 0.97);
          if (cost == 0.05 && num_right == kMost)
            BOOST_TEST(steps.gain(num_requests, num_right, 500) > 2);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(guesses_are_never_slower_than_none_where_steps_do_not_take_a_plus_b_rows) {
  for (const double fixed_s : {0.0001, 0.1}) {
    for (const std::int32_t num_free_rows : {0, 20}) {
      for (const double cost : {0.0, 0.3, 1.0}) {
        for (const std::int32_t num_requests : {1, 16}) {
          for (const std::int32_t num_right : {0, 1, 3}) {
            Steps steps{.draft_cost = cost, .fixed_s = fixed_s, .num_free_rows = num_free_rows};
            if (num_free_rows > num_requests) steps.fixed_s += 0.01;
            BOOST_TEST_CONTEXT(steps.fixed_s << " s, " << num_free_rows
                                             << " rows free, draft model " << cost << ", "
                                             << num_requests << " requests, " << num_right
                                             << " drafts come true") {
              BOOST_TEST(steps.gain(num_requests, num_right, 3000) >= 0.97);
            }
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_draft_model_that_has_not_been_worth_its_cost_is_tried_again) {
  Steps steps{.draft_cost = 0.1};
  steps.draft(1, 0, 1000);
  BOOST_TEST(steps.gain(1, kMost, 3000) > 1.5);
}

BOOST_AUTO_TEST_CASE(a_draft_head_is_never_slower_than_none_whatever_it_costs) {
  for (const double cost : {0.05, 0.3, 1.0}) {
    for (const int head_request : {20, 100, 1000}) {
      for (const std::int32_t num_requests : {1, 16}) {
        for (const std::int32_t num_right : {0, 1, kMost}) {
          Steps steps{.draft_cost = cost, .head_request = head_request};
          steps.next(num_requests);
          BOOST_TEST_CONTEXT(cost << " times a step, " << num_requests << " requests of "
                                  << head_request << " steps, " << num_right
                                  << " drafts come true") {
            BOOST_TEST(steps.gain(num_requests, num_right, 3000) >= 0.97);
            if (cost == 0.05 && num_right == kMost)
              BOOST_TEST(steps.gain(num_requests, num_right, 500) > 2);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_draft_head_that_is_stopped_computes_nothing_until_it_is_tried_again) {
  Steps steps{.draft_cost = 0.3, .head_request = 50};
  steps.next(1);
  while (steps.plan.max_rows > 0) steps.draft(1, 0, 1);
  steps.num_head_passes = 0;
  steps.draft(1, 0, 2000);
  BOOST_TEST(steps.num_head_passes == 0);
  // The next requests are worth guessing.
  BOOST_TEST(steps.gain(1, kMost, 4000) > 1.5);
  BOOST_TEST(steps.num_head_passes > 1000);
}

BOOST_AUTO_TEST_CASE(a_draft_head_survives_a_part_of_the_text_that_it_cannot_guess) {
  Steps steps{.draft_cost = 0.1, .head_request = 10000};
  steps.next(1);
  steps.draft(1, kMost, 300);
  steps.draft(1, 0, 300);
  BOOST_TEST(!steps.is_undrafted);
  steps.draft(1, kMost, 300);
  BOOST_TEST(steps.next(1) == kMost);
}

BOOST_AUTO_TEST_CASE(prompts_that_a_draft_model_computes_are_paid_for_by_what_it_gains) {
  Steps steps{.draft_cost = 0.3};
  double without = 0;
  int num_computed = 0;  // prompts
  // Many prompts, and few tokens behind each.
  for (int i = 0; i < 500; ++i) {
    steps.num_missed = 0;
    num_computed += steps.next(1, kMost, 2000) > 0 ? 1 : 0;
    steps.run(1, 2000, 2000);
    steps.next(1);
    without += 2.030;
    const std::int64_t before = steps.num_tokens;
    steps.draft(1, kMost, 3);
    without += static_cast<double>(steps.num_tokens - before) * 0.031;
  }
  BOOST_TEST(steps.now - 10 <= without / 0.97);
  BOOST_TEST(num_computed > 0);
}

}  // namespace
}  // namespace troupe
