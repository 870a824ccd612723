#pragma once
// The bodies of the OpenAI API as values: read, checked, and laid over the server's defaults.
// Names, defaults and ranges are vLLM's. Fields that are unknown are ignored; fields of a wrong
// type are errors.
//
// Errors: kCorrupt if the body does not have the form of the request (not JSON, wrong types,
// missing fields; all of them are listed), kInvalidArgument if a value is out of its range or
// fields exclude each other, kUnsupported for what is valid but not offered here.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/control.hpp"
#include "messages/request.hpp"
#include "messages/sampling_params.hpp"
#include "runtime/base/result.hpp"
#include "runtime/http/stream_position.hpp"

namespace troupe {

/// From the model's generation_config.json; a request's own values win, except that max_new_tokens
/// also caps what a request asks for.
struct SamplingDefaults {
  std::optional<bool> do_sample;  ///< false: temperature is 0, but for requests with n > 1
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<std::int32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<std::int32_t> max_new_tokens;
};
/// Reads the fields above from a JSON object and lays them over `base`.
[[nodiscard]] Result<SamplingDefaults> parse_sampling_defaults(std::string_view json,
                                                               const SamplingDefaults& base);

inline constexpr std::size_t kMaxRequestIdBytes = 256;

/// How much one request may ask for, whatever its fields.
struct RequestSizeLimits {
  std::int64_t max_samples = 1024;           ///< n of each prompt
  std::int64_t max_tokens = 1 << 20;         ///< of each sample: its prompt's and max_tokens
  std::int64_t max_echo_bytes = 4 << 20;     ///< of an answer, that repeat its prompts
  std::int64_t max_answer_bytes = 64 << 20;  ///< of an answer, that wait for the client
};

/// What requests are checked against and completed with.
struct ServerDefaults {
  SamplingDefaults sampling;
  std::int32_t max_model_len = 0;  ///< tokens
  std::int32_t vocab_size = 0;
  std::int32_t max_logprobs = 20;  ///< -1: the whole vocabulary
  std::int32_t stream_interval = 1;
  std::int32_t data_parallel_size = 1;  ///< groups that a request may ask for
  RequestSizeLimits size;
  RequestLimits limits;  ///< a request may ask for shorter ones
  bool trust_request_chat_template = false;
  std::string response_role = "assistant";
};

struct StreamOptions {
  bool include_usage = false;
  bool continuous_usage_stats = false;
};

/// A stream whose request is kept: its events have ids, and it may be one that broke off.
struct ResumableStream {
  std::string id;                          ///< of the answer
  double arrival_time = 0;                 ///< of its first request; seconds since 1970
  std::vector<std::uint64_t> philox_keys;  ///< by prompt
  StreamPosition after;                    ///< what the client has
};

/// What completions and chat have in common.
struct GenerationFields {
  std::string model;  ///< empty: the first served
  SamplingParams params;
  bool stream = false;
  StreamOptions stream_options;
  bool echo = false;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  std::optional<std::int32_t> truncate_prompt_tokens;
  std::int32_t priority = 0;
  RequestLimits limits;
  Placement placement;       ///< also from the headers X-data-parallel-rank and X-Session-ID
  std::uint32_t tenant = 0;  ///< not from the body: from the API key
  std::uint32_t client = 0;  ///< not from the body: from the connection
  std::shared_ptr<const ResumableStream> resumable;  ///< not from the body; null: it is not
  std::string request_id;                            ///< the client's, may be empty
  std::size_t body_bytes = 0;                        ///< of the request
  std::string cache_salt;
};

struct CompletionRequest : GenerationFields {
  std::vector<Prompt> prompts;  ///< TextPrompt or TokensPrompt each; at least one
  bool echo_only = false;       ///< echo with max_tokens 0: one token runs, only the prompt returns
};

struct ChatRequest : GenerationFields {
  ChatPrompt prompt;
  std::string role;       ///< of the answer
  std::string echo_text;  ///< with echo: the last message, if it has the answer's role
  bool return_prompt_text = false;
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
