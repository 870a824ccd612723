#pragma once
// How nodes reach each other: CAF's network layer behind a gate of our own.
//
// CAF lets in whoever can connect, believes what their frames say, and who is in can do anything.
// So both ends of a connection first show each other a certificate (TLS) or that they know the
// cluster's secret, and of what comes then CAF sees the frames that are as they should be. CAF's
// own TLS module is not used: a handshake that it refuses leaves errors in OpenSSL's queue that end
// healthy connections, a peer that connects and says nothing makes it spin, a missing file aborts
// the process at the first connection, and it says nothing about whom it refused and why (0.17.6).
// What is here takes the same way into CAF as that module: a middleman actor that makes the
// connections.

#include <caf/io/middleman_actor.hpp>
#include <memory>
#include <string>

#include "messages/actor_interfaces.hpp"
#include "runtime/config/options.hpp"
#include "runtime/transport/credentials.hpp"

namespace troupe {

/// What the options name: certificates, or the secret in their file; else `secret`, which may be
/// empty: everybody knows it then. Errors: of TlsSource::open and Credentials::read_secret.
[[nodiscard]] Result<std::shared_ptr<const Credentials>> load_credentials(
    const TopologyOptions& options, std::string secret);

/// Of one actor system, which must outlive it and have CAF's middleman. Its operations block; not
/// for the actors of the pool.
class Network {
 public:
  enum class Side : std::uint8_t {
    kSupervisor,  ///< no other node ends its actors
    kNode         ///< the Supervisor ends its actors
  };
  Network(caf::actor_system& system, std::shared_ptr<const Credentials> credentials, Side side);
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
  std::shared_ptr<const Credentials> credentials_;
  caf::io::middleman_actor middleman_;
};

}  // namespace troupe
