#pragma once
// Troupe inside an actor system: what the binary uses itself, and what an embedding application
// calls. Configure the system's configuration, make the system, start the engine.

#include <functional>
#include <memory>
#include <vector>

#include "actors/system_config.hpp"
#include "messages/actor_interfaces.hpp"
#include "runtime/config/options.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// The way into a running engine for a frontend of one's own.
struct EngineHandles {
  std::vector<InputProcessorActor>
      input_processors;  ///< any of them takes a request; its aborts go to the same one
  SchedulerActor scheduler;
  OutputProcessorActor output_processor;  ///< Subscribe to it before the first request
  ServerDefaults request_defaults;        ///< for parse_completion_request, parse_chat_request
};

struct StartOptions {
  Options options;         ///< options.model.model names a folder
  bool serve_http = true;  ///< false: no Frontend; the caller subscribes to the OutputProcessor
  /// The command line of this process behind its subcommand: the nodes that the Supervisor starts
  /// on this host get the same options.
  std::vector<std::string> node_arguments;
  std::function<void(const LoadProgress&)> on_progress;  ///< from another thread; may be empty
  std::function<void(const std::string&)>
      on_failure;  ///< an actor died, the engine is gone; from another thread
};

/// A running engine. Destroying it does not stop it; `stop` does.
struct Engine {
  SupervisorActor supervisor;
  Started started;
  EngineHandles handles;
};

/// Loads the model and starts every actor; blocks until requests can come. Errors: options that do
/// not go together, whatever is wrong with the model folder, too little memory for one request of
/// max_model_len, a port that is taken. Not from inside an actor.
[[nodiscard]] Result<Engine> start(caf::actor_system& system, const StartOptions& options);

/// Drains for at most `drain_timeout_s`, then ends every actor; blocks until they have ended. False
/// if the engine had been given up.
bool stop(caf::actor_system& system, Engine& engine, double drain_timeout_s);

}  // namespace troupe
