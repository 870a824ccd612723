// Keys, blobs, the contents of the stores, and the metadata for them.

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "runtime/config/connector_config.hpp"
#include "runtime/kv_transfer/block_blob.hpp"
#include "runtime/kv_transfer/block_index.hpp"
#include "runtime/kv_transfer/block_store.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/store_ops.hpp"
#include "runtime/worker/transfer_thread.hpp"
#include "tests/runtime/kv_transfer/temporary_folder.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

StoreKey key_of(std::uint8_t number, std::int32_t group = 0) {
  StoreKey key{.hash = {}, .group = group};
  key.hash.bytes.fill(number);
  return key;
}

const BlockOrigin kOrigin = {1, 2, 3};

Blob sealed_blob(const StoreKey& key, std::size_t num_bytes) {
  Blob blob = make_blob(kOrigin, key, num_bytes);
  for (std::byte& byte : blob_content(blob)) byte = std::byte{key.hash.bytes[0]};
  seal_blob(blob);
  return blob;
}

BOOST_AUTO_TEST_CASE(operations_come_back_as_they_were_packed) {
  StoreOps ops;
  BOOST_TEST((unpack_store_ops(pack_store_ops(ops)) == ops));
  ops.oldest_load = 7;
  ops.loads = {{.number = 7, .id = RequestId{3}, .blocks = {{key_of(1), 5}, {key_of(2, 1), 6}}},
               {.number = 8, .id = RequestId{1ull << 60}, .blocks = {}}};
  ops.ops = {{StoreOpKind::kSave, {key_of(3, 1), 9}},
             {StoreOpKind::kRemove, {key_of(4), kNullBlock}},
             {StoreOpKind::kCopy, {key_of(5), kNullBlock}, 1},
             {StoreOpKind::kClear, {}},
             {StoreOpKind::kExport, {key_of(6), kNullBlock}},
             {StoreOpKind::kImport, {key_of(7), kNullBlock}, 1}};
  ops.folder = "/caches/monday";
  const std::string text = pack_store_ops(ops);
  BOOST_TEST((unpack_store_ops(text) == ops));
  BOOST_TEST(!unpack_store_ops(text.substr(0, text.size() - 5)).has_value());
}

BOOST_AUTO_TEST_CASE(a_job_that_hangs_is_left_to_its_thread) {
  std::promise<void> go_on;
  std::promise<void> began;
  const auto value = std::make_shared<int>(1);
  {
    OpenLoads<BlockLoad> open;
    TransferThread<BlockLoad, std::uint64_t> thread(
        [value, &began, until = go_on.get_future().share()](BlockLoad& load) {
          if (load.number == 2) began.set_value();
          if (load.number == 2) until.wait();
          return std::optional(load.number);
        },
        [](const BlockLoad&) { return true; }, 1, std::chrono::milliseconds(1));
    for (std::uint64_t number = 1; number <= 3; ++number) {
      const BlockLoad load{.number = number, .id = RequestId{number}, .blocks = {}};
      open.add(load, number == 3 ? open.kNoLimit : std::chrono::milliseconds(1));
      thread.add(load);
    }
    began.get_future().wait();
    std::set<std::uint64_t> ended;
    for (const std::uint64_t number : thread.take_done())
      if (open.remove(number)) ended.insert(number);
    while (ended.size() < 3)
      for (const BlockLoad& late : open.take_late(thread.hangs(std::chrono::milliseconds(1))))
        ended.insert(late.number);
    BOOST_TEST(!open.remove(2));
  }
  BOOST_TEST(value.use_count() > 1);
  go_on.set_value();
  while (value.use_count() > 1) std::this_thread::yield();
}

BOOST_AUTO_TEST_CASE(what_is_used_again_survives_a_scan_under_arc_only) {
  for (const bool is_arc : {true, false}) {
    BlockIndex index(40, make_eviction_policy(is_arc ? "arc" : "lru").value());
    std::vector<StoreKey> removed;
    for (std::uint8_t i = 1; i <= 4; ++i) BOOST_TEST(index.add(key_of(i), 10, removed));
    for (std::uint8_t i = 1; i <= 2; ++i) BOOST_TEST(index.touch(key_of(i)));
    for (std::uint8_t i = 5; i <= 40; ++i) BOOST_TEST(index.add(key_of(i), 10, removed));
    BOOST_TEST(index.has(key_of(1)) == is_arc);
    BOOST_TEST(index.has(key_of(2)) == is_arc);
    BOOST_TEST(index.size() == 4u);
    // One that comes back soon after it went is among those that are used again.
    BOOST_TEST(index.add(key_of(38), 10, removed));
    for (std::uint8_t i = 41; i <= 60; ++i) BOOST_TEST(index.add(key_of(i), 10, removed));
    BOOST_TEST(index.has(key_of(38)) == is_arc);
    index.clear();
    BOOST_TEST(index.add(key_of(1), 40, removed));
  }
  BOOST_TEST(!make_eviction_policy("mru").ok());
}

