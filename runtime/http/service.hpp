#pragma once
// The API without the sockets: requests in, answers out. The transport (HttpSession, or a test)
// hands each complete HTTP request to a Service and carries back what the service writes.

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/engine_output.hpp"
#include "runtime/http/allowed_hosts.hpp"
#include "runtime/http/api_keys.hpp"
#include "runtime/http/completion_rate.hpp"
#include "runtime/http/engine_port.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/metrics/engine_metrics.hpp"
#include "runtime/metrics/http_metrics.hpp"

namespace troupe {

class KeptStreams;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string target;  ///< path and query
  HttpHeaders headers;
  std::string client;  ///< the address and the port that it came from; empty: not known
  std::string body;
  bool has_body = false;  ///< the head announces one: Content-Length or chunked

  /// The value of the first header with this name (in any case), or empty.
  [[nodiscard]] std::string_view header(std::string_view name) const noexcept;
  [[nodiscard]] std::string_view path() const noexcept;
  /// The same for all that comes from one address.
  [[nodiscard]] std::uint32_t client_number() const noexcept;
};

struct HttpResponse {
  int status = 200;
  std::string content_type;  ///< empty: no body
  std::string body;
  HttpHeaders headers;
};

/// An answer in OpenAI's error form; with status 503, `retry_after_s` says when to come back.
[[nodiscard]] HttpResponse error_response(const Error& error, std::int64_t retry_after_s = 1);
[[nodiscard]] HttpResponse error_response(int status, std::string_view type,
                                          std::string_view message);

/// Where the answer to one request goes: the connection. Called on the service's thread only; none
/// of its functions destroys the exchange before it returns.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  /// The whole answer.
  virtual void respond(HttpResponse response) = 0;
  /// An answer in pieces: its head, then `write` while `ready()`; the `last` piece ends it.
  virtual void begin(HttpResponse head) = 0;
  virtual void write(std::string_view bytes, bool last) = 0;
  /// False while the client has not taken what was written; the exchange then waits for
  /// `on_ready` and merges what comes in between.
  [[nodiscard]] virtual bool ready() const noexcept = 0;
  /// The exchange has gone wrong through our fault: says so, as far as that is still possible, and
  /// ends the connection. Destroys the exchange: only for those who are not called by it.
  virtual void fail(std::string_view what) noexcept = 0;
};

/// Calls a function of an exchange; an exception fails that exchange, and nothing else.
template <class Function>
void contain(ResponseSink& sink, Function&& function) noexcept {
  try {
    function();
  } catch (const std::exception& failure) {
    sink.fail(failure.what());
  } catch (...) {
    sink.fail("unknown exception");
  }
}

/// What the engine has done for a request so far.
struct WorkDone {
  std::string id;  ///< of the answer; empty: nothing
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_output_tokens = 0;
  std::optional<double> queue_s;        ///< until it was scheduled
  std::optional<double> first_token_s;  ///< until then
};

/// One request being answered. The connection owns it, and destroys it when it has finished or when
/// the client is gone, which aborts what still runs. The sink must outlive it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// The sink can take more.
  virtual void on_ready() {}
  /// Nothing has been sent for the keep-alive interval.
  virtual void on_silence() {}
  [[nodiscard]] virtual WorkDone work_done() const { return {}; }
};

/// What the API says about the model and the server.
struct ServiceConfig {
  std::vector<std::string> model_names;  ///< as served; the first one answers requests without name
  std::string model_root;                ///< path shown by /v1/models
  std::string version;
  /// What decides what is answered: the model (by its path), how and with what it is computed, what
  /// requests are completed with, the version. Streams are resumed by the same. Empty: none is.
  std::string engine_name;
  ServerDefaults defaults;
  std::vector<std::string> api_keys;         ///< none: open to all
  ReadApiKeys read_api_keys;                 ///< all of them again; empty: they do not change
  std::vector<std::string> allowed_origins;  ///< CORS; "*" allows every one
  AllowedHosts allowed_hosts;
  std::uint64_t max_body_bytes = 32 << 20;  ///< of one that was packed, too
  bool log_requests = false;
  bool enable_request_id_headers = false;
  bool enable_prompt_tokens_details = false;
  bool enable_force_include_usage = false;
  std::int64_t max_num_queued_reqs = 0;  ///< samples in the engine; 0: no limit
  bool dev_mode = false;                 ///< offers what belongs to a test bench only
  bool open_admin = false;  ///< /admin also without API keys: only this host reaches the server
};

/// What takes too long for the thread that reads sockets, and for whom it is: clients share the
/// threads that do it.
struct Work {
  std::uint32_t tenant = 0;
  std::uint32_t client = 0;
  std::size_t num_bytes = 0;  ///< that it reads
  std::function<void()> function;
};

/// What a service takes from outside, so that tests decide it.
struct ServiceEnvironment {
  std::function<double()> wall_clock;    ///< seconds since 1970
  std::function<double()> steady_clock;  ///< seconds, monotonic
  /// The system's generator for keys: who knows the id of a stream may read it.
  std::function<std::uint64_t()> random;
  /// Runs the function on the service's thread. Any thread.
  std::function<void(std::function<void()>)> post;
  std::function<void()> exchange_ended;  ///< an exchange is gone
  /// Does the work on another thread: it takes long. None: at once, on the service's thread.
  std::function<void(Work)> work;
};

/// What the services of one server share.
struct ServiceCounters {
  std::atomic<std::int64_t> num_exchanges{0};  ///< requests being answered by the engine
  std::atomic<std::int64_t> num_samples{0};    ///< samples in the engine
  CompletionRate completions;                  ///< of samples
  std::atomic<bool> draining{false};
  KeptStreams* kept_streams = nullptr;  ///< null: streams cannot be resumed
};

struct ServiceContext;

/// Owns the table of live requests of one thread; all but the constructor is called on that thread.
class Service {
 public:
  /// `config`, `counters`, `port` and `metrics` must outlive the service, and the service every
  /// exchange it returned.
  Service(const ServiceConfig& config, ServiceEnvironment environment, ServiceCounters& counters,
          EnginePort& port, EngineMetrics& metrics);
  ~Service();

  /// Looks at a request before its body is read: an answer if it will not be taken (wrong route,
  /// method, key or media type, no length, draining).
  [[nodiscard]] std::optional<HttpResponse> refuse(const HttpRequest& head) const;

  /// Answers through `sink`, at once or later. Pre: `refuse` had no objection. Returns null if the
  /// answer is complete.
  [[nodiscard]] std::unique_ptr<Exchange> handle(HttpRequest request, ResponseSink& sink);

  /// Takes the outputs of this service's own requests; the others are left untouched.
  void deliver(RequestOutputs& outputs);

  /// Seconds, monotonic.
  [[nodiscard]] double now() const;

  /// Headers that every answer to `request` carries (CORS, request id).
  [[nodiscard]] HttpHeaders common_headers(const HttpRequest& request) const;

  /// What the metrics and the log are to say about a request whose head has been read. The owner
  /// fills in what becomes of it, and hands it back when the answer has left.
  [[nodiscard]] HttpObservation begin_observation(const HttpRequest& head) const;
  void end_observation(HttpObservation observation, const WorkDone& work, std::string_view client);
  /// The client has left before that, or said nothing that is a request.
  void log_unanswered(HttpObservation observation, const WorkDone& work, std::string_view client);

 private:
  std::unique_ptr<ServiceContext> context_;
};

}  // namespace troupe
