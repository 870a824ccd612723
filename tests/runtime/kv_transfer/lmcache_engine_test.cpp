// Whole engines with LMCacheConnectorV1: chunks of prompts come back from each tier. Tokens and
// log-probabilities are the same, bit for bit, as without a connector.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>

#include "runtime/cache_server/cache_server.hpp"
#include "runtime/kv_transfer/lmcache_connector.hpp"
#include "tests/runtime/kv_transfer/temporary_folder.hpp"
#include "tests/runtime/kv_transfer/transfer_engine.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using testing::Answer;
using testing::EngineSetup;
using testing::some_prompts;
using testing::TransferEngine;

/// Of some_prompts, in chunks of 8 tokens: those of all full chunks that are not the last token's.
constexpr std::uint64_t kChunkTokens = 16 + 16 + 24 + 32 + 32;
constexpr std::uint64_t kSharedTokens = 12;  // of two prompts: the second one has them locally

std::string lmcache_transfer(const std::string& extra, const std::string& role = "kv_both") {
  return R"({"kv_connector":"LMCacheConnectorV1","kv_role":")" + role +
         R"(","kv_connector_extra_config":{"lmcache.chunk_size":8)" +
         (extra.empty() ? "" : "," + extra) + "}}";
}
std::string on_disk(const BlockFolder& folder) {
  return R"("lmcache.local_cpu":false,"lmcache.max_local_disk_size":1,"lmcache.local_disk":")" +
         folder.path().string() + "\"";
}
std::string remote_only(const std::string& url) {
  return R"("lmcache.local_cpu":false,"lmcache.remote_url":")" + url + "\"";
}

std::vector<Answer> answers_without(EngineSetup setup) {
  setup.transfer.clear();
  setup.num_blocks = 200;
  setup.tensor_parallel_size = 1;
  TransferEngine engine(setup);
  return engine.run(some_prompts());
}

/// Cold, then with all prefixes evicted from the cache itself.
void check_memory(EngineSetup setup) {
  const std::vector<Answer> expected = answers_without(setup);
  setup.transfer = lmcache_transfer("");
  TransferEngine engine(setup);
  BOOST_TEST((engine.run(some_prompts()) == expected));
  engine.reset_prefix_cache();
  const std::uint64_t before = engine.num_external_hits();
  BOOST_TEST((engine.run(some_prompts()) == expected));
  BOOST_TEST(engine.num_external_hits() == before + kChunkTokens - kSharedTokens);
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(some_prompts(), /*together=*/true) == expected));
  BOOST_TEST(engine.num_failed() == 0u);
  BOOST_TEST(engine.connector<LMCacheConnector>().num_requests() == 0u);
  engine.reset_prefix_cache(/*connector_too=*/true);
  BOOST_TEST(engine.connector<LMCacheConnector>().cpu().size() == 0u);
}

BOOST_AUTO_TEST_CASE(chunks_come_back_from_memory_with_the_same_bits) { check_memory({}); }
BOOST_AUTO_TEST_CASE(so_they_do_with_steps_planned_ahead_on_two_ranks) {
  check_memory({.tensor_parallel_size = 2, .async_scheduling = true});
}
BOOST_AUTO_TEST_CASE(so_they_do_with_a_cache_of_8_bits) {
  check_memory({.kv_cache_dtype = "int8"});
}

/// Layer by layer: from memory, and from a disk on which some chunks are damaged, and one hangs.
void check_chunk_layers(EngineSetup setup) {
  const std::vector<Answer> expected = answers_without(setup);
  const BlockFolder folder;
  setup.transfer = lmcache_transfer(R"("lmcache.use_layerwise":true)");
  {
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    engine.reset_prefix_cache();
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() > 0u);
    engine.reset_prefix_cache();
    // Of steps in flight all are lost, or none: here one by one.
    if (!setup.async_scheduling) engine.lose_steps(2);
    BOOST_TEST((engine.run(some_prompts(), /*together=*/true) == expected));
    BOOST_TEST(engine.connector<LMCacheConnector>().num_requests() == 0u);
  }
  setup.transfer = lmcache_transfer(
      R"("lmcache.use_layerwise":true,"lmcache.blocking_timeout_secs":1,)" + on_disk(folder));
  {
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder.path())) files.push_back(entry.path());
  std::ranges::sort(files);
  for (std::size_t i = 1; i < files.size(); i += 4) {
    std::fstream file(files[i], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-9, std::ios::end);
    file << "damaged";
  }
  HangingFiles hanging({files.front()});
  // What a step computes from a damaged chunk is stored by nobody.
  std::vector<std::vector<TokenId>> longer = some_prompts();
  for (std::vector<TokenId>& prompt : longer)
    for (TokenId token = 5; token < 17; ++token) prompt.push_back(token);
  EngineSetup plain = setup;
  plain.transfer.clear();
  plain.num_blocks = 200;
  plain.tensor_parallel_size = 1;
  const std::vector<Answer> expected_longer = TransferEngine(plain).run(longer);
  TransferEngine engine(setup);
  const std::int32_t num_free = engine.num_free_blocks();
  BOOST_TEST((engine.run(longer) == expected_longer));
  hanging.release();
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(longer) == expected_longer));
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(some_prompts(), /*together=*/true) == expected));
  BOOST_TEST(engine.num_external_hits() > 0u);
  BOOST_TEST(engine.num_free_blocks() == num_free);
}

