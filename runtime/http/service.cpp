#include "runtime/http/service.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/http/access_log.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/multipart.hpp"
#include "runtime/http/openapi.hpp"
#include "runtime/http/rendering.hpp"
#include "runtime/http/request_log.hpp"
#include "runtime/http/request_trace.hpp"
#include "runtime/http/speech.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kAdminPrefix = "/admin";
constexpr std::string_view kCacheExportPath = "/admin/cache/export";
constexpr std::string_view kCacheImportPath = "/admin/cache/import";
constexpr std::string_view kOpenApiPath = "/openapi.json";
constexpr std::string_view kDocsPath = "/docs";
constexpr std::string_view kGuardedPrefixes[] = {
    "/v1",         "/v2",      "/inference", "/cohere", "/api",    kAdminPrefix,  "/tokenize",
    "/detokenize", "/pooling", "/classify",  "/score",  "/rerank", "/invocations"};
constexpr std::string_view kRequestId = "X-Request-Id";
constexpr std::size_t kMaxLoggedPathBytes = 256;

/// "application/json; charset=utf-8" -> "application/json"
std::string_view media_type(std::string_view content_type) noexcept {
  content_type = content_type.substr(0, content_type.find(';'));
  while (content_type.ends_with(' ')) content_type.remove_suffix(1);
  return content_type;
}

/// Valid as a request id, which is used in responses, ids and logs.
bool is_request_id(std::string_view text) noexcept {
  return text.size() <= kMaxRequestIdBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7F; });
}

std::optional<HttpResponse> refuse_encoding(const HttpRequest& head) {
  std::size_t num_fields = 0;
  for (const auto& [name, value] : head.headers)
    num_fields += equal_ignoring_case(name, "Content-Encoding");
  const std::string_view encoding = head.header("Content-Encoding");
  const auto is = [&](std::string_view known) { return equal_ignoring_case(encoding, known); };
  if (num_fields == 0 || (num_fields == 1 && (is("gzip") || is("x-gzip") || is("identity"))))
    return std::nullopt;
  HttpResponse response = error_response(
      415, "Unsupported Media Type",
      "Content-Encoding is \"" + std::string(encoding.substr(0, 128)) + "\" (in " +
          std::to_string(num_fields) + " fields), only one gzip or identity is supported");
  response.headers.emplace_back("Accept-Encoding", "gzip, identity");
  return response;
}

bool needs_batches(std::string_view path) {
  return path.starts_with(kFilesPath) || path.starts_with(kBatchesPath);
}

bool moves_cache(std::string_view path) {
  return path == kCacheExportPath || path == kCacheImportPath;
}

std::optional<HttpResponse> refuse_upload(const HttpRequest& head) {
  if (const auto boundary = MultipartParser::boundary_of(head.header("Content-Type"));
      !boundary.ok())
    return error_response(boundary.error());
  if (!head.has_body) {
    return error_response(411, "Length Required",
                          "the request has neither Content-Length nor a chunked body");
  }
  if (const std::string_view coding = head.header("Content-Encoding");
      !coding.empty() && !equal_ignoring_case(coding, "identity")) {
    return error_response(415, "Unsupported Media Type",
                          "Content-Encoding is \"" + std::string(coding.substr(0, 128)) +
                              "\", files are uploaded without one");
  }
  return std::nullopt;
}

/// What Starlette says.
HttpResponse answer_preflight(const CorsPolicy& cors, const HttpRequest& request) {
  HttpResponse response{.status = 200, .content_type = "text/plain; charset=utf-8", .body = "OK"};
  std::string disallowed;
  for (const std::string_view what : cors.preflight(request).disallowed)
    disallowed.append(disallowed.empty() ? "" : ", ").append(what);
  if (disallowed.empty()) return response;
  response.status = 400;
  response.body = response.error = "Disallowed CORS " + disallowed;
  return response;
}

// ---- Endpoints that do not use the engine

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
  append_json_integer(
      json, context.config.enable_server_load_tracking ? context.counters.num_exchanges.load() : 0);
  sink.respond(json_response(json + "}"));
  return nullptr;
}

