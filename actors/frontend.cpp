// The Frontend: the HTTP server's side of the engine.
#include <atomic>
#include <random>
#include <unordered_map>

#include "actors/spawn.hpp"
#include "runtime/base/log.hpp"
#include "runtime/http/server.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kRenderDeadline = 60s;
constexpr auto kResetDeadline = 60s;

/// What the server's threads call. Thread-safe: a counter, a flag, and messages.
class FrontendPort final : public EnginePort {
 public:
  FrontendPort(caf::actor_system& system, std::vector<InputProcessorActor> input_processors,
               SchedulerActor scheduler)
      : system_(system),
        input_processors_(std::move(input_processors)),
        scheduler_(std::move(scheduler)) {
    // Ids are never given out twice, also not by the next life of this process.
    next_id_ = (std::uint64_t{std::random_device{}()} << 32) + 1;
  }
  void connect(FrontendActor frontend) { frontend_ = std::move(frontend); }
  void set_healthy(bool healthy) { healthy_ = healthy; }
  [[nodiscard]] const InputProcessorActor& input_processor(RequestId id) const {
    return input_processors_[value(id) % input_processors_.size()];
  }

  RequestId allocate_ids(std::int32_t count) override {
    return RequestId{next_id_.fetch_add(static_cast<std::uint64_t>(count))};
  }
  void submit(GenerateRequest request) override { post(frontend_, std::move(request)); }
  void abort(std::vector<RequestId> ids) override {
    post(frontend_, AbortRequests{std::move(ids)});
  }
  void render(RenderRequest request, std::function<void(RenderReply)> reply) override {
    const InputProcessorActor& to = input_processor(allocate_ids(1));
    system_.spawn<caf::hidden>([to, request = std::move(request),
                                reply = std::move(reply)](caf::event_based_actor* self) {
      const auto failed = [reply, self](const caf::error& error) {
        const bool late = error == caf::sec::request_timeout;
        reply({.error =
                   Error{late ? ErrorCode::kTimeout : ErrorCode::kUnavailable,
                         "the input processor gave no answer: " + to_text(error, self->system())}});
      };
      ask(self, to, kRenderDeadline, request)
          .then([reply](RenderReply& answer) { reply(std::move(answer)); }, failed);
    });
  }
  void reset_caches(ResetCaches what, std::function<void(Result<CachesReset>)> reply) override {
    system_.spawn<caf::hidden>([to = scheduler_, what,
                                reply = std::move(reply)](caf::event_based_actor* self) {
      ask(self, to, kResetDeadline, what)
          .then([reply](const CachesReset& answer) { reply(answer); },
                [reply, self](const caf::error& error) {
                  reply(Error{ErrorCode::kUnavailable,
                              "the scheduler gave no answer: " + to_text(error, self->system())});
                });
    });
  }
  [[nodiscard]] bool healthy() const noexcept override { return healthy_; }

 private:
  caf::actor_system& system_;
  std::vector<InputProcessorActor> input_processors_;
  SchedulerActor scheduler_;
  FrontendActor frontend_;
  std::atomic<std::uint64_t> next_id_;
  std::atomic<bool> healthy_{true};
};

/// Owns the server, its port to the engine, and the list of requests that clients wait for.
struct FrontendState {
  FrontendState() = default;
  static inline const char* name = "frontend";

  ServerConfig config;
  std::unique_ptr<EngineMetrics> metrics;
  std::unique_ptr<FrontendPort> port;
  std::unique_ptr<Server> server;                    ///< none before Listen
  std::unordered_map<RequestId, std::int32_t> live;  ///< by first sample: the number of samples
  std::mt19937_64 random;
  std::vector<EngineTotals> logged;  ///< by engine: as of the last statistics interval
  std::int32_t num_aborted = 0;
  caf::typed_response_promise<Drained> drained;
};

using Self = FrontendActor::stateful_pointer<FrontendState>;

std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

/// Tells everyone behind, through the actor that had the request before: an abort never overtakes
/// it.
void abort_request(Self self, RequestId id) {
  const auto live = state(self).live.find(id);
  if (live == state(self).live.end()) return;
  AbortRequests abort;
  for (std::int32_t i = 0; i < live->second; ++i) {
    abort.ids.push_back(RequestId{value(id) + static_cast<std::uint64_t>(i)});
  }
  send(self, state(self).port->input_processor(id), std::move(abort));
}

void abort_all(Self self) {
  state(self).num_aborted = static_cast<std::int32_t>(state(self).live.size());
  for (const auto& [id, num_samples] : state(self).live) abort_request(self, id);
}

