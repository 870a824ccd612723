#pragma once
// Endpoints that use the engine. Each responds at once through the sink, or returns the exchange
// that will.

#include <functional>
#include <memory>
#include <string_view>

#include "runtime/http/service_context.hpp"

namespace troupe {

inline constexpr std::string_view kChatPath = "/v1/chat/completions";
inline constexpr std::string_view kModelsPath = "/v1/models";
inline constexpr std::string_view kResponsesPath = "/v1/responses/";
inline constexpr std::string_view kBatchesPath = "/v1/batches";
inline constexpr std::string_view kStreamsPath = "/v1/streams/";

using Answer = std::unique_ptr<Exchange>;
using Endpoint = Answer(ServiceContext& context, const HttpRequest& http, ResponseSink& sink);

/// Continues an endpoint after its body has been parsed; on the service's thread.
using Prepared = std::function<Result<Answer>(ServiceContext& context, const HttpRequest& http,
                                              ResponseSink& sink)>;
/// Parses a body, on any thread: a long one would delay other requests, such as /health.
using Prepare = Prepared(std::string_view body, const ServerDefaults& defaults);

/// Parses the body of `http` with `prepare`, on another thread if it is long, and continues with
/// the result.
[[nodiscard]] Answer answer_prepared(ServiceContext& context, HttpRequest http,
                                     std::function<Prepare> prepare, ResponseSink& sink,
                                     const Dialect& dialect = kOpenAiDialect);

[[nodiscard]] HttpResponse json_response(std::string body);

/// The answer of an attempt; an error is sent at once.
[[nodiscard]] Answer answer_or_refuse(Result<Answer> attempt, ResponseSink& sink,
                                      const Dialect& dialect = kOpenAiDialect);

// ---- model_endpoints.cpp

Endpoint answer_models;
/// GET /v1/models/NAME
Endpoint answer_model;

// ---- generation_endpoints.cpp, response_endpoints.cpp and stream_endpoints.cpp

Prepare prepare_completion;
Prepare prepare_chat;
Prepare prepare_embeddings;
Prepare prepare_pooling;
Prepare prepare_classify;
Prepare prepare_score;
Prepare prepare_rerank;
Prepare prepare_ollama_embed;
Prepare prepare_ollama_embeddings;
Prepare prepare_messages;      ///< Anthropic's
Prepare prepare_count_tokens;  ///< Anthropic's
Prepare prepare_ollama_chat;
Prepare prepare_ollama_generate;
Prepare prepare_ollama_show;
Endpoint answer_ollama_tags;
Prepare prepare_responses;
Prepare prepare_input_tokens;  ///< POST /v1/responses/input_tokens
/// GET /v1/responses/ID and /v1/responses/ID/input_items.
Endpoint answer_stored_response;
/// DELETE /v1/responses/ID
Endpoint answer_removed_response;
/// POST /v1/responses/ID/cancel
Endpoint answer_cancelled_response;
/// Goes on with responses in the background whose server has ended.
void adopt_abandoned_responses(ServiceContext& context);
/// GET /v1/streams/ID?starting_after=EVENT, or with the header Last-Event-ID.
Endpoint answer_resumed_stream;
/// POST /invocations: SageMaker's one route for all requests, told apart by their fields.
Prepare prepare_invocations;
Prepare prepare_tokenize;
Prepare prepare_detokenize;

// ---- file_endpoints.cpp and batch_endpoints.cpp: OpenAI's files and batches

/// POST /v1/files, whose body a reader has taken.
Endpoint answer_uploaded_file;
/// Takes the body of POST /v1/files. Pre: there is a BatchStore.
[[nodiscard]] std::shared_ptr<BodyReader> make_upload(const ServiceContext& context,
                                                      const HttpRequest& head);
Endpoint answer_files;
/// GET /v1/files/ID and /v1/files/ID/content.
Endpoint answer_file;
/// DELETE /v1/files/ID
Endpoint answer_removed_file;
Prepare prepare_batch;
Endpoint answer_batches;
/// GET /v1/batches/ID
Endpoint answer_batch;
/// POST /v1/batches/ID/cancel
Endpoint answer_cancelled_batch;
/// Who alone may ask for a file or a batch again: the holder of its key.
[[nodiscard]] std::string file_owner_of(const HttpRequest& http);
/// The value of limit= in a list's query. Errors: kInvalidArgument.
[[nodiscard]] Result<std::int64_t> list_limit(const HttpRequest& http, std::int64_t otherwise,
                                              std::int64_t max);

/// Who may ask for a stored response again: the holder of its key.
[[nodiscard]] std::string owner_of(const HttpRequest& http);

// ---- adapter_endpoints.cpp

Prepare prepare_load_adapter;
Prepare prepare_unload_adapter;

// ---- worker_endpoints.cpp

Prepare prepare_collective_rpc;

// ---- cache_endpoints.cpp: the prefix cache

/// POST /reset_prefix_cache and DELETE /admin/cache
Endpoint answer_reset_prefix_cache;
Prepare prepare_warm;
Prepare prepare_cache_pin;
Prepare prepare_cache_lookup;
Prepare prepare_cache_move;
Prepare prepare_cache_export;
Prepare prepare_cache_import;

// ---- control_endpoints.cpp: administration

Endpoint answer_reset_encoder_cache;
Endpoint answer_reset_mm_cache;
Endpoint answer_pause;
Endpoint answer_resume;
Endpoint answer_is_paused;
/// GET /server_info?config_format=text|json
Endpoint answer_server_info;
Prepare prepare_drain;
Endpoint answer_topology;

}  // namespace troupe
