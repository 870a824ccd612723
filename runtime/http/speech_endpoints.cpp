#include <memory>
#include <utility>

#include "runtime/base/base64.hpp"
#include "runtime/base/json.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/speech.hpp"

namespace troupe {
namespace {

using nlohmann::json;

/// The file for an InputProcessor, which decodes it and cuts it into windows.
ChatPrompt file_prompt(const SpeechRequest& request) {
  ChatPrompt prompt;
  prompt.messages_json = "[]";
  prompt.documents_json = json::array({to_base64(std::as_bytes(std::span(request.file)))}).dump();
  prompt.template_kwargs_json = json{{"cuts", true}}.dump();
  return prompt;
}

/// The windows of its reply. Errors: kUnsupported, the model has no ears.
Result<void> take_windows(const RenderReply& reply, SpeechRequest& request) {
  if (reply.error) return *reply.error;
  const json answer = json::parse(reply.text, nullptr, false);
  if (!answer.is_object() || !answer.contains("windows"))
    return Error{ErrorCode::kUnsupported, "the model takes no sounds", "model"};
  request.seconds = answer.value("seconds", 0.0);
  for (const json& window : answer["windows"]) {
    ChatPrompt prompt;
    prompt.messages_json =
        json::array({{{"role", "user"}, {"content", request.previous_text}}}).dump();
    prompt.documents_json = json::array({window.at("samples")}).dump();
    prompt.template_kwargs_json = json{
        {"language", request.language},
        {"translates", request.translates},
        {"timestamps",
         request.has_times()}}.dump();
    request.starts.push_back(window.value("start", 0.0));
    request.prompts.emplace_back(std::move(prompt));
  }
  request.file.clear();
  return {};
}

/// Waits for the windows, then becomes the answer.
class SpeechCutting final : public Exchange {
 public:
  SpeechCutting(ServiceContext& context, HttpRequest http, SpeechRequest request,
                ResponseSink& sink)
      : context_(context),
        count_(context),
        sink_(sink),
        http_(std::move(http)),
        request_(std::move(request)),
        id_(context.port.allocate_ids(1)),
        self_(std::make_shared<SpeechCutting*>(this)) {
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
  ~SpeechCutting() override {
    if (!is_cut_) context_.port.abort({id_});
  }
  SpeechCutting(const SpeechCutting&) = delete;
  SpeechCutting& operator=(const SpeechCutting&) = delete;

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
    is_cut_ = true;
    if (const auto taken = take_windows(reply, request_); !taken.ok())
      return sink_.respond(error_response(taken.error()));
    answer_ = answer_or_refuse(begin_speech(context_, http_, std::move(request_), sink_), sink_);
  }

  ServiceContext& context_;
  const ExchangeCount count_;
  ResponseSink& sink_;
  const HttpRequest http_;
  SpeechRequest request_;
  const RequestId id_;
  const std::shared_ptr<SpeechCutting*> self_;
  bool is_cut_ = false;
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
              std::make_unique<SpeechCutting>(own, std::move(rest), std::move(request), answers));
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
