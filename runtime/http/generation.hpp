#pragma once
// A completion or chat request in the engine.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/http/openai_response.hpp"
#include "runtime/http/service_context.hpp"

namespace troupe {

/// Owns the state of one request: a part per prompt, each one GenerateRequest with n samples.
/// Unread output is merged, so that a slow client costs no more than the text itself. Created by
/// the Service, which delivers outputs to it, and destroyed by the connection; a part is in the
/// service's table from its submission until its last output or its abort.
class Generation : public Exchange {
 public:
  ~Generation() override;
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// An output of one of the parts.
  void deliver(RequestOutput output, std::uint32_t engine);
  [[nodiscard]] ResponseSink& sink() const noexcept { return sink_; }
  void on_ready() override;
  void on_silence() override;
  [[nodiscard]] WorkDone work_done() const override;

 protected:
  struct Sample {
    std::int64_t num_tokens = 0;
    std::size_t text_offset = 0;  ///< code points sent
    bool begun = false;           ///< its first event has been written
  };
  struct Part {
    RequestId id{};
    std::int32_t index = 0;  ///< of the prompt
    bool begun = false;      ///< its first output has arrived
    bool finished = false;
    bool has_pending = false;
    RequestOutput pending;  ///< merged, not yet written
    std::vector<Sample> samples;
    // From the first output.
    std::int32_t num_prompt_tokens = 0;
    std::int32_t num_cached_tokens = 0;
    std::int32_t num_cache_creation_tokens = 0;
    std::int32_t num_host_cached_tokens = 0;
    std::int32_t num_disk_cached_tokens = 0;
    std::int32_t num_peer_cached_tokens = 0;
    std::int32_t num_blended_tokens = 0;
    std::int32_t num_remote_cached_tokens = 0;
    std::vector<TokenId> prompt_token_ids;
    std::string prompt_text;
    std::vector<PositionLogprobs> prompt_logprobs;
    std::string first_token_text;
  };

  Generation(ServiceContext& context, ResponseSink& sink, const GenerationFields& fields,
             std::string id, ChoiceFormat format);

  /// Submits all prompts to the engine. `external_ids` is parallel to `prompts`.
  void submit(std::vector<Prompt> prompts, const std::vector<std::string>& external_ids,
              const GenerationFields& fields, bool return_prompt_text);

  /// Appends the events for part.pending.
  virtual void append_events(std::string& out, Part& part) = 0;
  /// The complete response; all output is in the parts' pending outputs.
  virtual std::string final_json() = 0;
  /// The media type of what final_json() gave.
  [[nodiscard]] virtual std::string_view final_type() const { return "application/json"; }
  [[nodiscard]] virtual std::string_view stream_object() const = 0;
  /// Appends the events that follow the last output of a stream.
  virtual void append_end(std::string& out);
  /// Appends the event of an error that ends the stream.
  virtual void append_error(std::string& out, const Error& error);
  /// Sends the head of a stream.
  void begin();
  /// An output of the engine, before it is merged with others.
  virtual void take_output(const CompletionOutput&) {}
  /// Of all samples; none: the model has no reasoning.
  [[nodiscard]] virtual std::optional<std::int64_t> num_reasoning_tokens() const { return {}; }
  /// Tokens per partial output of a sample in a response that is no stream.
  [[nodiscard]] virtual std::int32_t answer_interval() const { return kAnswerInterval; }

  static constexpr std::int32_t kAnswerInterval = 16;

  /// Adds output to a sample that its next event will show.
  void advance(const Part& part, std::int32_t index, const SamplePosition& addition);
  /// Adds output to a sample and shows it; returns false if the client already has all of it,
  /// otherwise begins an event for it.
  bool begin_event(std::string& out, const Part& part, std::int32_t index,
                   const SamplePosition& addition);
  /// Calls show(output) or, if the client has the beginning of the output, show(beginning) and
  /// show(rest). `show` begins an event for its argument.
  template <class Show>
  void show_pieces(const Part& part, CompletionOutput output, const Show& show) {
    if (auto beginning = split_known(part, output)) show(*std::move(beginning));
    show(std::move(output));
  }

