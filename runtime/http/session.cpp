#include "runtime/http/session.hpp"

#include <array>
#include <ctime>
#include <utility>

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

using State = RequestParser::State;

/// Maximum buffered pipelined requests; beyond that, TCP flow control applies.
constexpr std::size_t kMaxWaitingBytes = 64 << 10;

std::string_view reason_phrase(int status) noexcept {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Internal Server Error";
  }
}

/// RFC 9110, 5.6.7: Sun, 06 Nov 1994 08:49:37 GMT
std::string http_date(double wall_clock) {
  const auto seconds = static_cast<std::time_t>(wall_clock);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 40> text{};
  const std::size_t length =
      std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return std::string(text.data(), length);
}

void append_chunk(std::string& out, std::string_view bytes) {
  std::array<char, 20> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), bytes.size(), 16);
  out.append(digits.data(), end.ptr).append("\r\n").append(bytes).append("\r\n");
}

}  // namespace

HttpSession::HttpSession(Service& service, const HttpLimits& limits,
                         std::function<double()> wall_clock, std::function<void()> on_output,
                         bool refuse_all, std::string client)
    : service_(service),
      limits_(limits),
      wall_clock_(std::move(wall_clock)),
      on_output_(std::move(on_output)),
      refuse_all_(refuse_all),
      client_(std::move(client)),
      parser_(limits) {}

HttpSession::~HttpSession() {
  if (!observed_) return;
  // nginx's code for a client that disconnects before its response is complete.
  constexpr int kClientClosedRequest = 499;
  if (!answered_) observation_.status = kClientClosedRequest;
  try {
    service_.log_unanswered(std::move(observation_),
                            exchange_ ? exchange_->work_done() : WorkDone{}, client_);
  } catch (const std::exception&) {
    // Only the log line is lost.
  }
}

void HttpSession::receive(std::string_view bytes) noexcept {
  contain(*this, [&] {
    if (close_) return;
    input_ += bytes;
    process();
  });
}

bool HttpSession::wants_input() const noexcept {
  return !busy_ || input_.size() < kMaxWaitingBytes;
}

bool HttpSession::can_retire() const noexcept {
  return service_.retiring() && !busy_ && input_.empty() && !parser_.in_head() && !reading_body();
}

bool HttpSession::reading_body() const noexcept { return parser_.state() == State::kBody; }

void HttpSession::process() {
  while (!busy_ && !close_) {
    // The parser may be able to continue with what it has; otherwise it needs bytes.
    if (input_.empty() && parser_.state() != State::kHeadDone) return;
    const std::size_t used = parser_.feed(input_);
    input_.erase(0, used);
    switch (parser_.state()) {
      case State::kHead:
        return;
      case State::kHeadDone:
        look_at_head();
        break;
      case State::kBody:
        break;
      case State::kDone: {
        busy_ = true;
        HttpRequest request = parser_.take();
        request.client = client_;
        exchange_ = service_.handle(std::move(request), *this);
        break;
      }
      case State::kRefused:
        if (!observed_) {  // it is not counted either: there is no request
          observation_ = {.method = parser_.head().method, .start = service_.now()};
          observed_ = true;
          common_headers_ = service_.common_headers(parser_.head());  // of what has been parsed
        }
        refuse(
            error_response(parser_.status(), reason_phrase(parser_.status()), parser_.problem()));
        break;
    }
  }
}

void HttpSession::look_at_head() {
  const HttpRequest& head = parser_.head();
  head_only_ = head.method == "HEAD";
  http_1_0_ = parser_.is_http_1_0();
  common_headers_ = service_.common_headers(head);
  observation_ = service_.begin_observation(head);
  observed_ = true;
  if (refuse_all_) {
    return refuse(
        error_response({ErrorCode::kOverloaded, "the server has too many connections", ""}));
  }
  if (std::optional<HttpResponse> refusal = service_.refuse(head)) {
    if (head.has_body) return refuse(*std::move(refusal));
    busy_ = true;
    close_ = !parser_.keep_alive();
    return respond(*std::move(refusal));
  }
  if (auto reader = service_.body_reader(head)) parser_.divert_body(std::move(reader));
  body_since_ = service_.now();
  if (parser_.expects_continue() && input_.empty()) {
    output_ += "HTTP/1.1 100 Continue\r\n\r\n";
    on_output_();
  }
}

void HttpSession::refuse(HttpResponse response) {
  busy_ = true;
  close_ = true;
  input_.clear();
  respond(std::move(response));
}

void HttpSession::refuse_late(const std::string& what) {
  if (!observed_) observation_ = {.method = parser_.head().method, .start = service_.now()};
  observed_ = true;
  refuse(error_response(408, reason_phrase(408), what));
}

bool HttpSession::on_idle() noexcept {
  if (busy_ || (!parser_.in_head() && !reading_body())) return false;
  contain(*this, [&] { refuse_late("the request did not arrive in time"); });
  return true;
}

