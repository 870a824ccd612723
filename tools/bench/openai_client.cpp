#include "tools/bench/openai_client.hpp"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"
#include "tools/bench/answer_stream.hpp"

namespace troupe::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMaxErrorBody = 1 << 16;
constexpr double kLongestAnswerS = 6 * 3600;
/// Between two looks at transfers that report nothing.
constexpr milliseconds kLongestWait{1000};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string status_text(long status, const std::string& body) {
  return "HTTP " + std::to_string(status) + (body.empty() ? "" : ": " + body);
}

/// One request on its own connection, and what receives its response.
class Call {
 public:
  using OnBody = std::function<void(long status, std::string_view bytes)>;
  /// `error` is empty if a whole response arrived.
  using OnDone = std::function<void(const std::string& error, long status)>;

  /// A GET if `body`, which must outlive this, is null.
  Call(const ServerAddress& server, const std::string& path, const ClientHeaders& headers,
       const std::string* body, double timeout_s, OnBody on_body, OnDone on_done)
      : on_body_(std::move(on_body)), on_done_(std::move(on_done)) {
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    handle_.reset(curl_easy_init());
    set(CURLOPT_URL, (server.url() + path).c_str());
    set(CURLOPT_USERAGENT, "troupe");
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_PROXY, "");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_FRESH_CONNECT, 1L);
    set(CURLOPT_FORBID_REUSE, 1L);
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(timeout_s * 1000));
    // As OpenSSL's own programs; libcurl knows the system's certificates only.
    if (const char* authorities = std::getenv("SSL_CERT_FILE")) set(CURLOPT_CAINFO, authorities);
    add_header("Connection: close");
    for (const auto& [name, value] : headers) add_header(name + ": " + value);
    if (body != nullptr) {
      add_header("Content-Type: application/json");
      add_header("Expect:");  // no round trip before a long body
      set(CURLOPT_POSTFIELDS, body->data());
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body->size()));
    }
    set(CURLOPT_HTTPHEADER, headers_.get());
    set(CURLOPT_WRITEFUNCTION, &Call::write);
    set(CURLOPT_WRITEDATA, this);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] CURL* handle() const { return handle_.get(); }
  void finish(CURLcode code) {
    on_done_(code == CURLE_OK ? std::string() : std::string(curl_easy_strerror(code)), status());
  }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    curl_easy_setopt(handle_.get(), option, value);
  }
  void add_header(const std::string& line) {
    curl_slist* const longer = curl_slist_append(headers_.get(), line.c_str());
    static_cast<void>(headers_.release());
    headers_.reset(longer);
  }
  [[nodiscard]] long status() const {
    long status = 0;
    curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &status);
    return status;
  }
  static std::size_t write(const char* bytes, std::size_t size, std::size_t count, void* call) {
    auto& self = *static_cast<Call*>(call);
    self.on_body_(self.status(), {bytes, size * count});
    return size * count;
  }

  struct Deleter {
    void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
    void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  };
  const OnBody on_body_;
  const OnDone on_done_;
  std::unique_ptr<curl_slist, Deleter> headers_;
  std::unique_ptr<CURL, Deleter> handle_;
};

/// Calls that run at once, on the thread that calls `run_once`.
class Calls {
 public:
  ~Calls() {
    for (const auto& [handle, call] : running_) curl_multi_remove_handle(multi_.get(), handle);
  }

  void start(std::unique_ptr<Call> call) {
    curl_multi_add_handle(multi_.get(), call->handle());
    CURL* const handle = call->handle();
    running_.emplace(handle, std::move(call));
  }

  /// Moves bytes, finishes what has ended, then waits for more, for `longest` at most. Returns
  /// whether `descriptor` (-1: none) became readable.
  bool run_once(milliseconds longest, int descriptor = -1) {
    int num_running = 0, num_left = 0;
    curl_multi_perform(multi_.get(), &num_running);
    bool has_ended = false;
    while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &num_left)) {
      has_ended = true;
      const CURLcode code = message->data.result;
      const auto ended = running_.extract(message->easy_handle);
      curl_multi_remove_handle(multi_.get(), ended.key());
      ended.mapped()->finish(code);
    }
    if (has_ended) return false;  // the caller may have more to start
    curl_waitfd interrupt{descriptor, CURL_WAIT_POLLIN, 0};
    curl_multi_poll(multi_.get(), &interrupt, descriptor >= 0 ? 1 : 0,
                    static_cast<int>(longest.count()), nullptr);
    return interrupt.revents != 0;
  }

  [[nodiscard]] std::size_t size() const { return running_.size(); }

 private:
  struct Deleter {
    void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
  };
  std::unique_ptr<CURLM, Deleter> multi_{curl_multi_init()};
  std::map<CURL*, std::unique_ptr<Call>> running_;
};