  [[nodiscard]] Usage usage() const;
  [[nodiscard]] const WorkDone& times() const noexcept { return times_; }
  [[nodiscard]] const std::string& kv_transfer_params() const noexcept {
    return kv_transfer_params_;
  }
  [[nodiscard]] const std::string& ec_transfer_params() const noexcept {
    return ec_transfer_params_;
  }
  /// The usage of one sample, if the client requests it in every chunk.
  [[nodiscard]] std::optional<Usage> continuous_usage(const Part& part, const Sample& sample) const;
  [[nodiscard]] Sample& sample(Part& part, const CompletionOutput& output) const;
  [[nodiscard]] const AnswerHead& head() const noexcept { return head_; }
  /// The answer is complete now.
  void note_completion();
  [[nodiscard]] const ChoiceFormat& format() const noexcept { return format_; }
  [[nodiscard]] std::vector<Part>& parts() noexcept { return parts_; }

 private:
  /// The index in a StreamPosition.
  [[nodiscard]] std::size_t sample_of(const Part& part, std::int32_t index) const;
  [[nodiscard]] std::optional<CompletionOutput> split_known(const Part& part,
                                                            CompletionOutput& output);
  void observe(Part& part, const RequestOutput& output, std::uint32_t engine);
  void take_first(Part& part, RequestOutput& output);
  void retire(Part& part);
  void abandon();
  void fail(Error error);
  void flush();

  ServiceContext& context_;
  const ExchangeCount count_;
  std::string kv_transfer_params_;  // of the last prompt that brought some
  std::string ec_transfer_params_;  // the same
  ResponseSink& sink_;
  const Dialect& dialect_;
  AnswerHead head_;
  const ChoiceFormat format_;
  const bool stream_;
  const StreamOptions stream_options_;
  const std::optional<std::int32_t> max_tokens_;
  const std::int32_t num_samples_;  ///< of each part
  const double arrival_;            ///< steady clock
  const std::size_t body_bytes_;
  const std::shared_ptr<const KeyUse> key_use_;  ///< null: no limits apply
  /// Null: events have no ids, and positions are not tracked.
  const std::shared_ptr<const ResumableStream> resumable_;
  StreamPosition shown_;                  ///< by events
  std::vector<SamplePosition> advanced_;  ///< by sample: shown, or held back until the next event
  std::vector<Part> parts_;
  std::size_t num_live_ = 0;            ///< parts not yet retired
  std::int64_t num_pending_bytes_ = 0;  ///< of all parts, approximate
  std::int64_t num_answer_bytes_ = 0;   ///< as above, including sent output
  WorkDone times_;                      ///< those of its times that are known
  std::optional<Error> error_;
  bool begun_ = false;  ///< the response head has been sent
  bool done_ = false;   ///< the response is complete
  std::string events_;  ///< reused by flush
};

/// Appends a later output of a sample to an earlier one: text, tokens and log-probabilities add up,
/// states are replaced.
void merge(CompletionOutput& into, CompletionOutput&& from);

/// The amount that an output adds to its sample.
[[nodiscard]] inline SamplePosition extent(const CompletionOutput& output) {
  return {.num_tokens = output.token_ids.size(),
          .num_bytes = output.text.size(),
          .begun = true,
          .finished = output.finish_reason.has_value()};
}

/// `id` is the response's.
[[nodiscard]] std::unique_ptr<Exchange> start_completion(ServiceContext& context,
                                                         ResponseSink& sink,
                                                         CompletionRequest request, std::string id);
[[nodiscard]] std::unique_ptr<Exchange> start_chat(ServiceContext& context, ResponseSink& sink,
                                                   ChatRequest request, std::string id);

}  // namespace troupe
