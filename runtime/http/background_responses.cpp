#include "runtime/http/background_responses.hpp"

#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/base/ordered_json.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/responses.hpp"

namespace troupe {
namespace {

void log_not_stored(const std::string& id, const Error& error) {
  log_warning("response in the background not stored", kv("response", id),
              kv("reason", error.message));
}

/// Takes what a run makes, and stores it. Owned by the service, which removes it when it has ended.
class BackgroundRun final : public ResponseSink {
 public:
  BackgroundRun(ServiceContext& context, ResponseStore& store, std::string id, std::string token,
                std::shared_ptr<ResponseProgress> progress)
      : context_(context),
        store_(store),
        id_(std::move(id)),
        token_(std::move(token)),
        progress_(std::move(progress)) {}

  void start(ChatRequest request) {
    contain(*this, [&] { exchange_ = start_chat(context_, *this, std::move(request), id_); });
  }

  void respond(HttpResponse response) override { end_with(response.error); }
  void begin(HttpResponse) override {}
  void note_position(std::string position) override { progress_->position = std::move(position); }
  [[nodiscard]] bool ready() const noexcept override { return true; }

  void write(std::string_view bytes, bool last) override {
    progress_->events = bytes;
    const auto stored = store_.append(id_, token_, *progress_);
    *progress_ = {};
    if (!stored.ok() && stored.error().code != ErrorCode::kNotFound)
      log_not_stored(id_, stored.error());
    // Not found: it was deleted or cancelled, or another server has claimed it.
    if (last || !stored.ok()) remove();
  }

  void fail(std::string_view what) noexcept override {
    try {
      log_error("response in the background failed", kv("response", id_), kv("what", what));
      exchange_.reset();
      end_with("internal error");
    } catch (...) {
      // Out of memory: it stays in progress until another server claims it.
    }
  }

 private:
  void end_with(const std::string& error) {
    remove();
    const auto claimed = store_.claim(id_, /*by_force=*/true);
    if (!claimed.ok() || !*claimed) return;
    const auto ended = end_in_background(store_, id_, **claimed, "failed", error);
    if (!ended.ok()) log_not_stored(id_, ended.error());
  }

  /// Later: the exchange may be on the call stack.
  void remove() {
    if (std::exchange(is_removed_, true)) return;
    context_.environment.post([&context = context_, id = id_] { context.background.erase(id); });
  }

  ServiceContext& context_;
  ResponseStore& store_;
  const std::string id_;
  const std::string token_;
  const std::shared_ptr<ResponseProgress> progress_;
  bool is_removed_ = false;
  std::unique_ptr<Exchange> exchange_;
};

/// Sends stored events as they come.
class ResponseFollower final : public Exchange {
 public:
  ResponseFollower(ServiceContext& context, ResponseSink& sink, ResponseStore& store,
                   std::string id, std::string owner, std::int64_t after)
      : count_(context),
        sink_(sink),
        store_(store),
        id_(std::move(id)),
        owner_(std::move(owner)),
        after_(after),
        self_(std::make_shared<ResponseFollower*>(this)) {
    const auto wake = [self = std::weak_ptr(self_), post = context.environment.post] {
      post([self] {
        if (const auto follower = self.lock())
          contain((*follower)->sink_, [&] { (*follower)->send(); });
      });
    };
    watch_ = store_.watch(id_, wake);
    wake();
  }
  ~ResponseFollower() override { store_.unwatch(watch_); }

  void on_ready() override { send(); }
  void on_silence() override {
    if (is_done_ || !has_begun_ || !sink_.ready()) return;
    sink_.write(kResponsesDialect.keep_alive, false);
  }

 private:
  void send() {
    constexpr std::size_t kMaxBytes = 256 << 10;  // read at once
    while (!is_done_ && sink_.ready()) {
      const auto events = store_.events(id_, owner_, after_, kMaxBytes);
      if (!events.ok()) return fail(events.error());
      const bool is_first = !std::exchange(has_begun_, true);
      if (is_first) begin();
      if (events->text.empty() && !events->is_complete) {
        // The head alone; what is not written is not sent, and the sink would not become ready.
        if (is_first) sink_.write({}, false);
        return;
      }
      after_ = events->last;
      is_done_ = events->is_complete;
      sink_.write(events->text, is_done_);
    }
  }

  void begin() {
    sink_.begin({.status = 200,
                 .content_type = std::string(kResponsesDialect.stream_type),
                 .headers = {{"Cache-Control", "no-cache"}}});
  }

  void fail(const Error& error) {
    is_done_ = true;
    if (!has_begun_) return sink_.respond(error_response(error, 1, kResponsesDialect));
    std::string event;
    kResponsesDialect.append_error_event(event, error);
    sink_.write(event, true);
  }

