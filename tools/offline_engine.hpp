#pragma once
// An engine inside of the command: for generate, chat, the latency and throughput benchmarks, and,
// with HTTP, for batches.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/module.hpp"
#include "actors/shutdown_guard.hpp"
#include "actors/system_config.hpp"
#include "runtime/http/served_model.hpp"
#include "tools/commands.hpp"

namespace troupe::tools {

/// Owns the actor system and the engine in it; the calling thread is its frontend. One thread only.
class OfflineEngine {
 public:
  enum class Http : std::uint8_t { kNone, kServed };
  /// Loads the model, with a progress bar. Errors: those of troupe::start.
  [[nodiscard]] static Result<std::unique_ptr<OfflineEngine>> start(CommandLine& line,
                                                                    Http http = Http::kNone);
  ~OfflineEngine();

  /// Sets `id` and `arrival_time`; returns the id.
  RequestId submit(GenerateRequest request, Placement placement = {});
  void abort(RequestId id);
  /// Waits for the outputs of the next step.
  [[nodiscard]] RequestOutputs next();
  /// As above, or nullopt after `seconds`.
  [[nodiscard]] std::optional<RequestOutputs> next_within(double seconds);
  /// Pre: the engine has no requests. Runs `request` to its end.
  [[nodiscard]] RequestOutput run(GenerateRequest request);
  /// The rendered form of a prompt.
  [[nodiscard]] RenderReply render(RenderRequest request);

  /// Where it serves HTTP.
  [[nodiscard]] std::uint16_t port() const { return engine_.started.port; }
  [[nodiscard]] const ModelLoaded& model() const { return engine_.started.model; }
  /// What a request's `model` stands for. Errors: those of find_served_model; kInternal, the engine
  /// does not say which adapters it has.
  [[nodiscard]] Result<ServedModel> served_model(const std::string& model);
  /// Defaults for request bodies.
  [[nodiscard]] const ServerDefaults& request_defaults() const {
    return engine_.handles.request_defaults;
  }

  /// Returns the code, and makes it the process's exit code even if CAF's shutdown fails.
  int exit_with(int code) { return exit_code_ = code; }

 private:
  OfflineEngine() = default;

  SystemConfig config_;
  ShutdownGuard guard_;
  int exit_code_ = 0;
  std::optional<caf::actor_system> system_;
  std::optional<caf::scoped_actor> self_;
  Engine engine_;
  std::vector<std::string> model_names_;
  bool has_adapters_ = false;
  /// The Scheduler of one group: all have the same adapters. Set whenever one is spawned.
  struct SchedulerLink {
    std::mutex mutex;
    caf::actor actor;
  };
  std::shared_ptr<SchedulerLink> scheduler_ = std::make_shared<SchedulerLink>();
  std::uint64_t next_id_ = 1;
};

}  // namespace troupe::tools
