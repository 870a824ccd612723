#include "runtime/base/work_budget.hpp"

#include <boost/test/unit_test.hpp>

using namespace troupe;

namespace {

WorkStopped::Reason reason_of_stop(WorkBudget& budget, std::uint64_t units) {
  try {
    for (std::uint64_t i = 0; i < units; ++i) budget.charge();
  } catch (const WorkStopped& stopped) {
    return stopped.reason();
  }
  BOOST_FAIL("the work was not stopped");
  return WorkStopped::Reason::kTooMuch;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(work_budget)

BOOST_AUTO_TEST_CASE(all_units_can_be_spent_and_not_one_more) {
  for (const std::uint64_t max : {std::uint64_t{0}, std::uint64_t{1}, WorkBudget::kUnitsPerLook,
                                  3 * WorkBudget::kUnitsPerLook + 7}) {
    WorkBudget one_by_one({}, max);
    for (std::uint64_t i = 0; i < max; ++i) one_by_one.charge();
    BOOST_TEST(one_by_one.units_left() == 0u);
    BOOST_CHECK_THROW(one_by_one.charge(), WorkStopped);
    WorkBudget at_once({}, max);
    BOOST_CHECK_NO_THROW(at_once.charge(max));
    BOOST_CHECK_THROW(at_once.charge(WorkBudget::kUnlimited), WorkStopped);
    BOOST_TEST(at_once.units_left() == 0u);
  }
}

BOOST_AUTO_TEST_CASE(the_flag_is_seen_within_one_stretch) {
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  WorkBudget budget({.cancelled = flag, .deadline = {}});
  budget.charge(10 * WorkBudget::kUnitsPerLook);
  flag->store(true);
  BOOST_CHECK(reason_of_stop(budget, WorkBudget::kUnitsPerLook + 1) ==
              WorkStopped::Reason::kCancelled);
  BOOST_CHECK_THROW(budget.look(), WorkStopped);
}

BOOST_AUTO_TEST_CASE(a_deadline_that_has_passed_stops_the_work) {
  WorkBudget budget({.cancelled = {}, .deadline = std::chrono::steady_clock::now()});
  BOOST_CHECK(reason_of_stop(budget, WorkBudget::kUnitsPerLook + 1) ==
              WorkStopped::Reason::kDeadline);
}

BOOST_AUTO_TEST_CASE(each_reason_has_its_error) {
  using Reason = WorkStopped::Reason;
  BOOST_CHECK(WorkStopped(Reason::kCancelled).error("it").code == ErrorCode::kAborted);
  BOOST_CHECK(WorkStopped(Reason::kDeadline).error("it").code == ErrorCode::kTimeout);
  BOOST_TEST(WorkStopped(Reason::kTooMuch).error("encoding").message ==
             "encoding needs more steps than are allowed");
}

BOOST_AUTO_TEST_SUITE_END()
