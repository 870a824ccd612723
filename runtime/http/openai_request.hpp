#pragma once
// The request bodies of the OpenAI API: parsed, validated, and completed with the server's
// defaults. Names, defaults and ranges are vLLM's. Unknown fields are ignored; fields of a wrong
// type are errors.
//
// Errors: kCorrupt if the body does not have the format of the request (not JSON, wrong types,
// missing fields; all of them are listed), kInvalidArgument if a value is out of range or fields
// exclude each other, kUnsupported for valid features that are not supported here.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/control.hpp"
#include "messages/request.hpp"
#include "messages/sampling_params.hpp"
#include "messages/worker.hpp"
#include "runtime/base/result.hpp"
#include "runtime/http/stream_position.hpp"
#include "runtime/tool_parsers/answer_parser.hpp"

namespace troupe {

/// From the model's generation_config.json; a request's own values take precedence, except that
/// max_new_tokens also caps a request's max_tokens.
struct SamplingDefaults {
  std::optional<bool> do_sample;  ///< false: temperature is 0, except for requests with n > 1
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<std::int32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<std::int32_t> max_new_tokens;
};
/// Reads the fields above from a JSON object on top of `base`.
[[nodiscard]] Result<SamplingDefaults> parse_sampling_defaults(std::string_view json,
                                                               const SamplingDefaults& base);

inline constexpr std::size_t kMaxRequestIdBytes = 256;

/// Size limits of one request.
struct RequestSizeLimits {
  std::int64_t max_samples = 1024;           ///< n of each prompt
  std::int64_t max_tokens = 1 << 20;         ///< of all samples: prompt and max_tokens
  std::int64_t max_echo_bytes = 4 << 20;     ///< repeated prompt text in a response
  std::int64_t max_answer_bytes = 64 << 20;  ///< unread bytes of a response
};

/// How answers are parsed, unless a request decides otherwise.
struct AnswerDefaults {
  const ToolFormat* tools = nullptr;  ///< null: calls are text, unless they are forced
  std::optional<ReasoningFormat> reasoning;
  bool exclude_tools_for_none = false;  ///< tool_choice none hides the tools
  ToolStrictLevel strict_level = ToolStrictLevel::kAuto;
  /// What ends reasoning whose budget is spent, and what begins it; empty: the format's markers.
  std::string budget_end;
  std::string budget_begin;
};

/// Limits and defaults for requests.
struct ServerDefaults {
  SamplingDefaults sampling;
  std::int32_t max_model_len = 0;  ///< tokens
  std::int32_t vocab_size = 0;
  PoolerConfig pooler;       ///< kNone: the model generates text
  std::string architecture;  ///< of the model
  bool takes_images = false;
  std::int32_t hidden_size = 0;    ///< numbers in an embedding
  std::int32_t max_logprobs = 20;  ///< -1: the whole vocabulary
  std::int32_t stream_interval = 1;
  std::int32_t data_parallel_size = 1;  ///< groups that a request can select
  bool by_priority = false;             ///< requests are scheduled by `priority`
  RequestSizeLimits size;
  RequestLimits limits;  ///< a request can only shorten them
  bool trust_request_chat_template = false;
  std::string response_role = "assistant";
  AnswerDefaults answers;
};

struct StreamOptions {
  bool include_usage = false;
  bool continuous_usage_stats = false;
};

/// A stream whose request is stored: its events have ids, and it may be a resumed one.
struct ResumableStream {
  std::string id;                          ///< of the response
  double arrival_time = 0;                 ///< of its first request; seconds since 1970
  std::vector<std::uint64_t> philox_keys;  ///< by prompt
  StreamPosition after;                    ///< what the client has
  bool is_kept = true;                     ///< in KeptStreams
};

class KeyUse;
struct ChatApi;
struct Dialect;
struct ResponseSettings;

/// Fields common to completions and chat.
struct GenerationFields {
  const Dialect* dialect = nullptr;  ///< the API that it came by
  std::string model;                 ///< empty: the first served model
  std::optional<LoraRequest> lora;   ///< that the model's name stands for; not from the body
  SamplingParams params;
  std::optional<PoolingParams> pooling;  ///< of a PoolingRequest
  bool stream = false;
  StreamOptions stream_options;
  bool echo = false;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  std::optional<std::int32_t> truncate_prompt_tokens;
  std::int32_t priority = 0;
  RequestLimits limits;
  Placement placement;       ///< also from the headers X-data-parallel-rank and X-Session-ID
  std::uint32_t tenant = 0;  ///< from the API key, not from the body
  std::string user;          ///< of the client's; empty: not said
  std::uint32_t client = 0;  ///< from `user` or the connection
  std::shared_ptr<const ResumableStream> resumable;  ///< not from the body; null: not resumable
  std::shared_ptr<const KeyUse> key_use;             ///< not from the body; null: no limits apply
  std::string request_id;                            ///< the client's, may be empty
  std::size_t body_bytes = 0;                        ///< of the request
  std::string cache_salt;
  std::vector<CacheBreakpoint> cache_breakpoints;  ///< of a chat; of other prompts: their end

  /// How many log-probabilities of a token an answer shows: kAllLogprobs, those that there are.
  [[nodiscard]] std::optional<std::int32_t> num_shown_logprobs() const {
    return params.logprob_token_ids.empty() ? params.logprobs : kAllLogprobs;
  }
};

struct CompletionRequest : GenerationFields {
  std::vector<Prompt> prompts;  ///< TextPrompt or TokensPrompt each; at least one
  /// Echo with max_tokens 0: one token is generated, only the prompt is returned.
  bool echo_only = false;
};

struct ChatRequest : GenerationFields {
  const ChatApi* api = nullptr;
  std::shared_ptr<const ResponseSettings> response;  ///< of the Responses API only
  ChatPrompt prompt;
  std::string role;       ///< of the response
  std::string echo_text;  ///< with echo: the last message, if it has the response's role
  bool return_prompt_text = false;
  AnswerFormat answer;
  std::int32_t top_logprobs = 0;  ///< alternatives listed per token, if params.logprobs is set
};

struct TokenizeRequest {
  std::string model;
  RenderRequest render;
};

struct DetokenizeRequest {
  std::string model;
  RenderRequest render;
};

[[nodiscard]] Result<CompletionRequest> parse_completion_request(std::string_view body,
                                                                 const ServerDefaults& defaults);
[[nodiscard]] Result<ChatRequest> parse_chat_request(std::string_view body,
                                                     const ServerDefaults& defaults);
[[nodiscard]] Result<TokenizeRequest> parse_tokenize_request(std::string_view body,
                                                             const ServerDefaults& defaults);
[[nodiscard]] Result<DetokenizeRequest> parse_detokenize_request(std::string_view body,
                                                                 const ServerDefaults& defaults);

}  // namespace troupe
