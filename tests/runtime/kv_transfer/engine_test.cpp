// Whole engines without actors: prefixes that were evicted come back from a store. Tokens and
// log-probabilities are the same, bit for bit, as without a connector.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>

#include "messages/kv_lookup.hpp"
#include "runtime/kv_transfer/store_connector.hpp"
#include "tests/runtime/kv_transfer/temporary_folder.hpp"
#include "tests/runtime/kv_transfer/transfer_engine.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using namespace testing;

std::string offloading(const std::string& extra = "{}") {
  return R"({"kv_connector":"OffloadingConnector","kv_role":"kv_both",)"
         R"("kv_connector_extra_config":)" +
         extra + "}";
}
std::string files_in(const BlockFolder& folder, const std::string& role = "kv_both") {
  return R"({"kv_connector":"FileConnector","kv_role":")" + role +
         R"(","kv_connector_extra_config":{"shared_storage_path":")" + folder.path().string() +
         "\"}}";
}

std::vector<fs::path> files_of(const BlockFolder& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

std::vector<Answer> plain_answers(EngineSetup setup) {
  setup.transfer.clear();
  setup.num_blocks = 200;
  setup.tensor_parallel_size = 1;
  TransferEngine engine(setup);
  return engine.run(some_prompts());
}

/// Cold, then with all prefixes evicted from the cache itself.
void check_offloading(EngineSetup setup) {
  const std::vector<Answer> expected = plain_answers(setup);
  setup.transfer = offloading();
  TransferEngine engine(setup);
  BOOST_TEST((engine.run(some_prompts()) == expected));
  engine.reset_prefix_cache();
  const std::uint64_t before = engine.num_external_hits();
  BOOST_TEST((engine.run(some_prompts()) == expected));
  BOOST_TEST(engine.num_external_hits() >= before + 5 * 16);
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(some_prompts(), /*together=*/true) == expected));
  BOOST_TEST(engine.num_failed() == 0u);
  BOOST_TEST(engine.connector<StoreKVConnector>().num_requests() == 0u);
}

/// The same layer by layer: in memory, and in files of which some are damaged.
void check_layers(EngineSetup setup, bool among_others = false) {
  const std::vector<Answer> expected = plain_answers(setup);
  const BlockFolder folder;
  const BlockFolder others;
  const std::string config =
      offloading(R"({"use_layerwise":true,"num_cpu_blocks":8,"secondary_tiers":[)"
                 R"({"type":"fs","root_dir":")" +
                 folder.path().string() + R"("}]})");
  setup.transfer = config;
  if (among_others)
    setup.transfer = R"({"kv_connector":"MultiConnector","kv_role":"kv_both",)"
                     R"("kv_connector_extra_config":{"connectors":[)" +
                     config + "," + files_in(others) + "]}}";
  {
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    engine.reset_prefix_cache();
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() >= 5u * 16);
    engine.reset_prefix_cache();
    // Of steps in flight all are lost, or none: here one by one.
    if (!setup.async_scheduling) engine.lose_steps(2);
    BOOST_TEST((engine.run(some_prompts(), /*together=*/true) == expected));
    BOOST_TEST(engine.num_failed() == 0u);
    if (!among_others) BOOST_TEST(engine.connector<StoreKVConnector>().num_requests() == 0u);
  }
  const auto files = files_of(folder);
  for (std::size_t i = 0; i < files.size(); i += 4) {
    std::fstream file(files[i], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-9, std::ios::end);
    file << "damaged";
  }
  TransferEngine engine(setup);
  const std::int32_t num_free = engine.num_free_blocks();
  BOOST_TEST((engine.run(some_prompts()) == expected));
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(some_prompts(), /*together=*/true) == expected));
  BOOST_TEST(engine.num_external_hits() > 0u);
  BOOST_TEST(engine.num_free_blocks() == num_free);
}

BOOST_AUTO_TEST_CASE(blocks_come_and_go_layer_by_layer) {
  check_layers({});
  check_layers({.async_scheduling = true});
  check_layers({.kv_cache_dtype = "int8", .tensor_parallel_size = 2});
  check_layers({.pipeline_parallel_size = 2});
  check_layers({}, /*among_others=*/true);
}
BOOST_AUTO_TEST_CASE(so_they_do_in_several_groups_with_sliding_windows) {
  check_layers({.model = "gemma3_text", .num_blocks = 60});
  check_layers({.model = "gemma3_text", .num_blocks = 60, .async_scheduling = true},
               /*among_others=*/true);
  check_layers({.model = "gemma3_text", .tensor_parallel_size = 2, .num_blocks = 60});
}

