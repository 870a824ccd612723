#pragma once
// The HTTP front door: sockets, keep-alive, limits and the OpenAI routes behind one object.

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
  double log_stats_interval_s = 0;  ///< between the Frontend's lines of statistics; 0: none
};

/// Whether a server could listen there at this moment, for those who have long to go until they do.
/// Errors: as of Server::start.
[[nodiscard]] Result<void> check_address(const std::string& host, std::int64_t port);

/// Owns its I/O threads, each with the connections and live requests given to it: a request stays
/// on one thread from its first byte to its last, so none of its state is shared. The Frontend
/// creates one, feeds it with `deliver`, and destroys it after `stop`.
class Server {
 public:
  /// Binds, listens and starts to answer. `port` and `metrics` must outlive the server. Errors:
  /// kInvalidArgument for a host that is no address or name, kIo if the port is taken.
  [[nodiscard]] static Result<std::unique_ptr<Server>> start(ServerConfig config, EnginePort& port,
                                                             EngineMetrics& metrics);
  /// Stops.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The port it listens on: the one that the system chose, if 0 was asked for.
  [[nodiscard]] std::uint16_t port() const noexcept;

  /// The outputs of one engine step. Any thread; returns at once. Outputs of unknown requests are
  /// dropped: their clients are gone.
  void deliver(RequestOutputs outputs);

  /// From now on new requests are answered 503 with Retry-After; `done` is called once, from an I/O
  /// thread (or from stop), when the last running one has been answered.
  void drain(std::function<void()> done);

  /// Closes every connection and ends the threads. Requests still running are aborted. Not from an
  /// I/O thread.
  void stop();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
