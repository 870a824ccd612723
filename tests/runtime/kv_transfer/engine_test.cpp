// Whole engines without actors: prefixes that were evicted come back from a store. Tokens and
// log-probabilities are the same, bit for bit, as without a connector.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <functional>
#include <thread>

#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/kv_transfer/store_connector.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "runtime/worker/model_runner.hpp"
#include "runtime/worker/worker_group.hpp"
#include "tests/runtime/kv_transfer/temporary_folder.hpp"
#include "tests/support/local_ports.hpp"
#include "tests/support/replay_models_driver.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kMaxTokens = 48;

struct EngineSetup {
  std::string model = "llama";
  std::string kv_cache_dtype = "auto";
  std::int32_t tensor_parallel_size = 1;
  std::int32_t num_blocks = 24;
  bool async_scheduling = false;
  std::string transfer;  ///< JSON; empty: no connector
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

class OffloadEngine {
 public:
  explicit OffloadEngine(const EngineSetup& setup) : setup_(setup) {
    static int number = 0;
    ParallelConfig parallel{.tensor_parallel_size = setup.tensor_parallel_size,
                            .rendezvous = "shm:troupe-offload-" + std::to_string(getpid()) + "-" +
                                          std::to_string(++number),
                            .timeout_s = 60};
    std::vector<ModelLoaded> all;
    std::vector<WorkerOptions> options;
    for (; parallel.rank < parallel.world_size(); ++parallel.rank) {
      options.push_back({.model = TROUPE_GOLDEN_DIR "/models/models/" + setup.model,
                         .dtype = "float32",
                         .kv_cache_dtype = setup.kv_cache_dtype,
                         .device = "cpu",
                         .threads = 1,
                         .block_size = 4,
                         .max_num_seqs = 4,
                         .max_num_batched_tokens = kMaxTokens,
                         .parallel = parallel});
      runners_.push_back(ModelRunner::load(options.back(), {}).value());
      all.push_back(runners_.back()->describe());
    }
    parallel.rank = 0;
    const ModelLoaded loaded = join_loaded(all).value();
    cache_ = plan_cache(loaded.layer_specs(), setup.num_blocks);
    KVCacheSettings settings;
    settings.groups = cache_.groups;
    settings.num_blocks = setup.num_blocks;
    settings.max_model_len = loaded.max_model_len;
    settings.max_in_flight_tokens = kMaxTokens;
    const ConnectorConfig config =
        parse_connector_config(ConnectorKind::kKV, setup.transfer).value();
    settings.kv_connector = config.is_enabled();
    if (config.is_enabled()) {
      const KVConnectorKind* const kind = find_kv_connector(config).value();
      const std::string identity = model_identity(options[0], loaded).value();
      connector_ = kind->create({config, identity, parallel, cache_, settings}).value();
      for (std::size_t rank = 0; rank < runners_.size(); ++rank) {
        BOOST_REQUIRE(model_identity(options[rank], all[rank]).value() == identity);
        runners_[rank]->add_extension(make_connector_extension(
            kind->create_worker({config, identity, options[rank].parallel}).value()));
      }
    }
    for (const auto& runner : runners_) BOOST_REQUIRE(runner->initialize_kv_cache(cache_).ok());
    if (runners_.size() > 1)
      on_all([&](std::size_t rank) { CHECK(runners_[rank]->join_group({0}).ok()); });
    kv_cache_.emplace(settings);
    kv_port_.emplace(*kv_cache_);
    SchedulerConfig scheduling{.max_model_len = loaded.max_model_len,
                               .num_blocks = setup.num_blocks,
                               .max_num_seqs = 4,
                               .max_num_batched_tokens = kMaxTokens};
    scheduling.async_scheduling = setup.async_scheduling;
    scheduling.kv_transfer = {.consumer = config.is_consumer(),
                              .recompute_failed_loads = config.recompute_failed_loads,
                              .block_size = settings.scheduler_block_size()};
    scheduler_.emplace(scheduling, *kv_port_, nullptr, connector_.get());
    answers_.emplace(parallel);
  }

