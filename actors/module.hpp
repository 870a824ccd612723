#pragma once
// Troupe inside an actor system: used by the binary itself and by embedding applications.
//
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
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "messages/actor_interfaces.hpp"
#include "runtime/config/options.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// Registers Troupe's message types, and sets CAF's scheduler to the fastest measured settings
/// unless the configuration has others.
void configure_system(caf::actor_system_config& config);

/// For caf::actor_system_config::load. It uses the slot of one of CAF's own modules: with the
/// `network_manager` of caf-net in the same system, use another, such as
/// ModuleIn<CafModule::openssl_manager>.
template <CafModule::id_t slot>
using ModuleIn = ConfiguringModule<configure_system, slot>;
using module = ModuleIn<CafModule::network_manager>;

/// The interface of a running engine.
struct EngineHandles {
  /// Any actor may send SubmitRequest, with ids of its own choice, and gets the RequestOutputs.
  /// Failures of the engine do not change a request's tokens.
  RequestRouterActor router;
  ServerDefaults request_defaults;  ///< for parse_completion_request, parse_chat_request
};

struct StartOptions {
  Options options;         ///< options.model.model names a folder
  bool serve_http = true;  ///< false: no Frontend; the caller's actors ask the RequestRouter
  /// Port of a running server of this user, with the same server.host and server.port, whose
  /// listening socket the Frontend takes over; retire it then. 0: none.
  std::uint16_t replaces_port = 0;
  /// The program `troupe` of this version, for the processes of this host. Empty: there are none.
  std::string node_program;
  /// As on the command line of `troupe serve`: the nodes that the Supervisor starts on this host
  /// get the same options.
  std::vector<std::string> node_arguments;
  std::function<void(const LoadProgress&)> on_progress;  ///< from another thread; may be empty
  /// Only for topologies with the RequestRouter in another process: called with the next one after
  /// its loss. Unfinished requests must be submitted to it again, with their outputs so far in
  /// `emitted`, after which they continue. From another thread; may be empty.
  std::function<void(const RequestRouterActor&)> on_router;
  /// Every half second if the engine has nodes: without it the Supervisor is stopped or stuck. From
  /// another thread; may be empty.
  std::function<void()> on_check;
  std::function<void(const std::string&)>
      on_failure;  ///< the engine is lost and will not be restarted; from another thread
  /// Called with each actor of the engine and its kind ("worker") whenever it is spawned, for
  /// measurements and fault injection. From another thread; may be empty.
  std::function<void(const std::string&, const caf::actor&)> on_spawned;
};

/// The options in an embedding application's configuration: section [troupe] of CAF's configuration
/// file has the options of `troupe serve --help=all` by their names (a list for those that may be
/// repeated), which override the environment variables TROUPE_..., and those the file of
/// Troupe's own that `config-file` names, with a topology perhaps; `node-program` is
/// StartOptions::node_program. No HTTP server is asked for.
/// Pre: the configuration has been parsed. Errors: those of load_options, and values other than
/// text, numbers, flags or lists of those.
[[nodiscard]] Result<StartOptions> start_options(const caf::actor_system_config& config);

/// True if the Supervisor of an engine with these options and HTTP has died, but not all of its
/// processes: `start` adopts them.
[[nodiscard]] bool can_resume(const StartOptions& options);

/// A running engine. Destroying it does not stop it; `stop` does.
struct Engine {
  SupervisorActor supervisor;
  /// The Supervisor has ended, and its monitors have been told. An actor system that ends before
  /// may wait forever for a thread: its broker keeps what it has received to the end, with the
  /// sender.
  std::shared_future<void> ended;
  Started started;
  EngineHandles handles;
};

/// Loads the model and starts every actor; blocks until it accepts requests. Errors: inconsistent
/// options, an invalid model folder, too little memory for one request of max_model_len, a port
/// that is in use. Not from inside an actor.
[[nodiscard]] Result<Engine> start(caf::actor_system& system, const StartOptions& options);

/// Drains for at most `drain_timeout_s`, then ends every actor; blocks until they have ended. False
/// if the engine had failed for good.
bool stop(caf::actor_system& system, Engine& engine, double drain_timeout_s);

/// The same for an engine whose listening socket was taken over: it ends when its last connection
/// has, however long that takes.
bool retire(caf::actor_system& system, Engine& engine);

}  // namespace troupe
