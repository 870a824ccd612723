// Connectors of shared objects, several at once, and what comes of loads that fail.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "runtime/kv_transfer/store_connector.hpp"
#include "runtime/models/safetensors.hpp"
#include "runtime/models/tensor_file.hpp"
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
  const std::string files = R"({"kv_connector":"FileConnector","kv_role":"kv_both",)"
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

// ---- vLLM's files -------------------------------------------------------------------------------

std::string prompt_files_in(const BlockFolder& folder, const std::string& more = "") {
  return R"({"kv_connector":"ExampleConnector","kv_role":"kv_both",)"
         R"("kv_connector_extra_config":{"shared_storage_path":")" +
         folder.path().string() + "\"" + more + "}}";
}

std::vector<std::filesystem::path> tensor_files(const BlockFolder& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

/// Cold, then from the files, by another engine.
void check_prompt_files(EngineSetup setup) {
  const std::vector<Answer> expected = expected_answers();
  const BlockFolder folder;
  setup.num_blocks = 200;
  setup.transfer = prompt_files_in(folder);
  BOOST_TEST((TransferEngine(setup).run(some_prompts()) == expected));
  TransferEngine reader(setup);
  BOOST_TEST((reader.run(some_prompts()) == expected));
  // Prompts of 18, 23 (12 of them are in the cache by then), 28, 33 and 38 tokens. Of 33 one block
  // more is saved than looked up, as by vLLM: it is not found.
  BOOST_TEST(reader.num_external_hits() == 16u + 8 + 24 + 36);
  BOOST_TEST(reader.num_failed() == 0u);
}

BOOST_AUTO_TEST_CASE(prompts_are_kept_in_files_of_layers) {
  check_prompt_files({});
  check_prompt_files({.async_scheduling = true});
  check_prompt_files({.pipeline_parallel_size = 2});
}

BOOST_AUTO_TEST_CASE(the_files_have_the_names_and_shapes_of_vllm) {
  const BlockFolder folder;
  std::vector<TokenId> prompt;
  for (TokenId token = 1; token <= 10; ++token) prompt.push_back(token);
  TransferEngine({.transfer = prompt_files_in(folder)}).run({prompt});
  const auto files = tensor_files(folder);
  BOOST_REQUIRE(!files.empty());
  // md5 of 1 to 8, each of 64 bits: Python's hashlib.
  BOOST_TEST(files[0].parent_path().filename() == "1f3c8f98b5369fb9dd7053b6c9dd451f");
  BOOST_TEST(files[0].filename() == "model.layers.0.self_attn.attn.safetensors");
  const auto file = SafetensorsFile::open(files[0]).value();
  const TensorView* const tensor = file.find("kv_cache");
  BOOST_REQUIRE(tensor != nullptr);
  BOOST_TEST(tensor->shape.size() == 3u);
  BOOST_TEST(tensor->shape[0] == 8);
}

BOOST_AUTO_TEST_CASE(files_without_our_metadata_are_read_and_damaged_ones_are_written_anew) {
  const std::vector<Answer> expected = expected_answers();
  const BlockFolder folder;
  const EngineSetup setup{.num_blocks = 200, .transfer = prompt_files_in(folder)};
  const auto prompts = some_prompts();
  TransferEngine(setup).run({prompts[4]});
  // As another program writes it, which names its layers otherwise.
  for (const auto& path : tensor_files(folder)) {
    const auto file = SafetensorsFile::open(path).value();
    std::string name = path.filename().string();
    name.replace(0, std::string("model.layers").size(), "transformer.h");
    BOOST_REQUIRE(
        write_tensor_file(path.parent_path() / name, "kv_cache", *file.find("kv_cache"), {}).ok());
    std::filesystem::remove(path);
  }
  TransferEngine reader(setup);
  BOOST_TEST((reader.run({prompts[4]})[0] == expected[4]));
  BOOST_TEST(reader.num_external_hits() == 36u);
  // Now what is cut, and what is not there, is computed and written.
  const auto files = tensor_files(folder);
  std::filesystem::resize_file(files[0], 100);
  for (std::size_t i = 1; i < files.size(); ++i) std::filesystem::remove(files[i]);
  TransferEngine repairing(setup);
  BOOST_TEST((repairing.run({prompts[4]})[0] == expected[4]));
  BOOST_TEST(repairing.num_failed() == 1u);
  TransferEngine last(setup);
  BOOST_TEST((last.run({prompts[4]})[0] == expected[4]));
  BOOST_TEST(last.num_external_hits() == 36u);
  BOOST_TEST(last.num_failed() == 0u);
}

BOOST_AUTO_TEST_CASE(prompts_of_tenants_are_not_kept_in_files_that_do_not_name_them) {
  const BlockFolder folder;
  const EngineSetup setup{.num_blocks = 200, .transfer = prompt_files_in(folder)};
  TransferEngine(setup).run(some_prompts(), /*together=*/false, "salt");
  BOOST_TEST(tensor_files(folder).empty());
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
              R"("kv_role":"kv_both"},{"kv_connector":"FileConnector","kv_role":"kv_both",)"
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
