#pragma once
// Connections between nodes: CAF's network layer behind a gate that authenticates and validates.
//
// CAF accepts every connection, trusts the content of frames, and gives peers full control.
// So both ends of a connection first authenticate by a certificate (TLS) or by the cluster's
// secret, and then only valid frames are passed to CAF. CAF's own TLS module is not used: a failed
// handshake leaves errors in OpenSSL's queue that end healthy connections, an idle peer makes it
// spin, a missing file aborts the process at the first connection, and rejections are not logged
// (0.17.6). Like that module, this uses a middleman actor that creates the
// connections.

#include <caf/io/middleman_actor.hpp>
#include <memory>
#include <string>

#include "messages/actor_interfaces.hpp"
#include "runtime/config/options.hpp"
#include "runtime/transport/credentials.hpp"

namespace troupe {

/// The credentials in the options: certificates, or the file with the secret; otherwise `secret`,
/// which may be empty: no authentication. Errors: of TlsSource::open and Credentials::read_secret.
[[nodiscard]] Result<std::shared_ptr<const Credentials>> load_credentials(
    const TopologyOptions& options, std::string secret);

/// The network of one actor system, which must outlive it and have CAF's middleman. Blocking: not
/// for actors of the thread pool.
class Network {
 public:
  enum class Side : std::uint8_t {
    kSupervisor,  ///< other nodes cannot end its actors
    kNode         ///< the Supervisor can end its actors
  };
  Network(caf::actor_system& system, std::shared_ptr<const Credentials> credentials, Side side);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// Opens a port on which nodes connect to the Supervisor; 0: any. Errors: kIo.
  [[nodiscard]] Result<std::uint16_t> publish(const SupervisorActor& supervisor,
                                              const std::string& host, std::uint16_t port);
  /// Opens a port for other nodes to connect to.
  [[nodiscard]] Result<std::uint16_t> open(const std::string& host);
  /// The Supervisor at that address. Errors state which side rejected the other, and why.
  [[nodiscard]] Result<SupervisorActor> find_supervisor(const std::string& host,
                                                        std::uint16_t port);
  /// Connects this process to the node at that address.
  [[nodiscard]] Result<void> connect(const std::string& host, std::uint16_t port);

 private:
  caf::actor_system& system_;
  std::shared_ptr<const Credentials> credentials_;
  caf::io::middleman_actor middleman_;
};

}  // namespace troupe