void HttpSession::check_time(double now) noexcept {
  if (busy_ || !reading_body()) return;
  const double allowed = limits_.body_timeout_s + static_cast<double>(parser_.num_body_bytes()) /
                                                      HttpLimits::kBodyBytesPerSecond;
  if (now - body_since_ <= allowed) return;
  contain(*this, [&] {
    refuse_late("the request body did not arrive within body_timeout_s plus one second for each " +
                std::to_string(static_cast<int>(HttpLimits::kBodyBytesPerSecond)) + " bytes");
  });
}

void HttpSession::fail(std::string_view what) noexcept {
  try {
    log_error("http request failed", kv("client", client_), kv("method", observation_.method),
              kv("path", observation_.path), kv("what", what));
    exchange_.reset();
    if (!committed_) {
      if (answer_at_ != std::string::npos) output_.resize(answer_at_);
      answered_ = chunked_ = false;
      return refuse(error_response({ErrorCode::kInternal, "internal error", ""}));
    }
  } catch (...) {
    // Even the error response failed: closes the connection instead.
  }
  busy_ = close_ = broken_ = true;
  try {
    on_output_();
  } catch (...) {
    // The transport checks again at its next turn.
  }
}

void HttpSession::append_head(const HttpResponse& response) {
  answer_at_ = output_.size();
  if (!close_ && (!parser_.keep_alive() || service_.retiring())) close_ = true;
  output_ += http_1_0_ ? "HTTP/1.0 " : "HTTP/1.1 ";
  append_json_integer(output_, response.status);
  output_.append(1, ' ').append(reason_phrase(response.status));
  output_.append("\r\nDate: ").append(http_date(wall_clock_())).append("\r\n");
  const auto append_field = [&](std::string_view name, std::string_view value) {
    output_.append(name).append(": ").append(value).append("\r\n");
  };
  if (!response.content_type.empty()) append_field("Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) append_field(name, value);
  for (const auto& [name, value] : common_headers_) append_field(name, value);
}

void HttpSession::respond(HttpResponse response) {
  CHECK(busy_ && !answered_);
  observation_.status = response.status;
  observation_.response_bytes = response.body.size();
  append_head(response);
  output_ += "Content-Length: ";
  append_json_integer(output_, response.body.size());
  output_ += "\r\n";
  append_connection_field();
  output_ += "\r\n";
  if (!head_only_) output_ += response.body;
  answered_ = true;
  on_output_();
}

void HttpSession::append_connection_field() {
  if (close_) {
    output_ += "Connection: close\r\n";
  } else if (http_1_0_) {
    output_ += "Connection: keep-alive\r\n";
  }
}

void HttpSession::begin(HttpResponse head) {
  CHECK(busy_ && !answered_);
  observation_.status = head.status;
  // HTTP/1.0 has no chunks: closing the connection ends the response.
  chunked_ = !http_1_0_;
  if (!chunked_) close_ = true;
  append_head(head);
  if (chunked_) output_ += "Transfer-Encoding: chunked\r\n";
  append_connection_field();
  output_ += "\r\n";
}

void HttpSession::write(std::string_view bytes, bool last) {
  CHECK(busy_ && !answered_);
  if (chunked_) {
    if (!bytes.empty()) append_chunk(output_, bytes);  // an empty one would end the response
    if (last) output_ += "0\r\n\r\n";
  } else {
    output_ += bytes;
  }
  answered_ = last;
  on_output_();
}

bool HttpSession::ready() const noexcept { return output_.empty() && !sending_; }

bool HttpSession::take_output(std::string& buffer) {
  if (sending_ || output_.empty()) return false;
  if (answer_at_ != std::string::npos) committed_ = true;
  buffer.clear();
  buffer.swap(output_);
  sending_ = true;
  return true;
}

void HttpSession::sent() noexcept {
  contain(*this, [&] {
    sending_ = false;
    if (!output_.empty()) return on_output_();
    if (!busy_) return;
    if (answered_) return end_answer();
    if (exchange_) exchange_->on_ready();
  });
}

void HttpSession::end_answer() {
  const WorkDone work = exchange_ ? exchange_->work_done() : WorkDone{};
  exchange_.reset();
  observed_ = false;
  service_.end_observation(std::exchange(observation_, {}), work, client_);
  if (close_) return;
  busy_ = answered_ = chunked_ = head_only_ = http_1_0_ = committed_ = false;
  answer_at_ = std::string::npos;
  common_headers_.clear();
  parser_ = RequestParser(limits_);
  process();
}

void HttpSession::on_silence() noexcept {
  contain(*this, [&] {
    if (exchange_ && !answered_) exchange_->on_silence();
  });
}

bool HttpSession::finished() const noexcept { return close_ && answered_ && ready(); }

}  // namespace troupe
