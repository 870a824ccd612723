// Connectors of shared objects, several at once, and what comes of loads that fail.

#include <boost/test/unit_test.hpp>

#include "runtime/kv_transfer/store_connector.hpp"
#include "tests/runtime/kv_transfer/temporary_folder.hpp"
#include "tests/runtime/kv_transfer/transfer_engine.hpp"

namespace troupe {
namespace {

using namespace testing;

std::string failing(const std::string& policy) {
  return R"({"kv_connector":"FailingConnector","kv_role":"kv_both","kv_connector_module_path":")" +
         std::string(TROUPE_TEST_MODULE) + R"(","kv_load_failure_policy":")" + policy + "\"}";
}

std::vector<Answer> expected_answers() {
  return TransferEngine({.num_blocks = 200}).run(some_prompts());
}

BOOST_AUTO_TEST_CASE(a_load_that_fails_is_computed_or_fails_the_request_by_policy) {
  const std::vector<Answer> expected = expected_answers();
  TransferEngine recomputing({.num_blocks = 200, .transfer = failing("recompute")});
  BOOST_TEST((recomputing.run(some_prompts(), /*together=*/true) == expected));
  BOOST_TEST(recomputing.num_failed() == expected.size());
  TransferEngine refusing({.num_blocks = 200, .transfer = failing("fail")});
  const std::int32_t num_free = refusing.num_free_blocks();
  for (const Answer& answer : refusing.run(some_prompts(), /*together=*/true)) {
    BOOST_TEST(answer.has_failed);
    BOOST_TEST(answer.tokens.empty());
  }
  BOOST_TEST(refusing.num_free_blocks() == num_free);
}

BOOST_AUTO_TEST_CASE(the_first_of_several_connectors_that_has_blocks_gives_them) {
  const std::vector<Answer> expected = expected_answers();
  const BlockFolder folder;
  const std::string files = R"({"kv_connector":"ExampleConnector","kv_role":"kv_both",)"
                            R"("kv_connector_extra_config":{"shared_storage_path":")" +
                            folder.path().string() + "\"}}";
  const std::string memory = R"({"kv_connector":"OffloadingConnector","kv_role":"kv_both"})";
  const std::string both = R"({"kv_connector":"MultiConnector","kv_role":"kv_both",)"
                           R"("kv_connector_extra_config":{"connectors":[)" +
                           memory + "," + files + "]}}";
  {
    TransferEngine engine({.transfer = both});
    BOOST_TEST((engine.run(some_prompts()) == expected));
    engine.reset_prefix_cache();
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() >= 5u * 16);
  }
  // Only the files are left.
  TransferEngine engine({.transfer = both});
  BOOST_TEST((engine.run(some_prompts()) == expected));
  BOOST_TEST(engine.num_external_hits() >= 5u * 16);
  BOOST_TEST(engine.num_failed() == 0u);
}

BOOST_AUTO_TEST_CASE(blocks_are_kept_in_memory_and_in_files_and_copied_back) {
  const std::vector<Answer> expected = expected_answers();
  const BlockFolder folder;
  // Memory for a third of the blocks.
  const std::string tiers =
      R"({"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":)"
      R"({"num_cpu_blocks":10,"eviction_policy":"arc","self_describing_kv_events":true,)"
      R"("secondary_tiers":[{"type":"fs","root_dir":")" +
      folder.path().string() + "\"}]}}";
  {
    TransferEngine engine({.transfer = tiers});
    BOOST_TEST((engine.run(some_prompts()) == expected));
    engine.reset_prefix_cache();
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() >= 5u * 16);
    const auto& connector = engine.connector<StoreKVConnector>();
    BOOST_TEST(connector.index(0).size() <= 10u);
    BOOST_TEST(connector.index(1).size() > 20u);
    std::size_t num_stored = 0, num_removed = 0, num_files = 0;
    for (const KVCacheEvent& event : engine.take_events()) {
      if (const auto* const stored = std::get_if<BlocksStored>(&event)) {
        num_stored += stored->medium == "CPU";
        num_files += stored->medium == "STORAGE";
        BOOST_TEST(stored->token_ids.size() == 4u);
      } else if (const auto* const removed = std::get_if<BlockRemoved>(&event)) {
        BOOST_TEST(removed->medium == "CPU");
        ++num_removed;
      }
    }
    BOOST_TEST(num_stored - num_removed == connector.index(0).size());
    BOOST_TEST(num_files == connector.index(1).size());
  }
  TransferEngine engine({.transfer = tiers});
  BOOST_TEST((engine.run(some_prompts()) == expected));
  BOOST_TEST(engine.num_external_hits() >= 5u * 16);
}

