#pragma once
// The endpoints that give work to the engine. Each answers at once through the sink, or returns the
// exchange that will.

#include <memory>
#include <string_view>

#include "runtime/http/service_context.hpp"

namespace troupe {

inline constexpr std::string_view kChatPath = "/v1/chat/completions";
inline constexpr std::string_view kStreamsPath = "/v1/streams/";

using Answer = std::unique_ptr<Exchange>;
using Endpoint = Answer(ServiceContext& context, const HttpRequest& http, ResponseSink& sink);

[[nodiscard]] HttpResponse json_response(std::string body);

/// The answer of an attempt; its error is answered at once.
[[nodiscard]] Answer answer_or_refuse(Result<Answer> attempt, ResponseSink& sink);

// ---- generation_endpoints.cpp: what the OpenAI API has

Endpoint answer_completion;
Endpoint answer_chat;
/// GET /v1/streams/ID?starting_after=EVENT, or with the header Last-Event-ID.
Endpoint answer_resumed_stream;
Endpoint answer_tokenize;
Endpoint answer_detokenize;

// ---- control_endpoints.cpp: for those who run the server

Endpoint answer_reset_prefix_cache;
Endpoint answer_reset_encoder_cache;
Endpoint answer_reset_mm_cache;
Endpoint answer_pause;
Endpoint answer_resume;
Endpoint answer_is_paused;
Endpoint answer_drain;
Endpoint answer_topology;

}  // namespace troupe
