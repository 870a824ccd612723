// The recorded decisions of the reference scheduler.

#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "tests/support/sanitized.hpp"
#include "tests/support/trace_replay.hpp"

namespace troupe {
namespace {

/// Every trace of a folder, each file with its first difference. A sanitizer sees a quarter of each
/// family's traces.
void reproduces_all(const std::string& folder, std::size_t num_traces) {
  std::size_t num_found = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(TROUPE_GOLDEN_DIR "/oracle/" + folder)) {
    const TraceReport report = replay_trace_file(file.path(), testing::kSanitized ? 4 : 1);
    BOOST_TEST(report.num_mismatches == 0u, file.path().filename()
                                                << ": " << report.num_mismatches << " of "
                                                << report.num_traces << " traces differ; "
                                                << report.first_difference);
    num_found += report.num_traces;
  }
  BOOST_TEST(num_found == num_traces);
}

BOOST_AUTO_TEST_CASE(every_recorded_decision_is_reproduced) { reproduces_all("scheduler", 268); }

BOOST_AUTO_TEST_CASE(every_decision_of_the_second_set_is_reproduced) {
  reproduces_all("scheduler2", 160);
}

/// Traces that tests/differential/scheduler.py found to differ.
BOOST_AUTO_TEST_CASE(every_decision_that_once_differed_is_reproduced) {
  reproduces_all("scheduler_random", 12);
}

}  // namespace
}  // namespace troupe
