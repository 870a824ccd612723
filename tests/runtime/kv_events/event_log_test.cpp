#include "runtime/kv_events/event_log.hpp"

#include <boost/test/unit_test.hpp>
#include <map>
#include <random>

#include "runtime/kv_events/cached_prompts.hpp"
#include "tests/runtime/kv_events/event_testing.hpp"

namespace troupe {
namespace {

using testing::hash_of;
using testing::stored;

KVEventBatch batch(std::vector<KVCacheEvent> events) { return {1.5, std::move(events)}; }

std::vector<std::uint64_t> sequences(const EventFrames& frames) {
  std::vector<std::uint64_t> result;
  for (const auto& frame : frames) result.push_back(frame->sequence);
  return result;
}

BOOST_AUTO_TEST_CASE(batches_are_numbered_from_zero_and_the_last_ones_are_kept) {
  EventLog log({}, 3);
  for (std::uint64_t i = 0; i < 5; ++i)
    BOOST_TEST(log.append(batch({AllBlocksCleared{}}))->sequence == i);
  BOOST_TEST(sequences(log.replay(0)) == (std::vector<std::uint64_t>{2, 3, 4}));
  BOOST_TEST(sequences(log.replay(4)) == (std::vector<std::uint64_t>{4}));
  BOOST_TEST(log.replay(5).empty());
}

BOOST_AUTO_TEST_CASE(the_prompts_of_a_cache_are_read_from_its_events) {
  const auto filled = [](std::uint8_t number) {
    BlockHash hash;
    hash.bytes.fill(number);
    return hash;
  };
  const auto block = [&](std::uint8_t hash, std::uint8_t parent, TokenId first) {
    BlocksStored event;
    event.hashes = {filled(hash)};
    event.parent = parent == 0 ? std::nullopt : std::optional(filled(parent));
    event.block_size = 2;
    event.token_ids = {first, first + 1};
    event.medium = "GPU";
    event.extra_keys = {{}};
    return event;
  };
  BlocksStored salted = block(7, 1, 70);
  salted.extra_keys = {{ExtraKey(std::string("tenant"))}};
  BlocksStored windowed = block(8, 1, 80);
  windowed.group = 1;
  windowed.sliding_window = 4;
  for (const bool int_hashes : {true, false}) {
    KVEventForm form;
    form.int_block_hashes = int_hashes;
    CachedPrompts cached;
    const auto apply = [&](std::vector<KVCacheEvent> events) {
      return cached.apply(encode_kv_event_batch(1.5, events, form)).ok();
    };
    BOOST_TEST(apply({block(9, 0, 90), AllBlocksCleared{}}));
    BOOST_TEST(apply({block(1, 0, 10), block(2, 1, 20), block(3, 1, 30), salted, windowed}));
    BOOST_TEST(apply({block(4, 6, 40), block(5, 0, 50),
                      BlockRemoved{.hash = filled(5), .group = 0, .medium = "GPU"}}));
    const std::vector<std::vector<TokenId>> expected = {{10, 11, 30, 31}, {10, 11, 20, 21}};
    BOOST_TEST((cached.prompts(5) == expected));
    BOOST_TEST(cached.prompts(1).size() == 1u);
    const std::string whole = encode_kv_event_batch(1.5, std::vector<KVCacheEvent>{salted}, form);
    for (std::size_t size = 0; size < whole.size() - 1; ++size)
      BOOST_TEST(!CachedPrompts().apply(std::string_view(whole).substr(0, size)).ok());
  }
}

BOOST_AUTO_TEST_CASE(a_snapshot_is_in_the_name_of_the_last_batch) {
  EventLog log({}, 3);
  BOOST_TEST(log.snapshot().empty());
  static_cast<void>(log.append(batch({stored({1, 2}), BlockRemoved{hash_of(2), 0}})));
  static_cast<void>(log.append(batch({stored({3})})));
  BOOST_TEST(sequences(log.snapshot()) == (std::vector<std::uint64_t>{1}));
  const std::vector<KVCacheEvent> expected = {AllBlocksCleared{}, stored({1}), stored({3})};
  BOOST_TEST(log.snapshot().front()->payload == encode_kv_event_batch(1.5, expected, {}));
}

BOOST_AUTO_TEST_CASE(a_large_snapshot_comes_in_several_frames) {
  EventLog log({}, 3);
  for (int i = 0; i < 200; ++i) static_cast<void>(log.append(batch({stored({i})})));
  const EventFrames frames = log.snapshot();
  BOOST_TEST(frames.size() > 1u);
  for (const auto& frame : frames) BOOST_TEST(frame->sequence == 199u);
}

BOOST_AUTO_TEST_CASE(requests_are_recognised) {
  const auto parse = [](std::vector<std::string_view> frames) {
    return parse_replay_request(frames);
  };
  const std::string start("\0\0\0\0\0\0\1\2", 8);
  BOOST_TEST(parse({"", start})->start == 258u);
  BOOST_TEST(sequence_bytes(258) == start);
  BOOST_TEST(parse({"", "snapshot"})->snapshot);
  BOOST_TEST(parse({"", std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff")})->start ==
             kEndOfReplay);
  BOOST_TEST(!parse({}).has_value());
  BOOST_TEST(!parse({start}).has_value());
  BOOST_TEST(!parse({"x", start}).has_value());
  BOOST_TEST(!parse({"", "1234567"}).has_value());
  BOOST_TEST(!parse({"", start, ""}).has_value());
}

// ---- the content --------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(a_content_is_there_until_its_last_holder_is_removed) {
  StoredBlocks blocks;
  blocks.apply(stored({1, 2}));
  blocks.apply(stored({1}));
  blocks.apply(BlockRemoved{hash_of(1), 0});
  BOOST_TEST(blocks.size() == 2u);
  BlocksStored again = stored({1, 2});
  again.again = true;
  blocks.apply(again);
  blocks.apply(BlockRemoved{hash_of(1), 0});
  BOOST_TEST(blocks.size() == 1u);
  blocks.apply(BlockRemoved{hash_of(2), 1});  // of another group
  blocks.apply(BlockRemoved{hash_of(9), 0});  // never heard of
  BOOST_TEST(blocks.size() == 1u);
  blocks.apply(AllBlocksCleared{});
  BOOST_TEST(blocks.size() == 0u);
}

BOOST_AUTO_TEST_CASE(blocks_come_after_those_before_them_in_their_request) {
  StoredBlocks blocks;
  blocks.apply(stored({1, 2, 3}));
  blocks.apply(BlockRemoved{hash_of(1), 0});
  blocks.apply(BlockRemoved{hash_of(2), 0});
  blocks.apply(stored({1, 2}));
  const std::vector<KVCacheEvent> expected = {AllBlocksCleared{}, stored({1, 2, 3})};
  BOOST_TEST((blocks.events(256) == expected));
  const std::vector<KVCacheEvent> pieces = {AllBlocksCleared{}, stored({1, 2}),
                                            stored({3}, hash_of(2))};
  BOOST_TEST((blocks.events(2) == pieces));
}

BOOST_AUTO_TEST_CASE(rows_with_gaps_become_rows_without) {
  // A window keeps blocks 1 and 2 of four.
  BlocksStored row = stored({10, 11, 12, 13});
  row.hashes = {hash_of(11), hash_of(12)};
  row.extra_keys.resize(2);
  row.block_indices = {1, 2};
  row.predecessors = {hash_of(10), hash_of(11)};
  StoredBlocks blocks;
  blocks.apply(row);
  const std::vector<KVCacheEvent> expected = {AllBlocksCleared{}, stored({11, 12}, hash_of(10))};
  BOOST_TEST((blocks.events(256) == expected));
}

BOOST_AUTO_TEST_CASE(a_snapshot_builds_the_content_anew) {
  std::mt19937 random(7);
  StoredBlocks blocks;
  std::vector<std::pair<int, int>> held;  // hash, group
  for (int i = 0; i < 3000; ++i) {
    if (held.empty() || random() % 3 != 0) {
      const int first = static_cast<int>(random() % 50),
                length = 1 + static_cast<int>(random() % 4);
      std::vector<int> row;
      for (int block = first; block < first + length; ++block) row.push_back(block);
      BlocksStored event =
          stored(row, first == 0 ? std::nullopt : std::optional(hash_of(first - 1)));
      event.group = static_cast<std::int32_t>(random() % 2);
      for (const int block : row) held.emplace_back(block, event.group);
      blocks.apply(event);
    } else {
      const std::size_t victim = random() % held.size();
      blocks.apply(BlockRemoved{hash_of(held[victim].first), held[victim].second});
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    if (i % 100 != 0) continue;
    std::map<std::pair<int, int>, int> expected;
    for (const auto& key : held) ++expected[key];
    BOOST_REQUIRE_EQUAL(blocks.size(), expected.size());
    StoredBlocks rebuilt;
    for (const KVCacheEvent& event : blocks.events(4)) {
      if (const auto* row = std::get_if<BlocksStored>(&event)) {
        BOOST_REQUIRE_EQUAL(row->token_ids.size(), row->hashes.size() * 2);
        for (std::size_t b = 0; b < row->hashes.size(); ++b)
          BOOST_TEST(row->token_ids[2 * b] == 2 * testing::number_of(row->hashes[b]));
      }
      rebuilt.apply(event);
    }
    BOOST_REQUIRE_EQUAL(rebuilt.size(), expected.size());
    for (const auto& [key, count] : expected)
      rebuilt.apply(BlockRemoved{hash_of(key.first), key.second});
    BOOST_REQUIRE_EQUAL(rebuilt.size(), 0u);
  }
}

}  // namespace
}  // namespace troupe
