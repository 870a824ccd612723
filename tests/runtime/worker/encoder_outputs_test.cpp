#include "runtime/worker/encoder_outputs.hpp"

#include <boost/test/unit_test.hpp>
#include <random>
#include <set>

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(outputs_have_rows_of_their_own_wherever_there_is_room) {
  const auto device = Device::create({.name = "cpu", .num_threads = 1}).value();
  constexpr std::int64_t kNumRows = 40;
  EncoderOutputs outputs = EncoderOutputs::create(*device, kNumRows, 4).value();
  BOOST_TEST(outputs.memory().num_rows == kNumRows);
  std::mt19937 random(1);
  std::map<std::string, std::size_t> known;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = std::to_string(random() % 12);
    if (outputs.has(name)) {
      outputs.remove(name);
      known.erase(name);
    } else {
      const std::int64_t size = 1 + static_cast<std::int64_t>(random() % 15);
      const bool fits = size <= outputs.num_free_rows();
      BOOST_REQUIRE(outputs.add(name, size).empty() != fits);
      if (fits) known[name] = static_cast<std::size_t>(size);
    }
    std::set<std::int32_t> taken;
    std::size_t num_taken = 0;
    for (const auto& [each, size] : known) {
      const auto rows = outputs.rows_of(each);
      BOOST_REQUIRE(rows.size() == size);
      taken.insert(rows.begin(), rows.end());
      num_taken += size;
    }
    BOOST_REQUIRE(taken.size() == num_taken);
    BOOST_REQUIRE(taken.empty() || (*taken.begin() >= 0 && *taken.rbegin() < kNumRows));
    BOOST_REQUIRE(outputs.num_free_rows() == kNumRows - static_cast<std::int64_t>(num_taken));
  }
  outputs.clear();
  BOOST_TEST(outputs.add("all", kNumRows).size() == static_cast<std::size_t>(kNumRows));
  BOOST_TEST(outputs.rows_of("1").empty());
}

}  // namespace
}  // namespace troupe
