#pragma once
// One HTTP/1.1 connection without its socket: bytes in, bytes out.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/http/request_parser.hpp"
#include "runtime/http/service.hpp"

namespace troupe {

/// Answers requests one after another, in their order (later ones wait in the buffer). Owns the
/// exchange of the current request: whoever destroys the session because the client is gone thereby
/// aborts what runs. What goes wrong through our fault in one of its functions, an exception, ends
/// that request with status 500 and the connection: it reaches no caller.
///
/// The transport calls `receive` with what arrives, sends what `take_output` gives, one piece at a
/// time, and says `sent` when a piece has left. `on_output` tells it that there is something to
/// send; it must not call back into the session except for `take_output`.
class HttpSession final : public ResponseSink {
 public:
  /// `refuse_all`: the server has too many connections; the first request is answered 503.
  /// `client`: its address, for the log.
  HttpSession(Service& service, const HttpLimits& limits, std::function<double()> wall_clock,
              std::function<void()> on_output, bool refuse_all = false, std::string client = "");
  ~HttpSession() override;

  void receive(std::string_view bytes) noexcept;
  /// False if enough requests wait in the buffer.
  [[nodiscard]] bool wants_input() const noexcept;

  /// Swaps what is to be sent into `buffer` (whose content is dropped). False if there is nothing,
  /// or if the piece before has not left.
  [[nodiscard]] bool take_output(std::string& buffer);
  void sent() noexcept;

  /// Nothing has been sent for the keep-alive interval of streams.
  void on_silence() noexcept;

  /// The client has been silent for too long. False if it owes nothing (no part of a request is
  /// there): the connection may be closed. Otherwise it is told so.
  [[nodiscard]] bool on_idle() noexcept;
  /// Looks at the time that the body of a request has taken; a client that is late is told so.
  void check_time(double now) noexcept;

  /// The last answer has left: the connection is to be closed.
  [[nodiscard]] bool finished() const noexcept;
  /// The connection is to be closed at once: an answer broke off in the middle.
  [[nodiscard]] bool broken() const noexcept { return broken_; }
  /// A request is being answered (otherwise the client has to move).
  [[nodiscard]] bool answering() const noexcept { return busy_; }
  /// A body is arriving: it may take longer than a head, as long as it moves and is not overdue.
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
  bool busy_ = false;      ///< a request has been taken and its answer has not left
  bool answered_ = false;  ///< its answer is complete
  bool chunked_ = false;   ///< the answer goes out in chunks
  bool head_only_ = false;
  bool http_1_0_ = false;
  bool close_ = false;  ///< after this answer
  bool broken_ = false;
  std::size_t answer_at_ = std::string::npos;  ///< of the answer's head in output_; npos: no head
  bool committed_ = false;                     ///< a part of the answer has been taken to be sent
  double body_since_ = 0;                      ///< steady clock
  HttpHeaders common_headers_;
  HttpObservation observation_;  ///< of the request being answered
  bool observed_ = false;        ///< it has begun
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace troupe
