#include "runtime/transport/tls.hpp"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <string_view>

#include "runtime/base/log.hpp"

namespace troupe {
namespace {

/// Takes all errors from the thread's queue.
std::string take_errors() {
  std::string text;
  while (const unsigned long code = ERR_get_error()) {
    // A generic system error follows the actual error.
    if (ERR_GET_REASON(code) == ERR_R_SYS_LIB && !text.empty()) continue;
    const char* reason = ERR_SYSTEM_ERROR(code) ? std::strerror(ERR_GET_REASON(code))
                                                : ERR_reason_error_string(code);
    if (!text.empty()) text += "; ";
    text += reason != nullptr ? reason : "error " + std::to_string(code);
  }
  return text;
}

Error bad_file(const char* option, const std::string& file, const std::string& what) {
  return invalid_argument(std::string(option) + " " + file + ": " + what, option);
}

/// Verifies our own certificate as the peer will.
Result<void> check_own_certificate(SSL_CTX* context, const TlsFiles& files) {
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> check(X509_STORE_CTX_new(),
                                                                              &X509_STORE_CTX_free);
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(context, &chain);
  CHECK(check != nullptr, files.certificate);
  const int ready = X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context),
                                        SSL_CTX_get0_certificate(context), chain);
  CHECK(ready == 1, files.certificate);
  if (X509_verify_cert(check.get()) == 1) return {};
  const int error = X509_STORE_CTX_get_error(check.get());
  take_errors();
  return bad_file(
      "tls-certificate", files.certificate,
      std::string(X509_verify_cert_error_string(error)) + " (tls-ca is " + files.ca + ")");
}

/// Names of the options, for errors.
struct FileOptions {
  const char *certificate, *key, *ca;
};
constexpr FileOptions kNodeOptions = {"tls-certificate", "tls-key", "tls-ca"};
constexpr FileOptions kHttpOptions = {"ssl-certfile", "ssl-keyfile", "ssl-ca-certs"};

/// `files.ca` may be empty.
Result<void> load_files(SSL_CTX* context, const TlsFiles& files, const FileOptions& options) {
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1)
    return bad_file(options.certificate, files.certificate, take_errors());
  // A key with a passphrase would prompt at a terminal.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return -1; });
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1)
    return bad_file(options.key, files.key, take_errors());
  if (!files.ca.empty() && SSL_CTX_load_verify_file(context, files.ca.c_str()) != 1)
    return bad_file(options.ca, files.ca, take_errors());
  return {};
}

