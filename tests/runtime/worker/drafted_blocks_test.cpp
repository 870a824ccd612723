#include "runtime/worker/drafted_blocks.hpp"

#include <boost/test/unit_test.hpp>
#include <vector>

namespace troupe {
namespace {

constexpr std::int32_t kNone = DraftedBlocks::kNone;

BOOST_AUTO_TEST_CASE(what_was_skipped_is_missing_in_the_blocks_for_whoever_has_them) {
  BlockTables tables({16, 16});
  const std::int32_t first = tables.add({{1, 2}, {3, 4, 5}});  // the draft model's is the second
  DraftedBlocks blocks(tables, std::vector<LayerKvCache>{{.pages = {}, .group = 1}});
  BOOST_TEST(blocks.first_missing(first, 48) == kNone);
  blocks.add(first, 0, 20);
  blocks.skip(first, 20, 25);
  blocks.skip(first, 25, 35);
  BOOST_TEST(blocks.first_missing(first, 20) == kNone);
  BOOST_TEST(blocks.first_missing(first, 21) == 20);
  BOOST_TEST(blocks.first_missing(first, 48) == 20);
  const std::int32_t second = tables.add({{1, 2}, {3, 4}});
  BOOST_TEST(blocks.first_missing(second, 32) == 20);
  const std::int32_t third = tables.add({{20, 21}, {3, 22}});
  BOOST_TEST(blocks.first_missing(third, 32) == kNone);

  // Computed later, piece by piece.
  blocks.add(second, 20, 22);
  BOOST_TEST(blocks.first_missing(second, 32) == 22);
  BOOST_TEST(blocks.first_missing(first, 48) == 22);
  blocks.add(second, 22, 32);
  BOOST_TEST(blocks.first_missing(second, 32) == kNone);
  BOOST_TEST(blocks.first_missing(first, 48) == 32);
  blocks.add(first, 40, 48);  // behind what is missing
  BOOST_TEST(blocks.first_missing(first, 48) == 32);
}

BOOST_AUTO_TEST_CASE(a_block_that_is_given_to_another_request_is_what_that_one_makes_of_it) {
  BlockTables tables({4});
  DraftedBlocks blocks(tables, std::vector<LayerKvCache>{{.pages = {}, .group = 0}});
  std::int32_t row = tables.add({{7, 8}});
  blocks.skip(row, 2, 8);
  tables.remove(row);
  row = tables.add({{8, 7}});
  blocks.add(row, 0, 6);
  blocks.add(row, 6, 7);
  BOOST_TEST(blocks.first_missing(row, 7) == kNone);
  blocks.skip(row, 7, 8);
  BOOST_TEST(blocks.first_missing(row, 8) == 7);
}

BOOST_AUTO_TEST_CASE(copies_of_blocks_lack_what_their_sources_lack_and_null_blocks_nothing) {
  BlockTables tables({GroupBlockSizes(8, 4)});
  DraftedBlocks blocks(tables, std::vector<LayerKvCache>{{.pages = {}, .group = 0}});
  const std::int32_t row = tables.add({{kNullBlock, 5}});
  blocks.skip(row, 0, 14);
  BOOST_TEST(blocks.first_missing(row, 16) == 8);
  blocks.add(row, 8, 13);
  BOOST_TEST(blocks.first_missing(row, 16) == 13);
  const std::vector<std::pair<BlockId, BlockId>> copies = {{5, 9}};
  blocks.copy(copies);
  const std::int32_t copy = tables.add({{9}});
  BOOST_TEST(blocks.first_missing(copy, 8) == 5);
}

}  // namespace
}  // namespace troupe