  const ExchangeCount count_;
  ResponseSink& sink_;
  ResponseStore& store_;
  const std::string id_;
  const std::string owner_;
  std::int64_t after_;
  const std::shared_ptr<ResponseFollower*> self_;
  std::uint64_t watch_ = 0;
  bool has_begun_ = false;
  bool is_done_ = false;
};

/// Runs a request whose response is stored, as a stream of one sample.
void run(ServiceContext& context, ChatRequest request, const std::string& id, std::string token,
         ResumableStream stream, std::int64_t num_events) {
  auto settings = std::make_shared<ResponseSettings>(*request.response);
  settings->progress = std::make_shared<ResponseProgress>();
  settings->num_events = num_events;
  auto made = std::make_unique<BackgroundRun>(context, *settings->store, id, std::move(token),
                                              settings->progress);
  request.response = std::move(settings);
  request.stream = true;
  request.params.output_kind = OutputKind::kDelta;
  request.resumable = std::make_shared<const ResumableStream>(std::move(stream));
  BackgroundRun& started = *made;
  context.background[id] = std::move(made);
  started.start(std::move(request));
}

}  // namespace

std::unique_ptr<Exchange> start_background(ServiceContext& context, ResponseSink& sink,
                                           ChatRequest request, std::string id) {
  const ResponseSettings& settings = *request.response;
  ResponseStore& store = *settings.store;
  const std::string owner = settings.owner;
  const bool follows = request.stream;
  ResumableStream stream{.id = id,
                         .arrival_time = context.environment.wall_clock(),
                         .philox_keys = {context.port.draw_key()}};
  stream.is_kept = false;
  stream.after.samples.resize(1);
  const AnswerHead head{
      .id = id, .created = static_cast<std::int64_t>(stream.arrival_time), .model = request.model};
  std::string queued = queued_response(head, request);
  ResponseProgress begun;
  for (const std::string_view type : {"response.created", "response.queued"})
    append_response_event(begun.events, type, count_events(begun.events),
                          ",\"response\":" + queued);
  auto token = store.begin(id, {.response = queued, .input = settings.input, .messages = {}},
                           {.owner = owner,
                            .key = settings.key,
                            .engine = context.config.engine_name,
                            .body = settings.body,
                            .conversation = settings.conversation,
                            .philox_key = stream.philox_keys.front(),
                            .arrival_time = stream.arrival_time},
                           begun);
  if (!token.ok()) {
    context.counters.num_samples -= request.params.n;  // which will not run
    sink.respond(error_response(token.error(), 1, kResponsesDialect));
    return nullptr;
  }
  run(context, std::move(request), id, *std::move(token), std::move(stream),
      count_events(begun.events));
  if (follows) return follow_response(context, sink, std::move(id), owner, -1);
  sink.respond({.status = 200, .content_type = "application/json", .body = std::move(queued)});
  return nullptr;
}

Result<void> check_goes_on(const ServiceContext& context, const ClaimedRun& claimed) {
  if (!claimed.position.empty() && claimed.run.engine != context.config.engine_name)
    return Error{ErrorCode::kUnavailable,
                 "the server was started again with another model or other options", ""};
  RETURN_IF_ERROR(parse_stream_position(claimed.position, 1));
  return {};
}

void go_on_in_background(ServiceContext& context, ChatRequest request, const std::string& id,
                         const ClaimedRun& claimed) {
  ResumableStream stream{
      .id = id, .arrival_time = claimed.run.arrival_time, .philox_keys = {claimed.run.philox_key}};
  stream.is_kept = false;
  stream.after = parse_stream_position(claimed.position, 1).value();
  request.limits = {};  // they were for the client that waited
  run(context, std::move(request), id, claimed.token, std::move(stream), claimed.num_events);
}

Result<void> end_in_background(ResponseStore& store, const std::string& id,
                               const ClaimedRun& claimed, std::string_view status,
                               const std::string& error) {
  ASSIGN_OR_RETURN(const StoredResponse stored, store.get(id, claimed.run.owner));
  auto response = nlohmann::ordered_json::parse(stored.response, nullptr, false);
  response["status"] = status;
  if (!error.empty()) response["error"] = {{"code", "server_error"}, {"message", error}};
  ResponseProgress progress{.response = response.dump(), .is_final = true};
  append_response_event(progress.events, "response." + std::string(status), claimed.num_events,
                        ",\"response\":" + progress.response);
  return store.append(id, claimed.token, progress);
}

std::unique_ptr<Exchange> follow_response(ServiceContext& context, ResponseSink& sink,
                                          std::string id, std::string owner, std::int64_t after) {
  return std::make_unique<ResponseFollower>(context, sink, *context.counters.responses,
                                            std::move(id), std::move(owner), after);
}

}  // namespace troupe
