#pragma once
// A request's input: from the Frontend to the InputProcessor, and from there to Scheduler and
// OutputProcessor.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "messages/error.hpp"
#include "messages/ids.hpp"
#include "messages/sampling_params.hpp"

namespace troupe {

/// Text to tokenize.
struct TextPrompt {
  std::string text;
  bool add_special_tokens = true;
  std::optional<std::string> second = {};  ///< second text of a pair (cross-encoders)
  bool operator==(const TextPrompt&) const = default;
};
TROUPE_MESSAGE(TextPrompt, text, add_special_tokens, second)

/// Token ids, used as they are.
struct TokensPrompt {
  std::vector<TokenId> token_ids;
  bool operator==(const TokensPrompt&) const = default;
};
TROUPE_MESSAGE(TokensPrompt, token_ids)

/// A conversation to render with the chat template. JSON texts are as the client sent them, already
/// validated.
struct ChatPrompt {
  std::string messages_json;             ///< array of messages
  std::string tools_json;                ///< array, or empty
  std::string documents_json;            ///< array, or empty
  std::string template_kwargs_json;      ///< object, or empty
  std::string mm_processor_kwargs_json;  ///< object, or empty
  std::string media_io_kwargs_json;      ///< object, or empty
  std::string chat_template;             ///< replaces the model's, empty: the model's
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = false;
  bool operator==(const ChatPrompt&) const = default;
};
TROUPE_MESSAGE(ChatPrompt, messages_json, tools_json, documents_json, template_kwargs_json,
               mm_processor_kwargs_json, media_io_kwargs_json, chat_template, add_generation_prompt,
               continue_final_message, add_special_tokens)

using Prompt = std::variant<TextPrompt, TokensPrompt, ChatPrompt>;

/// Time limits of a request, in seconds from its arrival at the Frontend; 0: no limit. Tokens
/// generated before a limit passes are kept.
struct RequestLimits {
  double max_queue_time_s = 0;    ///< until it is scheduled for the first time
  double max_request_time_s = 0;  ///< until it finishes
  bool operator==(const RequestLimits&) const = default;
};
TROUPE_MESSAGE(RequestLimits, max_queue_time_s, max_request_time_s)

/// The activation that turns a classifier's logits into probabilities.
enum class ClassActivation : std::uint8_t { kNone, kSigmoid, kSoftmax };

/// Parameters of a pooling request: the output is one vector per prompt, no token is generated.
struct PoolingParams {
  std::int32_t dimensions = 0;  ///< the embedding is truncated to this size; 0: it is not
  bool normalize = true;        ///< L2 norm, after the truncation; not for classifiers
  bool classifies = false;      ///< one score per class, with this activation:
  ClassActivation activation = ClassActivation::kNone;
  bool operator==(const PoolingParams&) const = default;
};
TROUPE_MESSAGE(PoolingParams, dimensions, normalize, classifies, activation)

/// What the client of a resubmitted request has received of one sample, which continues after it.
struct EmittedSample {
  std::vector<TokenId> token_ids;
  double cumulative_logprob = 0;
  bool finished = false;  ///< it has finished, and is not run again
  bool operator==(const EmittedSample&) const = default;
};
TROUPE_MESSAGE(EmittedSample, token_ids, cumulative_logprob, finished)

/// A LoRA adapter that a request runs with. Equal are those of the same name, as in vLLM.
struct LoraRequest {
  std::string name;
  /// Positive: a hash of name, path and file contents, so that it identifies the same weights in
  /// every process, also after a restart.
  std::int32_t int_id = 0;
  std::string path;
  /// Not 0: an adapter of the same name and path was loaded earlier; part of the block hashes.
  std::int32_t revision = 0;
  bool operator==(const LoraRequest& other) const { return name == other.name; }
};
TROUPE_MESSAGE(LoraRequest, name, int_id, path, revision)

/// A cache breakpoint in a ChatPrompt: the prefix before it is pinned in the prefix cache.
struct CacheBreakpoint {
  std::int32_t message = 0;  ///< index of the message that contains it
  /// After this many bytes of its text, or content parts; -1: at its end.
  std::int32_t length = -1;
  double ttl_s = 0;
  bool operator==(const CacheBreakpoint&) const = default;
};
TROUPE_MESSAGE(CacheBreakpoint, message, length, ttl_s)

/// A prefix of the prompt that is pinned in the prefix cache.
struct PrefixPin {
  std::int32_t num_tokens = 0;
  double ttl_s = 0;
  bool operator==(const PrefixPin&) const = default;
};
TROUPE_MESSAGE(PrefixPin, num_tokens, ttl_s)

/// Frontend -> InputProcessor. `id` is the first of `params.n` consecutive ids, one for each
/// sample.
struct GenerateRequest {
  RequestId id{};
  std::string external_id;
  Prompt prompt;
  SamplingParams params;
  std::optional<PoolingParams> pooling;  ///< nothing is generated; params.n is 1
  std::optional<std::int32_t>
      truncate_prompt_tokens;  ///< keep the last n tokens; -1: as many as fit
  std::string cache_salt;
  std::int32_t priority = 0;
  double arrival_time = 0;          ///< seconds, wall clock
  bool return_prompt_text = false;  ///< return the rendered or given prompt with the first output
  /// For a resubmitted request whose client has received output: per sample.
  std::vector<EmittedSample> emitted;
  RequestLimits limits;
  std::uint32_t tenant = 0;  ///< for fair scheduling: a number for the API key
  double age_s = 0;          ///< since its arrival, by the Frontend's clock
  std::uint32_t client = 0;  ///< within the tenant: a number for the address
  std::optional<LoraRequest> lora;
  std::vector<CacheBreakpoint> cache_breakpoints;
  bool operator==(const GenerateRequest&) const = default;
};
TROUPE_MESSAGE(GenerateRequest, id, external_id, prompt, params, pooling, truncate_prompt_tokens,
               cache_salt, priority, arrival_time, return_prompt_text, emitted, limits, tenant,
               age_s, client, lora, cache_breakpoints)

/// One image (or other item) of a prompt: where its embeddings go, and the key of its encoder
/// output. `data`: see messages/encoder_input.hpp.
struct MultiModalFeature {
  std::string modality;
  std::string identifier;
  std::int32_t offset = 0;             ///< first placeholder token
  std::int32_t length = 0;             ///< placeholder tokens
  std::vector<std::uint8_t> is_embed;  ///< per placeholder token; empty: all are embeddings
  std::shared_ptr<const std::vector<char>> data;
  bool operator==(const MultiModalFeature&) const = default;
};
TROUPE_MESSAGE(MultiModalFeature, modality, identifier, offset, length, is_embed, data)

/// Positions [begin, end) of a prompt.
struct TokenSpan {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  bool operator==(const TokenSpan&) const = default;
};

/// The runs of an item's tokens that are embeddings, in order.
[[nodiscard]] inline std::vector<TokenSpan> embed_spans(const MultiModalFeature& item) {
  if (item.is_embed.empty()) return {{item.offset, item.offset + item.length}};
  std::vector<TokenSpan> spans;
  bool goes_on = false;
  for (std::int32_t i = 0; i < item.length; ++i) {
    const bool is_embed = item.is_embed[static_cast<std::size_t>(i)] != 0;
    const std::int32_t position = item.offset + i;
    if (is_embed && goes_on)
      spans.back().end = position + 1;
    else if (is_embed)
      spans.push_back({position, position + 1});
    goes_on = is_embed;
  }
  return spans;
}

/// One sample of a request, ready to run.
struct EngineCoreRequest {
  RequestId id{};
  std::string external_id;
  std::uint32_t client_index = 0;
  SharedVector<TokenId> prompt_token_ids;
  std::vector<MultiModalFeature> mm_features;
  SamplingParams params;
  bool pooling = false;
  double arrival_time = 0;
  std::int32_t priority = 0;
  std::optional<LoraRequest> lora;
  std::string cache_salt;
  bool resumable = false;  ///< a session: later requests with the same id continue it
  std::vector<TokenId>
      output_token_ids;  ///< generated before (a resubmitted request): continued, not repeated
  bool report_all_cache_hits = false;  ///< KV events: reused blocks are reported as stored again
  std::string session_id;              ///< only copied into KV events
  RequestLimits limits;
  double age_s = 0;  ///< as in GenerateRequest: independent of the hosts' clocks
  std::uint32_t tenant = 0;
  std::string kv_transfer_params;  ///< for the KV connector: a JSON object, or empty
  std::vector<PrefixPin> pins;
  std::int32_t second_text_begin = 0;  ///< of a pair of texts: the first token of type 1; 0: none
  bool operator==(const EngineCoreRequest&) const = default;
};
TROUPE_MESSAGE(EngineCoreRequest, id, external_id, client_index, prompt_token_ids, mm_features,
               params, pooling, arrival_time, priority, lora, cache_salt, resumable,
               output_token_ids, report_all_cache_hits, session_id, limits, age_s, tenant,
               kv_transfer_params, pins, second_text_begin)

/// InputProcessor -> Scheduler: all samples of a request in one message, so that shared data is
/// sent once.
struct EngineCoreRequests {
  std::vector<EngineCoreRequest> samples;
  bool operator==(const EngineCoreRequests&) const = default;
};
TROUPE_MESSAGE(EngineCoreRequests, samples)

/// The same without the items' data, which the engine's processor cache is expected to hold.
/// Answered with ItemsMissing.
struct CachedItemRequests {
  std::vector<EngineCoreRequest> samples;
  bool operator==(const CachedItemRequests&) const = default;
};
TROUPE_MESSAGE(CachedItemRequests, samples)

/// Items that are not in the engine's processor cache. If there are any, the samples are not
/// queued, and must be sent again with data.
struct ItemsMissing {
  std::vector<std::string> identifiers;
  bool operator==(const ItemsMissing&) const = default;
};
TROUPE_MESSAGE(ItemsMissing, identifiers)

/// InputProcessor -> OutputProcessor, before the Scheduler receives the request: all samples of one
/// GenerateRequest.
struct OutputRequest {
  RequestId id{};  ///< of sample 0; sample i has id + i
  std::string external_id;
  SharedVector<TokenId> prompt_token_ids;
  std::string prompt_text;  ///< only if requested
  SamplingParams params;
  std::optional<PoolingParams> pooling;
  double arrival_time = 0;
  std::vector<EmittedSample> emitted;  ///< as in GenerateRequest
  std::int32_t num_mm_queries = 0;     ///< images looked up in the processor cache
  std::int32_t num_mm_hits = 0;        ///< cache hits among them
  bool operator==(const OutputRequest&) const = default;
};
TROUPE_MESSAGE(OutputRequest, id, external_id, prompt_token_ids, prompt_text, params, pooling,
               arrival_time, emitted, num_mm_queries, num_mm_hits)

/// The InputProcessor's result for a GenerateRequest.
struct ProcessedRequest {
  OutputRequest output;
  std::vector<EngineCoreRequest> samples;
  bool operator==(const ProcessedRequest&) const = default;
};
TROUPE_MESSAGE(ProcessedRequest, output, samples)

/// InputProcessor -> one of its workers, in the same process: prepare the request in the shared
/// slot. Answered with Status.
struct PrepareInput {
  bool operator==(const PrepareInput&) const = default;
};
TROUPE_MESSAGE(PrepareInput)

struct AbortRequests {
  std::vector<RequestId> ids;
  bool operator==(const AbortRequests&) const = default;
};
TROUPE_MESSAGE(AbortRequests, ids)

/// Frontend -> InputProcessor: renders or tokenizes a prompt without running it (/tokenize,
/// /detokenize).
struct RenderRequest {
  Prompt prompt;
  bool return_token_strings = false;
  RequestId id{};            ///< for AbortRequests; 0: it cannot be aborted
  std::uint32_t tenant = 0;  ///< as in GenerateRequest, both
  std::uint32_t client = 0;
  bool operator==(const RenderRequest&) const = default;
};
TROUPE_MESSAGE(RenderRequest, prompt, return_token_strings, id, tenant, client)

struct RenderReply {
  std::vector<TokenId> token_ids;
  std::vector<std::string> token_strings;
  std::string text;  ///< the rendered prompt; for a TokensPrompt, its decoded text
  std::optional<Error> error;
  bool operator==(const RenderReply&) const = default;
};
TROUPE_MESSAGE(RenderReply, token_ids, token_strings, text, error)

}  // namespace troupe
