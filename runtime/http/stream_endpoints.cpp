// GET /v1/streams/ID: a stream goes on behind the last event that its client has.

#include <algorithm>

#include "runtime/http/generation_start.hpp"
#include "runtime/http/kept_streams.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

/// Runs a stored request again; the client gets the events after its last one.
template <class Request, StartExchange<Request> start>
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

template <class Request, ParseBody<Request> parse, StartExchange<Request> start>
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

Answer answer_resumed_stream(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_resume_stream(context, http, sink), sink);
}

}  // namespace troupe
