#pragma once
// A client's connection: its socket, its session and its deadlines.

#include <array>
#include <boost/system/error_code.hpp>
#include <functional>
#include <memory>
#include <string>

#include "runtime/http/client_stream.hpp"
#include "runtime/http/session.hpp"

namespace troupe {

struct ConnectionTimeouts {
  double idle_s;
  double write_s;
  double silence_s;  ///< 0: no keep-alive comments
  double body_s;
  /// Interval of timeout checks: a timeout may fire late by this much.
  [[nodiscard]] double tick_s() const;
};

/// Owns a stream and its session. A read is always pending (unless enough is buffered), so that a
/// disconnect is noticed while a request runs. On one I/O thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// `refuse`: the server has too many connections. `closed` is called once.
  Connection(ClientStream stream, Service& service, const HttpLimits& limits,
             const ConnectionTimeouts& timeouts, bool refuse,
             std::function<void(Connection&)> closed);

  void start();
  /// Closes at once; running requests are aborted.
  void close();
  /// Checks the deadlines.
  void tick(double now);

 private:
  using ErrorCode = boost::system::error_code;

  template <class Function>
  void guard(Function&& function);
  void look_at_clock(double now);
  [[nodiscard]] double idle_s() const;
  void on_handshake(const ErrorCode& error);
  void start_read();
  void on_read(const ErrorCode& error, std::size_t num_bytes);
  void start_write();
  void continue_write();
  void on_written(const ErrorCode& error, std::size_t num_bytes);
  void linger();

  static constexpr std::size_t kReadBytes = 64 << 10;

  ClientStream stream_;
  const ConnectionTimeouts timeouts_;
  const std::function<void(Connection&)> closed_;
  std::unique_ptr<HttpSession> session_;  ///< null: closed
  std::array<char, kReadBytes> received_;
  std::string sending_;
  std::size_t num_written_ = 0;
  bool handshaking_ = true;
  bool reading_ = false;
  bool writing_ = false;
  bool lingering_ = false;
  double waiting_since_;  ///< since when the client has to act
  double last_write_;
};

}  // namespace troupe
