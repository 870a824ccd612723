#include "runtime/http/service.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "runtime/base/log.hpp"
#include "runtime/http/admin.hpp"
#include "runtime/http/engine_call.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/kept_streams.hpp"
#include "runtime/http/rendering.hpp"
#include "runtime/http/service_context.hpp"

namespace troupe {
namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kChatPath = "/v1/chat/completions";
constexpr std::string_view kStreamsPath = "/v1/streams/";
constexpr std::string_view kAdminPrefix = "/admin";
constexpr std::string_view kGuardedPrefixes[] = {"/v1", "/v2", "/inference", "/cohere",
                                                 kAdminPrefix};
constexpr std::size_t kMaxSessionIdBytes = 1024;
/// The id of an event tells of each of them.
constexpr std::int64_t kMaxResumableSamples = 16;
constexpr std::string_view kPreflightSeconds = "600";

bool equal_ignoring_case(std::string_view a, std::string_view b) noexcept {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

/// "application/json; charset=utf-8" -> "application/json"
std::string_view media_type(std::string_view content_type) noexcept {
  content_type = content_type.substr(0, content_type.find(';'));
  while (content_type.ends_with(' ')) content_type.remove_suffix(1);
  return content_type;
}

HttpResponse json_response(std::string body) {
  return {.status = 200, .content_type = std::string(kJson), .body = std::move(body)};
}

// ---- The endpoints. Each answers at once through the sink, or returns the exchange that will.
// ----

using Answer = std::unique_ptr<Exchange>;

Answer answer_health(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  if (context.counters.draining) {
    sink.respond(error_response({ErrorCode::kOverloaded, "the server is shutting down", ""}));
  } else if (!context.port.healthy()) {
    sink.respond(error_response({ErrorCode::kUnavailable, "the engine is not ready", ""}));
  } else {
    sink.respond({});
  }
  return nullptr;
}

Answer answer_version(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  std::string json = "{\"version\":";
  append_json_string(json, context.config.version);
  sink.respond(json_response(json + "}"));
  return nullptr;
}

Answer answer_load(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  std::string json = "{\"server_load\":";
  append_json_integer(json, context.counters.num_exchanges.load());
  sink.respond(json_response(json + "}"));
  return nullptr;
}

Answer answer_metrics(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  sink.respond({.status = 200,
                .content_type = "text/plain; version=0.0.4; charset=utf-8",
                .body = context.metrics.prometheus_text()});
  return nullptr;
}

Answer answer_models(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  const auto created = static_cast<std::int64_t>(context.environment.wall_clock());
  std::string json = "{\"object\":\"list\",\"data\":";
  append_json_array(
      json, context.config.model_names, [&](std::string& out, const std::string& name) {
        out += "{\"id\":";
        append_json_string(out, name);
        out += ",\"object\":\"model\",\"created\":";
        append_json_integer(out, created);
        out += ",\"owned_by\":\"vllm\",\"root\":";
        append_json_string(out, context.config.model_root);
        out += ",\"parent\":null,\"max_model_len\":";
        append_json_integer(out, context.config.defaults.max_model_len);
        out.append(",\"permission\":[{\"id\":\"modelperm-").append(context.random_hex());
        out += "\",\"object\":\"model_permission\",\"created\":";
        append_json_integer(out, created);
        out +=
            ",\"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,"
            "\"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,"
            "\"organization\":\"*\",\"group\":null,\"is_blocking\":false}]}";
      });
  sink.respond(json_response(json + "}"));
  return nullptr;
}

/// Counts `num_samples` as queued; an answer if that is more than the server takes.
std::optional<HttpResponse> refuse_overload(ServiceContext& context, std::int64_t num_samples) {
  ServiceCounters& counters = context.counters;
  const std::int64_t limit = context.config.max_num_queued_reqs;
  const std::string limit_text = "max_num_queued_reqs is " + std::to_string(limit);
  if (limit > 0 && num_samples > limit) {  // also of an idle engine: to come back does not help
    return error_response(invalid_argument(
        "request has " + std::to_string(num_samples) + " samples, " + limit_text, "n"));
  }
  const std::int64_t before = counters.num_samples.fetch_add(num_samples);
  if (limit == 0 || before + num_samples <= limit) return std::nullopt;
  counters.num_samples -= num_samples;
  context.metrics.observe_rejection();
  const std::int64_t retry_after_s = counters.completions.retry_after_s(
      before + num_samples - limit, context.environment.steady_clock());
  return error_response({ErrorCode::kOverloaded,
                         "request has " + std::to_string(num_samples) + " samples and " +
                             std::to_string(before) + " are queued, " + limit_text,
                         ""},
                        retry_after_s);
}

std::string base_id(const ServiceContext& context, const HttpRequest& http,
                    const GenerationFields& fields) {
  const std::string_view header = http.header("X-Request-Id");
  if (!header.empty()) return std::string(header);
  return fields.request_id.empty() ? context.random_hex() : fields.request_id;
}

/// What headers say about where a request goes.
Result<void> read_placement_headers(const ServerDefaults& defaults, const HttpRequest& http,
                                    GenerationFields& request) {
  const std::string_view rank = http.header("X-data-parallel-rank");
  if (!rank.empty()) {
    std::int32_t number = -1;
    const auto [stop, error] = std::from_chars(rank.data(), rank.data() + rank.size(), number);
    if (error != std::errc() || stop != rank.data() + rank.size() || number < 0 ||
        number >= defaults.data_parallel_size) {
      return invalid_argument("X-data-parallel-rank is \"" + std::string(rank.substr(0, 32)) +
                                  "\", it must be between 0 and " +
                                  std::to_string(defaults.data_parallel_size - 1),
                              "data_parallel_rank");
    }
    request.placement.data_parallel_rank = number;
  }
  std::string& session = request.placement.session_id;
  session = http.header("X-Session-ID");
  if (session.size() > kMaxSessionIdBytes) {
    return invalid_argument("X-Session-ID has " + std::to_string(session.size()) +
                                " bytes, at most " + std::to_string(kMaxSessionIdBytes) +
                                " are allowed",
                            "session_id");
  }
  return {};
}

/// Keeps the request, so that its stream can be resumed; null if there is no room for it.
std::shared_ptr<const ResumableStream> keep_stream(ServiceContext& context, const HttpRequest& http,
                                                   const GenerationFields& request,
                                                   std::size_t num_prompts, std::string id) {
  ResumableStream stream{.id = std::move(id), .arrival_time = context.environment.wall_clock()};
  for (std::size_t i = 0; i < num_prompts; ++i)
    stream.philox_keys.push_back(context.port.draw_key());
  stream.after.samples.resize(num_prompts * static_cast<std::size_t>(request.params.n));
  const auto kept = context.counters.kept_streams->keep({.id = stream.id,
                                                         .engine = context.config.engine_name,
                                                         .path = std::string(http.path()),
                                                         .body = http.body,
                                                         .tenant = request.tenant,
                                                         .arrival_time = stream.arrival_time,
                                                         .philox_keys = stream.philox_keys},
                                                        stream.arrival_time);
  if (!kept.ok()) {
    log_debug("stream not kept", kv("request", stream.id), kv("error", kept.error().message));
    return nullptr;
  }
  return std::make_shared<const ResumableStream>(std::move(stream));
}

template <class Request>
using Parse = Result<Request> (*)(std::string_view body, const ServerDefaults& defaults);
template <class Request>
using Start = Answer (*)(ServiceContext& context, ResponseSink& sink, Request request,
                         std::string id);

std::size_t num_prompts(const CompletionRequest& request) { return request.prompts.size(); }
std::size_t num_prompts(const ChatRequest&) { return 1; }
std::string_view id_prefix(const CompletionRequest&) { return "cmpl-"; }
std::string_view id_prefix(const ChatRequest&) { return "chatcmpl-"; }

template <class Request>
std::int64_t num_samples(const Request& request) {
  return request.params.n * static_cast<std::int64_t>(num_prompts(request));
}

template <class Request, Parse<Request> parse>
Result<Request> read_generation(ServiceContext& context, const HttpRequest& http) {
  ASSIGN_OR_RETURN(Request request, parse(http.body, context.config.defaults));
  ASSIGN_OR_RETURN(request.model, context.resolve_model(request.model));
  RETURN_IF_ERROR(read_placement_headers(context.config.defaults, http, request));
  request.tenant = context.api_keys.tenant(http.header("Authorization"));
  return request;
}

template <class Request, Parse<Request> parse, Start<Request> start>
Result<Answer> try_generate(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  ASSIGN_OR_RETURN(Request request, read_generation<Request, parse>(context, http));
  if (auto refusal = refuse_overload(context, num_samples(request))) {
    sink.respond(*std::move(refusal));
    return Answer(nullptr);
  }
  std::string id = std::string(id_prefix(request)) + base_id(context, http, request);
  if (request.stream && context.counters.kept_streams != nullptr &&
      num_samples(request) <= kMaxResumableSamples) {
    request.resumable = keep_stream(context, http, request, num_prompts(request), id);
  }
  return start(context, sink, std::move(request), std::move(id));
}

/// Runs a kept request again; the client gets what is behind the event that it had last.
template <class Request, Parse<Request> parse, Start<Request> start>
Result<Answer> try_rerun(ServiceContext& context, const HttpRequest& http, const KeptStream& kept,
                         std::string_view after, ResponseSink& sink) {
  ASSIGN_OR_RETURN(Request request, read_generation<Request, parse>(context, http));
  request.limits.max_queue_time_s = 0;  // which was long ago
  ResumableStream stream{
      .id = kept.id, .arrival_time = kept.arrival_time, .philox_keys = kept.philox_keys};
  ASSIGN_OR_RETURN(stream.after,
                   parse_stream_position(after, static_cast<std::size_t>(num_samples(request))));
  if (auto refusal = refuse_overload(context, num_samples(request))) {
    sink.respond(*std::move(refusal));
    return Answer(nullptr);
  }
  request.resumable = std::make_shared<const ResumableStream>(std::move(stream));
  return start(context, sink, std::move(request), kept.id);
}

template <class Request, Parse<Request> parse, Rendering::Kind kind>
Result<Answer> try_render(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  ASSIGN_OR_RETURN(Request request, parse(http.body, context.config.defaults));
  ASSIGN_OR_RETURN(request.model, context.resolve_model(request.model));
  return Answer(std::make_unique<Rendering>(context, sink, kind, std::move(request.render)));
}

/// An endpoint from a function that may fail.
template <Result<Answer> (*attempt)(ServiceContext&, const HttpRequest&, ResponseSink&)>
Answer answer_or_refuse(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  Result<Answer> answer = attempt(context, http, sink);
  if (answer.ok()) return *std::move(answer);
  sink.respond(error_response(answer.error()));
  return nullptr;
}

constexpr auto answer_completion =
    answer_or_refuse<try_generate<CompletionRequest, parse_completion_request, start_completion>>;
constexpr auto answer_chat =
    answer_or_refuse<try_generate<ChatRequest, parse_chat_request, start_chat>>;
constexpr auto rerun_completion =
    try_rerun<CompletionRequest, parse_completion_request, start_completion>;
constexpr auto rerun_chat = try_rerun<ChatRequest, parse_chat_request, start_chat>;
constexpr auto answer_tokenize = answer_or_refuse<
    try_render<TokenizeRequest, parse_tokenize_request, Rendering::Kind::kTokenize>>;
constexpr auto answer_detokenize = answer_or_refuse<
    try_render<DetokenizeRequest, parse_detokenize_request, Rendering::Kind::kDetokenize>>;

/// "value" in "/path?name=value".
std::optional<std::string_view> query_value(std::string_view target, std::string_view name) {
  std::string_view query = target.substr(std::min(target.find('?'), target.size()));
  while (!query.empty()) {
    query.remove_prefix(1);
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(pair.size());
    if (pair.starts_with(name) && pair.substr(name.size(), 1) == "=")
      return pair.substr(name.size() + 1);
  }
  return std::nullopt;
}

/// "true" or "1".
bool query_flag(std::string_view target, std::string_view name, bool otherwise = false) {
  const auto value = query_value(target, name);
  return value ? equal_ignoring_case(*value, "true") || *value == "1" : otherwise;
}

/// "a%2Db" -> "a-b"; what is no escape stays as it is.
std::string unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint8_t byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      plain += static_cast<char>(byte);
      i += 2;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

/// GET /v1/streams/ID?starting_after=EVENT, or with the header Last-Event-ID.
Result<Answer> try_resume_stream(ServiceContext& context, const HttpRequest& http,
                                 ResponseSink& sink) {
  KeptStreams* const streams = context.counters.kept_streams;
  if (streams == nullptr) {
    return Error{ErrorCode::kUnsupported,
                 "streams cannot be resumed: the server runs without resume", ""};
  }
  if (http.method == "HEAD")
    return Error{ErrorCode::kUnsupported, "a stream is not run for its head alone, only GET", ""};
  if (context.counters.draining)
    return Error{ErrorCode::kOverloaded, "the server is shutting down", ""};
  const std::string id = unescaped(http.path().substr(kStreamsPath.size()));
  const std::string_view after =
      query_value(http.target, "starting_after").value_or(http.header("Last-Event-ID"));
  const std::string_view key = http.header("Authorization");
  const auto now = [&] { return context.environment.wall_clock(); };
  ASSIGN_OR_RETURN(const KeptStream kept, streams->resume(id, context.config.engine_name,
                                                          context.api_keys.tenant(key), now()));
  const HttpRequest again{.method = "POST",
                          .target = kept.path,
                          .headers = {{"Authorization", std::string(key)}},
                          .body = kept.body,
                          .has_body = true};
  const bool is_chat = kept.path == kChatPath;
  auto answer = (is_chat ? rerun_chat : rerun_completion)(context, again, kept, after, sink);
  if (!answer.ok() || *answer == nullptr) streams->release(id, now());
  return answer;
}

Answer answer_reset_prefix_cache(ServiceContext& context, const HttpRequest& http,
                                 ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.reset_caches(
      {.prefix_cache = true, .preempt_running = query_flag(http.target, "reset_running_requests")},
      call->reply<CachesReset>([](const CachesReset& reset) {
        return json_response(reset.ok ? R"({"success":true})" : R"({"success":false})");
      }));
  return call;
}

Answer answer_reset_encoder_cache(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.reset_caches({.encoder_cache = true},
                            call->reply<CachesReset>([](const auto&) { return HttpResponse{}; }));
  return call;
}

/// No part of this server keeps processed multimodal inputs: there is never anything to forget.
Answer answer_reset_mm_cache(ServiceContext&, const HttpRequest&, ResponseSink& sink) {
  sink.respond({});
  return nullptr;
}

Result<PauseScheduler> parse_pause(std::string_view target) {
  PauseScheduler pause{.clear_caches = query_flag(target, "clear_cache", true)};
  const std::string_view mode = query_value(target, "mode").value_or("abort");
  if (mode == "wait" || query_flag(target, "wait_for_inflight_requests")) {
    pause.mode = PauseMode::kWait;
  } else if (mode == "keep") {
    pause.mode = PauseMode::kKeep;
  } else if (mode != "abort") {
    return invalid_argument(
        "mode is \"" + std::string(mode.substr(0, 32)) + "\", must be abort, wait or keep", "mode");
  }
  return pause;
}

Result<Answer> try_pause(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  ASSIGN_OR_RETURN(const PauseScheduler pause, parse_pause(http.target));
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.pause(pause, call->reply<PauseStatus>([](const PauseStatus& status) {
    return status.paused ? json_response(R"({"status":"paused"})")
                         : error_response(409, "Conflict",
                                          "resumed before the requests in the engine had ended");
  }));
  return Answer(std::move(call));
}

Answer answer_resume(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.resume(call->reply<PauseStatus>(
      [](const auto&) { return json_response(R"({"status":"resumed"})"); }));
  return call;
}

Answer answer_is_paused(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.ask_paused(call->reply<PauseStatus>([](const PauseStatus& status) {
    return json_response(status.paused ? R"({"is_paused":true})" : R"({"is_paused":false})");
  }));
  return call;
}

Result<Answer> try_drain(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  ASSIGN_OR_RETURN(const DrainGroup drain, parse_drain_group(http.body));
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.drain_group(drain, call->reply<Status>([](const Status& status) {
    return status.error ? error_response(*status.error) : json_response(R"({"status":"drained"})");
  }));
  return Answer(std::move(call));
}

Answer answer_topology(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.ask_topology(call->reply<TopologyStatus>(
      [](const TopologyStatus& status) { return json_response(topology_json(status)); }));
  return call;
}

struct Route {
  std::string_view method;
  std::string_view path;  ///< with a slash behind it: and a name behind that
  Answer (*answer)(ServiceContext&, const HttpRequest&, ResponseSink&);
  bool takes_json = false;  ///< and gives work to the engine: refused while draining
  bool dev = false;         ///< in development mode only, and behind the API key
};
constexpr Route kRoutes[] = {
    {"GET", "/health", answer_health},
    {"GET", "/ping", answer_health},
    {"POST", "/ping", answer_health},
    {"GET", "/version", answer_version},
    {"GET", "/load", answer_load},
    {"GET", "/metrics", answer_metrics},
    {"GET", "/v1/models", answer_models},
    {"POST", "/v1/completions", answer_completion, true},
    {"POST", kChatPath, answer_chat, true},
    {"GET", kStreamsPath, answer_or_refuse<try_resume_stream>},
    {"POST", "/tokenize", answer_tokenize, true},
    {"POST", "/detokenize", answer_detokenize, true},
    {"POST", "/reset_prefix_cache", answer_reset_prefix_cache, false, true},
    {"POST", "/reset_encoder_cache", answer_reset_encoder_cache, false, true},
    {"POST", "/reset_mm_cache", answer_reset_mm_cache, false, true},
    {"POST", "/pause", answer_or_refuse<try_pause>, false, true},
    {"POST", "/resume", answer_resume, false, true},
    {"GET", "/is_paused", answer_is_paused, false, true},
    {"POST", "/admin/drain", answer_or_refuse<try_drain>, true},
    {"GET", "/admin/topology", answer_topology},
};
/// Asked too often by too many to say anything.
constexpr std::string_view kUnobserved[] = {"/metrics", "/health", "/load", "/ping", "/version"};

bool leads_to(const Route& route, std::string_view path) {
  return route.path.ends_with('/') ? path.starts_with(route.path) && path.size() > route.path.size()
                                   : path == route.path;
}

/// Null if there is none. HEAD is a GET without a body.
const Route* find_route(std::string_view method, std::string_view path, bool dev_mode) {
  if (method == "HEAD") method = "GET";
  for (const Route& route : kRoutes) {
    if (leads_to(route, path) && route.method == method && route.dev <= dev_mode) return &route;
  }
  return nullptr;
}

/// The methods of a path, as the Allow header lists them; empty if there is no such path.
std::string allowed_methods(std::string_view path, bool dev_mode) {
  std::string methods;
  for (const Route& route : kRoutes) {
    if (!leads_to(route, path) || route.dev > dev_mode) continue;
    if (!methods.empty()) methods += ", ";
    methods += route.method;
    if (route.method == "GET") methods += ", HEAD";
  }
  return methods.empty() ? methods : methods + ", OPTIONS";
}

bool guarded(std::string_view path) {
  if (std::any_of(std::begin(kRoutes), std::end(kRoutes),
                  [&](const Route& route) { return route.dev && route.path == path; })) {
    return true;
  }
  return std::any_of(std::begin(kGuardedPrefixes), std::end(kGuardedPrefixes),
                     [&](std::string_view prefix) { return path.starts_with(prefix); });
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const noexcept {
  for (const auto& [known, value] : headers) {
    if (equal_ignoring_case(known, name)) return value;
  }
  return {};
}

std::string_view HttpRequest::path() const noexcept {
  return std::string_view(target).substr(0, target.find('?'));
}

HttpResponse error_response(const Error& error, std::int64_t retry_after_s) {
  HttpResponse response{.status = http_status(error.code),
                        .content_type = std::string(kJson),
                        .body = error_json(error)};
  if (response.status == 503) {
    response.headers.emplace_back("Retry-After", std::to_string(retry_after_s));
  }
  return response;
}

HttpResponse error_response(int status, std::string_view type, std::string_view message) {
  return {.status = status,
          .content_type = std::string(kJson),
          .body = error_json(status, type, message)};
}

std::string ServiceContext::random_hex() const {
  constexpr char kHex[] = "0123456789abcdef";
  std::uint64_t bits = environment.random();
  std::string text(16, '0');
  for (char& digit : text) {
    digit = kHex[bits & 15];
    bits >>= 4;
  }
  return text;
}

Result<std::string> ServiceContext::resolve_model(const std::string& model) const {
  if (model.empty()) return config.model_names.front();
  std::string served;
  for (const std::string& name : config.model_names) {
    if (name == model) return name;
    served += (served.empty() ? "" : ", ") + name;
  }
  return Error{ErrorCode::kNotFound,
               "The model `" + model.substr(0, 256) + "` does not exist. Served: " + served,
               "model"};
}

Service::Service(const ServiceConfig& config, ServiceEnvironment environment,
                 ServiceCounters& counters, EnginePort& port, EngineMetrics& metrics)
    : context_(new ServiceContext{config,
                                  std::move(environment),
                                  counters,
                                  port,
                                  metrics,
                                  ApiKeys(config.api_keys),
                                  {},
                                  {},
                                  0}) {
  CHECK(!config.model_names.empty());
}

Service::~Service() { CHECK(context_->live.empty()); }

std::optional<HttpResponse> Service::refuse(const HttpRequest& head) const {
  const std::string_view path = head.path();
  const std::string methods = allowed_methods(path, context_->config.dev_mode);
  if (methods.empty()) {
    return error_response(
        {ErrorCode::kNotFound, "there is no " + std::string(path.substr(0, 256)), ""});
  }
  if (head.method == "OPTIONS") return std::nullopt;
  if (guarded(path) && !context_->api_keys.allow(head.header("Authorization"))) {
    return HttpResponse{.status = 401,
                        .content_type = std::string(kJson),
                        .body = R"({"error":"Unauthorized"})",
                        .headers = {{"WWW-Authenticate", "Bearer"}}};
  }
  if (path.starts_with(kAdminPrefix) && context_->config.api_keys.empty() &&
      !context_->config.open_admin) {
    return error_response(403, "Forbidden",
                          "/admin needs an api-key, as the server does not listen on a loopback "
                          "address");
  }
  const Route* const route = find_route(head.method, path, context_->config.dev_mode);
  if (route == nullptr) {
    HttpResponse response = error_response(
        405, "Method Not Allowed",
        std::string(path) + " does not take " + head.method.substr(0, 32) + ", only " + methods);
    response.headers.emplace_back("Allow", methods);
    return response;
  }
  if (!route->takes_json) return std::nullopt;
  if (!head.has_body) {
    return error_response(411, "Length Required",
                          "the request has neither Content-Length nor a chunked body");
  }
  if (!equal_ignoring_case(media_type(head.header("Content-Type")), kJson)) {
    return error_response(400, "Bad Request",
                          "Content-Type is \"" +
                              std::string(head.header("Content-Type").substr(0, 128)) +
                              "\", only application/json is taken");
  }
  if (context_->counters.draining) {
    return error_response({ErrorCode::kOverloaded, "the server is shutting down", ""});
  }
  return std::nullopt;
}

std::unique_ptr<Exchange> Service::handle(HttpRequest request, ResponseSink& sink) {
  const std::string_view path = request.path();
  if (request.method == "OPTIONS") {
    sink.respond({.status = 200,
                  .content_type = "",
                  .body = "",
                  .headers = {{"Allow", allowed_methods(path, context_->config.dev_mode)}}});
    return nullptr;
  }
  const Route* const route = find_route(request.method, path, context_->config.dev_mode);
  CHECK(route != nullptr, request.method, path);
  if (route->takes_json && context_->counters.draining) {  // since `refuse` looked
    sink.respond(error_response({ErrorCode::kOverloaded, "the server is shutting down", ""}));
    return nullptr;
  }
  return route->answer(*context_, request, sink);
}

void Service::deliver(RequestOutputs& outputs) {
  for (RequestOutput& output : outputs.outputs) {
    const auto live = context_->live.find(output.id);
    if (live == context_->live.end()) continue;
    live->second->deliver(std::move(output), outputs.stats.engine_index);
  }
}

HttpHeaders Service::common_headers(const HttpRequest& request) const {
  HttpHeaders headers;
  if (context_->config.enable_request_id_headers) {
    const std::string_view given = request.header("X-Request-Id");
    headers.emplace_back("X-Request-Id", given.empty()
                                             ? context_->random_hex() + context_->random_hex()
                                             : std::string(given));
  }
  const std::string_view origin = request.header("Origin");
  const std::vector<std::string>& allowed = context_->config.allowed_origins;
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (origin.empty() ||
      (!any && std::find(allowed.begin(), allowed.end(), origin) == allowed.end())) {
    return headers;
  }
  headers.emplace_back("Access-Control-Allow-Origin", any ? "*" : std::string(origin));
  if (!any) headers.emplace_back("Vary", "Origin");
  if (request.method == "OPTIONS") {
    headers.emplace_back("Access-Control-Allow-Methods",
                         allowed_methods(request.path(), context_->config.dev_mode));
    const std::string_view wanted = request.header("Access-Control-Request-Headers");
    if (!wanted.empty()) headers.emplace_back("Access-Control-Allow-Headers", wanted);
    headers.emplace_back("Access-Control-Max-Age", kPreflightSeconds);
  }
  return headers;
}

HttpObservation Service::begin_observation(const HttpRequest& head) const {
  const std::string_view path = head.path();
  if (std::find(std::begin(kUnobserved), std::end(kUnobserved), path) != std::end(kUnobserved))
    return {};
  const Route* const route =
      std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& candidate) {
        return leads_to(candidate, path) && candidate.dev <= context_->config.dev_mode;
      });
  HttpObservation observation{
      .handler = route == std::end(kRoutes) ? "none" : std::string(route->path),
      .method = head.method,
      .start = context_->environment.steady_clock()};
  const std::string_view length = head.header("Content-Length");
  std::from_chars(length.data(), length.data() + length.size(), observation.request_bytes);
  return observation;
}

void Service::end_observation(HttpObservation observation) {
  if (observation.handler.empty()) return;
  observation.end = context_->environment.steady_clock();
  context_->metrics.observe_http(observation);
}

}  // namespace troupe
