#include "tools/bench/openai_client.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <limits>
#include <memory>

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"
#include "tools/bench/answer_stream.hpp"

namespace troupe::tools {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Request = http::request<http::string_body>;

constexpr std::size_t kMaxErrorBody = 1 << 16;
constexpr double kLongestAnswerS = 6 * 3600;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Request make_request(http::verb verb, const ServerAddress& server, const std::string& path,
                     const ClientHeaders& headers, std::string body) {
  Request request(verb, server.path + path, 11);
  request.set(http::field::host, server.authority());
  request.set(http::field::user_agent, "troupe");
  request.keep_alive(false);
  for (const auto& [name, value] : headers) request.set(name, value);
  if (verb == http::verb::post) request.set(http::field::content_type, "application/json");
  request.body() = std::move(body);
  request.prepare_payload();
  return request;
}

std::string status_text(unsigned status, const std::string& body) {
  return "HTTP " + std::to_string(status) + (body.empty() ? "" : ": " + body);
}

/// One request on its own connection. Lives until it has called `on_done`, once; `on_body` gets the
/// body as it arrives.
class Call : public std::enable_shared_from_this<Call> {
 public:
  using OnBody = std::function<void(unsigned status, std::string_view bytes)>;
  using OnDone = std::function<void(error_code error, unsigned status)>;

  Call(asio::io_context& context, Request request, OnBody on_body, OnDone on_done)
      : resolver_(context),
        stream_(context),
        request_(std::move(request)),
        on_body_(std::move(on_body)),
        on_done_(std::move(on_done)) {
    parser_.body_limit(std::numeric_limits<std::uint64_t>::max());
  }

  void start(const ServerAddress& server, double timeout_s) {
    stream_.expires_after(from_seconds(timeout_s));
    resolver_.async_resolve(server.host, server.port,
                            [self = shared_from_this()](error_code error, const auto& endpoints) {
                              if (error) return self->finish(error);
                              self->connect(endpoints);
                            });
  }

  /// Cancels it: `on_done` is called with an error.
  void cancel() {
    resolver_.cancel();
    stream_.close();
  }

 private:
  void connect(const asio::ip::tcp::resolver::results_type& endpoints) {
    stream_.async_connect(endpoints, [self = shared_from_this()](error_code error, const auto&) {
      if (error) return self->finish(error);
      self->stream_.socket().set_option(asio::ip::tcp::no_delay(true), error);
      self->send();
    });
  }

  void send() {
    http::async_write(stream_, request_,
                      [self = shared_from_this()](error_code error, std::size_t) {
                        if (error) return self->finish(error);
                        self->read_head();
                      });
  }

  void read_head() {
    http::async_read_header(stream_, buffer_, parser_,
                            [self = shared_from_this()](error_code error, std::size_t) {
                              if (error) return self->finish(error);
                              self->read_body();
                            });
  }

  /// Reads what has arrived: waiting for a full buffer would hide the arrival times of chunks.
  void read_body() {
    if (parser_.is_done()) return finish({});
    auto& body = parser_.get().body();
    body.data = piece_.data();
    body.size = piece_.size();
    http::async_read_some(
        stream_, buffer_, parser_, [self = shared_from_this()](error_code error, std::size_t) {
          if (error && error != http::error::need_buffer) return self->finish(error);
          const std::size_t size = self->piece_.size() - self->parser_.get().body().size;
          self->on_body_(self->status(), {self->piece_.data(), size});
          self->read_body();
        });
  }

  void finish(error_code error) { on_done_(error, status()); }
  [[nodiscard]] unsigned status() const { return parser_.get().result_int(); }

  asio::ip::tcp::resolver resolver_;
  beast::tcp_stream stream_;
  Request request_;
  OnBody on_body_;
  OnDone on_done_;
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
  std::array<char, 16384> piece_{};
};

/// One load run, on one thread.
class LoadRun {
 public:
  explicit LoadRun(const Load& load) : load_(load), timer_(context_) {
    result_.records.resize(load.bodies.size());
  }

  LoadResult run() {
    start_ = Clock::now();
    send_next();
    context_.run();
    return std::move(result_);
  }

 private:
  /// The state of a running request.
  struct Answer {
    Clock::time_point sent;
    EventStream events;
    AnswerRecorder recorder;
    std::string error_body;
  };

  /// Sends the next request when it is due and a slot is free, then continues.
  void send_next() {
    if (num_sent_ == load_.bodies.size()) return;
    waits_for_place_ = load_.max_concurrency && num_running_ >= *load_.max_concurrency;
    if (waits_for_place_) return;
    timer_.expires_at(start_ + from_seconds(load_.send_times[num_sent_]));
    timer_.async_wait([this](error_code) {
      send(num_sent_++);
      send_next();
    });
  }

  void send(std::size_t index) {
    ++num_running_;
    auto answer = std::make_shared<Answer>();
    answer->sent = Clock::now();
    const double start = std::chrono::duration<double>(answer->sent - start_).count();
    std::make_shared<Call>(
        context_,
        make_request(http::verb::post, load_.server, load_.path, load_.headers,
                     load_.bodies[index]),
        [answer](unsigned status, std::string_view bytes) { take(*answer, status, bytes); },
        [this, index, start, answer](error_code error, unsigned status) {
          RequestRecord record = std::move(answer->recorder).finish();
          if (error) {
            record.success = false;
            record.error = error.message();
          } else if (status != 200) {
            record.error = status_text(status, answer->error_body);
          }
          record.start = start;
          record.queued = std::max(0.0, start - load_.send_times[index]);
          end(index, std::move(record));
        })
        ->start(load_.server, load_.timeout_s);
  }

