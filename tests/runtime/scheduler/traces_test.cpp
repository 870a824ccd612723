// The recorded decisions of the reference scheduler.

#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "tests/support/trace_replay.hpp"

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(every_recorded_decision_is_reproduced) {
  std::size_t num_files = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(TROUPE_GOLDEN_DIR "/oracle/scheduler")) {
    const TraceReport report = replay_trace_file(file.path());
    BOOST_TEST(report.num_mismatches == 0u, file.path().filename()
                                                << ": " << report.first_difference);
    BOOST_TEST(report.num_traces > 0u);
    ++num_files;
  }
  BOOST_TEST(num_files > 0u);
}

}  // namespace
}  // namespace troupe
