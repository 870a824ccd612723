#include "runtime/http/conversation_fit.hpp"

#include <utility>

#include "runtime/http/dialect.hpp"

namespace troupe {
namespace {

/// Of the model's length is left for an answer whose length the client does not say.
constexpr std::int32_t kAnswerShare = 8;

}  // namespace

ConversationFit::ConversationFit(ServiceContext& context, ResponseSink& sink,
                                 std::vector<std::size_t> starts, Make make, GoOn go_on)
    : context_(context),
      count_(context),
      sink_(sink),
      starts_(std::move(starts)),
      make_(std::move(make)),
      go_on_(std::move(go_on)),
      self_(std::make_shared<ConversationFit*>(this)),
      last_(starts_.size() - 1) {
  context_.environment.post([self = std::weak_ptr(self_)] {
    if (const auto fit = self.lock()) contain((*fit)->sink_, [&] { (*fit)->measure(0); });
  });
}

ConversationFit::~ConversationFit() {
  if (is_waiting_) context_.port.abort({id_});
}

void ConversationFit::measure(std::size_t candidate) {
  candidate_ = candidate;
  Result<ChatRequest> request = make_(starts_[candidate]);
  if (!request.ok()) return go_on(std::move(request));
  const std::int32_t max_model_len = context_.config.defaults.max_model_len;
  num_reserved_ = request->params.max_tokens.value_or(max_model_len / kAnswerShare);
  id_ = context_.port.allocate_ids(1);
  is_waiting_ = true;
  RenderRequest render{.prompt = std::move(request->prompt), .id = id_};
  render.tenant = request->tenant;
  render.client = request->client;
  context_.port.render(std::move(render), [self = std::weak_ptr(self_),
                                           post = context_.environment.post](RenderReply reply) {
    post([self, reply = std::move(reply)] {
      const auto fit = self.lock();
      if (fit) contain((*fit)->sink_, [&] { (*fit)->take(reply); });
    });
  });
}

void ConversationFit::take(const RenderReply& reply) {
  is_waiting_ = false;
  if (reply.error) return go_on(*reply.error);
  const bool fits = static_cast<std::int64_t>(reply.token_ids.size()) + num_reserved_ <=
                    context_.config.defaults.max_model_len;
  if (fits) {
    last_ = candidate_;
  } else {
    first_ = candidate_ + 1;
  }
  if (first_ < last_) return measure(first_ + (last_ - first_) / 2);
  go_on(make_(starts_[last_]));
}

void ConversationFit::go_on(Result<ChatRequest> request) {
  answer_ = answer_or_refuse(go_on_(std::move(request)), sink_, kResponsesDialect);
}

void ConversationFit::on_ready() {
  if (answer_) answer_->on_ready();
}

void ConversationFit::on_silence() {
  if (answer_) answer_->on_silence();
}

WorkDone ConversationFit::work_done() const { return answer_ ? answer_->work_done() : WorkDone{}; }

}  // namespace troupe
