#pragma once
// From a parsed request to its Exchange: what the endpoints of all APIs have in common.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/http/dialect.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/http/pooling.hpp"
#include "runtime/http/rendering.hpp"
#include "runtime/http/request_admission.hpp"
#include "runtime/http/responses.hpp"
#include "runtime/http/speech.hpp"

namespace troupe {

/// Event ids contain the position of each sample.
inline constexpr std::int64_t kMaxResumableSamples = 16;

template <class Request>
using ParseBody = Result<Request> (*)(std::string_view body, const ServerDefaults& defaults);
template <class Request>
using StartExchange = Answer (*)(ServiceContext& context, ResponseSink& sink, Request request,
                                 std::string id);

inline std::size_t num_prompts(const CompletionRequest& request) { return request.prompts.size(); }
inline std::size_t num_prompts(const ChatRequest&) { return 1; }
inline std::size_t num_prompts(const PoolingRequest& request) { return request.prompts.size(); }
inline std::size_t num_prompts(const SpeechRequest&) { return 1; }  // window after window
inline std::string_view id_prefix(const SpeechRequest& request) {
  return request.translates ? "trsl-" : "trsc-";
}
inline bool is_stored(const SpeechRequest&) { return false; }
inline bool is_resumable(const SpeechRequest&) { return false; }
inline std::string_view id_prefix(const CompletionRequest&) { return "cmpl-"; }
inline std::string_view id_prefix(const PoolingRequest& request) { return request.api->id_prefix; }
inline std::string_view id_prefix(const ChatRequest& request) { return request.api->id_prefix; }
inline bool is_stored(const CompletionRequest&) { return false; }
inline bool is_stored(const PoolingRequest&) { return false; }
inline bool is_stored(const ChatRequest& request) {
  return request.response && request.response->store;
}
inline bool is_resumable(const CompletionRequest&) { return true; }
inline bool is_resumable(const PoolingRequest&) { return false; }
inline bool is_resumable(const ChatRequest& request) { return request.api->is_resumable; }

template <class Request>
std::int64_t num_samples(const Request& request) {
  return request.params.n * static_cast<std::int64_t>(num_prompts(request));
}

template <class Request>
Result<Request> read_generation(ServiceContext& context, const HttpRequest& http,
                                Result<Request> parsed) {
  ASSIGN_OR_RETURN(Request request, std::move(parsed));
  ASSIGN_OR_RETURN(auto resolved, context.resolve_model(request.model));
  request.model = std::move(resolved.name);
  request.lora = std::move(resolved.lora);
  RETURN_IF_ERROR(read_request_headers(context.config.defaults, http, request));
  request.tenant = context.tenant_of(http);
  request.client = request.user.empty()
                       ? http.client_number()
                       : static_cast<std::uint32_t>(std::hash<std::string>{}(request.user));
  request.body_bytes = http.body.size();
  return request;
}

template <class Request, StartExchange<Request> start>
Result<Answer> try_generate(ServiceContext& context, const HttpRequest& http,
                            Result<Request> parsed, ResponseSink& sink) {
  ASSIGN_OR_RETURN(Request request, read_generation(context, http, std::move(parsed)));
  auto refusal = refuse_key(context, request);
  if (!refusal) refusal = refuse_overload(context, num_samples(request));
  if (refusal) {
    if (request.dialect != &kOpenAiDialect)
      refusal->body = request.dialect->error_body(refusal->status, {.message = refusal->error});
    sink.respond(*std::move(refusal));
    return Answer(nullptr);
  }
  const bool keeps = request.stream && is_resumable(request) &&
                     context.counters.kept_streams != nullptr &&
                     num_samples(request) <= kMaxResumableSamples;
  std::string id = std::string(id_prefix(request)) +
                   base_id(context, http, request, keeps || is_stored(request));
  if (keeps) request.resumable = keep_stream(context, http, request, num_prompts(request), id);
  return start(context, sink, std::move(request), std::move(id));
}

/// Moves the request from the parsing thread to the service's thread, in a copyable function that
/// is called once.
template <class Request, class GoOn>
Prepared with_request(Result<Request> parsed, GoOn go_on) {
  return [parsed = std::make_shared<Result<Request>>(std::move(parsed)), go_on = std::move(go_on)](
             ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
    return go_on(context, http, std::move(*parsed), sink);
  };
}

template <class Request, Rendering::Kind kind>
Result<Answer> try_render(ServiceContext& context, const HttpRequest& http, Result<Request> parsed,
                          ResponseSink& sink) {
  ASSIGN_OR_RETURN(Request request, std::move(parsed));
  RETURN_IF_ERROR(context.resolve_model(request.model));
  request.render.tenant = context.tenant_of(http);
  request.render.client = http.client_number();
  return Answer(std::make_unique<Rendering>(context, sink, kind, std::move(request.render)));
}

}  // namespace troupe
