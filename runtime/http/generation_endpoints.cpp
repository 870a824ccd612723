#include <algorithm>
#include <charconv>
#include <functional>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/http/anthropic.hpp"
#include "runtime/http/background_responses.hpp"
#include "runtime/http/conversation_fit.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/generation_fields.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/kept_streams.hpp"
#include "runtime/http/ollama.hpp"
#include "runtime/http/pooling.hpp"
#include "runtime/http/rendering.hpp"
#include "runtime/http/responses.hpp"
#include "runtime/http/speech.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxSessionIdBytes = 1024;
/// Event ids contain the position of each of them.
constexpr std::int64_t kMaxResumableSamples = 16;

/// Counts `num_samples` as queued; returns a response if that exceeds the server's limit.
std::optional<HttpResponse> refuse_overload(ServiceContext& context, std::int64_t num_samples) {
  ServiceCounters& counters = context.counters;
  const std::int64_t limit = context.config.max_num_queued_reqs;
  const std::string limit_text = "max_num_queued_reqs is " + std::to_string(limit);
  if (limit > 0 && num_samples > limit) {  // even if the engine is idle: a retry cannot help
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

/// Counts the request for the limits of its API key; returns a response if one is reached.
std::optional<HttpResponse> refuse_key(ServiceContext& context, GenerationFields& request) {
  const double now = context.environment.steady_clock();
  if (const auto limited = context.api_keys.begin_request(request.tenant, now)) {
    context.metrics.observe_rejection();
    return error_response(limited->error, limited->retry_after_s);
  }
  request.key_use = std::make_shared<const KeyUse>(context, request.tenant);
  return std::nullopt;
}

/// The client's own id, if given, plus random bits: knowing the id of a resumable stream permits
/// reading it, so it must not be guessable.
std::string base_id(const ServiceContext& context, const HttpRequest& http,
                    const GenerationFields& fields, bool must_be_new) {
  const std::string_view header = http.header("X-Request-Id");
  const std::string own = header.empty() ? fields.request_id : std::string(header);
  if (own.empty()) return context.random_id();
  return must_be_new ? own + "-" + context.random_id() : own;
}

/// X-Enable-Blending, for requests that do not say so themselves (kv_transfer_params).
Result<void> read_blending_header(const HttpRequest& http, std::string& kv_transfer_params) {
  const std::string_view header = http.header("X-Enable-Blending");
  if (header.empty()) return {};
  if (header != "true" && header != "false")
    return invalid_argument("X-Enable-Blending is \"" + std::string(header.substr(0, 32)) +
                                "\", it must be true or false",
                            "kv_transfer_params");
  // Of a key that comes twice, the last value counts.
  const bool has_fields = kv_transfer_params.find(':') != std::string::npos;
  const std::string own = "{\"enable_blending\":" + std::string(header);
  kv_transfer_params = has_fields
                           ? own + "," + kv_transfer_params.substr(kv_transfer_params.find('{') + 1)
                           : own + "}";
  return {};
}

/// Headers that select the group of a request, how it is computed, and how urgent it is.
Result<void> read_request_headers(const ServerDefaults& defaults, const HttpRequest& http,
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
  if (const std::string_view priority = http.header("X-Vllm-Priority"); !priority.empty()) {
    const auto [stop, error] =
        std::from_chars(priority.data(), priority.data() + priority.size(), request.priority);
    if (error != std::errc() || stop != priority.data() + priority.size())
      return invalid_argument("X-Vllm-Priority is \"" + std::string(priority.substr(0, 32)) +
                                  "\", it must be an integer of 32 bits",
                              "priority");
    if (request.priority != 0 && !defaults.by_priority) return not_by_priority(request.priority);
  }
  std::string& session = request.placement.session_id;
  if (const std::string_view header = http.header("X-Session-ID"); !header.empty())
    session = header;
  if (session.size() > kMaxSessionIdBytes) {
    return invalid_argument("the session's id has " + std::to_string(session.size()) +
                                " bytes, at most " + std::to_string(kMaxSessionIdBytes) +
                                " are allowed",
                            "session_id");
  }
  return read_blending_header(http, request.placement.kv_transfer_params);
}

/// Stores the request, so that its stream can be resumed; null if there is no room for it.
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
    const bool broken = kept.error().code == ErrorCode::kIo;  // a disk error, not a full store
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
std::size_t num_prompts(const PoolingRequest& request) { return request.prompts.size(); }
std::size_t num_prompts(const SpeechRequest& request) { return request.prompts.size(); }
std::string_view id_prefix(const SpeechRequest& request) {
  return request.translates ? "trsl-" : "trsc-";
}
bool is_stored(const SpeechRequest&) { return false; }
bool is_resumable(const SpeechRequest&) { return false; }
std::string_view id_prefix(const CompletionRequest&) { return "cmpl-"; }
std::string_view id_prefix(const PoolingRequest& request) { return request.api->id_prefix; }
std::string_view id_prefix(const ChatRequest& request) { return request.api->id_prefix; }
bool is_stored(const CompletionRequest&) { return false; }
bool is_stored(const PoolingRequest&) { return false; }
bool is_stored(const ChatRequest& request) { return request.response && request.response->store; }
bool is_resumable(const CompletionRequest&) { return true; }
bool is_resumable(const PoolingRequest&) { return false; }
bool is_resumable(const ChatRequest& request) { return request.api->is_resumable; }

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

template <class Request, Start<Request> start>
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

/// Runs a stored request again; the client gets the events after its last one.
template <class Request, Start<Request> start>
Result<Answer> try_rerun(ServiceContext& context, const HttpRequest& http, const KeptStream& kept,
                         std::string_view after, Result<Request> parsed, ResponseSink& sink) {
  ASSIGN_OR_RETURN(Request request, read_generation(context, http, std::move(parsed)));
  request.limits.max_queue_time_s = 0;  // has already passed
  // Its age counts from its first arrival, its run time from now.
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

// ---- The Responses API

}  // namespace

std::string owner_of(const HttpRequest& http) {
  if (http.owner) return http.owner->responses;
  const std::string key = http.authorization();
  return to_hex(sha256(std::span(reinterpret_cast<const std::uint8_t*>(key.data()), key.size())));
}

namespace {

Result<ResponseStore*> store_of(const ServiceContext& context) {
  if (context.counters.responses != nullptr) return context.counters.responses;
  return Error{ErrorCode::kUnsupported, "responses are not stored: max-stored-responses is 0", ""};
}

/// Where the request's response is stored, and the conversation that it goes on with, as elements
/// of a JSON array.
Result<std::string> read_previous(ServiceContext& context, const HttpRequest& http,
                                  ResponsesRequest& request) {
  std::string previous;
  const std::string owner = owner_of(http);
  if (!request.previous_id.empty()) {
    ASSIGN_OR_RETURN(ResponseStore * store, store_of(context));
    auto found = store->get(request.previous_id, owner);
    if (!found.ok() && found.error().code == ErrorCode::kNotFound) {
      return Error{
          ErrorCode::kNotFound,
          "Previous response with id '" + request.previous_id.substr(0, 128) + "' not found.",
          "previous_response_id"};
    }
    if (!found.ok()) return found.error();
    if (found->messages.empty())
      return invalid_argument("the response " + request.previous_id.substr(0, 128) +
                                  " is not finished: a conversation cannot go on with it",
                              "previous_response_id");
    previous = std::move(found->messages);
  }
  if (request.settings.in_background) {
    RETURN_IF_ERROR(store_of(context));
    request.settings.body = http.body;
    request.settings.key = http.owner ? http.owner->key : ApiKeys::key_id(http.authorization());
  }
  if (request.store) request.settings.store = context.counters.responses;
  request.settings.owner = owner;
  return previous;
}

/// The request with the conversation that it goes on with.
Result<ChatRequest> with_conversation(ServiceContext& context, const HttpRequest& http,
                                      ResponsesRequest request) {
  ASSIGN_OR_RETURN(const std::string previous, read_previous(context, http, request));
  return chat_of(std::move(request), previous, context.config.defaults);
}

Result<Answer> try_start_response(ServiceContext& context, const HttpRequest& http,
                                  bool in_background, Result<ChatRequest> chat,
                                  ResponseSink& sink) {
  return in_background
             ? try_generate<ChatRequest, start_background>(context, http, std::move(chat), sink)
             : try_generate<ChatRequest, start_chat>(context, http, std::move(chat), sink);
}

/// With truncation: auto.
Result<Answer> try_fit(ServiceContext& context, const HttpRequest& http, ResponsesRequest request,
                       ResponseSink& sink) {
  ASSIGN_OR_RETURN(const std::string previous, read_previous(context, http, request));
  const std::vector<std::string> messages =
      split_messages(previous + (previous.empty() ? "" : ",") + request.messages);
  std::vector<std::size_t> starts = {0};
  for (std::size_t i = 1; i < messages.size(); ++i)
    if (is_of_user(messages[i])) starts.push_back(i);
  const bool in_background = request.settings.in_background;
  request.messages.clear();
  const auto make = [&context, http, request = std::move(request),
                     messages](std::size_t first) -> Result<ChatRequest> {
    std::string kept;
    for (std::size_t i = first; i < messages.size(); ++i)
      kept.append(kept.empty() ? "" : ",").append(messages[i]);
    return read_generation(context, http, chat_of(request, kept, context.config.defaults));
  };
  const auto go_on = [&context, http, in_background, &sink](Result<ChatRequest> chat) {
    return try_start_response(context, http, in_background, std::move(chat), sink);
  };
  return Answer(std::make_unique<ConversationFit>(context, sink, std::move(starts), make, go_on));
}

Result<Answer> try_respond(ServiceContext& context, const HttpRequest& http,
                           Result<ResponsesRequest> parsed, ResponseSink& sink) {
  ASSIGN_OR_RETURN(ResponsesRequest request, std::move(parsed));
  if (request.may_truncate) return try_fit(context, http, std::move(request), sink);
  const bool in_background = request.settings.in_background;
  return try_start_response(context, http, in_background,
                            with_conversation(context, http, std::move(request)), sink);
}

/// Runs a claimed response as its first server did.
Result<void> try_adopt(ServiceContext& context, const std::string& id, const ClaimedRun& claimed) {
  const ResponseRun& run = claimed.run;
  const HttpRequest http{.method = "POST",
                         .target = "/v1/responses",
                         .headers = {},
                         .client = {},
                         .body = run.body,
                         .has_body = true,
                         .reader = nullptr,
                         .owner = BatchOwner{.key = run.key, .responses = run.owner}};
  ASSIGN_OR_RETURN(ResponsesRequest request, parse_responses_request(run.body));
  request.messages.clear();  // they are in the conversation
  request.settings.store = context.counters.responses;
  request.settings.owner = run.owner;
  ASSIGN_OR_RETURN(ChatRequest chat, read_generation(context, http,
                                                     chat_of(std::move(request), run.conversation,
                                                             context.config.defaults)));
  RETURN_IF_ERROR(check_goes_on(context, claimed));
  if (const auto refusal = refuse_overload(context, num_samples(chat)))
    return Error{ErrorCode::kOverloaded, refusal->error, ""};
  go_on_in_background(context, std::move(chat), id, claimed);
  return {};
}

/// Goes on with the response, if its server has ended.
Result<void> adopt(ServiceContext& context, ResponseStore& store, const std::string& id) {
  ASSIGN_OR_RETURN(const auto claimed, store.claim(id, /*by_force=*/false));
  if (!claimed) return {};
  log_event(LogLevel::kInfo, "going on with a response in the background", kv("response", id));
  const auto adopted = try_adopt(context, id, *claimed);
  if (adopted.ok()) return {};
  // Another time there may be room.
  if (adopted.error().code == ErrorCode::kOverloaded) return store.release(id, claimed->token);
  return end_in_background(store, id, *claimed, "failed", adopted.error().message);
}

/// Counts the tokens of the conversation that a request would continue.
Result<Answer> try_count_input(ServiceContext& context, const HttpRequest& http,
                               Result<ResponsesRequest> parsed, ResponseSink& sink) {
  ASSIGN_OR_RETURN(ResponsesRequest request, std::move(parsed));
  ASSIGN_OR_RETURN(ChatRequest chat, with_conversation(context, http, std::move(request)));
  TokenizeRequest counted{.model = std::move(chat.model),
                          .render = {.prompt = std::move(chat.prompt)}};
  return try_render<TokenizeRequest, Rendering::Kind::kInputTokens>(context, http,
                                                                    std::move(counted), sink);
}

/// ID and what follows it in "/v1/responses/ID/more".
std::pair<std::string, std::string> response_path(const HttpRequest& http) {
  const std::string rest = unescaped(http.path().substr(kResponsesPath.size()));
  const std::size_t slash = rest.find('/');
  return {rest.substr(0, slash), slash == std::string::npos ? "" : rest.substr(slash + 1)};
}

Error no_such_path(const HttpRequest& http) {
  return {ErrorCode::kNotFound, "no such path: " + std::string(http.path().substr(0, 256)), ""};
}

/// The number of the last event that the client has; -1: none.
Result<std::int64_t> starting_after(const HttpRequest& http) {
  const auto text = query_value(http.target, "starting_after");
  if (!text) return -1;
  std::int64_t number = -1;
  const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error == std::errc() && stop == text->data() + text->size() && number >= 0) return number;
  return invalid_argument("starting_after is \"" + std::string(text->substr(0, 32)) +
                              "\", it must be the sequence_number of an event",
                          "starting_after");
}

Result<Answer> try_show_response(ServiceContext& context, const HttpRequest& http,
                                 ResponseSink& sink) {
  const auto [id, more] = response_path(http);
  if (!more.empty() && more != "input_items") return no_such_path(http);
  ASSIGN_OR_RETURN(ResponseStore * store, store_of(context));
  const std::string owner = owner_of(http);
  RETURN_IF_ERROR(store->get(id, owner));
  RETURN_IF_ERROR(adopt(context, *store, id));
  if (query_flag(http.target, "stream")) {
    if (http.method == "HEAD")
      return Error{ErrorCode::kUnsupported, "HEAD is not supported for streams, only GET", ""};
    ASSIGN_OR_RETURN(const std::int64_t after, starting_after(http));
    RETURN_IF_ERROR(store->events(id, owner, after, /*max_bytes=*/0));
    return Answer(follow_response(context, sink, id, owner, after));
  }
  ASSIGN_OR_RETURN(StoredResponse stored, store->get(id, owner));
  if (more.empty()) {
    sink.respond(json_response(std::move(stored.response)));
  } else {
    sink.respond(json_response("{\"object\":\"list\",\"data\":" + stored.input +
                               ",\"first_id\":null,\"last_id\":null,\"has_more\":false}"));
  }
  return Answer(nullptr);
}

Result<Answer> try_remove_response(ServiceContext& context, const HttpRequest& http,
                                   ResponseSink& sink) {
  const auto [id, more] = response_path(http);
  if (!more.empty()) return no_such_path(http);
  ASSIGN_OR_RETURN(ResponseStore * store, store_of(context));
  RETURN_IF_ERROR(store->remove(id, owner_of(http)));
  std::string json = "{\"id\":";
  append_json_string(json, id);
  sink.respond(json_response(json + ",\"object\":\"response\",\"deleted\":true}"));
  return Answer(nullptr);
}

Result<Answer> try_cancel_response(ServiceContext& context, const HttpRequest& http,
                                   ResponseSink& sink) {
  const auto [id, more] = response_path(http);
  if (more != "cancel") return no_such_path(http);
  ASSIGN_OR_RETURN(ResponseStore * store, store_of(context));
  const std::string owner = owner_of(http);
  RETURN_IF_ERROR(store->get(id, owner));
  ASSIGN_OR_RETURN(const auto claimed, store->claim(id, /*by_force=*/true));
  if (claimed) {
    RETURN_IF_ERROR(end_in_background(*store, id, *claimed, "cancelled", ""));
  } else if (!store->events(id, owner, -1, /*max_bytes=*/0).ok()) {
    return invalid_argument(
        "only responses that are made in the background can be cancelled; "
        "closing its connection ends another one",
        "response_id");
  }
  // One that has ended stays as it is.
  ASSIGN_OR_RETURN(StoredResponse stored, store->get(id, owner));
  sink.respond(json_response(std::move(stored.response)));
  return Answer(nullptr);
}

/// A resumable stream to be run again; it is returned to the store if that does not happen.
struct HeldStream {
  HeldStream(ServiceContext& context, KeptStream stream)
      : streams(*context.counters.kept_streams),
        clock(context.environment.wall_clock),
        kept(std::move(stream)) {}
  ~HeldStream() {
    if (!runs) streams.release(kept.id, clock());
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  KeptStreams& streams;
  const std::function<double()> clock;
  KeptStream kept;
  bool runs = false;
};

template <class Request, Parse<Request> parse, Start<Request> start>
std::function<Prepare> prepare_rerun(std::shared_ptr<HeldStream> held, std::string after) {
  return [held = std::move(held), after = std::move(after)](std::string_view body,
                                                            const ServerDefaults& defaults) {
    return with_request<Request>(
        parse(body, defaults),
        [held, after](ServiceContext& context, const HttpRequest& http, Result<Request> parsed,
                      ResponseSink& sink) -> Result<Answer> {
          ASSIGN_OR_RETURN(Answer answer,
                           (try_rerun<Request, start>(context, http, held->kept, after,
                                                      std::move(parsed), sink)));
          held->runs = answer != nullptr;
          return answer;
        });
  };
}

constexpr auto prepare_completion_rerun =
    prepare_rerun<CompletionRequest, parse_completion_request, start_completion>;
constexpr auto prepare_chat_rerun = prepare_rerun<ChatRequest, parse_chat_request, start_chat>;

Result<Answer> try_resume_stream(ServiceContext& context, const HttpRequest& http,
                                 ResponseSink& sink) {
  KeptStreams* const streams = context.counters.kept_streams;
  if (streams == nullptr) {
    return Error{ErrorCode::kUnsupported, "streams cannot be resumed: --resume is off", ""};
  }
  if (http.method == "HEAD")
    return Error{ErrorCode::kUnsupported, "HEAD is not supported for streams, only GET", ""};
  if (context.counters.draining)
    return Error{ErrorCode::kOverloaded, "the server is shutting down", ""};
  const std::string id = unescaped(http.path().substr(kStreamsPath.size()));
  const std::string_view after =
      query_value(http.target, "starting_after").value_or(http.header("Last-Event-ID"));
  const std::string key = http.authorization();
  ASSIGN_OR_RETURN(KeptStream kept,
                   streams->resume(id, context.config.engine_name, context.api_keys.tenant(key),
                                   context.environment.wall_clock()));
  const auto held = std::make_shared<HeldStream>(context, std::move(kept));
  HttpRequest again{.method = "POST",
                    .target = held->kept.path,
                    .headers = {{"Authorization", key}},
                    .client = http.client,
                    .body = std::move(held->kept.body),
                    .has_body = true};
  const auto prepare = held->kept.path == kChatPath ? prepare_chat_rerun : prepare_completion_rerun;
  return answer_prepared(context, std::move(again), prepare(held, std::string(after)), sink);
}

}  // namespace

Prepared prepare_completion(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_completion_request(body, defaults),
                      try_generate<CompletionRequest, start_completion>);
}

Prepared prepare_chat(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_chat_request(body, defaults), try_generate<ChatRequest, start_chat>);
}

