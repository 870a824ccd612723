#include "runtime/base/philox.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

using Block = std::array<std::uint32_t, 4>;

// The known answers that the authors publish with their library Random123 (kat_vectors).
BOOST_AUTO_TEST_CASE(philox_gives_the_published_known_answers) {
  BOOST_TEST((philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
              Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  BOOST_TEST((philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
              Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  BOOST_TEST(
      (philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
       Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

BOOST_AUTO_TEST_CASE(key_position_and_draw_each_change_the_bits) {
  const std::uint64_t bits = philox_bits(1, 2, 3);
  BOOST_TEST(philox_bits(1, 2, 3) == bits);
  BOOST_TEST(philox_bits(2, 2, 3) != bits);
  BOOST_TEST(philox_bits(1, 3, 3) != bits);
  BOOST_TEST(philox_bits(1, 2, 4) != bits);
  BOOST_TEST(philox_bits(1 + (std::uint64_t{1} << 32), 2, 3) != bits);
  BOOST_TEST(philox_bits(1, 2 + (std::uint64_t{1} << 32), 3) != bits);
}

BOOST_AUTO_TEST_CASE(uniform_numbers_lie_in_the_unit_interval_and_spread_over_it) {
  constexpr int kNumDraws = 100000;
  double sum = 0;
  double sum_of_squares = 0;
  for (int position = 0; position < kNumDraws; ++position) {
    const double uniform = philox_uniform(42, static_cast<std::uint64_t>(position), 0);
    BOOST_REQUIRE(uniform >= 0);
    BOOST_REQUIRE(uniform < 1);
    sum += uniform;
    sum_of_squares += uniform * uniform;
  }
  BOOST_TEST(sum / kNumDraws == 0.5, boost::test_tools::tolerance(0.01));
  BOOST_TEST(sum_of_squares / kNumDraws == 1.0 / 3, boost::test_tools::tolerance(0.01));
}

}  // namespace
}  // namespace troupe
