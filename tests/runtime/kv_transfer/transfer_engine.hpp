#pragma once
// A whole engine without actors, with a KV connector.

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "runtime/worker/model_runner.hpp"
#include "runtime/worker/worker_group.hpp"
#include "tests/support/local_ports.hpp"
#include "tests/support/replay_models_driver.hpp"

namespace troupe::testing {

inline constexpr std::int32_t kMaxStepTokens = 48;

struct EngineSetup {
  std::string model = "llama";
  std::string kv_cache_dtype = "auto";
  std::int32_t tensor_parallel_size = 1;
  std::int32_t num_blocks = 24;
  bool async_scheduling = false;
  std::string transfer;  ///< JSON; empty: no connector
  std::int32_t block_size = 4;
  std::int32_t pipeline_parallel_size = 1;
  std::string device = "cpu";
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::string transfer_params;
  bool has_failed = false;
  std::int32_t num_blended = 0;       ///< tokens of the prompt
  std::int32_t num_local_cached = 0;  ///< the same
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && logprobs == other.logprobs && has_failed == other.has_failed;
  }
};

class TransferEngine {
 public:
  explicit TransferEngine(const EngineSetup& setup) : setup_(setup) {
    static int number = 0;
    ParallelConfig parallel{.tensor_parallel_size = setup.tensor_parallel_size,
                            .pipeline_parallel_size = setup.pipeline_parallel_size,
                            .rendezvous = "shm:troupe-offload-" + std::to_string(getpid()) + "-" +
                                          std::to_string(++number),
                            .timeout_s = 60};
    std::vector<ModelLoaded> all;
    std::vector<WorkerOptions> options;
    for (; parallel.rank < parallel.world_size(); ++parallel.rank) {
      options.push_back({.model = TROUPE_GOLDEN_DIR "/models/models/" + setup.model,
                         .dtype = "float32",
                         .kv_cache_dtype = setup.kv_cache_dtype,
                         .device = setup.device,
                         .threads = 1,
                         .block_size = setup.block_size,
                         .max_num_seqs = 4,
                         .max_num_batched_tokens = kMaxStepTokens,
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
    settings.max_in_flight_tokens = kMaxStepTokens;
    const ConnectorConfig config =
        parse_connector_config(ConnectorKind::kKV, setup.transfer).value();
    settings.kv_connector = config.is_enabled();
    if (config.is_enabled()) {
      const KVConnectorKind* const kind = find_kv_connector(config).value();
      const std::string identity = model_identity(options[0], loaded).value();
      for (std::size_t rank = 0; rank < runners_.size(); ++rank) {
        BOOST_REQUIRE(model_identity(options[rank], all[rank]).value() == identity);
        auto worker = kind->create_worker(
            {.config = config, .model_identity = identity, .parallel = options[rank].parallel});
        runners_[rank]->add_extension(make_connector_extension(std::move(worker).value()));
      }
      connector_ = kind->create({config, identity, parallel, cache_, settings, tokens_of}).value();
    }
    for (const auto& runner : runners_) BOOST_REQUIRE(runner->initialize_kv_cache(cache_).ok());
    if (runners_.size() > 1)
      on_all([&](std::size_t rank) { CHECK(runners_[rank]->join_group({0}).ok()); });
    kv_cache_.emplace(settings);
    kv_port_.emplace(*kv_cache_);
    SchedulerConfig scheduling{.max_model_len = loaded.max_model_len,
                               .num_blocks = setup.num_blocks,
                               .max_num_seqs = 4,
                               .max_num_batched_tokens = kMaxStepTokens};
    scheduling.async_scheduling = setup.async_scheduling;
    scheduling.kv_transfer = {.consumer = config.is_consumer(),
                              .recompute_failed_loads = config.recompute_failed_loads,
                              .block_size = settings.scheduler_block_size(),
                              .num_groups = static_cast<std::int32_t>(cache_.groups.size())};
    scheduler_.emplace(scheduling, *kv_port_, nullptr, connector_.get());
    answers_.emplace(parallel);
  }

  /// One after the other, so that each finds what the ones before have left.
  std::vector<Answer> run(const std::vector<std::vector<TokenId>>& prompts, bool together = false,
                          const std::string& salt = {},
                          const std::map<std::size_t, std::string>& transfer_params = {}) {
    std::vector<Answer> answers(prompts.size());
    const std::uint64_t first = next_id_;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto params = transfer_params.find(i);
      static_cast<void>(
          add(prompts[i], params == transfer_params.end() ? "" : params->second, salt));
      if (!together || i + 1 == prompts.size()) run_all(answers, first);
    }
    return answers;
  }
  /// A request that steps and finish go on with.
  RequestId add(const std::vector<TokenId>& prompt, const std::string& transfer_params,
                const std::string& salt = {}) {
    EngineCoreRequest request;
    request.id = RequestId{next_id_++};
    request.prompt_token_ids = prompt;
    request.params.temperature = 0;
    request.params.ignore_eos = true;
    request.params.max_tokens = is_prefill(transfer_params) ? 1 : 7;
    request.params.logprobs = 2;
    request.cache_salt = salt;
    request.kv_transfer_params = transfer_params;
    const RequestId id = request.id;
    BOOST_REQUIRE(scheduler_->add_request(std::move(request), 0).ok());
    return id;
  }
  /// Pre: the request is the last one that was added, and has got no token yet.
  Answer finish(RequestId id) {
    std::vector<Answer> answers(1);
    run_all(answers, value(id));
    return std::move(answers.front());
  }
  void abort(RequestId id) {
    static_cast<void>(scheduler_->finish_requests({&id, 1}, RequestStatus::kFinishedAborted));
  }
  /// So many steps with tokens that follow fail: the workers do not see them.
  void lose_steps(int count) { num_steps_to_lose_ = count; }
  void reset_prefix_cache(bool connector_too = false) {
    BOOST_REQUIRE(run_now(scheduler_->reset_prefix_cache(false, 0, connector_too)));
  }

  [[nodiscard]] std::uint64_t num_external_hits() const { return num_external_hits_; }
  [[nodiscard]] std::size_t num_failed() const { return num_failed_; }
  template <class Connector>
  [[nodiscard]] const Connector& connector() const {
    return dynamic_cast<const Connector&>(*connector_);
  }
  [[nodiscard]] std::int32_t num_free_blocks() {
    scheduler_->flush();
    return kv_cache_->pool().num_free_blocks();
  }
  /// While requests have ended and others still may read their blocks, steps go on.
  EngineCoreOutputs step() {
    const SchedulerOutput step = run_now(scheduler_->schedule(0));
    ModelRunnerOutput result = execute(step);
    num_failed_ += result.kv_connector.failed_recving.size();
    EngineCoreOutputs outputs = run_now(scheduler_->update_from_output(step, std::move(result), 0));
    if (outputs.stats) num_external_hits_ += outputs.stats->connector_prefix_cache.hits;
    return outputs;
  }
  CacheMoved move_cache(bool is_import, const std::string& folder) {
    const auto started = scheduler_->start_cache_move({.is_import = is_import, .folder = folder});
    if (!started.ok()) return {.error = started.error()};
    BOOST_TEST(!scheduler_->start_cache_move({.is_import = is_import, .folder = folder}).ok());
    while (scheduler_->is_moving_cache()) step();
    return scheduler_->take_cache_moved();
  }
  [[nodiscard]] bool has_requests() const { return scheduler_->has_requests(); }
  [[nodiscard]] std::vector<KVCacheEvent> take_events() { return connector_->take_events(); }

 private:
  /// A text of numbers.
  static Result<std::vector<TokenId>> tokens_of(const std::string& text) {
    std::istringstream words(text);
    return std::vector<TokenId>{std::istream_iterator<TokenId>(words), {}};
  }
  static bool is_prefill(const std::string& params) {
    return params.find("\"do_remote_decode\":true") != std::string::npos;
  }
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
    int num_last_steps = 0;  // for what has ended; blocks may be held for long
    while (true) {
      const bool has_unfinished = scheduler_->num_unfinished_requests() > 0;
      const bool goes_on = scheduler_->has_requests() && (has_unfinished || num_last_steps < 4);
      if (!goes_on && open.empty()) return;
      const bool plans = goes_on && open.size() < max_open;
      if (plans && !has_unfinished) ++num_last_steps;
      if (plans) open.push_back(run_now(scheduler_->schedule(0)));
      if (plans && open.size() < max_open) continue;
      const SchedulerOutput step = open.front();
      open.pop_front();
      if (num_steps_to_lose_ > 0 && !step.scheduled_ids.empty()) {
        --num_steps_to_lose_;
        static_cast<void>(run_now(scheduler_->recover_from_failed_steps(std::span(&step, 1), 0)));
        continue;
      }
      ModelRunnerOutput result = execute(step);
      num_failed_ += result.kv_connector.failed_recving.size();
      if (step.scheduled_ids.empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        BOOST_REQUIRE(++num_idle_steps < 20000);
      }
      const EngineCoreOutputs outputs =
          run_now(scheduler_->update_from_output(step, std::move(result), 0));
      for (const EngineCoreOutput& output : outputs.outputs) {
        Answer& answer = answers.at(value(output.id) - first);
        answer.has_failed |= output.finish_reason == FinishReason::kError;
        if (output.finish_reason) answer.transfer_params = output.kv_transfer_params;
        if (output.prefill_stats) {
          answer.num_local_cached = output.prefill_stats->num_local_cached_tokens;
          answer.num_blended = output.prefill_stats->num_external_cached_tokens -
                               output.prefill_stats->num_cached_tokens + answer.num_local_cached;
        }
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
  int num_steps_to_lose_ = 0;
};

/// Five prompts of 18 to 38 tokens; two share 12.
inline std::vector<std::vector<TokenId>> some_prompts() {
  std::vector<std::vector<TokenId>> prompts;
  for (std::int32_t i = 0; i < 5; ++i) {
    std::vector<TokenId>& prompt = prompts.emplace_back();
    for (std::int32_t t = 0; t < 18 + 5 * i; ++t)
      prompt.push_back(3 + (i < 2 && t < 12 ? t * 5 : t * 7 + i * 13 + t * t % 11) % 90);
  }
  return prompts;
}

}  // namespace troupe::testing