Answer answer_metrics(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  sink.respond({.status = 200,
                .content_type = "text/plain; version=0.0.4; charset=utf-8",
                .body = context.metrics.prometheus_text()});
  return nullptr;
}

/// What the model must be run for.
enum class Task : std::uint8_t { kAny, kGenerate, kPool };

/// One row says all of a route: where it is, what it answers, and who makes the answer.
struct Route {
  std::string_view method;
  std::string_view path;       ///< "{id}" in it stands for any text
  RouteAnswer form;            ///< for the description
  Endpoint* answer;            ///< null: has prepare
  Prepare* prepare = nullptr;  ///< takes JSON and uses the engine: rejected while draining
  bool dev = false;            ///< in development mode only, and behind the API key
  const Dialect* dialect = &kOpenAiDialect;
  Task task = Task::kAny;
};

constexpr Route asks(std::string_view method, std::string_view path, Endpoint* answer,
                     const RouteAnswer& form, const Dialect* dialect = &kOpenAiDialect) {
  return {method, path, form, answer, nullptr, false, dialect};
}
constexpr Route in_development(std::string_view method, std::string_view path, Endpoint* answer,
                               const RouteAnswer& form) {
  return {method, path, form, answer, nullptr, true};
}
constexpr Route takes(std::string_view path, Prepare* prepare, const RouteAnswer& form,
                      const Dialect* dialect = &kOpenAiDialect) {
  return {"POST", path, form, nullptr, prepare, false, dialect};
}
constexpr Route generates(std::string_view path, Prepare* prepare, const RouteAnswer& form,
                          const Dialect* dialect = &kOpenAiDialect) {
  return {"POST", path, form, nullptr, prepare, false, dialect, Task::kGenerate};
}
constexpr Route pools(std::string_view path, Prepare* prepare, const RouteAnswer& form,
                      const Dialect* dialect = &kOpenAiDialect) {
  return {"POST", path, form, nullptr, prepare, false, dialect, Task::kPool};
}

constexpr std::string_view kEvents = "text/event-stream";
constexpr std::string_view kLines = "application/x-ndjson";
constexpr std::string_view kPlain = "text/plain";

Answer answer_openapi(ServiceContext& context, const HttpRequest& http, ResponseSink& sink);

Answer answer_docs(ServiceContext&, const HttpRequest&, ResponseSink& sink) {
  sink.respond({.status = 200,
                .content_type = "text/html; charset=utf-8",
                .body = std::string(docs_page())});
  return nullptr;
}