/// The engine is gone: whoever waits hears so.
void fail_live(FrontendState& frontend, const std::string& reason) {
  RequestOutputs outputs;
  for (const auto& [id, num_samples] : frontend.live) {
    outputs.outputs.push_back(
        {.id = id,
         .finished = true,
         .error = Error{ErrorCode::kUnavailable, "the engine stopped: " + reason}});
  }
  frontend.live.clear();
  if (frontend.server) frontend.server->deliver(std::move(outputs));
}

/// One line for each engine that has done something since the last time.
void log_stats(FrontendState& frontend) {
  for (std::uint32_t engine = 0; engine < frontend.metrics->num_engines(); ++engine) {
    const EngineTotals now = frontend.metrics->totals(engine);
    EngineTotals& before = frontend.logged[engine];
    if (now != before || now.running > 0) {
      log_line(LogLevel::kInfo,
               format_stats_line(engine, before, now, frontend.config.log_stats_interval_s));
    }
    before = now;
  }
}

void log_stats_later(Self self) {
  const double interval_s = state(self).config.log_stats_interval_s;
  if (interval_s <= 0) return;
  const FrontendActor me = self;
  send_after(self, from_seconds(interval_s), me, LogStats{});
}

FrontendActor::behavior_type frontend_behavior(
    Self self, const ServerConfig& config, const std::vector<InputProcessorActor>& input_processors,
    const OutputProcessorActor& output_processor, const SchedulerActor& scheduler,
    std::uint64_t seed) {
  send(self, output_processor, Subscribe{});
  FrontendState& frontend = state(self);
  frontend.config = config;
  frontend.random.seed(seed);
  frontend.metrics = std::make_unique<EngineMetrics>(config.service.model_names.front(),
                                                     config.service.defaults.max_model_len);
  frontend.metrics->set_cache_config(0, config.cache_config);
  frontend.logged.resize(frontend.metrics->num_engines());
  frontend.port = std::make_unique<FrontendPort>(self->system(), input_processors, scheduler);
  return {
      [self](const Listen&) -> Listening {
        FrontendState& frontend = state(self);
        frontend.port->connect(self);
        auto server = Server::start(frontend.config, *frontend.port, *frontend.metrics);
        if (!server.ok()) return {.error = server.error()};
        frontend.server = std::move(server).value();
        log_stats_later(self);
        return {.port = frontend.server->port()};
      },
      [self](GenerateRequest& request) {
        FrontendState& frontend = state(self);
        request.params.philox_key =
            frontend.random();  // drawn once: kept wherever the request is run again
        frontend.live.emplace(request.id, request.params.n);
        send(self, frontend.port->input_processor(request.id), std::move(request));
      },
      [self](const AbortRequests& abort) {
        for (const RequestId id : abort.ids) abort_request(self, id);
      },
      [self](RequestOutputs& outputs) {
        FrontendState& frontend = state(self);
        for (const RequestOutput& output : outputs.outputs) {
          if (output.finished) frontend.live.erase(output.id);
        }
        frontend.server->deliver(std::move(outputs));
      },
      [self](const EngineHealth& health) {
        state(self).port->set_healthy(health.healthy);
        if (!health.healthy) fail_live(state(self), health.reason);
      },
      [self](const Drain& drain) -> caf::result<Drained> {
        FrontendState& frontend = state(self);
        frontend.drained = self->make_response_promise<Drained>();
        const FrontendActor me = self;
        frontend.server->drain([me] { post(me, DrainProgress{DrainEvent::kIdle}); });
        const auto timeout = from_seconds(drain.timeout_s);
        if (timeout > 0ns) {
          send_after(self, timeout, me, DrainProgress{DrainEvent::kTimeout});
        } else {
          abort_all(self);
        }
        return frontend.drained;
      },
      [self](const DrainProgress& progress) {
        FrontendState& frontend = state(self);
        if (progress.event == DrainEvent::kTimeout) {
          abort_all(self);
        } else if (frontend.drained.pending()) {
          frontend.drained.deliver(Drained{frontend.num_aborted});
        }
      },
      [self](const LogStats&) {
        log_stats(state(self));
        log_stats_later(self);
      },
  };
}

}  // namespace

FrontendActor spawn_frontend(caf::actor_system& system, const ServerConfig& config,
                             std::vector<InputProcessorActor> input_processors,
                             OutputProcessorActor output_processor, SchedulerActor scheduler,
                             std::uint64_t seed) {
  return system.spawn(frontend_behavior, config, std::move(input_processors),
                      std::move(output_processor), std::move(scheduler), seed);
}

}  // namespace troupe
