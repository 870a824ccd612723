#include "tests/kernels/cuda/device_testing.hpp"

namespace troupe {
namespace {

using namespace testing;

BOOST_TEST_GLOBAL_FIXTURE(NeedsTestDevice);

BOOST_AUTO_TEST_CASE(data_copied_to_the_device_and_back_is_unchanged) {
  const Floats values = random_floats(100'003, 1);
  BOOST_CHECK(DeviceArray<float>(values).values() == values);
}

BOOST_AUTO_TEST_CASE(memory_is_copied_and_filled_on_the_device) {
  const Floats values = random_floats(1003, 1);
  const DeviceArray<float> from(values);
  const DeviceArray<float> to(Floats(1003, -1.0f));
  constexpr std::int64_t kHalf = 500 * sizeof(float);
  device_table().copy(device().stream(), to.data(), from.data(), kHalf);
  device_table().fill_zero(device().stream(), to.data() + 500, kHalf);
  Floats expected = values;
  std::fill(expected.begin() + 500, expected.begin() + 1000, 0.0f);
  std::fill(expected.begin() + 1000, expected.end(), -1.0f);
  BOOST_CHECK(to.values() == expected);
}

BOOST_AUTO_TEST_CASE(free_memory_shrinks_by_what_is_taken) {
  BOOST_TEST_REQUIRE(device_table().count() >= 1);
  device_table().select(0);
  const std::int64_t before = device_table().free_bytes();
  std::byte* const taken = device_table().allocate(64 << 20);
  BOOST_TEST(before - device_table().free_bytes() >= 64 << 20);
  device_table().release(taken);
}

BOOST_AUTO_TEST_CASE(more_memory_than_there_is_gives_null_and_no_later_error) {
  BOOST_CHECK(device_table().allocate(std::int64_t{1} << 60) == nullptr);
  BOOST_CHECK_EQUAL(device().synchronize(), "");
}

BOOST_AUTO_TEST_CASE(operations_on_nothing_are_no_errors) {
  gpu().embedding(device(), {});
  gpu().rms_norm(device(), {});
  gpu().matmul(device(), {});
  gpu().attention(device(), {.cache = {.num_kv_heads = 1}});
  BOOST_CHECK_EQUAL(device().synchronize(), "");
}

}  // namespace
}  // namespace troupe
