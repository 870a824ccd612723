#pragma once
// One HTTP/1.1 connection without its socket: bytes in, bytes out.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/http/request_parser.hpp"
#include "runtime/http/service.hpp"

namespace troupe {

/// Responds to requests one at a time, in order (later ones wait in the buffer). Owns the exchange
/// of the current request: destroying the session, because the client has disconnected, aborts it.
/// An exception in one of its functions fails the request with status 500 and ends the connection;
/// it is not propagated to the caller.
///
/// The transport calls `receive` with received bytes, sends the result of `take_output`, one piece
/// at a time, and calls `sent` when a piece has been sent. `on_output` notifies it of new output;
/// it must not call back into the session except for `take_output`.
class HttpSession final : public ResponseSink {
 public:
  /// `refuse_all`: the server has too many connections; the first request gets 503. `client`: its
  /// address, for the log.
  HttpSession(Service& service, const HttpLimits& limits, std::function<double()> wall_clock,
              std::function<void()> on_output, bool refuse_all = false, std::string client = "");
  ~HttpSession() override;

  void receive(std::string_view bytes) noexcept;
  /// False if enough requests are buffered.
  [[nodiscard]] bool wants_input() const noexcept;

  /// Swaps pending output into `buffer` (whose content is dropped). False if there is none, or if
  /// the previous piece has not been sent.
  [[nodiscard]] bool take_output(std::string& buffer);
  void sent() noexcept;

  /// Nothing has been sent for the keep-alive interval of streams.
  void on_silence() noexcept;

  /// The client has been idle for too long. Returns false if no part of a request was received: the
  /// connection may be closed. Otherwise responds with a timeout.
  [[nodiscard]] bool on_idle() noexcept;
  /// Checks the body timeout; responds with a timeout if it has passed.
  void check_time(double now) noexcept;

  /// The last response has been sent: close the connection.
  [[nodiscard]] bool finished() const noexcept;
  /// Close the connection at once: a response was interrupted.
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  /// The server is being replaced, and no request is in progress or has begun to arrive.
  [[nodiscard]] bool can_retire() const noexcept;
  /// Whether a request is in progress (otherwise the client has to act).
  [[nodiscard]] bool answering() const noexcept { return busy_; }
  /// Whether a body is arriving: it may take longer than a head, within the body timeout.
  [[nodiscard]] bool reading_body() const noexcept;

  void respond(HttpResponse response) override;
  void begin(HttpResponse head) override;
  void write(std::string_view bytes, bool last) override;
  [[nodiscard]] bool ready() const noexcept override;
  void fail(std::string_view what) noexcept override;

 private:
  void process();
  void look_at_head();
  void refuse(HttpResponse response);
  void refuse_late(const std::string& what);
  void end_answer();
  void append_head(const HttpResponse& response);
  void append_connection_field();

  Service& service_;
  const HttpLimits limits_;
  const std::function<double()> wall_clock_;
  const std::function<void()> on_output_;
  const bool refuse_all_;
  const std::string client_;

  RequestParser parser_;
  std::string input_;   ///< received, not yet parsed
  std::string output_;  ///< to be sent
  bool sending_ = false;
  bool busy_ = false;      ///< a request has been taken and its response has not been sent
  bool answered_ = false;  ///< its response is complete
  bool chunked_ = false;   ///< the response is chunked
  bool head_only_ = false;
  bool http_1_0_ = false;
  bool close_ = false;  ///< after this response
  bool broken_ = false;
  /// Offset of the response's head in output_; npos: no head.
  std::size_t answer_at_ = std::string::npos;
  bool committed_ = false;  ///< a part of the response has been taken by the transport
  double body_since_ = 0;   ///< steady clock
  HttpHeaders common_headers_;
  HttpObservation observation_;  ///< of the request being answered
  bool observed_ = false;        ///< it has been started
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace troupe
