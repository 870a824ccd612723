#pragma once
// The demo model's engine behind a real RequestRouter and Frontend, in one process; its actors (all
// but the worker) can be ended and replaced while clients wait.

#include <boost/test/unit_test.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "actors/spawn.hpp"
#include "actors/system_config.hpp"
#include "runtime/cache/encoder_cache_manager.hpp"
#include "runtime/cache/kv_cache_config.hpp"
#include "runtime/cache/kv_cache_settings.hpp"
#include "runtime/http/server.hpp"
#include "runtime/processors/input_processor.hpp"
#include "runtime/scheduler/scheduler_config.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe::testing {

/// What a test thread waits for: that the engine breaks, or that the clients have their answers.
class Events {
 public:
  void report_break() {
    change([this] { broken_ = true; });
  }
  void report_answer() {
    change([this] { ++num_answers_; });
  }
  /// True for a break, which is then forgotten; false once there are `count` answers.
  [[nodiscard]] bool wait_for_break(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return broken_ || num_answers_ >= count; });
    return num_answers_ < count && std::exchange(broken_, false);
  }

 private:
  template <class Change>
  void change(Change apply) {
    {
      const std::lock_guard lock(mutex_);
      apply();
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool broken_ = false;
  int num_answers_ = 0;
};

/// When an engine breaks, and how.
struct BreakPlan {
  std::uint64_t num_steps = ~std::uint64_t{0};  ///< how many work
  bool before_step = false;                     ///< the step that fails does not reach the workers
  bool silent = false;                          ///< nothing passes the Executor any more
  std::function<bool(const SchedulerOutput&)> poisoned;  ///< breaks at this step; may be empty
};

struct BreakingExecutorState {
  BreakingExecutorState() = default;
  static inline const char* name = "breaking_executor";
  BreakPlan plan;
  bool broken = false;
  SchedulerActor scheduler;
};

/// Between the Scheduler and the Executor: breaks as it is planned.
inline ExecutorActor::behavior_type breaking_executor(
    ExecutorActor::stateful_pointer<BreakingExecutorState> self, const ExecutorActor& next,
    const BreakPlan& plan, Events* events) {
  state(self).plan = plan;
  const auto passes = [self, events](bool breaks) {
    BreakingExecutorState& executor = state(self);
    if (breaks && !std::exchange(executor.broken, true)) events->report_break();
    return !executor.broken || !executor.plan.silent;
  };
  return {
      [=](CollectiveRpc& rpc) { return self->delegate(next, std::move(rpc)); },
      [](const WorkerRpcReply&) {},
      [](const LoadProgress&) {},
      [](const RpcDeadline&) {},
      [=](SchedulerOutput& step) {
        BreakingExecutorState& executor = state(self);
        executor.scheduler = caf::actor_cast<SchedulerActor>(self->current_sender());
        const bool poisoned = executor.plan.poisoned && executor.plan.poisoned(step);
        const bool breaks = executor.plan.before_step && step.step > executor.plan.num_steps;
        if (poisoned) executor.plan.silent = true;
        if (passes(poisoned || breaks)) send(self, next, std::move(step));
      },
      [=](GrammarOutput& grammar) {
        if (passes(false)) send(self, next, std::move(grammar));
      },
      [=](ModelRunnerOutput& output) {
        if (passes(output.step > state(self).plan.num_steps))
          send(self, state(self).scheduler, std::move(output));
      },
      [=](StepFailed& failure) { send(self, state(self).scheduler, std::move(failure)); },
  };
}

class ReplaceableEngine {
 public:
  explicit ReplaceableEngine(const BreakPlan& plan = {}) {
    const std::string folder = TROUPE_SOURCE_DIR "/tools/demo_model/model";
    const WorkerOptions worker_options{.model = folder,
                                       .dtype = "auto",
                                       .quantization = "auto",
                                       .kv_cache_dtype = "auto",
                                       .cpu_isa = "auto",
                                       .threads = 1,
                                       .block_size = 16,
                                       .max_model_len = 1024,
                                       .max_num_seqs = kMaxNumSeqs,
                                       .max_num_batched_tokens = kMaxBatchedTokens};
    worker_ = spawn_worker(system_, 0);
    const ExecutorActor loader = spawn_executor(system_, {worker_});
    model_ = std::get<ModelLoaded>(call_workers(loader, LoadModel{worker_options, {}}).at(0));
    caf::anon_send_exit(loader, caf::exit_reason::kill);
    cache_ =
        make_kv_cache_config(model_.layer_specs(), {.available_bytes = 64 << 20,
                                                    .max_model_len = model_.max_model_len,
                                                    .max_in_flight_tokens = 2 * kMaxBatchedTokens})
            .value();
    tokenizer_ = Tokenizer::load(folder).value();
    InputProcessorOptions options;
    options.max_model_len = model_.max_model_len;
    options.vocab_size = model_.vocab_size;
    input_core_ = std::make_shared<const InputProcessor>(
        tokenizer_, ChatRenderer::create(load_chat_files(folder).value(), {}).value(), options);
    spawn_actors(plan);
    ServerConfig config;
    config.options.port = 0;
    config.service.model_names = {"demo"};
    config.service.enable_server_load_tracking = true;
    config.service.defaults.max_model_len = model_.max_model_len;
    config.service.defaults.vocab_size = model_.vocab_size;
    router_ = spawn_request_router(system_, {.seed = 7});
    frontend_ = spawn_frontend(system_, config, router_);
    connect();
    port_ = answer_of<Listening>(frontend_, Listen{}).port;
    BOOST_REQUIRE(port_ != 0);
  }
  ~ReplaceableEngine() {
    caf::anon_send_exit(frontend_, caf::exit_reason::user_shutdown);
    self_->wait_for(frontend_);
    caf::anon_send_exit(router_, caf::exit_reason::user_shutdown);
    end_actors(nullptr);
    caf::anon_send_exit(worker_, caf::exit_reason::user_shutdown);
  }
  ReplaceableEngine(const ReplaceableEngine&) = delete;
  ReplaceableEngine& operator=(const ReplaceableEngine&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] Events& events() { return events_; }

  /// Until connect() the RequestRouter has no engine.
  void lose(LossCause cause = LossCause::kOutside) {
    tell_loss(cause);
    end_actors(nullptr);
  }
  /// The RequestRouter is notified before the actors end, or while they do.
  void lose(std::mt19937& random) {
    if (random() % 2 == 0) tell_loss(LossCause::kOutside);
    end_actors(&random);
    tell_loss(LossCause::kOutside);
  }
  void connect(const BreakPlan& plan) {
    spawn_actors(plan);
    connect();
  }

 private:
  void tell_loss(LossCause cause) {
    post(router_, EngineLost{.group = 0, .reason = "ended by the test", .cause = cause});
  }
  void connect() {
    caf::anon_send(router_, EngineReady{}, input_processors_, output_processor_, scheduler_);
  }

  static constexpr std::int32_t kMaxNumSeqs = 32;
  static constexpr std::int32_t kMaxBatchedTokens = 64;  // prompts come in pieces

  template <class Answer, class Handle, class Question>
  Answer answer_of(const Handle& to, Question question) {
    Answer result;
    self_->request(to, caf::infinite, std::move(question))
        .receive([&](Answer& answer) { result = std::move(answer); },
                 [](const caf::error&) { BOOST_FAIL("no answer"); });
    return result;
  }
  std::vector<WorkerResult> call_workers(const ExecutorActor& executor, WorkerMethod method) {
    auto reply = answer_of<CollectiveRpcReply>(executor,
                                               CollectiveRpc{std::move(method), /*timeout_s=*/600});
    BOOST_REQUIRE_MESSAGE(!reply.error, (reply.error ? reply.error->message : ""));
    return std::move(reply.results);
  }
  template <class Handle>
  Handle keep(Handle handle) {
    actors_.push_back(caf::actor_cast<caf::actor>(handle));
    return handle;
  }

  void spawn_actors(const BreakPlan& plan) {
    const ExecutorActor executor = keep(spawn_executor(system_, {worker_}));
    call_workers(executor, InitializeKVCache{cache_});
    KVCacheSettings settings;
    settings.groups = cache_.groups;
    settings.num_blocks = cache_.num_blocks;
    settings.max_model_len = model_.max_model_len;
    settings.max_in_flight_tokens = 2 * kMaxBatchedTokens;
    SchedulerConfig config;
    config.num_blocks = cache_.num_blocks;
    config.max_model_len = model_.max_model_len;
    config.max_num_seqs = kMaxNumSeqs;
    config.max_num_batched_tokens = kMaxBatchedTokens;
    config.async_scheduling = true;
    SchedulerPeers peers;
    peers.kv_cache_manager = keep(spawn_kv_cache_manager(system_, settings));
    peers.encoder_cache_manager =
        keep(spawn_encoder_cache_manager(system_, {.capacity = kMaxBatchedTokens}));
    peers.executor = keep(system_.spawn(breaking_executor, executor, plan, &events_));
    output_processor_ = keep(spawn_output_processor(system_, tokenizer_));
    peers.output_processor = output_processor_;
    scheduler_ = keep(spawn_scheduler(system_, config, peers));
    input_processors_ = {
        keep(spawn_input_processor(system_, input_core_, 2, output_processor_, scheduler_))};
  }
  /// One after the other: the others continue meanwhile.
  void end_actors(std::mt19937* random) {
    if (random != nullptr) std::shuffle(actors_.begin(), actors_.end(), *random);
    for (const caf::actor& actor : std::exchange(actors_, {})) {
      caf::anon_send_exit(actor, caf::exit_reason::kill);
      self_->wait_for(actor);
    }
  }

  SystemConfig config_;
  caf::actor_system system_{config_};
  caf::scoped_actor self_{system_};
  Events events_;
  WorkerActor worker_;
  ModelLoaded model_;
  KVCacheConfig cache_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const InputProcessor> input_core_;
  std::vector<caf::actor> actors_;
  std::vector<InputProcessorActor> input_processors_;
  OutputProcessorActor output_processor_;
  SchedulerActor scheduler_;
  RequestRouterActor router_;
  FrontendActor frontend_;
  std::uint16_t port_ = 0;
};

}  // namespace troupe::testing
