#include <algorithm>

#include "runtime/base/utf8.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

class CompletionGeneration final : public Generation {
 public:
  CompletionGeneration(ServiceContext& context, ResponseSink& sink, CompletionRequest request,
                       std::string id)
      : Generation(context, sink, request, std::move(id),
                   {.num_logprobs = request.num_shown_logprobs(),
                    .show_token_ids = request.return_token_ids,
                    .tokens_as_ids = request.return_tokens_as_token_ids}),
        echo_(request.echo),
        echo_only_(request.echo_only),
        num_samples_(request.params.n) {
    std::vector<std::string> external_ids;
    for (std::size_t i = 0; i < request.prompts.size(); ++i) {
      external_ids.push_back(this->head().id + "-" + std::to_string(i));
    }
    submit(std::move(request.prompts), external_ids, request, request.echo);
  }

 private:
  void append_events(std::string& out, Part& part) override {
    for (CompletionOutput& output : part.pending.outputs) {
      show_pieces(part, std::move(output),
                  [&](CompletionOutput piece) { append_event(out, part, std::move(piece)); });
    }
  }

  void append_event(std::string& out, Part& part, CompletionOutput output) {
    Sample& state = sample(part, output);
    const bool is_new = begin_event(out, part, output.index, extent(output));
    CompletionChoice choice = shown(part, std::move(output), !state.begun);
    if (format().show_token_ids && !state.begun) choice.prompt_token_ids = &part.prompt_token_ids;
    state.begun = true;
    choice.text_offset = state.text_offset;
    state.text_offset += unicode::count(choice.output.text);
    if (!is_new) return;
    const std::optional<Usage> usage = continuous_usage(part, state);
    append_completion_event(out, head(), choice, format(), usage ? &*usage : nullptr);
  }

  std::string final_json() override {
    CompletionAnswer answer{.head = head(),
                            .choices = {},
                            .usage = usage(),
                            .kv_transfer_params = kv_transfer_params(),
                            .ec_transfer_params = ec_transfer_params()};
    for (Part& part : parts()) {
      std::vector<CompletionOutput>& outputs = part.pending.outputs;
      std::sort(outputs.begin(), outputs.end(),
                [](const auto& a, const auto& b) { return a.index < b.index; });
      for (CompletionOutput& output : outputs) {
        CompletionChoice choice = shown(part, std::move(output), true);
        if (format().show_token_ids) choice.prompt_token_ids = &part.prompt_token_ids;
        if (!part.prompt_logprobs.empty()) choice.prompt_logprobs = &part.prompt_logprobs;
        answer.choices.push_back(std::move(choice));
      }
    }
    return completion_json(answer, format());
  }

  [[nodiscard]] std::string_view stream_object() const override { return kCompletionObject; }

  /// The output as shown to the client: numbered over all prompts, after the echoed prompt. With
  /// token ids only the ids contain the echo.
  CompletionChoice shown(const Part& part, CompletionOutput output, bool first) const {
    CompletionChoice choice;
    if (echo_ && first) {
      if (echo_only_) {
        output.text.clear();
        output.token_ids.clear();
        output.logprobs.clear();
      }
      if (!format().show_token_ids) output.text.insert(0, part.prompt_text);
      output.token_ids.insert(output.token_ids.begin(), part.prompt_token_ids.begin(),
                              part.prompt_token_ids.end());
      output.logprobs.insert(output.logprobs.begin(), part.prompt_logprobs.begin(),
                             part.prompt_logprobs.end());
      choice.first_token_text = first_token_text(part);
    }
    output.index += part.index * num_samples_;
    choice.output = std::move(output);
    return choice;
  }

  /// The prompt's first token has no log-probabilities, which would contain its text.
  std::string first_token_text(const Part& part) const {
    if (format().tokens_as_ids && !part.prompt_token_ids.empty()) {
      return "token_id:" + std::to_string(part.prompt_token_ids.front());
    }
    return part.first_token_text;
  }

  const bool echo_;
  const bool echo_only_;
  const std::int32_t num_samples_;
};

}  // namespace

std::unique_ptr<Exchange> start_completion(ServiceContext& context, ResponseSink& sink,
                                           CompletionRequest request, std::string id) {
  return std::make_unique<CompletionGeneration>(context, sink, std::move(request), std::move(id));
}

}  // namespace troupe
