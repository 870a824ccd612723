#include <boost/test/unit_test.hpp>

#include "tests/support/replay.hpp"

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(every_golden_tokenizer_encodes_decodes_and_streams_as_the_reference) {
  const ReplayReport report = replay_tokenizers(TROUPE_GOLDEN_DIR "/tokenizers");
  for (const std::string& difference : report.differences) BOOST_TEST_MESSAGE(difference);
  BOOST_TEST(report.num_mismatches == 0u);
  BOOST_TEST(report.num_cases > 2000u);
}

}  // namespace
}  // namespace troupe
