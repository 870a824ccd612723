#include <boost/test/unit_test.hpp>

#include "tests/support/replay.hpp"

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(sampling_gives_the_candidates_and_probabilities_of_the_reference) {
  const ReplayReport report = replay_sampling(TROUPE_GOLDEN_DIR "/sampling");
  BOOST_TEST(report.num_cases >= 187u);
  for (const std::string& difference : report.differences) BOOST_ERROR(difference);
  BOOST_TEST(report.num_mismatches == 0u);
}

}  // namespace
}  // namespace troupe
