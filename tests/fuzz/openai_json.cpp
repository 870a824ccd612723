// Any body, into every parser of the API. What is accepted must keep its promises; what is refused
// must say why, in an answer that is JSON itself.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "runtime/http/anthropic.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/ollama.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/http/openai_response.hpp"
#include "runtime/http/pooling.hpp"
#include "runtime/http/responses.hpp"
#include "runtime/reasoning/reasoning_format.hpp"
#include "runtime/tool_parsers/tool_format.hpp"

namespace {

using namespace troupe;

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Request>
void check_error(const Result<Request>& request) {
  if (request.ok()) return;
  require(!request.error().message.empty());
  require(request.error().message.size() < 20'000);
  require(JsonFields::parse(error_json(request.error())).ok());
}

ServerDefaults plain_defaults() {
  ServerDefaults defaults;
  defaults.max_model_len = 1000;
  defaults.vocab_size = 1000;
  return defaults;
}

void check_params(const SamplingParams& params) {
  require(params.n >= 1);
  require(params.temperature >= 0 && params.temperature <= 2);
  require(params.top_p > 0 && params.top_p <= 1);
  require(!params.max_tokens || *params.max_tokens >= 1);
}

/// As of a model whose calls and reasoning are parsed, and are held to their schemas. The size of
/// the body chooses the formats.
ServerDefaults strict_defaults(std::size_t size) {
  ServerDefaults defaults = plain_defaults();
  defaults.by_priority = true;
  defaults.trust_request_chat_template = true;
  const auto tools = tool_formats();
  const auto reasoning = reasoning_formats();
  defaults.answers.tools = &tools[size % tools.size()];
  defaults.answers.reasoning = reasoning[size % reasoning.size()];
  defaults.answers.strict_level = ToolStrictLevel::kParameter;
  return defaults;
}

void check_chats(std::string_view body, const ServerDefaults& defaults) {
  const auto completion = parse_completion_request(body, defaults);
  check_error(completion);
  if (completion.ok()) {
    check_params(completion->params);
    require(!completion->prompts.empty());
  }
  const auto chat = parse_chat_request(body, defaults);
  check_error(chat);
  if (chat.ok()) {
    check_params(chat->params);
    require(JsonFields::parse("{\"m\":" + chat->prompt.messages_json + "}").ok());
    if (!chat->prompt.template_kwargs_json.empty()) {
      require(JsonFields::parse(chat->prompt.template_kwargs_json).ok());
    }
  }
  const auto messages = parse_messages_request(body, defaults);
  check_error(messages);
  if (messages.ok()) check_params(messages->params);
  check_error(parse_count_tokens_request(body, defaults));
  for (const auto parse : {parse_ollama_chat, parse_ollama_generate}) {
    const auto ollama = parse(body, defaults);
    check_error(ollama);
    if (ollama.ok()) check_params(ollama->params);
  }
  auto response = parse_responses_request(body);
  check_error(response);
  if (response.ok()) {
    const auto behind = chat_of(*std::move(response), "", defaults);
    check_error(behind);
    if (behind.ok()) check_params(behind->params);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const ServerDefaults defaults = plain_defaults();
  check_chats(body, defaults);
  check_chats(body, strict_defaults(size));
  check_error(parse_tokenize_request(body, defaults));
  check_error(parse_detokenize_request(body, defaults));
  check_error(parse_sampling_defaults(body, {}));
  ServerDefaults pooling = defaults;
  pooling.hidden_size = 8;
  pooling.pooler.type = PoolingType::kMean;
  for (const bool classifies : {false, true}) {
    if (classifies) pooling.pooler.labels = {"yes"};
    for (const auto parse : {parse_embedding_request, parse_pooling_request, parse_classify_request,
                             parse_score_request, parse_rerank_request, parse_ollama_embed})
      check_error(parse(body, pooling));
  }
  return 0;
}