  /// One after the other, so that each finds what the ones before have left.
  std::vector<Answer> run(const std::vector<std::vector<TokenId>>& prompts, bool together = false,
                          const std::string& salt = {}) {
    std::vector<Answer> answers(prompts.size());
    const std::uint64_t first = next_id_;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EngineCoreRequest request;
      request.id = RequestId{next_id_++};
      request.prompt_token_ids = prompts[i];
      request.params.temperature = 0;
      request.params.ignore_eos = true;
      request.params.max_tokens = 7;
      request.params.logprobs = 2;
      request.cache_salt = salt;
      BOOST_REQUIRE(scheduler_->add_request(std::move(request), 0).ok());
      if (!together || i + 1 == prompts.size()) run_all(answers, first);
    }
    return answers;
  }
  void reset_prefix_cache(bool connector_too = false) {
    BOOST_REQUIRE(run_now(scheduler_->reset_prefix_cache(false, 0, connector_too)));
  }

  [[nodiscard]] std::uint64_t num_external_hits() const { return num_external_hits_; }
  [[nodiscard]] std::size_t num_failed() const { return num_failed_; }
  [[nodiscard]] const BlockIndex& index() const {
    return dynamic_cast<const StoreKVConnector&>(*connector_).index();
  }
  [[nodiscard]] std::size_t num_known_requests() const {
    return dynamic_cast<const StoreKVConnector&>(*connector_).num_requests();
  }

 private:
  void on_all(const std::function<void(std::size_t)>& work) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 1; rank < runners_.size(); ++rank) threads.emplace_back(work, rank);
    work(0);
    for (std::thread& thread : threads) thread.join();
  }
  ModelRunnerOutput execute(const SchedulerOutput& step) {
    std::vector<std::optional<ModelRunnerOutput>> outputs(runners_.size());
    on_all([&](std::size_t rank) {
      auto result = runners_[rank]->execute(step);
      CHECK(result.ok(), result.ok() ? "" : result.error().message);
      outputs[rank] = std::move(result).value();
    });
    answers_->begin(step.step);
    std::optional<ModelRunnerOutput> joined;
    for (auto& output : outputs) {
      output->rank = static_cast<std::int32_t>(&output - outputs.data());
      joined = answers_->add(std::move(*output));
    }
    return std::move(joined).value();
  }
  void run_all(std::vector<Answer>& answers, std::uint64_t first) {
    int num_idle_steps = 0;
    std::deque<SchedulerOutput> open;
    const std::size_t max_open = setup_.async_scheduling ? 2 : 1;
    while (scheduler_->has_requests() || !open.empty()) {
      const bool plans = scheduler_->has_requests() && open.size() < max_open;
      if (plans) open.push_back(run_now(scheduler_->schedule(0)));
      if (plans && open.size() < max_open) continue;
      const SchedulerOutput step = open.front();
      open.pop_front();
      ModelRunnerOutput result = execute(step);
      num_failed_ += result.kv_connector.failed_recving.size();
      if (step.scheduled_ids.empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        BOOST_REQUIRE(++num_idle_steps < 20000);
      }
      const EngineCoreOutputs outputs =
          run_now(scheduler_->update_from_output(step, std::move(result), 0));
      for (const EngineCoreOutput& output : outputs.outputs) {
        BOOST_REQUIRE(output.finish_reason != FinishReason::kError);
        Answer& answer = answers.at(value(output.id) - first);
        answer.tokens.insert(answer.tokens.end(), output.new_token_ids.begin(),
                             output.new_token_ids.end());
        answer.logprobs.insert(answer.logprobs.end(), output.new_logprobs.logprobs.begin(),
                               output.new_logprobs.logprobs.end());
      }
      if (outputs.stats) num_external_hits_ += outputs.stats->connector_prefix_cache.hits;
    }
  }

  EngineSetup setup_;
  std::vector<std::unique_ptr<ModelRunner>> runners_;
  KVCacheConfig cache_;
  std::shared_ptr<KVConnector> connector_;
  std::optional<KVCacheManager> kv_cache_;
  std::optional<LocalKVCache> kv_port_;
  std::optional<Scheduler> scheduler_;
  std::optional<StepAnswers> answers_;
  std::uint64_t next_id_ = 1;
  std::uint64_t num_external_hits_ = 0;
  std::size_t num_failed_ = 0;
};

/// Five prompts of 18 to 38 tokens; two share 12.
std::vector<std::vector<TokenId>> some_prompts() {
  std::vector<std::vector<TokenId>> prompts;
  for (std::int32_t i = 0; i < 5; ++i) {
    std::vector<TokenId>& prompt = prompts.emplace_back();
    for (std::int32_t t = 0; t < 18 + 5 * i; ++t)
      prompt.push_back(3 + (i < 2 && t < 12 ? t * 5 : t * 7 + i * 13 + t * t % 11) % 90);
  }
  return prompts;
}

