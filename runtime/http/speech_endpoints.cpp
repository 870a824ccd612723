#include <memory>
#include <utility>

#include "runtime/base/base64.hpp"
#include "runtime/base/json.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/speech.hpp"

namespace troupe {
namespace {

using nlohmann::json;

/// The file for an InputProcessor, which decodes it.
ChatPrompt file_prompt(const SpeechRequest& request) {
  ChatPrompt prompt;
  prompt.messages_json = "[]";
  prompt.documents_json = json::array({to_base64(std::as_bytes(std::span(request.file)))}).dump();
  prompt.template_kwargs_json = json{{"features", true}}.dump();
  return prompt;
}

/// Its reply. Errors: kUnsupported, the model takes no sounds.
Result<void> take_sound(const RenderReply& reply, SpeechRequest& request) {
  if (reply.error) return *reply.error;
  const json answer = json::parse(reply.text, nullptr, false);
  if (!answer.is_object() || !answer.contains("features"))
    return Error{ErrorCode::kUnsupported, "the model takes no sounds", "model"};
  request.sound = {.seconds = answer.value("seconds", 0.0),
                   .num_frames = answer.value("num_frames", std::int64_t{0}),
                   .num_mels = answer.value("num_mels", std::int64_t{1}),
                   .window_frames = answer.value("window_frames", std::int64_t{1}),
                   .no_timestamps = answer.value("no_timestamps", TokenId{0}),
                   .end = answer.value("end", TokenId{0}),
                   .features = {}};
  ASSIGN_OR_RETURN(request.sound.features,
                   from_base64(answer["features"].get_ref<const std::string&>()));
  request.params.skip_special_tokens = !request.is_timed();
  request.file.clear();
  return {};
}

/// Waits for the features, then becomes the answer.
class SpeechReading final : public Exchange {
 public:
  SpeechReading(ServiceContext& context, HttpRequest http, SpeechRequest request,
                ResponseSink& sink)
      : context_(context),
        count_(context),
        sink_(sink),
        http_(std::move(http)),
        request_(std::move(request)),
        id_(context.port.allocate_ids(1)),
        self_(std::make_shared<SpeechReading*>(this)) {
    context_.port.render(
        {.prompt = file_prompt(request_),
         .id = id_,
         .tenant = context.tenant_of(http_),
         .client = http_.client_number()},
        [waiting = std::weak_ptr(self_), post = context.environment.post](RenderReply reply) {
          post([waiting, reply = std::move(reply)] {
            const auto self = waiting.lock();
            if (!self) return;
            contain((*self)->sink_, [&] { (*self)->go_on(reply); });
          });
        });
  }
  ~SpeechReading() override {
    if (!is_read_) context_.port.abort({id_});
  }
  SpeechReading(const SpeechReading&) = delete;
  SpeechReading& operator=(const SpeechReading&) = delete;

  void on_ready() override {
    if (answer_) answer_->on_ready();
  }
  void on_silence() override {
    if (answer_) answer_->on_silence();
  }
  [[nodiscard]] WorkDone work_done() const override {
    return answer_ ? answer_->work_done() : WorkDone{};
  }

 private:
  void go_on(const RenderReply& reply) {
    is_read_ = true;
    if (const auto taken = take_sound(reply, request_); !taken.ok())
      return sink_.respond(error_response(taken.error()));
    answer_ = answer_or_refuse(begin_speech(context_, http_, std::move(request_), sink_), sink_);
  }

  ServiceContext& context_;
  const ExchangeCount count_;
  ResponseSink& sink_;
  const HttpRequest http_;
  SpeechRequest request_;
  const RequestId id_;
  const std::shared_ptr<SpeechReading*> self_;
  bool is_read_ = false;
  Answer answer_;
};

Answer answer_speech(ServiceContext& context, const HttpRequest& http, ResponseSink& sink,
                     bool translates) {
  if (context.counters.draining) {
    sink.respond(error_response({ErrorCode::kOverloaded, "the server is shutting down", ""}));
    return nullptr;
  }
  const std::string content_type(http.header("Content-Type"));
  return answer_prepared(
      context, http,
      [content_type, translates](std::string_view body, const ServerDefaults&) -> Prepared {
        const auto parsed = std::make_shared<Result<SpeechRequest>>(
            parse_speech_request(content_type, body, translates));
        return [parsed](ServiceContext& own, const HttpRequest& head,
                        ResponseSink& answers) -> Result<Answer> {
          ASSIGN_OR_RETURN(SpeechRequest request, std::move(*parsed));
          // Before the sound is decoded.
          if (const auto model = own.resolve_model(request.model); !model.ok())
            return model.error();
          HttpRequest rest = head;
          rest.body.clear();
          return Answer(
              std::make_unique<SpeechReading>(own, std::move(rest), std::move(request), answers));
        };
      },
      sink);
}

}  // namespace

Answer answer_transcription(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_speech(context, http, sink, false);
}

Answer answer_translation(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_speech(context, http, sink, true);
}

}  // namespace troupe
