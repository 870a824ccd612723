// TROUPE_PROPERTY_OPERATIONS: how many operations on scheduler and caches, 20,000 if it is not set;
// a thorough run takes 1,000,000. TROUPE_PROPERTY_SEED: see property_seed.hpp.

#include "tests/support/random_workload.hpp"

#include <boost/test/unit_test.hpp>

#include "tests/support/property_seed.hpp"

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(random_workloads_keep_blocks_budgets_and_ends_in_order) {
  constexpr int kOperationsPerEngine = 400;
  const std::uint64_t num_operations =
      testing::number_from_environment("TROUPE_PROPERTY_OPERATIONS", 20000);
  const std::uint32_t first_seed = testing::property_seed();
  BOOST_TEST_MESSAGE("first seed " << first_seed);
  RandomWorkload::Coverage coverage;
  // What few kinds of engines do may want some engines more.
  const auto is_enough = [&](std::uint64_t operations) {
    return operations >= num_operations &&
           (coverage.copies > 0 || operations >= 10 * num_operations);
  };
  for (std::uint32_t i = 0; !is_enough(i * std::uint64_t{kOperationsPerEngine}); ++i) {
    RandomWorkload workload(first_seed + i);
    BOOST_TEST_CONTEXT("seed " << first_seed + i << ", groups " << workload.kinds()) {
      workload.run(kOperationsPerEngine);
    }
    coverage += workload.coverage();
  }
  BOOST_TEST_MESSAGE(coverage.hits
                     << " hits, " << coverage.preemptions << " preemptions, " << coverage.copies
                     << " copies, " << coverage.evictions << " evictions, " << coverage.loads
                     << " loads, " << coverage.failed_loads << " failed, " << coverage.encoded
                     << " images encoded, " << coverage.ahead << " ahead, " << coverage.kept
                     << " kept");
  if (num_operations < 20000) return;
  BOOST_TEST(coverage.hits > 0u);
  BOOST_TEST(coverage.preemptions > 0u);
  BOOST_TEST(coverage.copies > 0u);
  BOOST_TEST(coverage.evictions > 0u);
  BOOST_TEST(coverage.loads > 0u);
  BOOST_TEST(coverage.waits > 0u);
  BOOST_TEST(coverage.failed_loads > 0u);
  BOOST_TEST(coverage.encoded > 0u);
  BOOST_TEST(coverage.kept > 0u);
  BOOST_TEST(coverage.ahead > 0u);
}

}  // namespace
}  // namespace troupe
