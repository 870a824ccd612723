#include <algorithm>
#include <utility>

#include "runtime/http/dialect.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/responses.hpp"

namespace troupe {
namespace {

/// Counts the tokens of a sample's reasoning, its markers included: exact for outputs of one token.
/// With more of them, those beside the end of the reasoning count to it.
class ReasoningCounter {
 public:
  explicit ReasoningCounter(const ReasoningFormat& format) : parser_(format) {}

  void take(const CompletionOutput& output) {
    const bool was_inside = parser_.is_inside();
    std::string reasoning, answer;
    parser_.feed(output.text, reasoning, answer);
    if (was_inside || parser_.is_inside())
      num_tokens_ += static_cast<std::int64_t>(output.token_ids.size());
  }
  [[nodiscard]] std::int64_t num_tokens() const noexcept { return num_tokens_; }

 private:
  ReasoningParser parser_;
  std::int64_t num_tokens_ = 0;
};

class ChatGeneration final : public Generation {
 public:
  ChatGeneration(ServiceContext& context, ResponseSink& sink, ChatRequest request, std::string id)
      : Generation(context, sink, request, std::move(id),
                   {.num_logprobs = request.num_shown_logprobs(),
                    .show_token_ids = request.return_token_ids,
                    .tokens_as_ids = request.return_tokens_as_token_ids}),
        role_(std::move(request.role)),
        echo_text_(std::move(request.echo_text)),
        show_prompt_text_(request.return_prompt_text),
        answer_format_(std::move(request.answer)),
        writer_(request.api->make_writer(head(), request)) {
    const auto num_samples = static_cast<std::size_t>(request.params.n);
    samples_.reserve(num_samples);
    for (std::size_t i = 0; i < num_samples; ++i) samples_.emplace_back(answer_format_);
    if (answer_format_.reasoning)
      counters_.assign(num_samples, ReasoningCounter(*answer_format_.reasoning));
    // Its stream has begun when it was stored.
    if (request.response && request.response->progress) begin();
    std::vector<Prompt> prompts;
    prompts.push_back(std::move(request.prompt));
    submit(std::move(prompts), {this->head().id}, request, show_prompt_text_);
  }

 private:
  /// The answer of a sample while it is generated.
  struct ParsedSample {
    explicit ParsedSample(const AnswerFormat& format) : parser(format) {}

    AnswerParser parser;
    /// Tokens and log-probabilities of text that the parser holds back: they are shown with it.
    std::optional<CompletionOutput> held;
  };

  void take_output(const CompletionOutput& output) override {
    if (!counters_.empty()) counters_[static_cast<std::size_t>(output.index)].take(output);
  }

  [[nodiscard]] std::optional<std::int64_t> num_reasoning_tokens() const override {
    if (counters_.empty()) return std::nullopt;
    std::int64_t sum = 0;
    for (const ReasoningCounter& counter : counters_) sum += counter.num_tokens();
    return sum;
  }

  /// Reasoning is counted by outputs of one token.
  [[nodiscard]] std::int32_t answer_interval() const override {
    return counters_.empty() ? kAnswerInterval : 1;
  }

  void append_events(std::string& out, Part& part) override {
    if (!part.samples.front().begun) append_first_events(out, part);
    for (CompletionOutput& output : part.pending.outputs) {
      const std::optional<Usage> usage = continuous_usage(part, sample(part, output));
      show_pieces(part, std::move(output), [&](CompletionOutput piece) {
        append_piece(out, part, std::move(piece), usage ? &*usage : nullptr);
      });
    }
  }

  void append_piece(std::string& out, const Part& part, CompletionOutput piece,
                    const Usage* usage) {
    if (!answer_format_.is_parsed()) {
      const SamplePosition addition = extent(piece);
      ChatChoice choice;
      choice.message.content = std::move(piece.text);
      choice.output = std::move(piece);
      return append_choice(out, part, choice, addition, usage);
    }
    ParsedSample& sample = samples_[static_cast<std::size_t>(piece.index)];
    const SamplePosition addition = extent(piece);
    ChatChoice choice;
    add(sample.parser.feed(piece.text), piece.index, choice.message);
    if (piece.finish_reason) add(sample.parser.finish(), piece.index, choice.message);
    const bool is_empty = choice.message.content.empty() && choice.message.tool_calls.empty();
    const bool is_hidden = !answer_format_.include_reasoning && !choice.message.reasoning.empty();
    if (is_hidden) choice.message.reasoning.clear();
    if (is_empty && choice.message.reasoning.empty() && !piece.finish_reason) {
      advance(part, piece.index, addition);
      if (is_hidden) {
        sample.held.reset();
      } else if (sample.held) {
        merge(*sample.held, std::move(piece));
      } else {
        sample.held = std::move(piece);
      }
      return;
    }
    const std::int32_t index = piece.index;
    choice.output = std::exchange(sample.held, std::nullopt).value_or(CompletionOutput{});
    choice.output.index = index;
    merge(choice.output, std::move(piece));
    choice.ends_with_calls = sample.parser.has_calls();
    // A client that resumes the stream has got what was held then.
    append_choice(out, part, choice, addition, usage);
  }