std::string offloading(const std::string& extra = "{}") {
  return R"({"kv_connector":"OffloadingConnector","kv_role":"kv_both",)"
         R"("kv_connector_extra_config":)" +
         extra + "}";
}
std::string files_in(const BlockFolder& folder, const std::string& role = "kv_both") {
  return R"({"kv_connector":"ExampleConnector","kv_role":")" + role +
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
  OffloadEngine engine(setup);
  return engine.run(some_prompts());
}

/// Cold, then with all prefixes evicted from the cache itself.
void check_offloading(EngineSetup setup) {
  const std::vector<Answer> expected = plain_answers(setup);
  setup.transfer = offloading();
  OffloadEngine engine(setup);
  BOOST_TEST((engine.run(some_prompts()) == expected));
  engine.reset_prefix_cache();
  const std::uint64_t before = engine.num_external_hits();
  BOOST_TEST((engine.run(some_prompts()) == expected));
  BOOST_TEST(engine.num_external_hits() >= before + 5 * 16);
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(some_prompts(), /*together=*/true) == expected));
  BOOST_TEST(engine.num_failed() == 0u);
  BOOST_TEST(engine.num_known_requests() == 0u);
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
  OffloadEngine engine({.transfer = offloading(R"({"num_cpu_blocks":9})")});
  for (int round = 0; round < 3; ++round) {
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.index().size() <= 9u);
    engine.reset_prefix_cache();
    // The last prompt is there, but for its first blocks: they went first.
    BOOST_TEST((engine.run({some_prompts()[0]}) == std::vector{expected[0]}));
    const std::uint64_t before = engine.num_external_hits();
    engine.reset_prefix_cache();
    BOOST_TEST((engine.run({some_prompts()[0]}) == std::vector{expected[0]}));
    BOOST_TEST(engine.num_external_hits() == before + 16);
  }
}

BOOST_AUTO_TEST_CASE(another_salt_finds_nothing) {
  OffloadEngine engine({.transfer = offloading()});
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
      OffloadEngine engine(setup);
      BOOST_TEST((engine.run(some_prompts()) == expected));
    }
    BOOST_TEST(files_of(folder).size() > 20u);
    OffloadEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_external_hits() >= 5 * 16u);
    BOOST_TEST(engine.num_failed() == 0u);
  }
}

BOOST_AUTO_TEST_CASE(files_of_another_type_of_cache_do_not_count) {
  const BlockFolder folder;
  {
    OffloadEngine engine({.transfer = files_in(folder)});
    engine.run(some_prompts());
  }
  const EngineSetup setup{.kv_cache_dtype = "int8", .transfer = files_in(folder)};
  OffloadEngine engine(setup);
  BOOST_TEST((engine.run(some_prompts()) == plain_answers(setup)));
  BOOST_TEST(engine.index().size() > 20u);
  BOOST_TEST(engine.num_failed() == 0u);
}

BOOST_AUTO_TEST_CASE(what_was_cut_changed_or_deleted_is_computed_and_written_anew) {
  const BlockFolder folder;
  EngineSetup setup{.transfer = files_in(folder)};
  const std::vector<Answer> expected = plain_answers(setup);
  {
    OffloadEngine engine(setup);
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
    OffloadEngine engine(setup);
    BOOST_TEST((engine.run(some_prompts()) == expected));
    BOOST_TEST(engine.num_failed() > 0u);
  }
  OffloadEngine engine(setup);
  BOOST_TEST((engine.run(some_prompts()) == expected));
  engine.reset_prefix_cache();
  BOOST_TEST((engine.run(some_prompts()) == expected));
}

BOOST_AUTO_TEST_CASE(a_producer_loads_nothing_and_a_consumer_saves_nothing) {
  const BlockFolder folder;
  const std::vector<Answer> expected = plain_answers({});
  {
    OffloadEngine consumer({.transfer = files_in(folder, "kv_consumer")});
    BOOST_TEST((consumer.run(some_prompts()) == expected));
  }
  BOOST_TEST(files_of(folder).empty());
  {
    OffloadEngine producer({.transfer = files_in(folder, "kv_producer")});
    BOOST_TEST((producer.run(some_prompts()) == expected));
    producer.reset_prefix_cache();
    BOOST_TEST((producer.run(some_prompts()) == expected));
    BOOST_TEST(producer.num_external_hits() == 0u);
  }
  OffloadEngine consumer({.transfer = files_in(folder, "kv_consumer")});
  BOOST_TEST((consumer.run(some_prompts()) == expected));
  BOOST_TEST(consumer.num_external_hits() >= 5 * 16u);
}

}  // namespace
}  // namespace troupe