BOOST_AUTO_TEST_CASE(the_index_removes_what_was_used_least_recently) {
  BlockIndex index(30);
  std::vector<StoreKey> removed;
  for (std::uint8_t i = 1; i <= 3; ++i) BOOST_TEST(index.add(key_of(i), 10, removed));
  BOOST_TEST(index.touch(key_of(1)));
  BOOST_TEST(index.add(key_of(4), 15, removed));
  BOOST_TEST((removed == std::vector{key_of(2), key_of(3)}));
  BOOST_TEST(index.num_bytes() == 25);
  BOOST_TEST(!index.add(key_of(5), 31, removed));
  BOOST_TEST(removed.size() == 2u);
  BOOST_TEST((index.has(key_of(1)) && index.has(key_of(4)) && !index.has(key_of(1, 1))));
  BOOST_TEST(index.remove(key_of(1)));
  BOOST_TEST(!index.remove(key_of(1)));
  index.clear();
  BOOST_TEST((index.size() == 0 && index.num_bytes() == 0));
  BlockIndex unlimited(0);
  for (std::uint8_t i = 0; i < 100; ++i) BOOST_TEST(unlimited.add(key_of(i), 1 << 30, removed));
  BOOST_TEST(removed.size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_blob_tells_which_of_its_fields_is_wrong) {
  const StoreKey key = key_of(9, 2);
  const Blob blob = sealed_blob(key, 100);
  BOOST_TEST(check_blob(blob, kOrigin, key, 100).ok());
  const auto refuses = [&](const Blob& other, const StoreKey& as, const BlockOrigin& origin,
                           std::size_t num_bytes, const std::string& field) {
    const auto checked = check_blob(other, origin, as, num_bytes);
    BOOST_REQUIRE(!checked.ok());
    BOOST_TEST((checked.error().code == ErrorCode::kCorrupt));
    BOOST_TEST(checked.error().message.starts_with(field + " is "), checked.error().message);
  };
  refuses(blob, key, kOrigin, 99, "size");
  refuses({}, key, kOrigin, 100, "size");
  refuses(blob, key, {1, 2, 4}, 100, "origin (model, types, layout, rank)");
  refuses(blob, key_of(9, 1), kOrigin, 100, "group");
  refuses(blob, key_of(8, 2), kOrigin, 100, "hash");
  // Each bit counts.
  for (std::size_t i = 0; i < blob.size(); ++i) {
    Blob changed = blob;
    changed[i] ^= std::byte{16};
    BOOST_TEST(!check_blob(changed, kOrigin, key, 100).ok(), "byte " << i);
  }
  Blob newer = blob;
  newer[offsetof(BlobHeader, version)] = std::byte{2};
  refuses(newer, key, kOrigin, 100, "version");
}

void check_store(BlockStore& store) {
  BOOST_TEST((store.load(key_of(1)).error().code == ErrorCode::kNotFound));
  for (const std::int32_t group : {0, 1}) {
    const StoreKey key = key_of(1, group);
    BOOST_TEST(store.save(key, sealed_blob(key, 50)).ok());
  }
  BOOST_TEST((*store.load(key_of(1, 1)).value() == sealed_blob(key_of(1, 1), 50)));
  BOOST_TEST(store.save(key_of(1), sealed_blob(key_of(2), 7)).ok());  // replaces it
  BOOST_TEST((*store.load(key_of(1)).value() == sealed_blob(key_of(2), 7)));
  store.remove(key_of(1));
  store.remove(key_of(77));
  BOOST_TEST(!store.load(key_of(1)).ok());
  BOOST_TEST(store.load(key_of(1, 1)).ok());
  store.clear();
  BOOST_TEST(!store.load(key_of(1, 1)).ok());
}

BOOST_AUTO_TEST_CASE(a_store_in_memory_holds_what_it_was_given) {
  const auto store = make_memory_block_store();
  check_store(*store);
}

BOOST_AUTO_TEST_CASE(a_store_of_files_holds_what_it_was_given_and_lists_it) {
  const BlockFolder folder;
  const std::string path = folder.path().string();
  const auto store = make_file_block_store(path);
  check_store(*store);
  BOOST_TEST(list_block_files(path).empty());
  BOOST_TEST(list_block_files(path + "/missing").empty());
  const auto now = fs::file_time_type::clock::now();
  for (std::uint8_t i = 1; i <= 3; ++i) {
    const StoreKey key = key_of(i, i);
    BOOST_TEST(store->save(key, sealed_blob(key, 5)).ok());
    fs::last_write_time(store->place_of(key), now - std::chrono::hours(i));
  }
  // Neither a file that is being written nor another one is a block.
  std::ofstream(store->place_of(key_of(1, 1)) + ".XXXXXX") << "x";
  const fs::path other = fs::path(store->place_of(key_of(1, 1))).parent_path() / "x.bin";
  std::ofstream(other) << "x";
  fs::create_directories(folder.path() / "fff" / "ff_g0");
  fs::copy_file(
      store->place_of(key_of(1, 1)),
      folder.path() / "fff" / "ff_g0" / fs::path(store->place_of(key_of(1, 1))).filename());
  BOOST_TEST((list_block_files(path) == std::vector{key_of(3, 3), key_of(2, 2), key_of(1, 1)}));
  BOOST_TEST(store->load(key_of(3, 3)).ok());  // it counts as used
  BOOST_TEST((list_block_files(path).back() == key_of(3, 3)));
}

BOOST_AUTO_TEST_CASE(many_files_are_read_at_once_and_each_that_is_wrong_alone) {
  const BlockFolder folder;
  const auto store = make_file_block_store(folder.path().string());
  std::vector<StoreKey> keys;
  for (std::uint8_t i = 1; i <= 100; ++i) {
    keys.push_back(key_of(i));
    if (i % 7 != 0) BOOST_TEST(store->save(keys.back(), sealed_blob(keys.back(), i * 50u)).ok());
  }
  fs::resize_file(store->place_of(keys[4]), 0);
  const auto blobs = store->load_all(keys);
  BOOST_REQUIRE(blobs.size() == keys.size());
  for (std::uint8_t i = 1; i <= 100; ++i) {
    const auto& blob = blobs[i - 1u];
    BOOST_TEST(blob.ok() == (i % 7 != 0));
    if (!blob.ok())
      BOOST_TEST((blob.error().code == ErrorCode::kNotFound));
    else
      BOOST_TEST((**blob == (i == 5 ? Blob() : sealed_blob(keys[i - 1u], i * 50u))));
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_written_is_named) {
  const BlockFolder folder;
  std::ofstream(folder.path() / "010") << "a file in the place of a folder";
  const auto store = make_file_block_store(folder.path().string());
  const auto saved = store->save(key_of(1), sealed_blob(key_of(1), 5));
  BOOST_REQUIRE(!saved.ok());
  BOOST_TEST(saved.error().message.find(folder.path().string()) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_unknown_connector_names_those_that_there_are) {
  ConnectorConfig config{.connector = "NixlConnector"};
  BOOST_TEST(find_kv_connector(config).error().message ==
             "kv-transfer-config: kv_connector NixlConnector is unknown, there are "
             "OffloadingConnector, PeerConnector, FileConnector, ExampleConnector, "
             "SharedStorageConnector, LMCacheConnectorV1, MultiConnector, BlendConnector, "
             "DecodeBenchConnector");
  config.module_path = "/missing.so";
  BOOST_TEST((find_kv_connector(config).error().code == ErrorCode::kNotFound));
}

BOOST_AUTO_TEST_CASE(the_extra_configuration_refuses_what_it_does_not_know) {
  const auto error_of = [](const std::string& connector, const std::string& extra) {
    ConnectorConfig config{.connector = connector, .extra_config = extra};
    const auto made = find_kv_connector(config).value()->create_worker({.config = config});
    return made.ok() ? std::string() : made.error().message;
  };
  const std::string prefix = "kv-transfer-config: kv_connector_extra_config: ";
  BOOST_TEST(error_of("OffloadingConnector", R"({"cpu_bytes_to_use":1e9})").empty());
  BOOST_TEST(error_of("OffloadingConnector", R"({"cpu_bytes_to_use":0})") ==
             prefix + "cpu_bytes_to_use must be an integer from 1 on, it is 0");
  BOOST_TEST(error_of("OffloadingConnector", R"({"cpu_bytes":5})") ==
             prefix + "cpu_bytes is unknown");
  BOOST_TEST(error_of("FileConnector", R"({"shared_storage_path":""})") ==
             prefix + "shared_storage_path must be a string that is not empty, it is \"\"");
  BOOST_TEST(error_of("FileConnector", R"({"max_bytes":1.5})") ==
             prefix + "max_bytes must be an integer from 0 on, it is 1.5");
}

}  // namespace
}  // namespace troupe
