#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/tcp_probe.hpp"
#include "runtime/kv_transfer/lmcache/remote_store.hpp"
#include "runtime/transport/tls.hpp"

namespace troupe::lmcache {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint16_t kDefaultPort = 65432;
constexpr std::size_t kMaxTokenFileBytes = 4096;
constexpr std::size_t kMaxPipeline = 64;
constexpr std::size_t kTlsPieceBytes = 16 << 10;

class LmStore final : public RemoteStore {
 public:
  LmStore(RemoteUrl url, std::chrono::milliseconds timeout, std::string token,
          std::shared_ptr<const TlsContext> tls)
      : url_(std::move(url)), timeout_(timeout), token_(std::move(token)), tls_(std::move(tls)) {}

  Result<std::size_t> count_leading(std::span<const std::string> keys) override {
    std::size_t count = 0;
    while (count < keys.size()) {
      const auto part = keys.subspan(count, std::min(kMaxPipeline, keys.size() - count));
      const auto found = guarded<std::size_t>([&] { return count_part(part); });
      if (!found.ok()) return found;
      count += *found;
      if (*found < part.size()) break;
    }
    return count;
  }

  Result<std::optional<std::vector<std::byte>>> get(const std::string& key,
                                                    std::size_t num_bytes) override {
    return guarded<std::optional<std::vector<std::byte>>>(
        [&] { return get_value(key, num_bytes); });
  }

