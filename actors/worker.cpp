// The Worker: one device's ModelRunner behind messages.
#include <algorithm>
#include <csignal>
#include <span>

#include "actors/spawn.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"
#include "runtime/ec_transfer/factory.hpp"
#include "runtime/ec_transfer/remote_outputs.hpp"
#include "runtime/kv_transfer/factory.hpp"
#include "runtime/kv_transfer/model_identity.hpp"
#include "runtime/worker/model_runner.hpp"

namespace troupe {
namespace worker {
namespace {

struct WorkerState {
  WorkerState() = default;
  static inline const char* name = "worker";
  std::unique_ptr<ModelRunner> runner;
  std::uint32_t incarnation = 0;  ///< of the engine that it serves
  WorkerTransfer transfer;
};

/// An internal failure (a CHECK, no memory) fails the step; the Scheduler retries it, and the
/// Supervisor monitors the worker.
template <class Function>
auto guarded(Function&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& exception) {
    return Error{ErrorCode::kInternal, exception.what()};
  }
}

/// Simulates a crash of a kernel (SIGSEGV) or the OOM killer (SIGKILL), to test recovery.
///
void crash_on(const SchedulerOutput& step, CrashToken crash) {
  if (crash.token < 0) return;
  for (const NewRequestData& request : step.new_requests) {
    const auto prompt =
        std::span(request.token_ids).first(static_cast<std::size_t>(request.num_prompt_tokens));
    if (std::find(prompt.begin(), prompt.end(), crash.token) == prompt.end()) continue;
    log_error("dev-crash-token is in a prompt", kv("request", value(request.id)));
    const int signal = static_cast<int>(crash.signal);
    if (signal != SIGKILL) std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

using Self = WorkerActor::stateful_pointer<WorkerState>;

/// Runs a method that is called on all workers.
class MethodRunner {
 public:
  MethodRunner(Self worker, std::int32_t its_rank) : self(worker), rank(its_rank) {}

  Result<WorkerResult> operator()(const LoadModel& load) const {
    const auto executor = caf::actor_cast<ExecutorActor>(self->current_sender());
    const auto progress = [&](double fraction, std::string_view what) {
      send(self, executor, LoadProgress{rank, fraction, std::string(what)});
    };
    const WorkerOptions options = load.options_of(rank);
    ASSIGN_OR_RETURN(const ConnectorConfig transfer,
                     parse_connector_config(ConnectorKind::kEC, options.ec_transfer_config));
    // Reports configuration errors before the weights are read.
    const ECConnectorKind* connector = nullptr;
    if (transfer.is_enabled()) {
      ASSIGN_OR_RETURN(connector, find_ec_connector(transfer));
    }
    ASSIGN_OR_RETURN(const ConnectorConfig kv_transfer,
                     parse_connector_config(ConnectorKind::kKV, state(self).transfer.config));
    const KVConnectorKind* kv_connector = nullptr;
    if (kv_transfer.is_enabled()) {
      ASSIGN_OR_RETURN(kv_connector, find_kv_connector(kv_transfer));
    }
    std::unique_ptr<ModelRunner>& runner = state(self).runner;
    // Keeps alive what connectors of this process share, until the next one uses it too.
    const auto earlier = runner == nullptr ? nullptr : runner->take_ec_connector();
    ASSIGN_OR_RETURN(runner, ModelRunner::load(options, progress));
    RETURN_IF_ERROR(runner->follow_transcription_rules());
    const ModelLoaded loaded = runner->describe();
    if (connector != nullptr && runner->encoder() != nullptr) {
      ASSIGN_OR_RETURN(auto worker,
                       connector->create_worker(
                           {transfer, loaded.encoder_key, state(self).transfer.remote_outputs}));
      RETURN_IF_ERROR(runner->set_ec_connector(std::move(worker)));
    }
    if (kv_connector != nullptr) {
      ASSIGN_OR_RETURN(std::string identity, model_identity(options, loaded));
      const WorkerTransfer& with = state(self).transfer;
      ASSIGN_OR_RETURN(auto worker,
                       kv_connector->create_worker({.config = kv_transfer,
                                                    .model_identity = std::move(identity),
                                                    .parallel = options.parallel,
                                                    .host = with.host,
                                                    .credentials = with.credentials}));
      runner->add_extension(make_connector_extension(std::move(worker)));
    }
    return WorkerResult{loaded};
  }
  Result<WorkerResult> operator()(const InitializeKVCache& initialize) const {
    CHECK(state(self).runner != nullptr);
    state(self).incarnation = initialize.incarnation;
    RETURN_IF_ERROR(state(self).runner->initialize_kv_cache(initialize.config));
    return WorkerResult{};
  }
  Result<WorkerResult> operator()(const WarmUp&) const {
    CHECK(state(self).runner != nullptr);
    RETURN_IF_ERROR(state(self).runner->warm_up());
    return WorkerResult{};
  }
  Result<WorkerResult> operator()(const LoadAdapter& load) const {
    ASSIGN_OR_RETURN(AdapterCache* const adapters, adapter_cache());
    ASSIGN_OR_RETURN(LoraRequest loaded, adapters->load(load));
    return WorkerResult{AdapterList{{std::move(loaded)}}};
  }
  Result<WorkerResult> operator()(const UnloadAdapter& unload) const {
    ASSIGN_OR_RETURN(AdapterCache* const adapters, adapter_cache());
    adapters->unload(unload.name);
    return WorkerResult{};
  }
  Result<WorkerResult> operator()(const ListAdapters&) const {
    ASSIGN_OR_RETURN(AdapterCache* const adapters, adapter_cache());
    return WorkerResult{AdapterList{adapters->list()}};
  }

 private:
  [[nodiscard]] Result<AdapterCache*> adapter_cache() const {
    CHECK(state(self).runner != nullptr);
    if (AdapterCache* const adapters = state(self).runner->adapters()) return adapters;
    return Error{ErrorCode::kUnsupported, "adapters are not enabled, see enable-lora"};
  }

  Self self;
  std::int32_t rank;
};

/// One of the two phases of a step, or both: the sender gets the result. None: the step has yet to
/// be sampled.
template <class Phase>
void run_phase(Self self, std::int32_t rank, WorkerProgress* progress, std::uint64_t step,
               Phase&& phase) {
  const auto executor = caf::actor_cast<ExecutorActor>(self->current_sender());
  if (progress != nullptr) progress->busy_since_ns = steady_ns();
  Result<std::optional<ModelRunnerOutput>> result = guarded(phase);
  if (progress != nullptr) progress->busy_since_ns = 0;
  if (result.ok()) {
    if (result->has_value()) send(self, executor, std::move(**result));
    return;
  }
  state(self).runner->fail_group(result.error());
  send(self, executor, StepFailed{step, result.error(), rank});
  // Lost weights or devices do not recover. The Supervisor starts another worker, which loads the
  // model again.
  const auto health = state(self).runner->check_health();
  if (!health.ok()) self->quit(exit_reason_of(health.error().message));
}

WorkerActor::behavior_type worker_behavior(Self self, std::int32_t rank,
                                           const std::shared_ptr<WorkerProgress>& progress,
                                           CrashToken crash, const WorkerTransfer& transfer) {
  state(self).transfer = transfer;
  return {
      [self, rank](const WorkerRpc& rpc) {
        const auto executor = caf::actor_cast<ExecutorActor>(self->current_sender());
        WorkerRpcReply reply{.call = rpc.call, .rank = rank, .result = {}, .error = {}};
        auto result = guarded([&] { return std::visit(MethodRunner{self, rank}, rpc.method); });
        if (result.ok())
          reply.result = std::move(result).value();
        else
          reply.error = std::move(result).error();
        send(self, executor, std::move(reply));
      },
      [self](const JoinGroup& join) {
        CHECK(state(self).runner != nullptr);
        const auto joined = guarded([&] { return state(self).runner->join_group(join); });
        // The next step fails and reports it.
        if (!joined.ok())
          log_warning("the ranks did not meet", kv("error", joined.error().message));
      },
      [self, rank, progress, crash](const SchedulerOutput& step) {
        if (step.incarnation != state(self).incarnation) return;  // of an engine that has ended
        crash_on(step, crash);
        using Output = Result<std::optional<ModelRunnerOutput>>;
        run_phase(self, rank, progress.get(), step.step, [&]() -> Output {
          ModelRunner& runner = *state(self).runner;
          if (step.has_structured_output_requests) {
            RETURN_IF_ERROR(runner.execute_model(step));
            return std::optional<ModelRunnerOutput>();
          }
          ASSIGN_OR_RETURN(ModelRunnerOutput output, runner.execute(step));
          return std::optional(std::move(output));
        });
      },
      [self, rank, progress](const GrammarOutput& grammar) {
        // Of an engine that has ended, or of a step that has failed or been sampled.
        if (grammar.incarnation != state(self).incarnation ||
            grammar.step != state(self).runner->open_step())
          return;
        using Output = Result<std::optional<ModelRunnerOutput>>;
        run_phase(self, rank, progress.get(), grammar.step, [&]() -> Output {
          ASSIGN_OR_RETURN(ModelRunnerOutput output, state(self).runner->sample_tokens(grammar));
          return std::optional(std::move(output));
        });
      },
  };
}

}  // namespace
}  // namespace worker

WorkerActor spawn_worker(caf::actor_system& system, std::int32_t rank,
                         std::shared_ptr<WorkerProgress> progress, CrashToken crash,
                         WorkerTransfer transfer) {
  return system.spawn<caf::detached>(worker::worker_behavior, rank, std::move(progress), crash,
                                     std::move(transfer));
}

}  // namespace troupe
