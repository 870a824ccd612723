#pragma once
// Troupe inside an actor system: what the binary uses itself, and what an embedding application
// calls.
//
//   struct Config : caf::actor_system_config {
//     Config() {
//       load<caf::io::middleman>();  // if the engine's actors are in several processes
//       load<troupe::module>();
//     }
//   };
//   ...
//   caf::actor_system system{config};
//   auto options = troupe::start_options(config);
//   auto engine = troupe::start(system, *options);
//   ...
//   troupe::stop(system, *engine, 0);

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "messages/actor_interfaces.hpp"
#include "runtime/config/options.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// Registers Troupe's message types, and sets the scheduler to what was measured best where the
/// configuration says nothing about it.
void configure_system(caf::actor_system_config& config);

/// For caf::actor_system_config::load. It takes the slot of a module of CAF's own: with the
/// `network_manager` of caf-net in the same system, take another, such as
/// ModuleIn<CafModule::openssl_manager>.
template <CafModule::id_t slot>
using ModuleIn = ConfiguringModule<configure_system, slot>;
using module = ModuleIn<CafModule::network_manager>;

/// The way into a running engine.
struct EngineHandles {
  /// Any actor sends it SubmitRequest, with ids of its own choice, and gets the RequestOutputs.
  /// Whatever of the engine ends meanwhile, a request ends with the tokens it would have had.
  RequestRouterActor router;
  ServerDefaults request_defaults;  ///< for parse_completion_request, parse_chat_request
};

struct StartOptions {
  Options options;         ///< options.model.model names a folder
  bool serve_http = true;  ///< false: no Frontend; the caller's actors ask the RequestRouter
  /// Of a running server of this user that the Frontend takes the listening socket from, where
  /// server.host and server.port are that one's; it has to be retired then. 0: of none.
  std::uint16_t replaces_port = 0;
  /// The program `troupe` of this version: processes of this host run it. Empty: there are none.
  std::string node_program;
  /// As on the command line of `troupe serve`: the nodes that the Supervisor starts on this host
  /// get the same options.
  std::vector<std::string> node_arguments;
  std::function<void(const LoadProgress&)> on_progress;  ///< from another thread; may be empty
  /// Only where a topology has the RequestRouter in another process: that one had died, and here is
  /// the next. It knows no request: those that had not ended are to be sent again, with what has
  /// come of them in `emitted`, and go on behind that. From another thread; may be empty.
  std::function<void(const RequestRouterActor&)> on_router;
  /// Every half second if the engine has nodes: without it the Supervisor is stopped or stuck. From
  /// another thread; may be empty.
  std::function<void()> on_check;
  std::function<void(const std::string&)>
      on_failure;  ///< the engine is gone, and will not come back; from another thread
  /// Each actor of the engine when it has been spawned, also again, with what it is ("worker"); for
  /// those who measure, or end it to see it replaced. From another thread; may be empty.
  std::function<void(const std::string&, const caf::actor&)> on_spawned;
};

/// What an embedding application's configuration says: the section [troupe] of CAF's configuration
/// file has the options of `troupe serve --help=all` by their names (a list for those that may be
/// repeated), which win over the environment's variables TROUPE_..., and those over the file of
/// Troupe's own that `config-file` names, with a topology perhaps; `node-program` is
/// StartOptions::node_program. No HTTP server is asked for.
/// Pre: the configuration has been parsed. Errors: those of load_options, and values that are no
/// text, number, flag or list of those.
[[nodiscard]] Result<StartOptions> start_options(const caf::actor_system_config& config);

/// The Supervisor of an engine with these options and HTTP has died, but its processes have not, or
/// not all: `start` takes them over.
[[nodiscard]] bool can_resume(const StartOptions& options);

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

/// The same of an engine whose listening socket another one has taken: it ends when its last
/// connection has, however long that takes.
bool retire(caf::actor_system& system, Engine& engine);

}  // namespace troupe