/// Of several that a path leads to, the first holds.
constexpr Route kRoutes[] = {
    asks("GET", kOpenApiPath, answer_openapi, {"Any"}),
    asks("GET", kDocsPath, answer_docs, {"", "text/html"}),
    asks("GET", "/health", answer_health, {}),
    asks("GET", "/ping", answer_health, {}),
    asks("POST", "/ping", answer_health, {}),
    asks("GET", "/version", answer_version, {"Version"}),
    asks("GET", "/load", answer_load, {"Load"}),
    asks("GET", "/metrics", answer_metrics, {"", kPlain}),
    asks("GET", kModelsPath, answer_models, {"Models"}),
    asks("GET", "/v1/models/{id}", answer_model, {"Model"}),
    generates("/v1/completions", prepare_completion, {"Completion", "", kEvents}),
    generates(kChatPath, prepare_chat, {"ChatCompletion", "", kEvents}),
    asks("POST", "/v1/audio/transcriptions", answer_transcription,
         {"Transcription", kPlain, kEvents}),
    asks("POST", "/v1/audio/translations", answer_translation, {"Transcription", kPlain, kEvents}),
    pools("/v1/embeddings", prepare_embeddings, {"Embeddings"}),
    pools("/pooling", prepare_pooling, {"Pooling"}),
    pools("/classify", prepare_classify, {"Classes"}),
    pools("/score", prepare_score, {"Scores"}),
    pools("/v1/score", prepare_score, {"Scores"}),
    pools("/rerank", prepare_rerank, {"Rerank"}),
    pools("/v1/rerank", prepare_rerank, {"Rerank"}),
    pools("/v2/rerank", prepare_rerank, {"Rerank"}),
    generates("/v1/messages", prepare_messages, {"Message", "", kEvents}, &kAnthropicDialect),
    takes("/v1/messages/count_tokens", prepare_count_tokens, {"CountedTokens"}, &kAnthropicDialect),
    generates("/v1/responses", prepare_responses, {"Response", "", kEvents}, &kResponsesDialect),
    generates("/v1/responses/input_tokens", prepare_input_tokens, {"InputTokens"},
              &kResponsesDialect),
    asks("GET", "/v1/responses/{id}/input_items", answer_stored_response, {"InputItems"},
         &kResponsesDialect),
    asks("POST", "/v1/responses/{id}/cancel", answer_cancelled_response, {"Response"},
         &kResponsesDialect),
    asks("GET", "/v1/responses/{id}", answer_stored_response,
         {"Response", "", kEvents, "stream,starting_after"}, &kResponsesDialect),
    asks("DELETE", "/v1/responses/{id}", answer_removed_response, {"Deleted"}, &kResponsesDialect),
    generates("/api/chat", prepare_ollama_chat, {"OllamaChat", "", kLines}, &kOllamaDialect),
    generates("/api/generate", prepare_ollama_generate, {"OllamaGenerate", "", kLines},
              &kOllamaDialect),
    pools("/api/embed", prepare_ollama_embed, {"OllamaEmbed"}, &kOllamaDialect),
    pools("/api/embeddings", prepare_ollama_embeddings, {"OllamaEmbedding"}, &kOllamaDialect),
    takes("/api/show", prepare_ollama_show, {"OllamaShow"}, &kOllamaDialect),
    asks("GET", "/api/tags", answer_ollama_tags, {"OllamaTags"}, &kOllamaDialect),
    asks("GET", "/api/version", answer_version, {"Version"}, &kOllamaDialect),
    asks("GET", "/v1/streams/{id}", answer_resumed_stream, {"", kEvents, "", "starting_after"}),
    asks("POST", kFilesPath, answer_uploaded_file, {"File"}),
    asks("GET", kFilesPath, answer_files, {"Files", "", "", "after,limit,order,purpose"}),
    asks("GET", "/v1/files/{id}/content", answer_file, {"", "application/octet-stream"}),
    asks("GET", "/v1/files/{id}", answer_file, {"File"}),
    asks("DELETE", "/v1/files/{id}", answer_removed_file, {"Deleted"}),
    takes(kBatchesPath, prepare_batch, {"Batch"}),
    asks("GET", kBatchesPath, answer_batches, {"Batches", "", "", "after,limit"}),
    asks("POST", "/v1/batches/{id}/cancel", answer_cancelled_batch, {"Batch"}),
    asks("GET", "/v1/batches/{id}", answer_batch, {"Batch"}),
    takes("/invocations", prepare_invocations, {"Any", "", kEvents}),
    takes("/tokenize", prepare_tokenize, {"Tokens"}),
    takes("/detokenize", prepare_detokenize, {"Detokenized"}),
    takes("/v1/load_lora_adapter", prepare_load_adapter, {"", kPlain}),
    takes("/v1/unload_lora_adapter", prepare_unload_adapter, {"", kPlain}),
    in_development("POST", "/reset_prefix_cache", answer_reset_prefix_cache,
                   {"Success", "", "", "reset_running_requests,reset_external"}),
    in_development("POST", "/reset_encoder_cache", answer_reset_encoder_cache, {}),
    in_development("POST", "/reset_mm_cache", answer_reset_mm_cache, {}),
    in_development("POST", "/pause", answer_pause,
                   {"StatusText", "", "", "mode,clear_cache,wait_for_inflight_requests"}),
    in_development("POST", "/resume", answer_resume, {"StatusText"}),
    in_development("GET", "/is_paused", answer_is_paused, {"IsPaused"}),
    in_development("GET", "/server_info", answer_server_info,
                   {"ServerInfo", "", "", "config_format"}),
    {"POST", "/collective_rpc", {"Any"}, nullptr, prepare_collective_rpc, true},
    takes("/admin/drain", prepare_drain, {"StatusText"}),
    generates("/admin/cache/warm", prepare_warm, {"CacheWarmed"}),
    generates("/admin/cache/pin", prepare_cache_pin, {"CacheWarmed"}),
    generates("/admin/cache/lookup", prepare_cache_lookup, {"CacheLookup"}),
    generates("/admin/cache/move", prepare_cache_move, {"CacheWarmed"}),
    takes(kCacheExportPath, prepare_cache_export, {"CacheMoved"}),
    takes(kCacheImportPath, prepare_cache_import, {"CacheMoved"}),
    asks("DELETE", "/admin/cache", answer_reset_prefix_cache,
         {"Success", "", "", "reset_running_requests,reset_external"}),
    asks("GET", "/admin/topology", answer_topology, {"Topology"}),
};
/// These reveal nothing, and are called by probes under any address.
constexpr std::string_view kProbes[] = {"/health", "/ping"};
/// Requests too frequent to be of interest in metrics.
constexpr std::string_view kUnobserved[] = {"/metrics", "/health", "/load", "/ping", "/version"};

