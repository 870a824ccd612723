#pragma once
// Requests for embeddings of texts, and for what is computed of them: scores, and documents by
// their relevance; and for classes of texts. Pooling models only. Names, defaults and ranges are
// vLLM's.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/http/openai_request.hpp"
#include "runtime/http/openai_response.hpp"
#include "runtime/http/service_context.hpp"

namespace troupe {

struct PoolingRequest;

struct PoolingAnswer {
  AnswerHead head;
  std::vector<std::vector<float>> embeddings;  ///< by prompt
  Usage usage;
};

/// One of the APIs.
struct PoolingApi {
  std::string_view id_prefix;
  std::string (*json)(const PoolingRequest& request, const PoolingAnswer& answer);
};

struct PoolingRequest : GenerationFields {
  const PoolingApi* api = nullptr;
  std::vector<Prompt> prompts;  ///< at least one; of scores first all queries, then the documents
  bool as_base64 = false;
  std::size_t num_queries = 0;         ///< of scores; 0: each prompt is a pair of texts
  std::vector<std::string> labels;     ///< of the model's classes
  std::vector<std::string> documents;  ///< that the answer shows
  std::size_t max_results = 0;         ///< of documents
};

/// Errors of all: those of openai_request.hpp.
[[nodiscard]] Result<PoolingRequest> parse_embedding_request(std::string_view body,
                                                             const ServerDefaults& defaults);
[[nodiscard]] Result<PoolingRequest> parse_pooling_request(std::string_view body,
                                                           const ServerDefaults& defaults);
[[nodiscard]] Result<PoolingRequest> parse_classify_request(std::string_view body,
                                                            const ServerDefaults& defaults);
[[nodiscard]] Result<PoolingRequest> parse_score_request(std::string_view body,
                                                         const ServerDefaults& defaults);
[[nodiscard]] Result<PoolingRequest> parse_rerank_request(std::string_view body,
                                                          const ServerDefaults& defaults);
/// Ollama's /api/embed, and the older /api/embeddings for one text.
[[nodiscard]] Result<PoolingRequest> parse_ollama_embed(std::string_view body,
                                                        const ServerDefaults& defaults);
[[nodiscard]] Result<PoolingRequest> parse_ollama_embeddings(std::string_view body,
                                                             const ServerDefaults& defaults);

/// {"id":..., "object":"list", ... "data":[...], "usage":...}
[[nodiscard]] std::string embedding_json(const PoolingRequest& request,
                                         const PoolingAnswer& answer);
[[nodiscard]] std::string pooling_json(const PoolingRequest& request, const PoolingAnswer& answer);
/// The class with the largest number, and the numbers of all classes.
[[nodiscard]] std::string classes_json(const PoolingRequest& request, const PoolingAnswer& answer);
[[nodiscard]] std::string score_json(const PoolingRequest& request, const PoolingAnswer& answer);
/// The documents by their relevance: what a classifier of pairs says of each with the query, or the
/// cosine of the angle to the query.
[[nodiscard]] std::string rerank_json(const PoolingRequest& request, const PoolingAnswer& answer);
[[nodiscard]] std::string ollama_embed_json(const PoolingRequest& request,
                                            const PoolingAnswer& answer);
[[nodiscard]] std::string ollama_embeddings_json(const PoolingRequest& request,
                                                 const PoolingAnswer& answer);

/// `id` is the response's.
[[nodiscard]] std::unique_ptr<Exchange> start_pooling(ServiceContext& context, ResponseSink& sink,
                                                      PoolingRequest request, std::string id);

}  // namespace troupe
