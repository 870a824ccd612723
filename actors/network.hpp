#pragma once
// How nodes reach each other: CAF's network layer as it is, or under TLS with certificates on both
// sides.
//
// CAF lets in whoever can connect, and who is in can do anything. Its own TLS module is not used: a
// handshake that it refuses leaves errors in OpenSSL's queue that end healthy connections, a peer
// that connects and says nothing makes it spin, a missing file aborts the process at the first
// connection, and it says nothing about whom it refused and why (0.17.6). What is here takes the
// same way into CAF as that module: a middleman actor that makes the connections.

#include <caf/io/middleman_actor.hpp>
#include <memory>
#include <string>

#include "messages/actor_interfaces.hpp"
#include "runtime/config/options.hpp"
#include "runtime/transport/tls.hpp"

namespace troupe {

/// Null: the options name no certificates. Errors: of TlsContext::load.
[[nodiscard]] Result<std::shared_ptr<TlsSource>> load_tls(const TopologyOptions& options);

/// Whether a node there lets us in. CAF's own way to connect has no deadline and gives no reasons.
[[nodiscard]] Result<void> probe_node(const std::shared_ptr<TlsSource>& tls,
                                      const std::string& host, std::uint16_t port);

/// Of one actor system, which must outlive it and have CAF's middleman. Its operations block; not
/// for the actors of the pool.
class Network {
 public:
  /// `tls` may be null.
  Network(caf::actor_system& system, std::shared_ptr<TlsSource> tls);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Opens a port where nodes find the Supervisor; 0: any. Errors: kIo.
  [[nodiscard]] Result<std::uint16_t> publish(const SupervisorActor& supervisor,
                                              const std::string& host, std::uint16_t port);
  /// Opens a port for other nodes to connect to.
  [[nodiscard]] Result<std::uint16_t> open(const std::string& host);
  /// The Supervisor at that address. Errors say who does not let whom in, and why.
  [[nodiscard]] Result<SupervisorActor> find_supervisor(const std::string& host,
                                                        std::uint16_t port);
  /// Connects this process with the one there.
  [[nodiscard]] Result<void> connect(const std::string& host, std::uint16_t port);

 private:
  caf::actor_system& system_;
  std::shared_ptr<TlsSource> tls_;  ///< null: without
  caf::io::middleman_actor middleman_;
};

}  // namespace troupe