bool leads_to(const Route& route, std::string_view path) {
  constexpr std::string_view kId = "{id}";
  const std::size_t at = route.path.find(kId);
  if (at == std::string_view::npos) return path == route.path;
  const std::string_view before = route.path.substr(0, at);
  const std::string_view behind = route.path.substr(at + kId.size());
  return path.size() > before.size() + behind.size() && path.starts_with(before) &&
         path.ends_with(behind);
}

/// The path of the first route that this one leads to; empty if there is none.
std::string_view place_of(std::string_view path, bool dev_mode) {
  for (const Route& route : kRoutes) {
    if (leads_to(route, path) && route.dev <= dev_mode) return route.path;
  }
  return {};
}

/// Null if there is none. HEAD is GET without a body.
const Route* find_route(std::string_view method, std::string_view path, bool dev_mode) {
  if (method == "HEAD") method = "GET";
  const std::string_view place = place_of(path, dev_mode);
  for (const Route& route : kRoutes) {
    if (route.path == place && route.method == method && route.dev <= dev_mode) return &route;
  }
  return nullptr;
}

/// The methods of a path for the Allow header; empty if there is no such path.
std::string allowed_methods(std::string_view path, bool dev_mode) {
  const std::string_view place = place_of(path, dev_mode);
  std::string methods;
  for (const Route& route : kRoutes) {
    if (route.path != place || route.dev > dev_mode) continue;
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

/// The routes that the server has as it was started.
Answer answer_openapi(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  const ServiceConfig& config = context.config;
  const Task other =
      config.defaults.pooler.type == PoolingType::kNone ? Task::kPool : Task::kGenerate;
  std::vector<DescribedRoute> routes;
  for (const Route& route : kRoutes) {
    if (route.dev > config.dev_mode || route.task == other) continue;
    if (needs_batches(route.path) && context.counters.batches == nullptr) continue;
    if (moves_cache(route.path) && config.admin_cache_directory.empty()) continue;
    routes.push_back({route.method, route.path, route.form, route.prepare, guarded(route.path)});
  }
  sink.respond(json_response(openapi_json(routes, config.defaults, config.version)));
  return nullptr;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const noexcept {
  for (const auto& [known, value] : headers) {
    if (equal_ignoring_case(known, name)) return value;
  }
  return {};
}

std::string HttpRequest::authorization() const {
  const std::string_view given = header("Authorization"), key = header("X-Api-Key");
  return given.empty() && !key.empty() ? "Bearer " + std::string(key) : std::string(given);
}

std::string_view HttpRequest::path() const noexcept {
  return std::string_view(target).substr(0, target.find('?'));
}

std::uint32_t HttpRequest::client_number() const noexcept {
  const std::string_view address = std::string_view(client).substr(0, client.rfind(':'));
  return static_cast<std::uint32_t>(std::hash<std::string_view>{}(address));
}

Answer answer_or_refuse(Result<Answer> attempt, ResponseSink& sink, const Dialect& dialect) {
  if (attempt.ok()) return *std::move(attempt);
  sink.respond(error_response(attempt.error(), 1, dialect));
  return nullptr;
}

HttpResponse json_response(std::string body) {
  return {.status = 200, .content_type = std::string(kJson), .body = std::move(body)};
}

HttpResponse error_response(const Error& error, std::int64_t retry_after_s,
                            const Dialect& dialect) {
  const int status = http_status(error.code);
  HttpResponse response{.status = status,
                        .content_type = std::string(kJson),
                        .body = dialect.error_body(status, error),
                        .headers = {},
                        .error = error.message};
  if (response.status == 503 || response.status == 429) {
    response.headers.emplace_back("Retry-After", std::to_string(retry_after_s));
  }
  return response;
}

HttpResponse error_response(int status, std::string_view type, std::string_view message) {
  return {.status = status,
          .content_type = std::string(kJson),
          .body = error_json(status, type, message),
          .headers = {},
          .error = std::string(message)};
}

std::string ServiceContext::random_id() const {
  std::array<std::uint8_t, 16> bytes;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t bits = environment.random();
    std::memcpy(&bytes[i], &bits, sizeof bits);
  }
  return to_hex(bytes);
}

Result<ServedModel> ServiceContext::resolve_model(const std::string& model) const {
  const bool is_base =
      model.empty() || std::ranges::find(config.model_names, model) != config.model_names.end();
  if (is_base || !config.enable_lora) return find_served_model(model, config.model_names, {});
  const std::shared_ptr<const AdapterList> adapters = port.adapters();
  if (adapters == nullptr)
    return Error{ErrorCode::kUnavailable, "the engine is not ready", "model"};
  return find_served_model(model, config.model_names, adapters->adapters);
}

Service::Service(const ServiceConfig& config, ServiceEnvironment environment,
                 ServiceCounters& counters, EnginePort& port, EngineMetrics& metrics)
    : context_(nullptr) {
  CHECK(!config.model_names.empty());
  if (counters.api_keys == nullptr)
    counters.api_keys = std::make_shared<const ApiKeys>(config.api_keys, config.read_api_keys);
  context_.reset(new ServiceContext{
      config, std::move(environment), counters, port, metrics, *counters.api_keys, {}, {}, 0, {}});
}

Service::~Service() {
  leave_responses();
  CHECK(context_->live.empty());
}

void Service::adopt_responses() { adopt_abandoned_responses(*context_); }

void Service::leave_responses() { context_->background.clear(); }

std::optional<HttpResponse> Service::refuse(const HttpRequest& head) const {
  auto refusal = find_refusal(head);
  if (!refusal || refusal->error.empty()) return refusal;
  const auto route = std::find_if(std::begin(kRoutes), std::end(kRoutes),
                                  [&](const Route& each) { return leads_to(each, head.path()); });
  if (route != std::end(kRoutes) && route->dialect != &kOpenAiDialect)
    refusal->body = route->dialect->error_body(refusal->status, {.message = refusal->error});
  return refusal;
}

std::optional<HttpResponse> Service::find_refusal(const HttpRequest& head) const {
  const std::string_view path = head.path();
  if (const std::string_view id = head.header(kRequestId); !is_request_id(id)) {
    return error_response(invalid_argument(
        "X-Request-Id has " + std::to_string(id.size()) + " bytes, it must be at most " +
            std::to_string(kMaxRequestIdBytes) + " printable ASCII characters",
        std::string(kRequestId)));
  }
  const bool is_probe =
      std::find(std::begin(kProbes), std::end(kProbes), path) != std::end(kProbes);
  if (const std::string_view host = head.header("Host");
      !is_probe && !head.owner && !context_->config.allowed_hosts.allow(host)) {
    return error_response(403, "Forbidden",
                          "the host \"" + std::string(host.substr(0, 256)) +
                              "\" is not an allowed host, see allowed-hosts");
  }
  // Of any path: a page may read that there is none.
  if (is_preflight(head)) return std::nullopt;
  const bool is_hidden =
      context_->config.disable_docs && (path == kOpenApiPath || path == kDocsPath);
  const std::string methods = is_hidden ? "" : allowed_methods(path, context_->config.dev_mode);
  if (methods.empty()) {
    return error_response(
        {ErrorCode::kNotFound, "no such path: " + std::string(path.substr(0, 256)), ""});
  }
  if (head.method == "OPTIONS") return std::nullopt;
  const bool is_allowed = head.owner ? context_->api_keys.allow_id(head.owner->key)
                                     : context_->api_keys.allow(head.authorization());
  if (guarded(path) && !is_allowed) {
    return HttpResponse{.status = 401,
                        .content_type = std::string(kJson),
                        .body = R"({"error":"Unauthorized"})",
                        .headers = {{"WWW-Authenticate", "Bearer"}},
                        .error = "the request has no valid API key"};
  }
  if (path.starts_with(kAdminPrefix) && context_->config.api_keys.empty() &&
      !context_->config.open_admin) {
    return error_response(403, "Forbidden",
                          "/admin needs an api-key, since the server does not listen on a loopback "
                          "address");
  }
  const Route* const route = find_route(head.method, path, context_->config.dev_mode);
  if (route == nullptr) {
    HttpResponse response = error_response(
        405, "Method Not Allowed",
        std::string(path) + " does not support " + head.method.substr(0, 32) + ", only " + methods);
    response.headers.emplace_back("Allow", methods);
    return response;
  }
  if (needs_batches(path) && context_->counters.batches == nullptr) {
    return error_response(501, "NotImplementedError",
                          "files and batches are stored nowhere: --batch-directory is not set");
  }
  if (moves_cache(path) && context_->config.admin_cache_directory.empty()) {
    return error_response(501, "NotImplementedError",
                          "the cache is exported nowhere: --admin-cache-directory is not set");
  }
  if (route->answer == answer_uploaded_file) return refuse_upload(head);
  if (route->prepare == nullptr) return std::nullopt;
  const bool is_pooling = context_->config.defaults.pooler.type != PoolingType::kNone;
  if (route->task == (is_pooling ? Task::kGenerate : Task::kPool)) {
    return error_response({ErrorCode::kNotFound,
                           std::string(path) +
                               (is_pooling ? ": the model gives embeddings, it generates no text"
                                           : ": the model generates text, it gives no embeddings") +
                               " (see runner)",
                           "model"});
  }
  if (!head.has_body) {
    return error_response(411, "Length Required",
                          "the request has neither Content-Length nor a chunked body");
  }
  // Ollama's documentation has curl say that it sends a form. A browser would let any page send
  // one, but says whose page it is.
  const bool is_any_type = route->dialect == &kOllamaDialect && head.header("Origin").empty();
  if (!is_any_type && !equal_ignoring_case(media_type(head.header("Content-Type")), kJson)) {
    return error_response(400, "Bad Request",
                          "Content-Type is \"" +
                              std::string(head.header("Content-Type").substr(0, 128)) +
                              "\", only application/json is supported");
  }
  if (auto refusal = refuse_encoding(head)) return refusal;
  if (context_->counters.draining) {
    return error_response({ErrorCode::kOverloaded, "the server is shutting down", ""});
  }
  return std::nullopt;
}

std::unique_ptr<Exchange> Service::handle(HttpRequest request, ResponseSink& sink) {
  const std::string_view path = request.path();
  if (is_preflight(request)) {
    sink.respond(answer_preflight(context_->config.cors, request));
    return nullptr;
  }
  if (request.method == "OPTIONS") {
    sink.respond({.status = 200,
                  .content_type = "",
                  .body = "",
                  .headers = {{"Allow", allowed_methods(path, context_->config.dev_mode)}}});
    return nullptr;
  }
  const Route* const route = find_route(request.method, path, context_->config.dev_mode);
  CHECK(route != nullptr, request.method, path);
  if (route->prepare == nullptr) return route->answer(*context_, request, sink);
  if (context_->counters.draining) {  // since `refuse` was called
    sink.respond(error_response({ErrorCode::kOverloaded, "the server is shutting down", ""}, 1,
                                *route->dialect));
    return nullptr;
  }
  return answer_prepared(*context_, std::move(request), route->prepare, sink, *route->dialect);
}

std::shared_ptr<BodyReader> Service::body_reader(const HttpRequest& head) const {
  const Route* const route = find_route(head.method, head.path(), context_->config.dev_mode);
  if (route == nullptr || route->answer != answer_uploaded_file) return nullptr;
  return make_upload(*context_, head);
}

void Service::deliver(RequestOutputs& outputs) {
  for (RequestOutput& output : outputs.outputs) {
    const auto live = context_->live.find(output.id);
    if (live == context_->live.end()) continue;
    Generation& generation = *live->second;
    contain(generation.sink(),
            [&] { generation.deliver(std::move(output), outputs.stats.engine_index); });
  }
}

bool Service::retiring() const { return context_->counters.retiring; }

double Service::now() const { return context_->environment.steady_clock(); }

HttpHeaders Service::common_headers(const HttpRequest& request) const {
  HttpHeaders headers;
  if (context_->config.enable_request_id_headers) {
    const std::string_view given = request.header(kRequestId);
    headers.emplace_back(kRequestId, given.empty() || !is_request_id(given) ? context_->random_id()
                                                                            : std::string(given));
  }
  const CorsPolicy& cors = context_->config.cors;
  auto fields =
      is_preflight(request) ? cors.preflight(request).headers : cors.response_headers(request);
  std::move(fields.begin(), fields.end(), std::back_inserter(headers));
  return headers;
}

HttpObservation Service::begin_observation(const HttpRequest& head) const {
  const std::string_view path = head.path();
  HttpObservation observation{.method = head.method,
                              .path = std::string(path.substr(0, kMaxLoggedPathBytes)),
                              .tenant = context_->tenant_of(head),
                              .start = now()};
  const Route* const route =
      std::find_if(std::begin(kRoutes), std::end(kRoutes), [&](const Route& candidate) {
        return leads_to(candidate, path) && candidate.dev <= context_->config.dev_mode;
      });
  const bool known = route != std::end(kRoutes);
  if (known) observation.path = route->path;
  if (std::find(std::begin(kUnobserved), std::end(kUnobserved), path) == std::end(kUnobserved))
    observation.handler = known ? route->path : "none";
  if (context_->counters.spans != nullptr && !observation.handler.empty())
    observation.traceparent = head.header("traceparent");
  const std::string_view length = head.header("Content-Length");
  std::from_chars(length.data(), length.data() + length.size(), observation.request_bytes);
  return observation;
}

void Service::end_observation(HttpObservation observation, const WorkDone& work,
                              std::string_view client) {
  observation.end = now();
  if (!observation.handler.empty()) {
    context_->metrics.observe_http(observation);
    if (context_->counters.spans != nullptr) trace_request(*context_, observation, work);
  }
  if (context_->config.log_requests)
    log_request(observation, work, client, context_->api_keys.name(observation.tenant));
  if (context_->config.access_log != nullptr)
    context_->config.access_log->write(observation, work, client,
                                       context_->api_keys.name(observation.tenant),
                                       context_->environment.wall_clock());
}

void Service::log_unanswered(HttpObservation observation, const WorkDone& work,
                             std::string_view client) {
  observation.handler.clear();
  end_observation(std::move(observation), work, client);
}

}  // namespace troupe