void check_moves(EngineSetup setup, const std::string& to) {
  const std::vector<Answer> expected = expected_answers();
  const BlockFolder folder;
  const std::string place = folder.path().string();
  setup.transfer = R"({"kv_connector":"OffloadingConnector","kv_role":"kv_both"})";
  TransferEngine from(setup);
  BOOST_TEST((from.run(some_prompts()) == expected));
  const CacheMoved exported = from.move_cache(false, place);
  BOOST_REQUIRE(!exported.error.has_value());
  BOOST_TEST(exported.num_blocks > 20);
  setup.transfer = to;
  TransferEngine into(setup);
  BOOST_TEST(into.move_cache(true, place + "/absent").error.value().message.find("/absent") !=
             std::string::npos);
  const CacheMoved imported = into.move_cache(true, place);
  BOOST_REQUIRE(!imported.error.has_value());
  BOOST_TEST(imported.num_blocks == exported.num_blocks);
  BOOST_TEST((into.run(some_prompts()) == expected));
  BOOST_TEST(into.num_external_hits() >= 5u * 16);
  BOOST_TEST(into.num_failed() == 0u);
  // A second time there is nothing new.
  BOOST_TEST(into.move_cache(true, place).num_blocks == 0);
}

BOOST_AUTO_TEST_CASE(what_is_exported_from_memory_can_be_imported_elsewhere) {
  check_moves({.num_blocks = 200}, R"({"kv_connector":"OffloadingConnector","kv_role":"kv_both"})");
}
BOOST_AUTO_TEST_CASE(so_it_can_on_two_ranks_into_memory_and_files) {
  const BlockFolder files;
  check_moves({.tensor_parallel_size = 2, .num_blocks = 200},
              R"({"kv_connector":"MultiConnector","kv_role":"kv_both",)"
              R"("kv_connector_extra_config":{"connectors":[{"kv_connector":"OffloadingConnector",)"
              R"("kv_role":"kv_both"},{"kv_connector":"ExampleConnector","kv_role":"kv_both",)"
              R"("kv_connector_extra_config":{"shared_storage_path":")" +
                  files.path().string() + R"("}}]}})");
}

BOOST_AUTO_TEST_CASE(a_connector_that_keeps_nothing_exports_nothing) {
  const BlockFolder folder;
  TransferEngine engine(
      {.transfer = R"({"kv_connector":"DecodeBenchConnector","kv_role":"kv_both"})"});
  const CacheMoved moved = engine.move_cache(false, folder.path().string());
  BOOST_REQUIRE(moved.error.has_value());
  BOOST_TEST((moved.error->code == ErrorCode::kUnsupported));
}

BOOST_AUTO_TEST_CASE(a_benchmark_of_decoding_computes_no_prompt) {
  TransferEngine engine({.num_blocks = 200,
                         .transfer =
                             R"({"kv_connector":"DecodeBenchConnector","kv_role":"kv_both",)"
                             R"("kv_connector_extra_config":{"fill_std":0.01}})"});
  const std::vector<Answer> answers = engine.run(some_prompts(), /*together=*/true);
  for (const Answer& answer : answers) BOOST_TEST(answer.tokens.size() == 7u);
  std::uint64_t num_tokens = 0;
  for (const auto& prompt : some_prompts()) num_tokens += prompt.size() - 1;
  // Two prompts share 12, which the second one finds in the cache.
  BOOST_TEST(engine.num_external_hits() >= num_tokens - 12);
}

}  // namespace
}  // namespace troupe
