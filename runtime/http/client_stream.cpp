#include "runtime/http/client_stream.hpp"

#include <boost/asio/ssl/context.hpp>

namespace troupe {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

std::string peer_of(const tcp::socket& socket) {
  error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return {};
  const std::string address = peer.address().to_string();
  return (peer.address().is_v6() ? "[" + address + "]" : address) + ":" +
         std::to_string(peer.port());
}

}  // namespace

ClientStream::ClientStream(Tcp socket, const std::shared_ptr<const TlsContext>& tls)
    : peer_(peer_of(socket)) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  if (tls == nullptr) {
    stream_ = std::make_unique<Tcp>(std::move(socket));
    return;
  }
  SSL_CTX_up_ref(tls->get());
  asio::ssl::context context(tls->get());  // the session holds OpenSSL's context from here on
  stream_ = std::make_unique<Tls>(std::move(socket), context);
}

ClientStream::Tcp& ClientStream::socket() {
  if (const auto* plain = std::get_if<std::unique_ptr<Tcp>>(&stream_)) return **plain;
  return std::get<std::unique_ptr<Tls>>(stream_)->next_layer();
}

void ClientStream::async_handshake(std::function<void(const ErrorCode&)> done) {
  const auto* tls = std::get_if<std::unique_ptr<Tls>>(&stream_);
  if (tls == nullptr) return done({});
  (*tls)->async_handshake(asio::ssl::stream_base::server, std::move(done));
}

void ClientStream::shutdown(std::function<void()> done) {
  if (const auto* tls = std::get_if<std::unique_ptr<Tls>>(&stream_)) {
    // The client need not answer it; its end of the stream, or a deadline, closes the connection.
    return (*tls)->async_shutdown([done = std::move(done)](const ErrorCode&) { done(); });
  }
  error_code ignored;
  socket().shutdown(tcp::socket::shutdown_send, ignored);
  done();
}

void ClientStream::close() {
  error_code ignored;
  socket().close(ignored);
}

}  // namespace troupe
