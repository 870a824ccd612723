// Keys, hashes and messages as LMCache 0.5.6 has them.

#include <boost/test/unit_test.hpp>

#include "runtime/kv_transfer/lmcache/cache_engine_key.hpp"
#include "runtime/kv_transfer/lmcache/chunk_hash.hpp"
#include "runtime/kv_transfer/lmcache/mp_messages.hpp"
#include "runtime/kv_transfer/lmcache/remote_metadata.hpp"
#include "tests/support/lmcache_replay.hpp"

namespace troupe::lmcache {
namespace {

BOOST_AUTO_TEST_CASE(all_golden_data_of_lmcache_replays) {
  const ReplayReport report = replay_lmcache(TROUPE_GOLDEN_DIR "/oracle/wire/golden_lmcache.json");
  for (const std::string& difference : report.differences) BOOST_ERROR(difference);
  BOOST_TEST(report.num_cases > 150u);
}

BOOST_AUTO_TEST_CASE(a_key_that_is_none_is_refused_by_its_field) {
  const auto refuses = [](const std::string& text, const std::string& part) {
    const auto key = parse_cache_engine_key(text);
    BOOST_REQUIRE(!key.ok());
    BOOST_TEST(key.error().message.find(part) != std::string::npos, key.error().message);
  };
  refuses("m@1@0@ff", "4 fields");
  refuses("m@x@0@ff@half", "the world size is 'x'");
  refuses("m@1@-1@ff@half", "the worker is '-1'");
  refuses("m@1@0@fg@half", "the hash is 'fg'");
  refuses("m@1@0@11112222333344445@half", "the hash");
  refuses("m@1@0@ff@float8", "the type is 'float8'");
  refuses("m@1@0@ff@half@tag", "a tag is 'tag'");
  refuses("m@1@0@ff@half@99999999999", "the layer");
}

BOOST_AUTO_TEST_CASE(builtin_hashes_need_a_seed_that_is_a_number) {
  using enum ChunkHashAlgorithm;
  BOOST_TEST(!none_hash(kBuiltin, {.seed = {}}).ok());
  BOOST_TEST(none_hash(kBuiltin, {.seed = "random"}).error().message.find("random") !=
             std::string::npos);
  BOOST_TEST(!none_hash(kBuiltin, {.seed = "4294967296"}).ok());
  BOOST_TEST((none_hash(kBuiltin, {.has_vllm = false, .seed = {}}).value() == PythonInt{}));
}

BOOST_AUTO_TEST_CASE(metadata_of_remote_values_must_have_whole_groups) {
  const RemoteMetadata metadata{.length = 64,
                                .format = MemoryFormat::kKv2Ltd,
                                .groups = {{TensorDtype::kBfloat16, {2, 2, 4, 2}}}};
  const std::string bytes = pack_remote_metadata(metadata);
  BOOST_TEST(bytes.size() == 28u);
  BOOST_TEST((parse_remote_metadata(bytes).value() == metadata));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    BOOST_TEST(!parse_remote_metadata(bytes.substr(0, size)).ok());
  BOOST_TEST(redis_bytes_key("k") + " " + redis_metadata_key("k") == "kkv_bytes kmetadata");
  BOOST_TEST(remote_file_name("a/b@1") == "a-SEP-b@1.data");
  BOOST_TEST(disk_file_name("a/b@1") == "a-b@1.pt");
}

BOOST_AUTO_TEST_CASE(an_object_of_the_server_of_several_processes_has_its_names) {
  MpObjectKey key{.model = "a/b", .kv_rank = mp_kv_rank(4, 3, 4, 3), .group = 10};
  key.hash.fill(0xab);
  std::string hash;
  for (int i = 0; i < 32; ++i) hash += "ab";
  BOOST_TEST(key.text() == "a/b@04030403@a@" + hash);
  key.cache_salt = "s";
  BOOST_TEST(key.file_name() == "a-SEP-b@0x04030403@a@" + hash + "@s.data");
  MpKey request;
  request.cache_salt = "a/b";
  BOOST_TEST(!mp_lookup(1, request, 1).ok());
}

BOOST_AUTO_TEST_CASE(replies_that_are_cut_or_changed_are_refused_or_read_whole) {
  // {"context": {"slots": [{"offset": 4096, "length": 8, "shape": [2, 1], "dtype": "half"}],
  //              "chunk_indices": [3], "more": nil}}
  const std::string bytes =
      "\x81\xa7"
      "context\x83\xa5"
      "slots\x91\x84\xa6"
      "offset\xcd\x10" +
      std::string(1, '\0') +
      "\xa6"
      "length\x08\xa5"
      "shape\x92\x02\x01\xa5"
      "dtype\xa4"
      "half\xad"
      "chunk_indices\x91\x03\xa4"
      "more\xc0";
  const MpReply reply{1, 16, bytes};
  const MpSlots slots = mp_slots(reply).value();
  BOOST_TEST((slots.slots == std::vector<MpSlots::Slot>{{4096, 8, {2, 1}, "half"}}));
  BOOST_TEST((slots.chunk_indices == std::vector<std::int64_t>{3}));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    BOOST_TEST(!mp_slots({1, 16, bytes.substr(0, size)}).ok());
  BOOST_TEST(!mp_slots({1, 16, std::string(100, '\x91')}).ok());
  BOOST_TEST(!mp_slots({1, 16, "\xdf\xff\xff\xff\xff"}).ok());
}

BOOST_AUTO_TEST_CASE(placeholders_of_an_item_are_numbers_of_31_bits_made_of_its_name) {
  const auto tokens = placeholder_tokens("item", 20);
  BOOST_TEST(tokens.size() == 20u);
  for (const std::int64_t token : tokens) BOOST_TEST((token >= 0 && token < (1ll << 31)));
  const auto fewer = placeholder_tokens("item", 9);
  BOOST_TEST(std::equal(fewer.begin(), fewer.end(), tokens.begin()));
  BOOST_TEST((placeholder_tokens("other", 9) != fewer));
}

}  // namespace
}  // namespace troupe::lmcache