BOOST_AUTO_TEST_CASE(evicted_prefixes_come_back_from_memory_with_the_same_bits) {
  check_offloading({});
}
BOOST_AUTO_TEST_CASE(so_they_do_with_steps_planned_ahead) {
  check_offloading({.async_scheduling = true});
}
BOOST_AUTO_TEST_CASE(so_they_do_with_sliding_windows) {
  check_offloading({.model = "gemma3_text", .num_blocks = 60});
}
BOOST_AUTO_TEST_CASE(so_they_do_with_caches_of_8_bits) {
  check_offloading({.kv_cache_dtype = "int8"});
  check_offloading({.kv_cache_dtype = "fp8"});
}
BOOST_AUTO_TEST_CASE(so_they_do_on_two_ranks) { check_offloading({.tensor_parallel_size = 2}); }

BOOST_AUTO_TEST_CASE(a_store_that_is_too_small_for_all_keeps_what_was_used_last) {
  const std::vector<Answer> expected = plain_answers({});
  TransferEngine engine({.transfer = offloading(R"({"num_cpu_blocks":9})")});
  for (int round = 0; round < 3; ++round) {
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.connector<StoreKVConnector>().index().size() <= 9u);
    engine.reset_prefix_cache();
    // The last prompt is there, but for its first blocks: they went first.
    BOOST_TEST((engine.run({some_prompts()[0]}) == std::vector{expected[0]}));
    const std::uint64_t before = engine.num_external_hits();
    engine.reset_prefix_cache();
    BOOST_TEST((engine.run({some_prompts()[0]}) == std::vector{expected[0]}));
    BOOST_TEST(engine.num_external_hits() == before + 16);
  }
}

BOOST_AUTO_TEST_CASE(a_lookup_tells_what_is_cached_and_where_and_computes_nothing) {
  TransferEngine engine({.transfer = offloading()});
  const std::vector<TokenId> prompt = some_prompts()[4];
  const auto check = [&](const std::string& salt, const std::string& found) {
    const std::int32_t num_free = engine.num_free_blocks();
    const Answer answer = engine.finish(engine.add(prompt, kLookupParams, salt));
    BOOST_TEST(answer.transfer_params == "{\"num_tokens\":38," + found + "}");
    BOOST_TEST(answer.tokens.empty());
    BOOST_TEST(engine.num_free_blocks() == num_free);
  };
  const std::string nothing = R"("device":0,"host":0,"disk":0,"remote":0,"peer":0)";
  check("", nothing);
  engine.run({prompt});
  check("", R"("device":36,"host":0,"disk":0,"remote":0,"peer":0)");
  check("a tenant", nothing);
  engine.reset_prefix_cache();
  check("", R"("device":0,"host":36,"disk":0,"remote":0,"peer":0)");
  BOOST_TEST(engine.num_external_hits() == 0u);
  engine.reset_prefix_cache(/*connector_too=*/true);
  check("", nothing);
}

BOOST_AUTO_TEST_CASE(another_salt_finds_nothing) {
  TransferEngine engine({.transfer = offloading()});
  const std::vector<std::vector<TokenId>> prompt = {some_prompts()[4]};
  const std::vector<Answer> first = engine.run(prompt, false, "a");
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(prompt, false, "b") == first));
  BOOST_TEST(engine.num_external_hits() == 0u);
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(prompt, false, "a") == first));
  BOOST_TEST(engine.num_external_hits() == 36u);
  engine.reset_prefix_cache(/*connector_too=*/true);
  BOOST_TEST((engine.run(prompt, false, "a") == first));
  BOOST_TEST(engine.num_external_hits() == 36u);
}

BOOST_AUTO_TEST_CASE(files_outlive_the_engine) {
  for (const std::int32_t ranks : {1, 2}) {
    const BlockFolder folder;
    EngineSetup setup{.tensor_parallel_size = ranks, .transfer = files_in(folder)};
    const std::vector<Answer> expected = plain_answers(setup);
    {
      TransferEngine engine(setup);
      BOOST_TEST((engine.run(some_prompts()) == expected));
    }
    BOOST_TEST(files_of(folder).size() > 20u);
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() >= 5 * 16u);
    BOOST_TEST(engine.num_failed() == 0u);
  }
}

BOOST_AUTO_TEST_CASE(files_of_another_type_of_cache_do_not_count) {
  const BlockFolder folder;
  {
    TransferEngine engine({.transfer = files_in(folder)});
    engine.run(some_prompts());
  }
  const EngineSetup setup{.kv_cache_dtype = "int8", .transfer = files_in(folder)};
  TransferEngine engine(setup);
  BOOST_TEST((engine.run(some_prompts()) == plain_answers(setup)));
  BOOST_TEST(engine.connector<StoreKVConnector>().index().size() > 20u);
  BOOST_TEST(engine.num_failed() == 0u);
}