BOOST_AUTO_TEST_CASE(chunks_come_and_go_layer_by_layer) {
  check_chunk_layers({});
  check_chunk_layers({.async_scheduling = true});
}
BOOST_AUTO_TEST_CASE(so_they_do_on_several_ranks) {
  check_chunk_layers({.kv_cache_dtype = "int8", .tensor_parallel_size = 2});
  check_chunk_layers({.pipeline_parallel_size = 2});
}
BOOST_AUTO_TEST_CASE(chunks_of_several_groups_come_layer_by_layer_with_sliding_windows) {
  check_chunk_layers({.model = "gemma3_text", .num_blocks = 60});
}
BOOST_AUTO_TEST_CASE(chunks_give_the_same_tokens_with_sliding_windows) {
  // Windows of 16 tokens, prompts of up to 38 that are computed in steps of less.
  check_memory({.model = "gemma3_text", .num_blocks = 60});
}

BOOST_AUTO_TEST_CASE(each_policy_keeps_the_limit_and_the_bits) {
  const std::vector<Answer> expected = answers_without({});
  for (const std::string policy : {"LRU", "LFU", "FIFO", "MRU"}) {
    // About four chunks.
    TransferEngine engine(
        {.transfer = lmcache_transfer(
             R"("lmcache.max_local_cpu_size":0.00003,"lmcache.cache_policy":")" + policy + "\"")});
    for (int round = 0; round < 2; ++round) {
      BOOST_TEST((engine.run(some_prompts()) == expected));
      engine.reset_prefix_cache();
    }
    BOOST_TEST(engine.num_failed() == 0u);
    const auto& cpu = engine.connector<LMCacheConnector>().cpu();
    BOOST_TEST(cpu.size() > 0u);
    BOOST_TEST(cpu.num_bytes() <= 32213);
  }
}

BOOST_AUTO_TEST_CASE(chunks_on_disk_outlive_the_engine) {
  for (const std::int32_t ranks : {1, 2}) {
    const BlockFolder folder;
    const EngineSetup setup{.tensor_parallel_size = ranks,
                            .transfer = lmcache_transfer(on_disk(folder))};
    const std::vector<Answer> expected = answers_without(setup);
    {
      TransferEngine engine(setup);
      BOOST_TEST((engine.run(some_prompts()) == expected));
    }
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() == kChunkTokens - kSharedTokens);
    BOOST_TEST(engine.num_failed() == 0u);
  }
}

BOOST_AUTO_TEST_CASE(chunks_that_were_cut_changed_or_deleted_are_computed_and_written_anew) {
  const BlockFolder folder;
  const EngineSetup setup{.transfer = lmcache_transfer(on_disk(folder))};
  const std::vector<Answer> expected = answers_without(setup);
  {
    TransferEngine engine(setup);
    engine.run(some_prompts());
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder.path())) files.push_back(entry.path());
  std::ranges::sort(files);
  BOOST_REQUIRE(files.size() > 10u);
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (i % 4 == 0) fs::resize_file(files[i], fs::file_size(files[i]) / 2);
    if (i % 4 == 1) fs::remove(files[i]);
    if (i % 4 == 2) {
      std::fstream file(files[i], std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(200);
      file.put('\x5a');
    }
  }
  // A damaged chunk behind a deleted one is found once that one is there again.
  for (const bool is_first : {true, false}) {
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    if (is_first) BOOST_TEST(engine.num_failed() > 0u);
  }
  TransferEngine engine(setup);
  BOOST_TEST((engine.run(some_prompts()) == expected));
  BOOST_TEST(engine.num_failed() == 0u);
  BOOST_TEST(engine.num_external_hits() == kChunkTokens - kSharedTokens);
}

/// Values that the writers' threads have put.
void wait_for_values(CacheServer& server, std::size_t number) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (server.store().usage().num_values < number && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  BOOST_TEST(server.store().usage().num_values == number);
}

