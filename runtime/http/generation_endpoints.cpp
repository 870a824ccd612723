#include <algorithm>
#include <charconv>

#include "runtime/base/log.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/kept_streams.hpp"
#include "runtime/http/rendering.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxSessionIdBytes = 1024;
/// The id of an event tells of each of them.
constexpr std::int64_t kMaxResumableSamples = 16;

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

/// The client's own id, if it has one, and random bits: who knows the id of a stream that is kept
/// may read it, which a client's own id, say a number, would make easy.
std::string base_id(const ServiceContext& context, const HttpRequest& http,
                    const GenerationFields& fields, bool opens_stream) {
  const std::string_view header = http.header("X-Request-Id");
  const std::string own = header.empty() ? fields.request_id : std::string(header);
  if (own.empty()) return context.random_id();
  return opens_stream ? own + "-" + context.random_id() : own;
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
    const bool broken = kept.error().code == ErrorCode::kIo;  // a full disk, not a full store
    log_event(broken ? LogLevel::kWarning : LogLevel::kDebug, "stream not kept",
              kv("request", stream.id), kv("error", kept.error().message));
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
  const bool keeps = request.stream && context.counters.kept_streams != nullptr &&
                     num_samples(request) <= kMaxResumableSamples;
  std::string id = std::string(id_prefix(request)) + base_id(context, http, request, keeps);
  if (keeps) request.resumable = keep_stream(context, http, request, num_prompts(request), id);
  return start(context, sink, std::move(request), std::move(id));
}

/// Runs a kept request again; the client gets what is behind the event that it had last.
template <class Request, Parse<Request> parse, Start<Request> start>
Result<Answer> try_rerun(ServiceContext& context, const HttpRequest& http, const KeptStream& kept,
                         std::string_view after, ResponseSink& sink) {
  ASSIGN_OR_RETURN(Request request, read_generation<Request, parse>(context, http));
  request.limits.max_queue_time_s = 0;  // which was long ago
  // Its age counts from its first arrival, the time to run it again from now.
  if (request.limits.max_request_time_s > 0) {
    request.limits.max_request_time_s +=
        std::max(context.environment.wall_clock() - kept.arrival_time, 0.0);
  }
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

constexpr auto rerun_completion =
    try_rerun<CompletionRequest, parse_completion_request, start_completion>;
constexpr auto rerun_chat = try_rerun<ChatRequest, parse_chat_request, start_chat>;

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

}  // namespace

Answer answer_completion(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  constexpr auto attempt =
      try_generate<CompletionRequest, parse_completion_request, start_completion>;
  return answer_or_refuse(attempt(context, http, sink), sink);
}

Answer answer_chat(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  constexpr auto attempt = try_generate<ChatRequest, parse_chat_request, start_chat>;
  return answer_or_refuse(attempt(context, http, sink), sink);
}

Answer answer_resumed_stream(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_resume_stream(context, http, sink), sink);
}

Answer answer_tokenize(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  constexpr auto attempt =
      try_render<TokenizeRequest, parse_tokenize_request, Rendering::Kind::kTokenize>;
  return answer_or_refuse(attempt(context, http, sink), sink);
}

Answer answer_detokenize(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  constexpr auto attempt =
      try_render<DetokenizeRequest, parse_detokenize_request, Rendering::Kind::kDetokenize>;
  return answer_or_refuse(attempt(context, http, sink), sink);
}

}  // namespace troupe
