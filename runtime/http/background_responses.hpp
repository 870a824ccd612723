#pragma once
// Responses of OpenAI's API that are generated in the background, without a connection. Their
// events are stored, so that a stream can be read again from any of them, and a server that is
// started after the end of another one, or after kill -9, continues its responses.

#include <memory>
#include <string>

#include "runtime/http/openai_request.hpp"
#include "runtime/http/response_store.hpp"
#include "runtime/http/service_context.hpp"

namespace troupe {

/// Stores the request's response in progress and runs it. Answers with it or, if `request.stream`,
/// with its events.
[[nodiscard]] std::unique_ptr<Exchange> start_background(ServiceContext& context,
                                                         ResponseSink& sink, ChatRequest request,
                                                         std::string id);

/// Whether this server can continue a run. Errors: kUnavailable (its tokens would differ),
/// kCorrupt.
[[nodiscard]] Result<void> check_goes_on(const ServiceContext& context, const ClaimedRun& claimed);

/// Goes on with a run whose process has ended. `request` is what its body and conversation say.
/// Pre: check_goes_on.
void go_on_in_background(ServiceContext& context, ChatRequest request, const std::string& id,
                         const ClaimedRun& claimed);

/// Ends the response with this status and an error, if there is one. Errors: as of
/// ResponseStore::append.
[[nodiscard]] Result<void> end_in_background(ResponseStore& store, const std::string& id,
                                             const ClaimedRun& claimed, std::string_view status,
                                             const std::string& error);

/// Streams the events behind number `after` (-1: all), those included that are still to come. Pre:
/// the response is there, and `owner`'s.
[[nodiscard]] std::unique_ptr<Exchange> follow_response(ServiceContext& context, ResponseSink& sink,
                                                        std::string id, std::string owner,
                                                        std::int64_t after);

}  // namespace troupe
