#pragma once
// What a request goes through before it starts: limits, headers, its id, its stream's storage.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/http/generation_fields.hpp"
#include "runtime/http/kept_streams.hpp"
#include "runtime/http/service_context.hpp"

namespace troupe {

/// Counts `num_samples` as queued; returns a response if that exceeds the server's limit.
[[nodiscard]] std::optional<HttpResponse> refuse_overload(ServiceContext& context,
                                                          std::int64_t num_samples);

/// Counts the request for the limits of its API key; returns a response if one is reached.
[[nodiscard]] std::optional<HttpResponse> refuse_key(ServiceContext& context,
                                                     GenerationFields& request);

/// The client's own id, if given, plus random bits: knowing the id of a resumable stream permits
/// reading it, so it must not be guessable.
[[nodiscard]] std::string base_id(const ServiceContext& context, const HttpRequest& http,
                                  const GenerationFields& fields, bool must_be_new);

/// Headers that select the group of a request, how it is computed, and how urgent it is.
[[nodiscard]] Result<void> read_request_headers(const ServerDefaults& defaults,
                                                const HttpRequest& http, GenerationFields& request);

/// Stores the request, so that its stream can be resumed; null if there is no room for it.
[[nodiscard]] std::shared_ptr<const ResumableStream> keep_stream(ServiceContext& context,
                                                                 const HttpRequest& http,
                                                                 const GenerationFields& request,
                                                                 std::size_t num_prompts,
                                                                 std::string id);

}  // namespace troupe
