#pragma once
// The HTTP server: sockets, keep-alive, limits and the OpenAI routes.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "messages/engine_output.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/options.hpp"
#include "runtime/http/engine_port.hpp"
#include "runtime/http/service.hpp"
#include "runtime/metrics/engine_metrics.hpp"

namespace troupe {

struct ServerConfig {
  ServerOptions options;  ///< address, limits, timeouts
  ServiceConfig service;  ///< the model and the API
  int num_io_threads = 1;
  Labels cache_config;              ///< for the Frontend's vllm:cache_config_info
  std::int32_t max_adapters = 0;    ///< for its vllm:lora_requests_info
  double log_stats_interval_s = 0;  ///< interval of the Frontend's statistics; 0: none
  bool takes_over = false;          ///< the listening socket of the server at this address, if any
};

/// Checks whether a server could listen there now, with these certificates, before a long start-up.
/// Errors: as of Server::start.
[[nodiscard]] Result<void> check_address(const ServerOptions& options);

/// Owns its I/O threads, each with its connections and live requests: a request stays on one
/// thread, so none of its state is shared. Created by the Frontend, which passes outputs to
/// `deliver` and destroys it after `stop`.
class Server {
 public:
  /// Binds, listens and starts to serve. It then accepts beside the server that it takes over from,
  /// until that one retires. `port` and `metrics` must outlive the server. Errors:
  /// kInvalidArgument (invalid host), kIo (the port is in use).
  [[nodiscard]] static Result<std::unique_ptr<Server>> start(ServerConfig config, EnginePort& port,
                                                             EngineMetrics& metrics);
  /// Stops.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The listening port, also if it was chosen by the system.
  [[nodiscard]] std::uint16_t port() const noexcept;

  /// The outputs of one engine step. Any thread; does not block. Outputs of unknown requests, whose
  /// clients have disconnected, are dropped.
  void deliver(RequestOutputs outputs);

  /// From now on new requests get 503 with Retry-After; `done` is called once, from an I/O thread
  /// (or from stop), when the last running request has been answered.
  void drain(std::function<void()> done);

  /// Accepts no connection any more, and serves the open ones: responses close theirs, idle ones
  /// are closed. `done` is called once, from an I/O thread (or from stop), when none is left.
  void retire(std::function<void()> done);

  /// Closes every connection and ends the threads. Running requests are aborted. Not from an I/O
  /// thread.
  void stop();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