  void append_choice(std::string& out, const Part& part, const ChatChoice& choice,
                     const SamplePosition& addition, const Usage* usage) {
    if (begin_event(out, part, choice.output.index, addition)) {
      writer_->append_delta(out, choice, format(), usage);
    } else {
      writer_->skip_delta(choice, format());
    }
  }

  void append_error(std::string& out, const Error& error) override {
    if (!writer_->append_error(out, error)) Generation::append_error(out, error);
  }

  /// Appends a delta to a message.
  void add(AnswerDelta delta, std::int32_t index, ChatMessage& message) const {
    message.reasoning += delta.reasoning;
    message.content += delta.content;
    for (ToolCallDelta& call : delta.tool_calls) {
      if (call.name.empty() && !message.tool_calls.empty() &&
          message.tool_calls.back().index == call.index) {
        message.tool_calls.back().arguments += call.arguments;
        continue;
      }
      ShownToolCall shown{.index = call.index};
      if (!call.name.empty()) shown.id = call_id(answer_format_.tools, head().id, index, call);
      shown.name = std::move(call.name);
      shown.arguments = std::move(call.arguments);
      message.tool_calls.push_back(std::move(shown));
    }
  }

  /// Every choice begins with its role, and the echo if requested.
  void append_first_events(std::string& out, Part& part) {
    for (std::size_t i = 0; i < part.samples.size(); ++i) {
      part.samples[i].begun = true;
      const auto index = static_cast<std::int32_t>(i);
      const std::optional<Usage> usage = continuous_usage(part, {});
      if (begin_event(out, part, index, {})) {
        writer_->append_begin(out, {.index = index,
                                    .role = role_,
                                    .prompt_token_ids = shown_prompt_ids(part),
                                    .prompt_text = show_prompt_text_ ? &part.prompt_text : nullptr,
                                    .usage = usage ? &*usage : nullptr,
                                    .prompt_usage = prompt_usage(part)});
      }
      if (echo_text_.empty()) continue;
      ChatChoice echo;
      echo.output.index = index;
      echo.output.text = echo_text_;
      echo.message.content = echo_text_;
      if (begin_event(out, part, index, extent(echo.output)))
        writer_->append_delta(out, echo, {}, usage ? &*usage : nullptr);
    }
  }

  std::string final_json() override {
    Part& part = parts().front();
    ChatAnswer answer{.head = head(),
                      .role = role_,
                      .choices = {},
                      .usage = usage(),
                      .kv_transfer_params = kv_transfer_params(),
                      .ec_transfer_params = ec_transfer_params()};
    for (CompletionOutput& output : part.pending.outputs) {
      ChatChoice& choice = answer.choices.emplace_back();
      ParsedSample& sample = samples_[static_cast<std::size_t>(output.index)];
      choice.message.content = echo_text_;
      add(sample.parser.feed(output.text), output.index, choice.message);
      add(sample.parser.finish(), output.index, choice.message);
      if (!answer_format_.include_reasoning) choice.message.reasoning.clear();
      choice.ends_with_calls = sample.parser.has_calls();
      choice.output = std::move(output);
    }
    std::sort(answer.choices.begin(), answer.choices.end(),
              [](const auto& a, const auto& b) { return a.output.index < b.output.index; });
    answer.prompt_token_ids = shown_prompt_ids(part);
    if (!part.prompt_logprobs.empty()) answer.prompt_logprobs = &part.prompt_logprobs;
    if (show_prompt_text_) answer.prompt_text = &part.prompt_text;
    answer.first_token_s = times().first_token_s;
    note_completion();
    return writer_->whole(answer, format());
  }

  void append_end(std::string& out) override {
    note_completion();
    writer_->append_end(out, usage());
    Generation::append_end(out);
  }

  [[nodiscard]] static Usage prompt_usage(const Part& part) {
    return {.num_prompt_tokens = part.num_prompt_tokens,
            .num_cached_tokens = part.num_cached_tokens,
            .num_cache_creation_tokens = part.num_cache_creation_tokens};
  }

  [[nodiscard]] std::string_view stream_object() const override { return kChatChunkObject; }

  [[nodiscard]] const std::vector<TokenId>* shown_prompt_ids(const Part& part) const {
    return format().show_token_ids ? &part.prompt_token_ids : nullptr;
  }

  const std::string role_;
  const std::string echo_text_;
  const bool show_prompt_text_;
  const AnswerFormat answer_format_;
  const std::unique_ptr<ChatWriter> writer_;
  std::vector<ParsedSample> samples_;
  std::vector<ReasoningCounter> counters_;  ///< by sample; empty: the model has no reasoning
};

}  // namespace

std::unique_ptr<Exchange> start_chat(ServiceContext& context, ResponseSink& sink,
                                     ChatRequest request, std::string id) {
  return std::make_unique<ChatGeneration>(context, sink, std::move(request), std::move(id));
}

}  // namespace troupe
