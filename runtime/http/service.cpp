#include "runtime/http/service.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/rendering.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kAdminPrefix = "/admin";
constexpr std::string_view kGuardedPrefixes[] = {"/v1", "/v2", "/inference", "/cohere",
                                                 kAdminPrefix};
constexpr std::string_view kPreflightSeconds = "600";

/// "application/json; charset=utf-8" -> "application/json"
std::string_view media_type(std::string_view content_type) noexcept {
  content_type = content_type.substr(0, content_type.find(';'));
  while (content_type.ends_with(' ')) content_type.remove_suffix(1);
  return content_type;
}

// ---- The endpoints that need no engine

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
        out.append(",\"permission\":[{\"id\":\"modelperm-").append(context.random_id());
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

struct Route {
  std::string_view method;
  std::string_view path;  ///< with a slash behind it: and a name behind that
  Endpoint* answer;
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
    {"GET", kStreamsPath, answer_resumed_stream},
    {"POST", "/tokenize", answer_tokenize, true},
    {"POST", "/detokenize", answer_detokenize, true},
    {"POST", "/reset_prefix_cache", answer_reset_prefix_cache, false, true},
    {"POST", "/reset_encoder_cache", answer_reset_encoder_cache, false, true},
    {"POST", "/reset_mm_cache", answer_reset_mm_cache, false, true},
    {"POST", "/pause", answer_pause, false, true},
    {"POST", "/resume", answer_resume, false, true},
    {"GET", "/is_paused", answer_is_paused, false, true},
    {"POST", "/admin/drain", answer_drain, true},
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

Answer answer_or_refuse(Result<Answer> attempt, ResponseSink& sink) {
  if (attempt.ok()) return *std::move(attempt);
  sink.respond(error_response(attempt.error()));
  return nullptr;
}

HttpResponse json_response(std::string body) {
  return {.status = 200, .content_type = std::string(kJson), .body = std::move(body)};
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

std::string ServiceContext::random_id() const {
  std::array<std::uint8_t, 16> bytes;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = environment.random();
    std::memcpy(&bytes[i], &bits, sizeof bits);
  }
  return to_hex(bytes);
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

std::unique_ptr<Exchange> Service::handle(const HttpRequest& request, ResponseSink& sink) {
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
    headers.emplace_back("X-Request-Id",
                         given.empty() ? context_->random_id() : std::string(given));
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