Result<Answer> begin_speech(ServiceContext& context, const HttpRequest& http, SpeechRequest request,
                            ResponseSink& sink) {
  return try_generate<SpeechRequest, start_speech>(context, http, std::move(request), sink);
}

namespace {

template <Parse<PoolingRequest> parse>
Prepared prepare_pooled(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse(body, defaults), try_generate<PoolingRequest, start_pooling>);
}

}  // namespace

Prepared prepare_embeddings(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_embedding_request>(body, defaults);
}

Prepared prepare_pooling(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_pooling_request>(body, defaults);
}

Prepared prepare_classify(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_classify_request>(body, defaults);
}

Prepared prepare_score(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_score_request>(body, defaults);
}

Prepared prepare_rerank(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_rerank_request>(body, defaults);
}

Prepared prepare_ollama_embed(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_ollama_embed>(body, defaults);
}

Prepared prepare_ollama_embeddings(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_ollama_embeddings>(body, defaults);
}

Prepared prepare_messages(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_messages_request(body, defaults),
                      try_generate<ChatRequest, start_chat>);
}

Prepared prepare_count_tokens(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_count_tokens_request(body, defaults),
                      try_render<TokenizeRequest, Rendering::Kind::kCountTokens>);
}

Prepared prepare_ollama_chat(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_ollama_chat(body, defaults), try_generate<ChatRequest, start_chat>);
}

