#include <boost/test/unit_test.hpp>

#include "tests/support/replay.hpp"

BOOST_AUTO_TEST_CASE(images_become_the_pixels_and_tensors_of_pillow_and_transformers) {
  const troupe::ReplayReport report = troupe::replay_images(TROUPE_GOLDEN_DIR "/images");
  for (const std::string& difference : report.differences) BOOST_TEST_MESSAGE(difference);
  BOOST_TEST(report.num_cases > 130);
  BOOST_TEST(report.num_mismatches == 0);
}
