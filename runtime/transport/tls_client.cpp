#include "runtime/transport/tls_client.hpp"

#include <openssl/err.h>
#include <openssl/x509v3.h>

namespace troupe {
namespace {

std::string take_client_errors() {
  std::string text;
  while (const unsigned long code = ERR_get_error()) {
    const char* const reason = ERR_reason_error_string(code);
    if (reason != nullptr) text += (text.empty() ? "" : "; ") + std::string(reason);
  }
  return text;
}

}  // namespace

Result<std::shared_ptr<const TlsClientContext>> TlsClientContext::load(const std::string& ca) {
  const std::shared_ptr<TlsClientContext> loaded(
      new TlsClientContext(SSL_CTX_new(TLS_client_method())));
  SSL_CTX* const context = loaded->get();
  CHECK(context != nullptr, ca);
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  const bool trusts = ca.empty() ? SSL_CTX_set_default_verify_paths(context) == 1
                                 : SSL_CTX_load_verify_file(context, ca.c_str()) == 1;
  const std::string errors = take_client_errors();
  if (!trusts) return invalid_argument("certificate authority " + ca + ": " + errors);
  return std::shared_ptr<const TlsClientContext>(loaded);
}

TlsClientSession::TlsClientSession(std::shared_ptr<const TlsClientContext> context, int socket,
                                   const std::string& host)
    : context_(std::move(context)), ssl_(SSL_new(context_->get()), &SSL_free) {
  CHECK(ssl_ != nullptr, host);
  SSL_set_fd(ssl_.get(), socket);
  SSL_set_connect_state(ssl_.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str()) != 1) {
    SSL_set_tlsext_host_name(ssl_.get(), host.c_str());
    SSL_set1_host(ssl_.get(), host.c_str());
  }
  take_client_errors();
}

std::optional<std::size_t> TlsClientSession::take_result(int result) {
  if (result > 0) return static_cast<std::size_t>(result);
  const int state = SSL_get_error(ssl_.get(), result);
  must_write_ = state == SSL_ERROR_WANT_WRITE;
  if (state == SSL_ERROR_WANT_WRITE || state == SSL_ERROR_WANT_READ) return 0;
  error_ = take_client_errors();
  if (const long verified = SSL_get_verify_result(ssl_.get()); verified != X509_V_OK)
    error_ += std::string(" (") + X509_verify_cert_error_string(verified) + ")";
  return std::nullopt;
}

std::optional<std::size_t> TlsClientSession::read(std::span<char> into) {
  ERR_clear_error();
  must_write_ = false;
  if (!established_) {
    const int shaken = SSL_do_handshake(ssl_.get());
    if (shaken != 1) return take_result(shaken);
    established_ = true;
  }
  if (into.empty()) return 0;
  return take_result(SSL_read(ssl_.get(), into.data(), static_cast<int>(into.size())));
}

std::optional<std::size_t> TlsClientSession::write(std::span<const char> from) {
  ERR_clear_error();
  must_write_ = false;
  if (!established_ || from.empty()) return read({});
  return take_result(SSL_write(ssl_.get(), from.data(), static_cast<int>(from.size())));
}

}  // namespace troupe
