#pragma once
// The API without sockets: requests in, responses out. The transport (HttpSession, or a test)
// passes each complete HTTP request to a Service and sends what the service writes.

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
#include "runtime/http/cors.hpp"
#include "runtime/http/engine_port.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/metrics/engine_metrics.hpp"
#include "runtime/metrics/http_metrics.hpp"

namespace troupe {

class BatchStore;
class KeptStreams;
class ResponseStore;
class SpanExporter;
extern const Dialect kOpenAiDialect;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// Takes the body of a request as it arrives: a file that is too large for memory.
class BodyReader {
 public:
  virtual ~BodyReader() = default;
  virtual void take(std::string_view bytes) = 0;
};

/// The API key of a request that did not come over a connection: a line of a batch.
struct BatchOwner {
  std::string key;        ///< see ApiKeys::key_id
  std::string responses;  ///< the owner of its stored responses
};

inline constexpr std::string_view kFilesPath = "/v1/files";

struct HttpRequest {
  std::string method;
  std::string target;  ///< path and query
  HttpHeaders headers;
  std::string client;  ///< address and port of the client; empty: unknown
  std::string body;
  bool has_body = false;               ///< Content-Length or chunked is present
  std::shared_ptr<BodyReader> reader;  ///< has taken the body; null: it is in `body`
  std::optional<BatchOwner> owner;     ///< of a line of a batch

  /// The value of the first header with this name (case-insensitive), or empty.
  [[nodiscard]] std::string_view header(std::string_view name) const noexcept;
  [[nodiscard]] std::string_view path() const noexcept;
  /// The header Authorization, or the same made of X-Api-Key.
  [[nodiscard]] std::string authorization() const;
  /// The same number for all requests from one address.
  [[nodiscard]] std::uint32_t client_number() const noexcept;
};

struct HttpResponse {
  int status = 200;
  std::string content_type;  ///< empty: no body
  std::string body;
  HttpHeaders headers;
  std::string error;  ///< what the body says, if it is that of an error
};

/// With status 503 or 429, `retry_after_s` sets Retry-After.
[[nodiscard]] HttpResponse error_response(const Error& error, std::int64_t retry_after_s = 1,
                                          const Dialect& dialect = kOpenAiDialect);
/// In OpenAI's format.
[[nodiscard]] HttpResponse error_response(int status, std::string_view type,
                                          std::string_view message);

/// The destination of one response: the connection. Called on the service's thread only; none of
/// its functions destroys the exchange before it returns.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  /// Sends a complete response.
  virtual void respond(HttpResponse response) = 0;
  /// Begins a streamed response with its head, then `write` while `ready()`; the `last` piece ends
  /// it.
  virtual void begin(HttpResponse head) = 0;
  virtual void write(std::string_view bytes, bool last) = 0;
  /// The position of a resumable stream behind the piece that is written next.
  virtual void note_position(std::string) {}
  /// False while the client has not read what was written; the exchange then waits for `on_ready`
  /// and merges further output.
  [[nodiscard]] virtual bool ready() const noexcept = 0;
  /// Fails the exchange with an internal error, reports it if still possible, and ends the
  /// connection. Destroys the exchange, which therefore must not be on the call stack.
  virtual void fail(std::string_view what) noexcept = 0;
};

/// Calls a function of an exchange; an exception fails only that exchange.
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

/// What the engine has done for a request so far, for metrics and log.
struct WorkDone {
  std::string id;  ///< of the response; empty: nothing
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_output_tokens = 0;
  std::optional<double> queue_s;        ///< until it was scheduled
  std::optional<double> first_token_s;  ///< from arrival
};

/// One request in progress. Owned by the connection, which destroys it when it has finished or the
/// client has disconnected; that aborts what still runs. The sink must outlive it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// The sink is ready for more.
  virtual void on_ready() {}
  /// Nothing was sent for the keep-alive interval.
  virtual void on_silence() {}
  [[nodiscard]] virtual WorkDone work_done() const { return {}; }
};

class AccessLog;

/// What the API reports about the model and the server.
struct ServiceConfig {
  std::vector<std::string> model_names;  ///< as served; the first one is the default
  std::string model_root;                ///< path shown by /v1/models
  bool enable_lora = false;              ///< requests may name adapters
  bool allow_lora_updates = false;       ///< clients may load and unload adapters
  std::string version;
  /// Identifies everything that determines responses: model path, computation, defaults of
  /// requests, version. Streams are resumed only by an engine of the same name. Empty: not
  /// resumable.
  std::string engine_name;
  ServerDefaults defaults;
  std::vector<ApiKey> api_keys;  ///< empty: open to all
  ReadApiKeys read_api_keys;     ///< reloads them; empty: they do not change
  CorsPolicy cors;
  AllowedHosts allowed_hosts;
  std::uint64_t max_body_bytes = 32 << 20;  ///< after decompression
  bool log_requests = false;
  std::shared_ptr<AccessLog> access_log;  ///< null: none
  bool enable_request_id_headers = false;
  bool enable_prompt_tokens_details = false;
  bool enable_force_include_usage = false;
  std::int64_t max_num_queued_reqs = 0;      ///< samples in the engine; 0: no limit
  bool dev_mode = false;                     ///< enables endpoints for testing
  bool enable_server_load_tracking = false;  ///< else /load says 0
  bool disable_docs = false;                 ///< no /openapi.json and /docs
  std::string options_text;                  ///< for /server_info, without secrets
  std::string options_json;                  ///< the same
  std::string admin_cache_directory;         ///< absolute; empty: no exports and imports
  std::size_t max_warm_prompts = 256;        ///< of a request to /admin/cache/warm
  bool open_admin = false;  ///< /admin without API keys: only this host reaches the server
};