Prepared prepare_ollama_generate(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_ollama_generate(body, defaults), try_generate<ChatRequest, start_chat>);
}

Prepared prepare_responses(std::string_view body, const ServerDefaults&) {
  return with_request(parse_responses_request(body), try_respond);
}

Prepared prepare_input_tokens(std::string_view body, const ServerDefaults&) {
  return with_request(parse_responses_request(body), try_count_input);
}

Answer answer_stored_response(ServiceContext& context, const HttpRequest& http,
                              ResponseSink& sink) {
  return answer_or_refuse(try_show_response(context, http, sink), sink, kResponsesDialect);
}

Answer answer_removed_response(ServiceContext& context, const HttpRequest& http,
                               ResponseSink& sink) {
  return answer_or_refuse(try_remove_response(context, http, sink), sink, kResponsesDialect);
}

Answer answer_cancelled_response(ServiceContext& context, const HttpRequest& http,
                                 ResponseSink& sink) {
  return answer_or_refuse(try_cancel_response(context, http, sink), sink, kResponsesDialect);
}

void adopt_abandoned_responses(ServiceContext& context) {
  ResponseStore& store = *context.counters.responses;
  const auto ids = store.abandoned();
  if (!ids.ok()) return log_warning("stored responses", kv("reason", ids.error().message));
  for (const std::string& id : *ids) {
    const auto adopted = adopt(context, store, id);
    if (!adopted.ok())
      log_warning("response in the background", kv("response", id),
                  kv("reason", adopted.error().message));
  }
}

Answer answer_resumed_stream(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_resume_stream(context, http, sink), sink);
}

Prepared prepare_invocations(std::string_view body, const ServerDefaults& defaults) {
  const auto fields = JsonFields::parse(body);
  const auto has = [&](std::string_view name) { return fields.ok() && fields->has(name); };
  if (defaults.pooler.type == PoolingType::kNone)
    return has("prompt") ? prepare_completion(body, defaults) : prepare_chat(body, defaults);
  if (has("query")) return prepare_rerank(body, defaults);
  const bool has_pairs = has("queries") || has("data_1") || has("text_1");
  if (has_pairs) return prepare_score(body, defaults);
  return defaults.pooler.classifies() ? prepare_classify(body, defaults)
                                      : prepare_embeddings(body, defaults);
}

Prepared prepare_tokenize(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_tokenize_request(body, defaults),
                      try_render<TokenizeRequest, Rendering::Kind::kTokenize>);
}

Prepared prepare_detokenize(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_detokenize_request(body, defaults),
                      try_render<DetokenizeRequest, Rendering::Kind::kDetokenize>);
}

}  // namespace troupe