  static void take(Answer& answer, unsigned status, std::string_view bytes) {
    if (status != 200) {
      answer.error_body += bytes.substr(0, kMaxErrorBody - answer.error_body.size());
      return;
    }
    const double now = seconds_since(answer.sent);
    answer.events.feed(bytes, [&](std::string_view data) { answer.recorder.on_event(data, now); });
  }

  void end(std::size_t index, RequestRecord record) {
    result_.records[index] = std::move(record);
    result_.duration = seconds_since(start_);
    --num_running_;
    if (load_.on_progress) load_.on_progress(++num_done_);
    if (waits_for_place_) send_next();
  }

  const Load& load_;
  asio::io_context context_{1};
  asio::steady_timer timer_;  ///< until the next request is due
  Clock::time_point start_;
  std::size_t num_sent_ = 0;
  std::int64_t num_running_ = 0;
  std::int64_t num_done_ = 0;
  bool waits_for_place_ = false;
  LoadResult result_;
};

}  // namespace

std::string ServerAddress::authority() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + port;
}

Result<ServerAddress> parse_url(std::string_view url) {
  constexpr std::string_view kHttp = "http://";
  const auto wrong = [&](const std::string& what) {
    return invalid_argument("URL '" + std::string(url) + "': " + what);
  };
  if (url.starts_with("https://")) {
    return Error{ErrorCode::kUnsupported, "URL '" + std::string(url) + "': https is not supported",
                 ""};
  }
  std::string_view rest = url;
  if (!rest.starts_with(kHttp)) return wrong("expected http://host:port");
  rest.remove_prefix(kHttp.size());
  ServerAddress server;
  const std::size_t slash = rest.find('/');
  if (slash != std::string_view::npos) server.path = rest.substr(slash);
  while (server.path.ends_with('/')) server.path.pop_back();
  std::string_view authority = rest.substr(0, slash);
  const std::size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string_view::npos && !authority.ends_with(']');
  server.port = has_port ? authority.substr(colon + 1) : "80";
  server.host = authority.substr(0, has_port ? colon : std::string_view::npos);
  if (server.host.starts_with('[') && server.host.ends_with(']')) {
    server.host = server.host.substr(1, server.host.size() - 2);  // an IPv6 address
  }
  unsigned port = 0;
  const char* const end = server.port.data() + server.port.size();
  const auto [stop, error] = std::from_chars(server.port.data(), end, port);
  if (server.host.empty()) return wrong("missing host");
  if (error != std::errc() || stop != end || port < 1 || port > 65535) {
    return wrong("port '" + server.port + "' is not in 1 to 65535");
  }
  return server;
}

Result<std::string> http_get(const ServerAddress& server, const std::string& path,
                             const ClientHeaders& headers, double timeout_s) {
  asio::io_context context{1};
  std::string body;
  error_code failure;
  unsigned status = 0;
  std::make_shared<Call>(
      context, make_request(http::verb::get, server, path, headers, ""),
      [&](unsigned, std::string_view bytes) { body += bytes; },
      [&](error_code error, unsigned number) {
        failure = error;
        status = number;
      })
      ->start(server, timeout_s);
  context.run();
  const std::string where = server.url() + path;
  if (failure) return Error{ErrorCode::kUnavailable, where + ": " + failure.message(), ""};
  if (status != 200) return Error{ErrorCode::kIo, where + ": " + status_text(status, body), ""};
  return body;
}

Result<PostResult> http_post(const ServerAddress& server, const std::string& path,
                             const ClientHeaders& headers, std::string body,
                             const std::function<void(std::string_view)>& on_bytes,
                             int interrupt_descriptor) {
  asio::io_context context{1};
  asio::posix::stream_descriptor interrupt(context);
  PostResult result;
  error_code failure;
  bool interrupted = false;
  const auto call = std::make_shared<Call>(
      context, make_request(http::verb::post, server, path, headers, std::move(body)),
      [&](unsigned status, std::string_view bytes) {
        if (status == 200) return on_bytes(bytes);
        result.error_body += bytes.substr(0, kMaxErrorBody - result.error_body.size());
      },
      [&](error_code error, unsigned status) {
        failure = error;
        result.status = status;
        if (interrupt.is_open()) interrupt.release();
      });
  if (interrupt_descriptor >= 0) {
    interrupt.assign(interrupt_descriptor);
    interrupt.async_wait(asio::posix::stream_descriptor::wait_read, [&](error_code error) {
      if (error) return;
      interrupted = true;
      call->cancel();
    });
  }
  call->start(server, kLongestAnswerS);
  context.run();
  if (interrupted) return PostResult{.status = 200};
  const std::string where = server.url() + path;
  if (failure) return Error{ErrorCode::kUnavailable, where + ": " + failure.message(), ""};
  return result;
}

LoadResult run_load(const Load& load) {
  CHECK(load.bodies.size() == load.send_times.size(), load.bodies.size(), load.send_times.size());
  return LoadRun(load).run();
}

}  // namespace troupe::tools
