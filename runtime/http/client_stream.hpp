#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "runtime/transport/tls.hpp"

namespace troupe {

/// The bytes of a client's connection: plain TCP, or TLS.
class ClientStream {
 public:
  using Tcp = boost::asio::ip::tcp::socket;
  using ErrorCode = boost::system::error_code;

  /// `tls` null: plain.
  ClientStream(Tcp socket, const std::shared_ptr<const TlsContext>& tls);

  /// ADDRESS:PORT of the client.
  [[nodiscard]] const std::string& peer() const noexcept { return peer_; }
  [[nodiscard]] Tcp::executor_type executor() { return socket().get_executor(); }

  /// Calls `done` when bytes can be exchanged; at once if the connection is plain.
  void async_handshake(std::function<void(const ErrorCode&)> done);
  /// At most one read and one write at a time.
  template <class Buffers, class Done>
  void async_read_some(const Buffers& buffers, Done&& done) {
    std::visit([&](auto& stream) { stream->async_read_some(buffers, std::forward<Done>(done)); },
               stream_);
  }
  template <class Buffers, class Done>
  void async_write_some(const Buffers& buffers, Done&& done) {
    std::visit([&](auto& stream) { stream->async_write_some(buffers, std::forward<Done>(done)); },
               stream_);
  }
  /// Nothing more is sent; what the client still sends can be read. `done` is called at last, and
  /// keeps this object until then. Pre: no write is pending.
  void shutdown(std::function<void()> done);
  void close();

 private:
  using Tls = boost::asio::ssl::stream<Tcp>;

  [[nodiscard]] Tcp& socket();

  std::string peer_;
  std::variant<std::unique_ptr<Tcp>, std::unique_ptr<Tls>> stream_;
};

}  // namespace troupe
