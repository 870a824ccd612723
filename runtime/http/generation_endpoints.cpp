#include "runtime/http/anthropic.hpp"
#include "runtime/http/generation_start.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/ollama.hpp"

namespace troupe {

Prepared prepare_completion(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_completion_request(body, defaults),
                      try_generate<CompletionRequest, start_completion>);
}

Prepared prepare_chat(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_chat_request(body, defaults), try_generate<ChatRequest, start_chat>);
}

Result<Answer> begin_speech(ServiceContext& context, const HttpRequest& http, SpeechRequest request,
                            ResponseSink& sink) {
  return try_generate<SpeechRequest, start_speech>(context, http, std::move(request), sink);
}

namespace {

template <ParseBody<PoolingRequest> parse>
Prepared prepare_pooled(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse(body, defaults), try_generate<PoolingRequest, start_pooling>);
}

}  // namespace

Prepared prepare_embeddings(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_embedding_request>(body, defaults);
}

Prepared prepare_pooling(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_pooling_request>(body, defaults);
}

Prepared prepare_classify(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_classify_request>(body, defaults);
}

Prepared prepare_score(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_score_request>(body, defaults);
}

Prepared prepare_rerank(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_rerank_request>(body, defaults);
}

Prepared prepare_ollama_embed(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_ollama_embed>(body, defaults);
}

Prepared prepare_ollama_embeddings(std::string_view body, const ServerDefaults& defaults) {
  return prepare_pooled<parse_ollama_embeddings>(body, defaults);
}

Prepared prepare_messages(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_messages_request(body, defaults),
                      try_generate<ChatRequest, start_chat>);
}

Prepared prepare_count_tokens(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_count_tokens_request(body, defaults),
                      try_render<TokenizeRequest, Rendering::Kind::kCountTokens>);
}

Prepared prepare_ollama_chat(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_ollama_chat(body, defaults), try_generate<ChatRequest, start_chat>);
}

Prepared prepare_ollama_generate(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_ollama_generate(body, defaults), try_generate<ChatRequest, start_chat>);
}

Prepared prepare_invocations(std::string_view body, const ServerDefaults& defaults) {
  const auto fields = JsonFields::parse(body);
  const auto has = [&](std::string_view name) { return fields.ok() && fields->has(name); };
  if (defaults.pooler.type == PoolingType::kNone)
    return has("prompt") ? prepare_completion(body, defaults) : prepare_chat(body, defaults);
  if (has("query")) return prepare_rerank(body, defaults);
  const bool has_pairs = has("queries") || has("data_1") || has("text_1");
  if (has_pairs) return prepare_score(body, defaults);
  return defaults.pooler.classifies() ? prepare_classify(body, defaults)
                                      : prepare_embeddings(body, defaults);
}

Prepared prepare_tokenize(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_tokenize_request(body, defaults),
                      try_render<TokenizeRequest, Rendering::Kind::kTokenize>);
}

Prepared prepare_detokenize(std::string_view body, const ServerDefaults& defaults) {
  return with_request(parse_detokenize_request(body, defaults),
                      try_render<DetokenizeRequest, Rendering::Kind::kDetokenize>);
}

}  // namespace troupe
