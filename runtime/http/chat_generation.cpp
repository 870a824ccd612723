#include <algorithm>

#include "runtime/http/generation.hpp"

namespace troupe {
namespace {

class ChatGeneration final : public Generation {
 public:
  ChatGeneration(ServiceContext& context, ResponseSink& sink, ChatRequest request, std::string id)
      : Generation(context, sink, request, std::move(id),
                   {.num_logprobs = request.params.logprobs,
                    .show_token_ids = request.return_token_ids,
                    .tokens_as_ids = request.return_tokens_as_token_ids}),
        role_(std::move(request.role)),
        echo_text_(std::move(request.echo_text)),
        show_prompt_text_(request.return_prompt_text) {
    std::vector<Prompt> prompts;
    prompts.push_back(std::move(request.prompt));
    submit(std::move(prompts), {this->head().id}, request, show_prompt_text_);
  }

 private:
  void append_events(std::string& out, Part& part) override {
    if (!part.samples.front().begun) append_first_events(out, part);
    for (CompletionOutput& output : part.pending.outputs) {
      const std::optional<Usage> usage = continuous_usage(part, sample(part, output));
      show_pieces(part, std::move(output), [&](const CompletionOutput& piece) {
        if (!begin_event(out, part, piece.index, extent(piece))) return;
        append_chat_event(out, head(), piece, format(), usage ? &*usage : nullptr);
      });
    }
  }

  /// Every choice begins with its role, and the echo if requested.
  void append_first_events(std::string& out, Part& part) {
    for (std::size_t i = 0; i < part.samples.size(); ++i) {
      part.samples[i].begun = true;
      const auto index = static_cast<std::int32_t>(i);
      const std::optional<Usage> usage = continuous_usage(part, {});
      if (begin_event(out, part, index, {})) {
        append_chat_role_event(out, head(), index, role_, shown_prompt_ids(part),
                               show_prompt_text_ ? &part.prompt_text : nullptr,
                               usage ? &*usage : nullptr);
      }
      if (echo_text_.empty()) continue;
      CompletionOutput echo;
      echo.index = index;
      echo.text = echo_text_;
      if (begin_event(out, part, index, extent(echo)))
        append_chat_event(out, head(), echo, {}, usage ? &*usage : nullptr);
    }
  }

  std::string final_json() override {
    Part& part = parts().front();
    ChatAnswer answer{.head = head(), .role = role_, .choices = {}, .usage = usage()};
    answer.choices = std::move(part.pending.outputs);
    std::sort(answer.choices.begin(), answer.choices.end(),
              [](const auto& a, const auto& b) { return a.index < b.index; });
    for (CompletionOutput& output : answer.choices) output.text.insert(0, echo_text_);
    answer.prompt_token_ids = shown_prompt_ids(part);
    if (!part.prompt_logprobs.empty()) answer.prompt_logprobs = &part.prompt_logprobs;
    if (show_prompt_text_) answer.prompt_text = &part.prompt_text;
    return chat_json(answer, format());
  }

  [[nodiscard]] std::string_view stream_object() const override { return kChatChunkObject; }

  [[nodiscard]] const std::vector<TokenId>* shown_prompt_ids(const Part& part) const {
    return format().show_token_ids ? &part.prompt_token_ids : nullptr;
  }

  const std::string role_;
  const std::string echo_text_;
  const bool show_prompt_text_;
};

}  // namespace

std::unique_ptr<Exchange> start_chat(ServiceContext& context, ResponseSink& sink,
                                     ChatRequest request, std::string id) {
  return std::make_unique<ChatGeneration>(context, sink, std::move(request), std::move(id));
}

}  // namespace troupe
