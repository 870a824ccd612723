#include "runtime/http/cache_control.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/generation_fields.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxPrompts = 1024;
constexpr std::int64_t kDefaultMaxTokens = 16;
constexpr std::int64_t kEchoedTokenBytes = 4;  ///< approximate text size of a token id

PromptSizes sizes_of(const CompletionRequest& request) {
  PromptSizes sizes{.count = static_cast<std::int64_t>(request.prompts.size())};
  for (const Prompt& prompt : request.prompts) {
    if (const auto* tokens = std::get_if<TokensPrompt>(&prompt)) {
      sizes.num_tokens += static_cast<std::int64_t>(tokens->token_ids.size());
    } else {
      sizes.num_bytes += static_cast<std::int64_t>(std::get<TextPrompt>(prompt).text.size());
    }
  }
  if (request.echo) sizes.num_shown_bytes = sizes.num_bytes + kEchoedTokenBytes * sizes.num_tokens;
  if (request.return_token_ids) sizes.num_shown_ids = request.echo ? 2 : 1;
  return sizes;
}

}  // namespace

Result<CompletionRequest> parse_completion_request(std::string_view body,
                                                   const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  CompletionRequest request;
  request.dialect = &kOpenAiDialect;
  read_generation_fields(fields, defaults, request);
  request.prompts = read_prompts(fields, "prompt", defaults.vocab_size, kMaxPrompts);

  if (const auto ttl_s = read_cache_control(fields))
    request.cache_breakpoints.push_back({.ttl_s = *ttl_s});

  SamplingParams& params = request.params;
  if (const auto count = fields.integer("logprobs", {kAllLogprobs, kAnyInt32.max})) {
    check_num_logprobs(fields, "logprobs", defaults, *count);
    params.logprobs = static_cast<std::int32_t>(*count);
    if (request.echo && !params.prompt_logprobs) params.prompt_logprobs = params.logprobs;
  }
  const Interval allowed = {request.echo ? 0.0 : 1.0, kAnyInt32.max};
  const std::int64_t max_tokens = fields.integer("max_tokens", allowed).value_or(kDefaultMaxTokens);
  request.echo_only = request.echo && max_tokens == 0;
  params.max_tokens = request.echo_only ? 1 : capped_max_tokens(max_tokens, defaults);
  if (request.echo_only && !params.logprob_token_ids.empty())
    fields.wrong_value("logprob_token_ids",
                       "logprob_token_ids are not available with echo and max_tokens 0");
  std::optional<ReasoningFormat> reasoning = defaults.answers.reasoning;
  if (reasoning) reasoning->starts_inside = false;  // the prompt tells
  read_thinking_budget(fields, defaults, reasoning, params);
  finish_sampling_params(fields, defaults, request);
  check_request_size(fields, defaults, request, sizes_of(request));
  RETURN_IF_ERROR(fields.result());
  return request;
}

}  // namespace troupe