BOOST_AUTO_TEST_CASE(what_was_cut_changed_or_deleted_is_computed_and_written_anew) {
  const BlockFolder folder;
  EngineSetup setup{.transfer = files_in(folder)};
  const std::vector<Answer> expected = plain_answers(setup);
  {
    TransferEngine engine(setup);
    engine.run(some_prompts());
  }
  const std::vector<fs::path> files = files_of(folder);
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (i % 4 == 0) fs::resize_file(files[i], fs::file_size(files[i]) / 2);
    if (i % 4 == 1) fs::remove(files[i]);
    if (i % 4 == 2) {
      std::fstream file(files[i], std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(200);
      file.put('\x5a');
    }
  }
  {
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_failed() > 0u);
  }
  TransferEngine engine(setup);
  BOOST_TEST((engine.run(some_prompts()) == expected));
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(some_prompts()) == expected));
}

/// `model`: of one group, or of several.
void check_damaged_layers(const std::string& model) {
  const BlockFolder folder;
  EngineSetup setup{.model = model,
                    .num_blocks = model == "llama" ? 24 : 60,
                    .transfer = offloading(R"({"use_layerwise":true,"secondary_tiers":[)"
                                           R"({"type":"fs","root_dir":")" +
                                           folder.path().string() + R"("}]})")};
  const std::vector<Answer> expected = plain_answers(setup);
  {
    TransferEngine engine(setup);
    engine.run(some_prompts());
  }
  for (const fs::path& path : files_of(folder)) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-9, std::ios::end);
    file << "damaged";
  }
  // What a step computes from them is stored by nobody, either.
  std::vector<TokenId> longer = some_prompts()[3];
  for (TokenId token = 5; token < 17; ++token) longer.push_back(token);
  const std::vector<Answer> expected_longer =
      TransferEngine({.model = model, .num_blocks = 200}).run({longer});
  TransferEngine engine(setup);
  for (int round = 0; round < 3; ++round) {
    BOOST_TEST((engine.run({longer}) == expected_longer));
    engine.reset_prefix_cache();
  }
  BOOST_TEST(engine.num_external_hits() > 0u);
  const RequestId id = engine.add(some_prompts()[4], "");
  static_cast<void>(engine.step());  // it loads, and fails
  BOOST_TEST(engine.num_external_hits() > 0u);
  engine.abort(id);
  BOOST_TEST((engine.run({some_prompts()[4]}) == std::vector{expected[4]}));
}

BOOST_AUTO_TEST_CASE(what_a_layered_load_leaves_wrong_is_found_by_nobody) {
  check_damaged_layers("llama");
  check_damaged_layers("gemma3_text");
}

BOOST_AUTO_TEST_CASE(reads_that_hang_are_misses_whatever_reads) {
  const std::vector<Answer> expected = plain_answers({});
  for (const std::string extra : {"", R"("use_layerwise":true,)"}) {
    const BlockFolder folder;
    const auto transfer = [&](const std::string& timeout) {
      return offloading("{" + extra + timeout + R"("secondary_tiers":[{"type":"fs","root_dir":")" +
                        folder.path().string() + R"("}]})");
    };
    {
      TransferEngine engine({.transfer = transfer("")});
      engine.run(some_prompts());
    }
    HangingFiles files(files_of(folder));
    {
      TransferEngine engine({.transfer = transfer(R"("load_timeout_s":0.05,)")});
      const std::int32_t num_free = engine.num_free_blocks();
      BOOST_TEST((engine.run(some_prompts()) == expected));
      BOOST_TEST(engine.num_free_blocks() == num_free);
      files.release();
      engine.reset_prefix_cache();
      BOOST_TEST((engine.run(some_prompts()) == expected));
    }
    // What was computed meanwhile has been written.
    TransferEngine engine({.transfer = transfer("")});
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() >= 5 * 16u);
  }
}

BOOST_AUTO_TEST_CASE(a_producer_loads_nothing_and_a_consumer_saves_nothing) {
  const BlockFolder folder;
  const std::vector<Answer> expected = plain_answers({});
  {
    TransferEngine consumer({.transfer = files_in(folder, "kv_consumer")});
    BOOST_TEST((consumer.run(some_prompts()) == expected));
  }
  BOOST_TEST(files_of(folder).empty());
  {
    TransferEngine producer({.transfer = files_in(folder, "kv_producer")});
    BOOST_TEST((producer.run(some_prompts()) == expected));
    producer.reset_prefix_cache();
    BOOST_TEST((producer.run(some_prompts()) == expected));
    BOOST_TEST(producer.num_external_hits() == 0u);
  }
  TransferEngine consumer({.transfer = files_in(folder, "kv_consumer")});
  BOOST_TEST((consumer.run(some_prompts()) == expected));
  BOOST_TEST(consumer.num_external_hits() >= 5 * 16u);
}

}  // namespace
}  // namespace troupe
