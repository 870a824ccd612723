#include "runtime/supervision/node_watch.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe::supervision {
namespace {

using Action = NodeWatch::Action;

NodeWatch make_watch(double supervisor_timeout_s) {
  return NodeWatch({.node_timeout_s = 4, .supervisor_timeout_s = supervisor_timeout_s});
}

BOOST_AUTO_TEST_CASE(a_node_leaves_a_silent_supervisor_after_that_has_given_it_up) {
  NodeWatch watch = make_watch(60);
  BOOST_TEST((watch.check(107.9, 100).action == Action::kStay));
  const auto decision = watch.check(108, 100);
  BOOST_TEST((decision.action == Action::kLeave));
  BOOST_TEST(decision.reason == "the supervisor has been silent for 8.0 s");
}

BOOST_AUTO_TEST_CASE(a_lost_connection_ends_the_node_unless_its_actor_ends_first) {
  NodeWatch watch = make_watch(60);
  watch.add_link(1, 2, 1);
  watch.add_link(3, 2, 3);
  watch.peer_unreachable(100, 2);
  BOOST_TEST((watch.check(101.9, 101).action == Action::kStay));
  BOOST_TEST((watch.check(102, 101).action == Action::kLeave));
  watch.forget_links(1);
  BOOST_TEST((watch.check(105.9, 105).action == Action::kStay));
  BOOST_TEST((watch.check(106, 105).action == Action::kLeave));
}

BOOST_AUTO_TEST_CASE(
    without_a_supervisor_a_node_tries_to_join_one_ever_less_often_until_the_timeout) {
  NodeWatch watch = make_watch(10);
  watch.add_link(1, 2, 1);
  watch.supervisor_lost(100);
  watch.peer_unreachable(100, 2);
  double now = 100, last = 0;
  while (now < 110) {
    const auto decision = watch.check(now, 90);
    BOOST_REQUIRE((decision.action == Action::kJoin));
    BOOST_TEST((decision.next_check_s >= last || now + decision.next_check_s >= 110));
    last = decision.next_check_s;
    now += last;
  }
  BOOST_TEST(now == 110);
  const auto decision = watch.check(now, 90);
  BOOST_TEST((decision.action == Action::kLeave));
  BOOST_TEST(decision.reason == "no supervisor for 10.0 s");
}

BOOST_AUTO_TEST_CASE(the_next_supervisor_has_as_long_to_end_what_has_lost_a_peer) {
  NodeWatch watch = make_watch(10);
  watch.add_link(1, 2, 1);
  watch.supervisor_lost(100);
  watch.peer_unreachable(101, 2);
  watch.joined(108);
  BOOST_TEST(watch.has_supervisor());
  BOOST_TEST((watch.check(109.9, 109).action == Action::kStay));
  BOOST_TEST((watch.check(110, 109).action == Action::kLeave));
}

BOOST_AUTO_TEST_CASE(with_a_timeout_of_zero_a_node_ends_with_its_supervisor) {
  NodeWatch watch = make_watch(0);
  watch.supervisor_lost(100);
  BOOST_TEST((watch.check(100, 100).action == Action::kLeave));
}

}  // namespace
}  // namespace troupe::supervision