BOOST_AUTO_TEST_CASE(layer_by_layer_what_is_on_the_host_and_whole_what_is_remote) {
  auto server = CacheServer::start({.port = 0}).value();
  const EngineSetup setup{
      .transfer =
          lmcache_transfer(R"("lmcache.use_layerwise":true,"lmcache.remote_url":"lm://127.0.0.1:)" +
                           std::to_string(server->port()) + "\"")};
  const std::vector<Answer> expected = answers_without(setup);
  for (int engines = 0; engines < 2; ++engines) {
    TransferEngine engine(setup);
    for (int round = 0; round < 2; ++round) {
      BOOST_TEST((engine.run(some_prompts()) == expected));
      engine.reset_prefix_cache();
    }
    BOOST_TEST(engine.num_external_hits() > 0u);
    BOOST_TEST((engine.run(some_prompts(), /*together=*/true) == expected));
    // Steps that load put nothing into the remote store: all is there by the ones before.
    wait_for_values(*server, 2 + 1 + 3 + 4 + 4);
  }
}

BOOST_AUTO_TEST_CASE(engines_share_chunks_through_a_cache_server) {
  auto server = CacheServer::start({.port = 0}).value();
  const std::string url = "lm://127.0.0.1:" + std::to_string(server->port());
  const EngineSetup setup{.tensor_parallel_size = 2,
                          .transfer = lmcache_transfer(remote_only(url))};
  const std::vector<Answer> expected = answers_without(setup);
  {
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() == 0u);
  }
  // Each full chunk once, of each rank; two prompts share their first one.
  wait_for_values(*server, 2 * (2 + 1 + 3 + 4 + 4));
  {
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() == kChunkTokens - kSharedTokens);
    BOOST_TEST((engine.run({some_prompts()[4]}, false, "tenant") == std::vector{expected[4]}));
    BOOST_TEST(engine.num_external_hits() == kChunkTokens - kSharedTokens);
    BOOST_TEST(engine.num_failed() == 0u);
  }
  // A number of ranks, a type: other bits, other keys.
  {
    EngineSetup other = setup;
    other.tensor_parallel_size = 1;
    TransferEngine engine(other);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() == 0u);
  }
  // The server goes while an engine thinks that it has the chunks.
  TransferEngine engine(setup);
  BOOST_TEST((engine.run({some_prompts()[4]}) == std::vector{expected[4]}));
  engine.reset_prefix_cache();
  server.reset();
  BOOST_TEST((engine.run(some_prompts()) == expected));
}

BOOST_AUTO_TEST_CASE(what_is_read_from_a_remote_store_is_kept_in_memory) {
  const BlockFolder folder;
  const EngineSetup setup{.transfer = lmcache_transfer(R"("lmcache.remote_url":"fs://localhost:0)" +
                                                       folder.path().string() + "\"")};
  const std::vector<Answer> expected = answers_without(setup);
  {
    TransferEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
  }
  TransferEngine engine(setup);
  BOOST_TEST((engine.run({some_prompts()[4]}) == std::vector{expected[4]}));
  BOOST_TEST(engine.num_external_hits() == 32u);
  BOOST_TEST(engine.connector<LMCacheConnector>().cpu().size() == 4u);
  for (const auto& entry : fs::directory_iterator(folder.path())) fs::remove(entry.path());
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run({some_prompts()[4]}) == std::vector{expected[4]}));
  BOOST_TEST(engine.num_external_hits() == 64u);
  BOOST_TEST(engine.num_failed() == 0u);
}

BOOST_AUTO_TEST_CASE(a_prefix_is_read_from_all_tiers_together) {
  const BlockFolder disk;
  const BlockFolder remote;
  // About one chunk in memory, four on disk, all of them in the remote store.
  const EngineSetup setup{
      .transfer = lmcache_transfer(
          R"("lmcache.max_local_cpu_size":0.00001,"lmcache.max_local_disk_size":0.00003,)"
          R"("lmcache.local_disk":")" +
          disk.path().string() + R"(","lmcache.remote_url":"fs://localhost:0)" +
          remote.path().string() + "\"")};
  const std::vector<Answer> expected = answers_without(setup);
  TransferEngine engine(setup);
  BOOST_TEST((engine.run(some_prompts()) == expected));
  const auto& connector = engine.connector<LMCacheConnector>();
  BOOST_TEST(connector.cpu().size() < connector.disk().size());
  BOOST_TEST(connector.disk().size() < 14u);
  const auto num_files = [&] {
    return std::distance(fs::directory_iterator(remote.path()), fs::directory_iterator());
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (num_files() < 14 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  for (int round = 0; round < 2; ++round) {
    engine.reset_prefix_cache();
    const std::uint64_t before = engine.num_external_hits();
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() == before + kChunkTokens - kSharedTokens);
  }
  BOOST_TEST(engine.num_failed() == 0u);
}

/// Chunks in memory after one run of the last prompt, 38 tokens and 7 that follow.
std::size_t num_saved(const std::string& extra, const std::string& params = "",
                      const std::string& role = "kv_both") {
  TransferEngine engine({.transfer = lmcache_transfer(extra, role)});
  engine.run({some_prompts()[4]}, false, {}, {{0, params}});
  return engine.connector<LMCacheConnector>().cpu().size();
}

