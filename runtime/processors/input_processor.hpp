#pragma once
// Text to tokens, and the checks of what a client asks for.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/request.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/work_budget.hpp"
#include "runtime/chat/chat_renderer.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

/// What the InputProcessor knows of the model beside its tokenizer.
struct InputProcessorOptions {
  std::int32_t max_model_len = 0;
  std::int32_t vocab_size = 0;          ///< rows of the model's embedding
  std::vector<TokenId> eos_token_ids;   ///< of generation_config.json
  std::int32_t max_logprobs = 20;       ///< kAllLogprobs: no limit
  std::int32_t max_num_samples = 1024;  ///< of one request: SamplingParams::n
  /// Of one request: for each sample, those of its prompt and max_tokens. One sample may always
  /// have as many as fit.
  std::int64_t max_request_tokens = 1 << 20;
  std::size_t max_num_bad_words = 128;  ///< counted as token sequences
  double max_input_time_s = 0;          ///< for one prompt; 0: no limit
};

/// Of the texts that are rendered and tokenised.
[[nodiscard]] std::size_t text_bytes(const Prompt& prompt) noexcept;
/// What it will cost to prepare, in bytes of text.
[[nodiscard]] std::size_t input_bytes(const GenerateRequest& request);
[[nodiscard]] std::size_t input_bytes(const RenderRequest& request);

/// What a call may not take from the world itself.
struct InputContext {
  ChatClock clock;
  WorkLimits limits;
};

/// Owns the tokenizer and the chat templates. What it makes of a request depends on its arguments
/// alone. Called by the InputProcessor actor; any number of threads may call one object.
class InputProcessor {
 public:
  /// `chat_renderer` may be null: chat prompts are then refused.
  InputProcessor(std::shared_ptr<const Tokenizer> tokenizer,
                 std::shared_ptr<ChatRenderer> chat_renderer, InputProcessorOptions options);

  /// Renders, tokenises, checks and completes a request, and makes one EngineCoreRequest per
  /// sample: sample i has id + i and the seed of the request + i.
  ///
  /// Draws depend on `params.seed`; without one, on `params.philox_key`, which the RequestRouter
  /// has drawn (a request that is submitted again brings its key, so that it goes on with the
  /// tokens it would have had).
  ///
  /// The text of a TokensPrompt has its special tokens.
  ///
  /// A request with `emitted` makes none for the samples that have ended; the others go on behind
  /// their tokens, and the prompt is not scored again.
  ///
  /// Errors: kInvalidArgument with the field at fault, also for one that takes too long; those of
  /// the chat renderer; kAborted, it was cancelled.
  Result<ProcessedRequest> process(GenerateRequest request, const InputContext& context) const;

  /// What a prompt becomes. For a TokensPrompt: its text, special tokens kept.
  [[nodiscard]] RenderReply render(const RenderRequest& request, const InputContext& context) const;

  /// Of work that begins at `now`; whoever sets the flag ends it.
  [[nodiscard]] WorkLimits limits_of_work(std::shared_ptr<const std::atomic<bool>> cancelled,
                                          std::chrono::steady_clock::time_point now) const;

 private:
  struct TokenizedPrompt {
    std::vector<TokenId> token_ids;
    std::string text;  // of a TokensPrompt only if it is asked for
  };

  /// `must_fit`: a text that cannot have as few tokens as the model takes is not encoded.
  Result<TokenizedPrompt> tokenize(const Prompt& prompt, const InputContext& context,
                                   bool must_fit) const;
  Result<TokenizedPrompt> try_tokenize(const Prompt& prompt, const InputContext& context,
                                       bool must_fit) const;
  Result<void> truncate(std::vector<TokenId>& token_ids, std::int32_t num_kept,
                        const SamplingParams& params) const;
  Result<void> check_prompt(const std::vector<TokenId>& token_ids) const;
  Result<void> check_token_ids(const std::vector<TokenId>& token_ids) const;
  Result<void> check_text(std::string_view text, const std::string& field) const;
  Result<void> check_size(const SamplingParams& params, std::size_t num_prompt_tokens) const;
  Result<void> complete_params(SamplingParams& params, std::size_t num_prompt_tokens,
                               const WorkLimits& limits) const;
  /// That of a deadline names the option that sets it.
  [[nodiscard]] Error with_limit(Error error) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<ChatRenderer> chat_renderer_;
  InputProcessorOptions options_;
  std::size_t longest_token_bytes_ = 1;  // as the vocabulary has it
};

}  // namespace troupe
