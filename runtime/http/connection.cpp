#include "runtime/http/connection.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>

#include "runtime/base/clock.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

namespace asio = boost::asio;

/// How long a client may take to read the last response before its connection is closed.
constexpr double kLingerSeconds = 2;
/// After a pause this long no further request is on its way; clients open another connection.
constexpr double kRetiredIdleSeconds = 2;
/// Within which a TLS handshake must end.
constexpr double kHandshakeSeconds = 10;

}  // namespace

double ConnectionTimeouts::tick_s() const {
  const double shortest = std::min({idle_s, write_s, body_s, silence_s > 0 ? silence_s : idle_s});
  return std::clamp(shortest / 4, 0.01, 1.0);
}

Connection::Connection(ClientStream stream, Service& service, const HttpLimits& limits,
                       const ConnectionTimeouts& timeouts, bool refuse,
                       std::function<void(Connection&)> closed)
    : stream_(std::move(stream)),
      timeouts_(timeouts),
      closed_(std::move(closed)),
      session_(std::make_unique<HttpSession>(
          service, limits, wall_seconds, [this] { start_write(); }, refuse, stream_.peer())),
      waiting_since_(now_seconds()),
      last_write_(waiting_since_) {}

/// The session handles exceptions of its own; a socket's exception ends this connection.
template <class Function>
void Connection::guard(Function&& function) {
  const auto self = shared_from_this();
  try {
    function();
  } catch (const std::exception& failure) {
    log_error("connection failed", kv("what", std::string(failure.what())));
    close();
  }
}

void Connection::start() {
  stream_.async_handshake([self = shared_from_this()](const ErrorCode& error) {
    self->guard([&] { self->on_handshake(error); });
  });
}

void Connection::on_handshake(const ErrorCode& error) {
  if (!session_) return;
  if (error) {
    log_debug("TLS handshake failed", kv("client", stream_.peer()), kv("reason", error.message()));
    return close();
  }
  handshaking_ = false;
  waiting_since_ = now_seconds();
  start_read();
}

void Connection::close() {
  if (!session_) return;
  session_.reset();
  stream_.close();
  const auto self = shared_from_this();
  closed_(*this);
}

void Connection::tick(double now) {
  guard([&] { look_at_clock(now); });
}

void Connection::look_at_clock(double now) {
  if (!session_) return;
  if (session_->broken()) return close();
  if (handshaking_) {
    if (now - waiting_since_ > std::min(timeouts_.idle_s, kHandshakeSeconds)) close();
    return;
  }
  session_->check_time(now);
  if (lingering_ ? now - last_write_ > kLingerSeconds
      : writing_
          ? now - last_write_ > timeouts_.write_s
          : !session_->answering() && now - waiting_since_ > idle_s() && !session_->on_idle()) {
    return close();
  }
  if (timeouts_.silence_s > 0 && !writing_ && now - last_write_ > timeouts_.silence_s) {
    session_->on_silence();
  }
}

double Connection::idle_s() const {
  return session_->can_retire() ? std::min(timeouts_.idle_s, kRetiredIdleSeconds)
                                : timeouts_.idle_s;
}

void Connection::start_read() {
  if (reading_ || !session_ || !(lingering_ || session_->wants_input())) return;
  reading_ = true;
  stream_.async_read_some(
      asio::buffer(received_),
      [self = shared_from_this()](const ErrorCode& error, std::size_t num_bytes) {
        self->reading_ = false;
        self->guard([&] { self->on_read(error, num_bytes); });
      });
}

void Connection::on_read(const ErrorCode& error, std::size_t num_bytes) {
  if (!session_) return;
  if (error) return close();
  if (!lingering_) {
    session_->receive({received_.data(), num_bytes});
    // A head must arrive within the idle timeout, however slowly its bytes trickle in.
    if (session_->answering() || session_->reading_body()) waiting_since_ = now_seconds();
  }
  start_read();
}

void Connection::start_write() {
  if (session_->broken()) {  // on_output: destroy it after it returns
    return asio::post(stream_.executor(), [self = shared_from_this()] { self->close(); });
  }
  if (writing_ || !session_->take_output(sending_)) return;
  writing_ = true;
  last_write_ = now_seconds();
  num_written_ = 0;
  continue_write();
}

void Connection::continue_write() {
  stream_.async_write_some(
      asio::buffer(sending_.data() + num_written_, sending_.size() - num_written_),
      [self = shared_from_this()](const ErrorCode& error, std::size_t num_bytes) {
        self->guard([&] { self->on_written(error, num_bytes); });
      });
}

void Connection::on_written(const ErrorCode& error, std::size_t num_bytes) {
  if (!session_) return;
  if (error) return close();
  last_write_ = now_seconds();
  num_written_ += num_bytes;
  if (num_written_ < sending_.size()) return continue_write();
  writing_ = false;
  waiting_since_ = last_write_;
  session_->sent();
  if (session_->finished()) linger();
  start_read();
}

/// Closing at once would discard a response that the client has not read while it still sends.
void Connection::linger() {
  if (lingering_) return;
  lingering_ = true;
  stream_.shutdown([self = shared_from_this()] {});
}

}  // namespace troupe