BOOST_AUTO_TEST_CASE(the_rules_for_saving_hold) {
  BOOST_TEST(num_saved("") == 4u);
  BOOST_TEST(num_saved(R"("lmcache.save_decode_cache":true)") == 5u);
  BOOST_TEST(num_saved(R"("lmcache.save_unfull_chunk":true)") == 5u);
  BOOST_TEST(num_saved(R"("lmcache.force_skip_save":true)") == 0u);
  BOOST_TEST(num_saved(R"("lmcache.priority_limit":-1)") == 0u);
  BOOST_TEST(num_saved(R"("lmcache.priority_limit":0)") == 4u);
  BOOST_TEST(num_saved("", R"({"lmcache.skip_save":true})") == 0u);
  BOOST_TEST(num_saved("", R"({"lmcache.skip_save":false})") == 4u);
  BOOST_TEST(num_saved("", "", "kv_consumer") == 0u);
  BOOST_TEST(num_saved("", "", "kv_producer") == 4u);
}

std::uint64_t num_hits(const std::string& extra, const std::string& params = "") {
  TransferEngine engine({.transfer = lmcache_transfer(extra)});
  const auto first = engine.run({some_prompts()[4]}, false, {}, {{0, params}});
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run({some_prompts()[4]}, false, {}, {{0, params}}) == first));
  return engine.num_external_hits();
}

BOOST_AUTO_TEST_CASE(the_rules_for_loading_hold) {
  BOOST_TEST(num_hits("") == 32u);
  BOOST_TEST(num_hits(R"("lmcache.save_unfull_chunk":true)") == 36u);
  BOOST_TEST(num_hits(R"("lmcache.min_retrieve_tokens":33)") == 0u);
  BOOST_TEST(num_hits(R"("skip_last_n_tokens":8)") == 24u);
  BOOST_TEST(num_hits("", R"({"lmcache.max_tokens_per_load":20})") == 16u);
  BOOST_TEST(num_hits("", R"({"lmcache.tag.user":"u1"})") == 32u);
  // Tags are part of the key.
  TransferEngine engine({.transfer = lmcache_transfer("")});
  engine.run({some_prompts()[4]}, false, {}, {{0, R"({"lmcache.tag.user":"u1"})"}});
  engine.reset_prefix_cache();
  engine.run({some_prompts()[4]}, false, {}, {{0, R"({"lmcache.tag.user":"u2"})"}});
  BOOST_TEST(engine.num_external_hits() == 0u);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_transferred_is_refused_by_name) {
  const auto refuses = [](const std::string& model, const std::string& extra,
                          const std::string& part) {
    const WorkerOptions options{.model = TROUPE_GOLDEN_DIR "/models/models/" + model,
                                .dtype = "float32",
                                .device = "cpu",
                                .threads = 1,
                                .block_size = 4,
                                .max_num_seqs = 1,
                                .max_num_batched_tokens = 16};
    const ModelLoaded loaded = ModelRunner::load(options, {}).value()->describe();
    KVCacheSettings settings;
    const KVCacheConfig cache = plan_cache(loaded.layer_specs(), 24);
    settings.groups = cache.groups;
    const ConnectorConfig config =
        parse_connector_config(ConnectorKind::kKV, lmcache_transfer(extra)).value();
    const auto made = find_kv_connector(config).value()->create(
        {config, model_identity(options, loaded).value(), {}, cache, settings});
    BOOST_REQUIRE_MESSAGE(!made.ok(), part);
    BOOST_TEST(made.error().message.find(part) != std::string::npos, made.error().message);
  };
  refuses("llama4_text", "", "does not transfer layers of the kind");
  refuses("llama", R"("lmcache.chunk_sise":6)", "chunk_sise is unknown");
  refuses("llama", R"("lmcache.remote_url":"s3://bucket")", "there are lm, lms");
}

BOOST_AUTO_TEST_CASE(operations_of_a_step_come_back_as_they_were_packed) {
  LMCacheOps ops;
  BOOST_TEST((unpack_lmcache_ops(pack_lmcache_ops(ops)) == ops));
  ChunkBlocks chunk{
      .hash = ~0ull, .tags = "@a%b", .tiers = kDiskTier, .blocks = {1, 2, kNullBlock}};
  chunk.digest.bytes.fill(7);
  ops = {.oldest_load = 3,
         .loads = {{.number = 3, .id = RequestId{9}, .chunks = {chunk, chunk}}},
         .ops = {{ChunkOp::Kind::kSave, chunk}, {ChunkOp::Kind::kClear, {}}}};
  const std::string text = pack_lmcache_ops(ops);
  BOOST_TEST((unpack_lmcache_ops(text) == ops));
}

}  // namespace
}  // namespace troupe