/// Work that would block an I/O thread, and the client it is for: clients share the work threads
/// fairly.
struct Work {
  std::uint32_t tenant = 0;
  std::uint32_t client = 0;
  std::size_t num_bytes = 0;  ///< that it reads
  std::function<void()> function;
};

/// Dependencies of a service, replaced by tests.
struct ServiceEnvironment {
  std::function<double()> wall_clock;    ///< seconds since 1970
  std::function<double()> steady_clock;  ///< seconds, monotonic
  /// The system's cryptographic generator: knowing the id of a stream permits reading it.
  std::function<std::uint64_t()> random;
  /// Runs the function on the service's thread. Any thread.
  std::function<void(std::function<void()>)> post;
  std::function<void()> exchange_ended;  ///< called after the end of an exchange
  /// Runs long work on another thread. Empty: at once, on the service's thread.
  std::function<void(Work)> work;
};

/// State shared by the services of one server.
struct ServiceCounters {
  std::atomic<std::int64_t> num_exchanges{0};  ///< requests being answered by the engine
  std::atomic<std::int64_t> num_samples{0};    ///< samples in the engine
  CompletionRate completions;                  ///< of samples
  std::atomic<bool> draining{false};
  std::atomic<bool> retiring{false};        ///< open connections are served, and closed when idle
  KeptStreams* kept_streams = nullptr;      ///< null: resume is off
  std::shared_ptr<const ApiKeys> api_keys;  ///< made by the first service
  ResponseStore* responses = nullptr;       ///< null: responses are not stored
  SpanExporter* spans = nullptr;            ///< null: requests are not traced
  BatchStore* batches = nullptr;            ///< null: no files and batches
  std::function<void()> batches_changed;    ///< one was created or cancelled
};

struct ServiceContext;

/// Owns the table of live requests of one thread; everything except the constructor runs on that
/// thread.
class Service {
 public:
  /// `config`, `counters`, `port` and `metrics` must outlive the service, and the service must
  /// outlive every exchange it returned.
  Service(const ServiceConfig& config, ServiceEnvironment environment, ServiceCounters& counters,
          EnginePort& port, EngineMetrics& metrics);
  ~Service();

  /// Checks a request before its body is read: returns a response if it is rejected (wrong route,
  /// method, key or media type, no length, draining).
  [[nodiscard]] std::optional<HttpResponse> refuse(const HttpRequest& head) const;

  /// Responds through `sink`, at once or later. Pre: `refuse` returned nothing. Returns null if the
  /// response is complete.
  [[nodiscard]] std::unique_ptr<Exchange> handle(HttpRequest request, ResponseSink& sink);

  /// The reader of a body that is not collected in memory; null: it is. Pre: `refuse` returned
  /// nothing.
  [[nodiscard]] std::shared_ptr<BodyReader> body_reader(const HttpRequest& head) const;

  /// Goes on with responses in the background whose server has ended.
  void adopt_responses();
  /// Ends those that this service runs; a server with the same store continues them.
  void leave_responses();

  /// Takes the outputs of this service's requests; others are left untouched.
  void deliver(RequestOutputs& outputs);

  /// Seconds, monotonic.
  [[nodiscard]] double now() const;

  /// Another server accepts new connections: a response is the last one of its connection.
  [[nodiscard]] bool retiring() const;

  /// Headers of every response to `request` (CORS, request id).
  [[nodiscard]] HttpHeaders common_headers(const HttpRequest& request) const;

  /// The metrics and log record of a request whose head has been read. The owner completes it and
  /// passes it back when the response has been sent.
  [[nodiscard]] HttpObservation begin_observation(const HttpRequest& head) const;
  void end_observation(HttpObservation observation, const WorkDone& work, std::string_view client);
  /// The client disconnected before that, or sent no valid request.
  void log_unanswered(HttpObservation observation, const WorkDone& work, std::string_view client);

 private:
  [[nodiscard]] std::optional<HttpResponse> find_refusal(const HttpRequest& head) const;

  std::unique_ptr<ServiceContext> context_;
};

}  // namespace troupe
