// What a step sends to a device with memory of its own.

#include "runtime/models/device_batch.hpp"

#include <boost/test/unit_test.hpp>
#include <numeric>

#include "runtime/worker/block_tables.hpp"
#include "tests/support/test_device.hpp"

namespace troupe {
namespace {

/// Block tables of one group with blocks of 16 tokens, on the host and on the emulated device.
class SentTables {
 public:
  SentTables()
      : device_(Device::create({.name = testing::test_device()}).value()), batch_(*device_) {}

  /// A step of these rows, with one token each: how many blocks it sent. Checks that the device has
  /// the rows as the host has them.
  std::int64_t step(const std::vector<std::int32_t>& rows) {
    const std::int64_t before = batch_.num_sent_blocks();
    const std::vector<std::int32_t> ids(rows.size());
    std::vector<std::int32_t> starts(rows.size() + 1);
    std::iota(starts.begin(), starts.end(), 0);
    const std::vector<std::int64_t> slots(rows.size());
    const ForwardBatch::Group group{.slots = slots.data(),
                                    .block_tables = tables.data(0),
                                    .block_table_stride = tables.stride(0),
                                    .num_blocks = tables.num_blocks(0)};
    const ForwardBatch* there = batch_.put({.token_ids = ids,
                                            .positions = ids,
                                            .query_start_loc = starts,
                                            .seq_lens = ids,
                                            .output_start_loc = starts,
                                            .block_table_rows = rows,
                                            .block_table_row_ids = tables.row_ids(),
                                            .groups = std::span(&group, 1)});
    BOOST_REQUIRE(there != nullptr);
    const std::int64_t stride = there->groups[0].block_table_stride;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::int32_t row = -1;
      device_->copy_to_host(&row, there->block_table_rows.data() + i, sizeof row);
      BOOST_REQUIRE(device_->synchronize().ok());
      BOOST_TEST(row == rows[i]);
      const auto want = tables.blocks(rows[i], 0);
      std::vector<BlockId> got(want.size());
      device_->copy_to_host(got.data(), there->groups[0].block_tables + row * stride,
                            got.size() * sizeof(BlockId));
      BOOST_REQUIRE(device_->synchronize().ok());
      BOOST_TEST(std::ranges::equal(got, want));
    }
    return batch_.num_sent_blocks() - before;
  }

  BlockTables tables{{16}};

 private:
  std::unique_ptr<Device> device_;
  DeviceBatch batch_;
};

BOOST_AUTO_TEST_CASE(a_step_sends_the_blocks_that_are_new_in_its_rows) {
  SentTables sent;
  BlockTables& tables = sent.tables;
  const std::int32_t a = tables.add({{1, 2, 3}});
  const std::int32_t b = tables.add({{4}});
  BOOST_TEST(sent.step({a, b}) == 4);
  BOOST_TEST(sent.step({b, a}) == 0);
  tables.append(b, 0, std::vector<BlockId>{5});
  BOOST_TEST(sent.step({a}) == 0);
  BOOST_TEST(sent.step({a, b}) == 1);
  // Another request in the row, with as many blocks.
  tables.remove(a);
  const std::int32_t c = tables.add({{7, 8, 9}});
  BOOST_TEST(c == a);
  BOOST_TEST(sent.step({c, b}) == 3);
  // Wider rows, and more of them: everything once more, and then the differences again.
  tables.append(c, 0, std::vector<BlockId>{10, 11, 12, 13});
  BOOST_TEST(sent.step({b, c}) == 9);
  std::vector<std::int32_t> rows = {b, c};
  for (BlockId block = 20; block < 30; ++block) rows.push_back(tables.add({{block}}));
  BOOST_TEST(sent.step(rows) >= 10);
  BOOST_TEST(sent.step(rows) == 0);
}

BOOST_AUTO_TEST_CASE(tables_of_another_cache_are_sent_whole) {
  SentTables sent;
  const std::int32_t row = sent.tables.add({{1, 2}});
  BOOST_TEST(sent.step({row}) == 2);
  sent.tables = BlockTables({16});
  BOOST_TEST(sent.tables.add({{3, 4}}) == row);
  BOOST_TEST(sent.step({row}) == 2);
}

}  // namespace
}  // namespace troupe