/// Clients that also support HTTP/2 negotiate HTTP/1.1.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* size,
                    const unsigned char* offered, unsigned int offered_size, void*) {
  constexpr std::string_view kHttp = "\x08http/1.1";
  unsigned char* found = nullptr;
  const int result =
      SSL_select_next_proto(&found, size, reinterpret_cast<const unsigned char*>(kHttp.data()),
                            static_cast<unsigned>(kHttp.size()), offered, offered_size);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::load_for_http(const TlsFiles& files,
                                                                    const TlsServerPolicy& policy) {
  const std::shared_ptr<TlsContext> loaded(new TlsContext(SSL_CTX_new(TLS_server_method())));
  SSL_CTX* context = loaded->get();
  CHECK(context != nullptr, files.certificate);
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  RETURN_IF_ERROR(load_files(context, files, kHttpOptions));
  if (!policy.ciphers.empty() && SSL_CTX_set_cipher_list(context, policy.ciphers.c_str()) != 1)
    return bad_file("ssl-ciphers", policy.ciphers, take_errors());
  using enum TlsServerPolicy::ClientCertificate;
  if (policy.client_certificate != kNone) {
    SSL_CTX_set_verify(
        context,
        SSL_VERIFY_PEER |
            (policy.client_certificate == kRequired ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
        nullptr);
    // Sessions of clients with certificates are resumed in this process only.
    SSL_CTX_set_session_id_context(context, reinterpret_cast<const unsigned char*>("troupe"), 6);
    if (STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(files.ca.c_str()); names != nullptr)
      SSL_CTX_set_client_CA_list(context, names);
  }
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  return std::shared_ptr<const TlsContext>(loaded);
}

Result<std::shared_ptr<const TlsContext>> TlsContext::load(const TlsFiles& files) {
  const std::shared_ptr<TlsContext> loaded(new TlsContext(SSL_CTX_new(TLS_method())));
  SSL_CTX* context = loaded->get();
  CHECK(context != nullptr, files.certificate);
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  // Sessions are never resumed, so no tickets follow the handshake.
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // Nodes may be killed; messages have their own length.
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  RETURN_IF_ERROR(load_files(context, files, kNodeOptions));
  RETURN_IF_ERROR(check_own_certificate(context, files));
  return std::shared_ptr<const TlsContext>(loaded);
}

Result<std::shared_ptr<const TlsContext>> TlsContext::load_for_client(const std::string& ca) {
  const std::shared_ptr<TlsContext> loaded(new TlsContext(SSL_CTX_new(TLS_client_method())));
  SSL_CTX* const context = loaded->get();
  CHECK(context != nullptr, ca);
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  const bool trusts = ca.empty() ? SSL_CTX_set_default_verify_paths(context) == 1
                                 : SSL_CTX_load_verify_file(context, ca.c_str()) == 1;
  const std::string errors = take_errors();
  if (!trusts) return invalid_argument("certificate authority " + ca + ": " + errors);
  return std::shared_ptr<const TlsContext>(loaded);
}

TlsSource::Stamps TlsSource::stamps_of(const TlsFiles& files) {
  Stamps stamps;
  const std::array<const std::string*, 3> names = {&files.certificate, &files.key, &files.ca};
  for (std::size_t i = 0; i < names.size(); ++i) {
    struct stat status {};
    if (stat(names[i]->c_str(), &status) != 0) continue;
    stamps[i] = {
        .inode = status.st_ino,
        .size = status.st_size,
        .changed_ns = std::int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec};
  }
  return stamps;
}

Result<std::shared_ptr<TlsSource>> TlsSource::open(const TlsFiles& files, Load load) {
  const Stamps stamps = stamps_of(files);  // before they are read: a later change is detected
  ASSIGN_OR_RETURN(auto context, load(files));
  return std::shared_ptr<TlsSource>(
      new TlsSource(files, std::move(load), std::move(context), stamps));
}

std::shared_ptr<const TlsContext> TlsSource::context() {
  const std::lock_guard lock(mutex_);
  const Stamps stamps = stamps_of(files_);
  if (stamps == stamps_) return context_;
  stamps_ = stamps;
  if (auto loaded = load_(files_); loaded.ok()) {
    context_ = std::move(loaded).value();
    log_info("certificates renewed", kv("certificate", files_.certificate));
  } else {
    log_warning("certificates not reloaded, the old ones stay in use",
                kv("reason", loaded.error().message));
  }
  return context_;
}

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int socket, Side side)
    : context_(std::move(context)), ssl_(SSL_new(context_->get()), &SSL_free) {
  CHECK(ssl_ != nullptr, take_errors());
  SSL_set_fd(ssl_.get(), socket);
  side == Side::kConnects ? SSL_set_connect_state(ssl_.get()) : SSL_set_accept_state(ssl_.get());
}

TlsSession::TlsSession(std::shared_ptr<const TlsContext> context, int socket,
                       const std::string& host)
    : TlsSession(std::move(context), socket, Side::kConnects) {
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str()) != 1) {
    SSL_set_tlsext_host_name(ssl_.get(), host.c_str());
    SSL_set1_host(ssl_.get(), host.c_str());
  }
  take_errors();
}

bool TlsSession::take_result(int result) {
  const int state = SSL_get_error(ssl_.get(), result);
  if (state == SSL_ERROR_WANT_WRITE) must_write_ = true;
  if (state == SSL_ERROR_WANT_WRITE || state == SSL_ERROR_WANT_READ) return true;
  error_ = take_errors();
  if (const long verified = SSL_get_verify_result(ssl_.get());
      verified != X509_V_OK && !established_)
    error_ += std::string(" (") + X509_verify_cert_error_string(verified) + ")";
  if (error_.empty() && !established_) error_ = "closed during the handshake";
  return false;
}

bool TlsSession::shake_hands() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) return take_result(result);
  established_ = true;
  return send_early();
}

bool TlsSession::send_early() {
  while (!early_.empty()) {
    const int sent = SSL_write(ssl_.get(), early_.data(), static_cast<int>(early_.size()));
    if (sent <= 0) return take_result(sent);
    early_.erase(early_.begin(), early_.begin() + sent);
  }
  return true;
}

std::optional<std::size_t> TlsSession::read(std::span<char> into) {
  if (!established_ && !shake_hands()) return std::nullopt;
  if (!established_ || into.empty()) return 0;
  ERR_clear_error();
  const int received = SSL_read(ssl_.get(), into.data(), static_cast<int>(into.size()));
  if (received > 0) return static_cast<std::size_t>(received);
  return take_result(received) ? std::optional<std::size_t>(0) : std::nullopt;
}

std::optional<std::size_t> TlsSession::write(std::span<const char> from) {
  must_write_ = false;
  if (!established_ && !shake_hands()) return std::nullopt;
  if (!established_) return keep_early(from);
  ERR_clear_error();
  if (!send_early()) return std::nullopt;
  if (!early_.empty() || from.empty()) return 0;
  const int sent = SSL_write(ssl_.get(), from.data(), static_cast<int>(from.size()));
  if (sent > 0) return static_cast<std::size_t>(sent);
  return take_result(sent) ? std::optional<std::size_t>(0) : std::nullopt;
}

}  // namespace troupe
