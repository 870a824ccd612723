#include "runtime/http/generation_fields.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxPrompts = 1024;
constexpr std::int64_t kDefaultMaxTokens = 16;

/// One string, an array of strings, one array of token ids, or an array of those.
std::vector<Prompt> read_prompts(const JsonFields& fields, std::int32_t vocab_size) {
  const bool add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  std::vector<Prompt> prompts;
  const auto add_texts = [&] {
    for (std::string& text : fields.texts("prompt").value_or(std::vector<std::string>{})) {
      prompts.push_back(TextPrompt{std::move(text), add_special_tokens});
    }
  };
  switch (fields.kind("prompt")) {
    case JsonKind::kAbsent:
    case JsonKind::kNull:
      fields.require("prompt");
      return prompts;
    case JsonKind::kString:
      add_texts();
      if (prompts.size() == 1 && std::get<TextPrompt>(prompts[0]).text.empty()) prompts.clear();
      break;
    case JsonKind::kArray:
      if (fields.element_kind("prompt") == JsonKind::kNumber) {
        if (auto tokens = fields.tokens("prompt", vocab_size)) {
          prompts.push_back(TokensPrompt{*std::move(tokens)});
        }
      } else if (fields.element_kind("prompt") == JsonKind::kArray) {
        for (auto& tokens : fields.token_lists("prompt", vocab_size)
                                .value_or(std::vector<std::vector<TokenId>>{})) {
          if (tokens.empty()) {
            fields.wrong_value("prompt",
                               "prompt " + std::to_string(prompts.size()) + " has no tokens");
          }
          prompts.push_back(TokensPrompt{std::move(tokens)});
        }
      } else {
        add_texts();
      }
      break;
    default:
      fields.wrong_form("prompt", "a string, an array of strings or arrays of token ids");
      return prompts;
  }
  if (prompts.empty()) fields.wrong_value("prompt", "prompt must not be empty");
  if (prompts.size() > kMaxPrompts) {
    fields.wrong_value("prompt", "request has " + std::to_string(prompts.size()) +
                                     " prompts, at most " + std::to_string(kMaxPrompts) +
                                     " are allowed");
  }
  return prompts;
}

}  // namespace

Result<CompletionRequest> parse_completion_request(std::string_view body,
                                                   const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  CompletionRequest request;
  read_generation_fields(fields, defaults, request);
  request.prompts = read_prompts(fields, defaults.vocab_size);

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
  fields.text("suffix");
  finish_sampling_params(fields, defaults, request);
  RETURN_IF_ERROR(fields.result());
  return request;
}

}  // namespace troupe
