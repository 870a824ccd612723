#include "runtime/http/completion_rate.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(without_a_rate_retry_after_is_one_second) {
  CompletionRate rate;
  BOOST_TEST(rate.retry_after_s(100, 5) == 1);
  rate.observe(1, 5);
  BOOST_TEST(rate.retry_after_s(100, 5) == 1);
}

BOOST_AUTO_TEST_CASE(the_rate_is_right_from_the_first_seconds_on) {
  for (const double duration : {2.0, 10.0, 300.0}) {
    CompletionRate rate;
    for (double now = 100; now <= 100 + duration; now += 0.25) rate.observe(1, now);
    BOOST_TEST(rate.per_second(100 + duration) == 4.0, boost::test_tools::tolerance(0.02));
    BOOST_TEST(rate.retry_after_s(40, 100 + duration) >= 10);
    BOOST_TEST(rate.retry_after_s(40, 100 + duration) <= 11);
  }
}

BOOST_AUTO_TEST_CASE(it_follows_a_change_and_fades_in_silence) {
  CompletionRate rate;
  for (double now = 0; now < 300; now += 0.1) rate.observe(1, now);
  for (double now = 300; now < 600; now += 2) rate.observe(1, now);
  BOOST_TEST(rate.per_second(600) == 0.5, boost::test_tools::tolerance(0.1));
  BOOST_TEST(rate.per_second(700) < 0.05);
}

BOOST_AUTO_TEST_CASE(retry_after_is_bounded) {
  CompletionRate rate;
  rate.observe(1, 0);
  rate.observe(1, 100);
  BOOST_TEST(rate.retry_after_s(1000000, 100) == CompletionRate::kMaxRetrySeconds);
  for (int i = 0; i < 10000; ++i) rate.observe(1, 101);
  BOOST_TEST(rate.retry_after_s(1, 101) == 1);
}

}  // namespace
}  // namespace troupe
