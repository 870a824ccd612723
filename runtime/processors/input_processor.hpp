#pragma once
// Tokenization and validation of requests.

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

class GrammarCache;
class MediaLoader;
class ProcessorCache;
class ImageInputs;
class SpeechInputs;
struct RemoteMedia;

/// Model properties that the InputProcessor needs besides the tokenizer.
struct InputProcessorOptions {
  std::int32_t max_model_len = 0;
  std::int32_t vocab_size = 0;          ///< rows of the embedding
  std::vector<TokenId> eos_token_ids;   ///< of generation_config.json
  std::int32_t max_logprobs = 20;       ///< kAllLogprobs: no limit
  std::int32_t max_num_samples = 1024;  ///< of one request: SamplingParams::n
  /// Of one request: prompt and max_tokens, summed over its samples. A single sample is limited by
  /// the model only.
  std::int64_t max_request_tokens = 1 << 20;
  std::size_t max_num_bad_words = 128;        ///< counted as token sequences
  double max_input_time_s = 0;                ///< for one prompt; 0: no limit
  std::shared_ptr<GrammarCache> grammars;     ///< null: structured output is not offered
  std::shared_ptr<const ImageInputs> images;  ///< null: the model takes text alone
  /// Null: it does not write down sounds; else it does nothing else.
  std::shared_ptr<const SpeechInputs> speech;
  /// Texts are cut here before they are encoded, so that what is between two of them has the same
  /// tokens wherever it stands. Empty: nowhere.
  std::string separator;
  bool is_pooling = false;    ///< requests are for embeddings, else for text
  bool pins_prefixes = true;  ///< else places marked with cache_control are not looked for
};

/// The size of the texts to render and tokenize.
[[nodiscard]] std::size_t text_bytes(const Prompt& prompt) noexcept;
/// The cost of preparing a request, in bytes of text.
[[nodiscard]] std::size_t input_bytes(const GenerateRequest& request);
[[nodiscard]] std::size_t input_bytes(const RenderRequest& request);

/// External inputs of a call.
struct InputContext {
  ChatClock clock;
  WorkLimits limits;
  bool with_item_data = false;    ///< as in ImageSettings
  RemoteMedia* remote = nullptr;  ///< as in ImageSettings
};

/// Owns the tokenizer and the chat templates. The result for a request depends only on the
/// arguments. Used by the InputProcessor actor; thread-safe.
class InputProcessor {
 public:
  /// `chat_renderer` may be null: chat prompts are then rejected.
  InputProcessor(std::shared_ptr<const Tokenizer> tokenizer,
                 std::shared_ptr<ChatRenderer> chat_renderer, InputProcessorOptions options);

  /// Renders, tokenizes, validates and completes a request, and creates one EngineCoreRequest per
  /// sample: sample i has id + i and the seed of the request + i.
  ///
  /// Sampling depends on `params.seed`; without one, on `params.philox_key` from the RequestRouter
  /// (a resubmitted request has its old key, so that it continues with the tokens it would have
  /// had).
  ///
  /// The text of a TokensPrompt includes its special tokens.
  ///
  /// For a request with `emitted`, finished samples get no EngineCoreRequest; the others continue
  /// after their tokens, and no prompt log-probabilities are computed.
  ///
  /// The grammar of a structured request is compiled, so that what cannot be compiled is an error
  /// here; the Scheduler's is the same one if it has the same cache.
  ///
  /// Errors: kInvalidArgument with the invalid field, also for a timeout; those of the chat
  /// renderer and of ImageInputs; kAborted if it was cancelled.
  Result<ProcessedRequest> process(GenerateRequest request, const InputContext& context) const;

  /// Renders or tokenizes a prompt. For a TokensPrompt: its text, with special tokens.
  [[nodiscard]] RenderReply render(const RenderRequest& request, const InputContext& context) const;

  /// Null: there is none.
  [[nodiscard]] ProcessorCache* processor_cache() const noexcept;
  /// Null: it has nothing to do with media.
  [[nodiscard]] const MediaLoader* media_loader() const noexcept;

  /// Limits of work that begins at `now`; setting the flag cancels it.
  [[nodiscard]] WorkLimits limits_of_work(std::shared_ptr<const std::atomic<bool>> cancelled,
                                          std::chrono::steady_clock::time_point now) const;

 private:
  struct TokenizedPrompt {
    std::vector<TokenId> token_ids;
    std::string text;  // of a TokensPrompt only if requested
    std::vector<MultiModalFeature> items;
    std::int32_t second_text_begin = 0;  // as in EngineCoreRequest
    std::int32_t num_mm_queries = 0;     // as in OutputRequest
    std::int32_t num_mm_hits = 0;
  };
  /// Two texts that a model compares, joined as its tokenizer joins them. Of the second one as many
  /// tokens are kept as make num_kept in all; -1: as the model takes; none: all of them.
  Result<TokenizedPrompt> tokenize_pair(const TextPrompt& pair,
                                        std::optional<std::int32_t> num_kept,
                                        const WorkLimits& limits) const;

  /// `must_fit`: a text that certainly exceeds the model's maximum length is not encoded.
  Result<TokenizedPrompt> tokenize(const Prompt& prompt, const InputContext& context,
                                   bool must_fit) const;
  Result<TokenizedPrompt> try_tokenize(const Prompt& prompt, const InputContext& context,
                                       bool must_fit) const;
  /// What is before the breakpoints, in tokens of the prompt.
  [[nodiscard]] std::vector<PrefixPin> pins_of(const ChatPrompt& chat,
                                               const std::vector<CacheBreakpoint>& breakpoints,
                                               const std::vector<TokenId>& token_ids,
                                               const InputContext& context) const;
  Result<TokenizedPrompt> tokenize_with_images(RenderedChat rendered, const ChatPrompt& chat,
                                               const InputContext& context, bool must_fit) const;
  /// Tokenizer::encode of a text, piece by piece where there is a separator.
  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens,
                                      const WorkLimits& limits) const;
  Result<TokenizedPrompt> tokenize_speech(const Prompt& prompt, const InputContext& context) const;
  /// The last tokens are kept; num_kept -1: as many as leave room for those that are generated.
  Result<void> truncate(TokenizedPrompt& prompt, std::int32_t num_kept,
                        std::int32_t num_generated) const;
  Result<void> check_prompt(const std::vector<TokenId>& token_ids, bool generates) const;
  Result<void> check_token_ids(const std::vector<TokenId>& token_ids) const;
  Result<void> check_grammar(const SamplingParams& params) const;
  Result<void> check_text(std::string_view text, const std::string& field) const;
  Result<void> check_size(const SamplingParams& params, std::size_t num_prompt_tokens) const;
  /// The markers of a thinking budget as tokens.
  Result<void> complete_budget(ThinkingBudget& budget, const WorkLimits& limits) const;
  Result<void> complete_params(SamplingParams& params, std::size_t num_prompt_tokens,
                               const WorkLimits& limits) const;
  /// Adds the option that sets the limit to a deadline error.
  [[nodiscard]] Error with_limit(Error error) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<ChatRenderer> chat_renderer_;
  InputProcessorOptions options_;
  std::size_t longest_token_bytes_ = 1;  // in the vocabulary
};

}  // namespace troupe