/// One load run, on one thread.
class LoadRun {
 public:
  explicit LoadRun(const Load& load) : load_(load) { result_.records.resize(load.bodies.size()); }

  LoadResult run() {
    start_ = Clock::now();
    while (num_done_ < std::ssize(load_.bodies)) calls_.run_once(send_due());
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

  /// Sends the requests that are due, while there are free slots. Returns the time until the next.
  milliseconds send_due() {
    while (num_sent_ < load_.bodies.size()) {
      const bool has_slot = !load_.max_concurrency || std::ssize(calls_) < *load_.max_concurrency;
      if (!has_slot) break;
      const auto wait = start_ + from_seconds(load_.send_times[num_sent_]) - Clock::now();
      if (wait > Clock::duration::zero())
        return std::min(std::chrono::floor<milliseconds>(wait), kLongestWait);
      send(num_sent_++);
    }
    return kLongestWait;
  }

  void send(std::size_t index) {
    auto answer = std::make_shared<Answer>();
    answer->sent = Clock::now();
    const double start = std::chrono::duration<double>(answer->sent - start_).count();
    calls_.start(std::make_unique<Call>(
        load_.server, load_.path, load_.headers, &load_.bodies[index], load_.timeout_s,
        [answer](long status, std::string_view bytes) { take(*answer, status, bytes); },
        [this, index, start, answer](const std::string& error, long status) {
          RequestRecord record = std::move(answer->recorder).finish();
          if (!error.empty()) {
            record.success = false;
            record.error = error;
          } else if (status != 200) {
            record.error = status_text(status, answer->error_body);
          }
          record.start = start;
          record.queued = std::max(0.0, start - load_.send_times[index]);
          end(index, std::move(record));
        }));
  }

  static void take(Answer& answer, long status, std::string_view bytes) {
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
    ++num_done_;
    if (load_.on_progress) load_.on_progress(num_done_);
  }

  const Load& load_;
  Calls calls_;
  Clock::time_point start_;
  std::size_t num_sent_ = 0;
  std::int64_t num_done_ = 0;
  LoadResult result_;
};

}  // namespace

std::string ServerAddress::authority() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + port;
}

Result<ServerAddress> parse_url(std::string_view url) {
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  const auto wrong = [&](const std::string& what) {
    return invalid_argument("URL '" + std::string(url) + "': " + what);
  };
  ServerAddress server;
  server.uses_tls = url.starts_with(kHttps);
  if (!server.uses_tls && !url.starts_with(kHttp))
    return wrong("expected http://host:port or https://host:port");
  std::string_view rest = url.substr((server.uses_tls ? kHttps : kHttp).size());
  const std::size_t slash = rest.find('/');
  if (slash != std::string_view::npos) server.path = rest.substr(slash);
  while (server.path.ends_with('/')) server.path.pop_back();
  std::string_view authority = rest.substr(0, slash);
  const std::size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string_view::npos && !authority.ends_with(']');
  server.port = has_port ? authority.substr(colon + 1) : server.uses_tls ? "443" : "80";
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
  Calls calls;
  std::string body, failure;
  long status = 0;
  calls.start(std::make_unique<Call>(
      server, path, headers, nullptr, timeout_s,
      [&](long, std::string_view bytes) { body += bytes; },
      [&](const std::string& error, long number) {
        failure = error;
        status = number;
      }));
  while (std::size(calls) > 0) calls.run_once(kLongestWait);
  const std::string where = server.url() + path;
  if (!failure.empty()) return Error{ErrorCode::kUnavailable, where + ": " + failure, ""};
  if (status != 200) return Error{ErrorCode::kIo, where + ": " + status_text(status, body), ""};
  return body;
}

Result<PostResult> http_post(const ServerAddress& server, const std::string& path,
                             const ClientHeaders& headers, const std::string& body,
                             const std::function<void(std::string_view)>& on_bytes,
                             int interrupt_descriptor) {
  Calls calls;
  PostResult result;
  std::string failure;
  calls.start(std::make_unique<Call>(
      server, path, headers, &body, kLongestAnswerS,
      [&](long status, std::string_view bytes) {
        if (status == 200) return on_bytes(bytes);
        result.error_body += bytes.substr(0, kMaxErrorBody - result.error_body.size());
      },
      [&](const std::string& error, long status) {
        failure = error;
        result.status = static_cast<unsigned>(status);
      }));
  while (std::size(calls) > 0) {
    if (calls.run_once(kLongestWait, interrupt_descriptor)) return PostResult{.status = 200};
  }
  if (!failure.empty())
    return Error{ErrorCode::kUnavailable, server.url() + path + ": " + failure, ""};
  return result;
}

LoadResult run_load(const Load& load) {
  CHECK(load.bodies.size() == load.send_times.size(), load.bodies.size(), load.send_times.size());
  return LoadRun(load).run();
}

}  // namespace troupe::tools