  Result<void> put(const std::string& key, const TensorInfo& info,
                   std::span<const std::byte> bytes) override {
    if (bytes.size() > INT32_MAX)
      return Error{
          ErrorCode::kTooLarge, "a value of " + std::to_string(bytes.size()) + " bytes", {}};
    const auto done = guarded<bool>([&]() -> Result<bool> {
      RETURN_IF_ERROR(send_request({.command = LmCommand::kPut,
                                    .length = static_cast<std::int32_t>(bytes.size()),
                                    .info = info,
                                    .key = key}));
      RETURN_IF_ERROR(send({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
      return true;
    });
    if (!done.ok()) return done.error();
    return {};
  }

 private:
  template <class T, class Call>
  Result<T> guarded(Call&& call) {
    RETURN_IF_ERROR(connect());
    auto result = call();
    // What else would come on it belongs to this call.
    if (!result.ok()) close();
    if (!result.ok() && result.error().code == ErrorCode::kTimeout)
      next_attempt_ = Clock::now() + kReconnectInterval;
    return result;
  }
  [[nodiscard]] Error error(ErrorCode code, const std::string& reason) const {
    return {code, url_.shown() + ": " + reason, {}};
  }
  void close() {
    session_.reset();
    socket_ = FileDescriptor();
  }

  Result<void> connect() {
    if (socket_.valid()) return {};
    if (Clock::now() < next_attempt_)
      return error(ErrorCode::kUnavailable, "it could not be reached a moment ago");
    next_attempt_ = Clock::now() + kReconnectInterval;
    ASSIGN_OR_RETURN(socket_, connect_tcp(url_.host, url_.port, timeout_));
    if (tls_ != nullptr) session_ = std::make_unique<TlsSession>(tls_, socket_.get(), url_.host);
    if (!token_.empty()) {
      const auto answered = [&]() -> Result<LmReply> {
        RETURN_IF_ERROR(send_request(
            {.command = LmCommand::kAuth, .length = static_cast<std::int32_t>(token_.size())}));
        RETURN_IF_ERROR(send(token_));
        return receive_reply();
      }();
      const bool accepted = answered.ok() && answered->code == LmCode::kSuccess;
      if (!accepted) close();
      if (!answered.ok()) return answered.error();
      if (!accepted) return error(ErrorCode::kUnauthorized, "the token is refused");
    }
    next_attempt_ = {};
    return {};
  }

  Result<std::size_t> count_part(std::span<const std::string> keys) {
    std::string requests;
    for (const std::string& key : keys) {
      RETURN_IF_ERROR(check_key(key));
      const auto request = pack_lm_request({.command = LmCommand::kExist, .key = key});
      requests.append(request.data(), request.size());
    }
    RETURN_IF_ERROR(send(requests));
    std::size_t count = 0;
    bool all = true;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSIGN_OR_RETURN(const LmReply reply, receive_reply());
      all = all && reply.code == LmCode::kSuccess;
      if (all) ++count;
    }
    return count;
  }

  Result<std::optional<std::vector<std::byte>>> get_value(const std::string& key,
                                                          std::size_t num_bytes) {
    RETURN_IF_ERROR(send_request({.command = LmCommand::kGet, .key = key}));
    ASSIGN_OR_RETURN(const LmReply reply, receive_reply());
    if (reply.code != LmCode::kSuccess) return std::optional<std::vector<std::byte>>();
    if (static_cast<std::size_t>(reply.length) != num_bytes)
      return error(ErrorCode::kTooLarge, key + " has " + std::to_string(reply.length) +
                                             " bytes, expected " + std::to_string(num_bytes));
    std::vector<std::byte> bytes(num_bytes);
    RETURN_IF_ERROR(receive({reinterpret_cast<char*>(bytes.data()), bytes.size()}));
    return std::optional(std::move(bytes));
  }

  [[nodiscard]] Result<void> check_key(const std::string& key) const {
    if (key.size() <= kLmKeyBytes) return {};
    return error(ErrorCode::kTooLarge, "the key " + key + " has " + std::to_string(key.size()) +
                                           " bytes, at most " + std::to_string(kLmKeyBytes) +
                                           " are possible");
  }
  Result<void> send_request(const LmRequest& request) {
    RETURN_IF_ERROR(check_key(request.key));
    const auto bytes = pack_lm_request(request);
    return send({bytes.data(), bytes.size()});
  }
  Result<LmReply> receive_reply() {
    std::array<char, kLmReplyBytes> bytes;
    RETURN_IF_ERROR(receive(bytes));
    auto reply = parse_lm_reply(bytes);
    if (!reply.ok()) return error(reply.error().code, reply.error().message);
    return reply;
  }

  /// Until the socket is ready.
  Result<void> wait(short events) {
    if (session_ != nullptr && session_->must_write()) events |= POLLOUT;
    pollfd ready{.fd = socket_.get(), .events = events, .revents = 0};
    const int count = ::poll(&ready, 1, static_cast<int>(timeout_.count()));
    if (count > 0 || (count < 0 && errno == EINTR)) return {};
    return error(ErrorCode::kTimeout,
                 "nothing for " + std::to_string(timeout_.count()) + " milliseconds");
  }
  Result<void> send(std::string_view bytes) {
    while (!bytes.empty()) {
      std::optional<std::size_t> count;
      if (session_ != nullptr) {
        const std::string_view piece = bytes.substr(0, kTlsPieceBytes);
        // Before the handshake is done a write would only be kept.
        if (!session_->established()) {
          if (!session_->write({})) return ended();
          if (!session_->established()) {
            RETURN_IF_ERROR(wait(POLLIN));
            continue;
          }
        }
        count = session_->write(piece);
      } else {
        const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent >= 0)
          count = static_cast<std::size_t>(sent);
        else if (errno == EAGAIN || errno == EINTR)
          count = 0;
      }
      if (!count) return ended();
      if (*count == 0) RETURN_IF_ERROR(wait(POLLOUT));
      bytes.remove_prefix(*count);
    }
    return {};
  }
  Result<void> receive(std::span<char> into) {
    while (!into.empty()) {
      std::optional<std::size_t> count;
      if (session_ != nullptr) {
        if (session_->must_write() && !session_->write({})) return ended();
        count = session_->read(into);
      } else {
        const ssize_t received = ::recv(socket_.get(), into.data(), into.size(), 0);
        if (received > 0)
          count = static_cast<std::size_t>(received);
        else if (received < 0 && (errno == EAGAIN || errno == EINTR))
          count = 0;
      }
      if (!count) return ended();
      if (*count == 0) RETURN_IF_ERROR(wait(POLLIN));
      into = into.subspan(*count);
    }
    return {};
  }
  [[nodiscard]] Error ended() const {
    return error(ErrorCode::kUnavailable, session_ != nullptr && !session_->error().empty()
                                              ? session_->error()
                                              : "the connection has ended");
  }

  const RemoteUrl url_;
  const std::chrono::milliseconds timeout_;
  const std::string token_;
  const std::shared_ptr<const TlsContext> tls_;
  FileDescriptor socket_;
  std::unique_ptr<TlsSession> session_;  // null: plain
  Clock::time_point next_attempt_;
};

}  // namespace

Result<std::unique_ptr<RemoteStore>> make_lm_store(const RemoteUrl& url,
                                                   const RemoteOptions& options) {
  if (url.host.empty() || (!url.path.empty() && url.path != "/") || !url.user.empty())
    return invalid_argument("remote_url is " + url.shown() + ", it must be lm://HOST:PORT",
                            "remote_url");
  RemoteUrl complete = url;
  if (complete.port == 0) complete.port = kDefaultPort;
  std::string token;
  if (!options.token_file.empty()) {
    ASSIGN_OR_RETURN(token, read_file(options.token_file, kMaxTokenFileBytes));
    token.erase(std::min(token.size(), token.find_first_of("\r\n")));
    if (token.empty())
      return invalid_argument("troupe_token_file " + options.token_file + " is empty",
                              "troupe_token_file");
  }
  std::shared_ptr<const TlsContext> tls;
  if (url.scheme == "lms") {
    ASSIGN_OR_RETURN(tls, TlsContext::load_for_client(options.ca_file));
  }
  return std::unique_ptr<RemoteStore>(std::make_unique<LmStore>(
      std::move(complete), options.timeout, std::move(token), std::move(tls)));
}

}  // namespace troupe::lmcache
