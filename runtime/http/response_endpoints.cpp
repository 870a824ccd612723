// The Responses API: requests, stored responses, responses in the background.

#include <charconv>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"
#include "runtime/http/background_responses.hpp"
#include "runtime/http/conversation_fit.hpp"
#include "runtime/http/generation_start.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/target.hpp"

namespace troupe {

std::string owner_of(const HttpRequest& http) {
  if (http.owner) return http.owner->responses;
  const std::string key = http.authorization();
  return to_hex(sha256(std::span(reinterpret_cast<const std::uint8_t*>(key.data()), key.size())));
}

namespace {

Result<ResponseStore*> store_of(const ServiceContext& context) {
  if (context.counters.responses != nullptr) return context.counters.responses;
  return Error{ErrorCode::kUnsupported, "responses are not stored: max-stored-responses is 0", ""};
}

/// Where the request's response is stored, and the conversation that it goes on with, as elements
/// of a JSON array.
Result<std::string> read_previous(ServiceContext& context, const HttpRequest& http,
                                  ResponsesRequest& request) {
  std::string previous;
  const std::string owner = owner_of(http);
  if (!request.previous_id.empty()) {
    ASSIGN_OR_RETURN(ResponseStore * store, store_of(context));
    auto found = store->get(request.previous_id, owner);
    if (!found.ok() && found.error().code == ErrorCode::kNotFound) {
      return Error{
          ErrorCode::kNotFound,
          "Previous response with id '" + request.previous_id.substr(0, 128) + "' not found.",
          "previous_response_id"};
    }
    if (!found.ok()) return found.error();
    if (found->messages.empty())
      return invalid_argument("the response " + request.previous_id.substr(0, 128) +
                                  " is not finished: a conversation cannot continue from it",
                              "previous_response_id");
    previous = std::move(found->messages);
  }
  if (request.settings.in_background) {
    RETURN_IF_ERROR(store_of(context));
    request.settings.body = http.body;
    request.settings.key = http.owner ? http.owner->key : ApiKeys::key_id(http.authorization());
  }
  if (request.store) request.settings.store = context.counters.responses;
  request.settings.owner = owner;
  return previous;
}

/// The request with the conversation that it goes on with.
Result<ChatRequest> with_conversation(ServiceContext& context, const HttpRequest& http,
                                      ResponsesRequest request) {
  ASSIGN_OR_RETURN(const std::string previous, read_previous(context, http, request));
  return chat_of(std::move(request), previous, context.config.defaults);
}

Result<Answer> try_start_response(ServiceContext& context, const HttpRequest& http,
                                  bool in_background, Result<ChatRequest> chat,
                                  ResponseSink& sink) {
  return in_background
             ? try_generate<ChatRequest, start_background>(context, http, std::move(chat), sink)
             : try_generate<ChatRequest, start_chat>(context, http, std::move(chat), sink);
}

/// With truncation: auto.
Result<Answer> try_fit(ServiceContext& context, const HttpRequest& http, ResponsesRequest request,
                       ResponseSink& sink) {
  ASSIGN_OR_RETURN(const std::string previous, read_previous(context, http, request));
  const std::vector<std::string> messages =
      split_messages(previous + (previous.empty() ? "" : ",") + request.messages);
  std::vector<std::size_t> starts = {0};
  for (std::size_t i = 1; i < messages.size(); ++i)
    if (is_of_user(messages[i])) starts.push_back(i);
  const bool in_background = request.settings.in_background;
  request.messages.clear();
  const auto make = [&context, http, request = std::move(request),
                     messages](std::size_t first) -> Result<ChatRequest> {
    std::string kept;
    for (std::size_t i = first; i < messages.size(); ++i)
      kept.append(kept.empty() ? "" : ",").append(messages[i]);
    return read_generation(context, http, chat_of(request, kept, context.config.defaults));
  };
  const auto go_on = [&context, http, in_background, &sink](Result<ChatRequest> chat) {
    return try_start_response(context, http, in_background, std::move(chat), sink);
  };
  return Answer(std::make_unique<ConversationFit>(context, sink, std::move(starts), make, go_on));
}

Result<Answer> try_respond(ServiceContext& context, const HttpRequest& http,
                           Result<ResponsesRequest> parsed, ResponseSink& sink) {
  ASSIGN_OR_RETURN(ResponsesRequest request, std::move(parsed));
  if (request.may_truncate) return try_fit(context, http, std::move(request), sink);
  const bool in_background = request.settings.in_background;
  return try_start_response(context, http, in_background,
                            with_conversation(context, http, std::move(request)), sink);
}

/// Runs a claimed response as its first server did.
Result<void> try_adopt(ServiceContext& context, const std::string& id, const ClaimedRun& claimed) {
  const ResponseRun& run = claimed.run;
  const HttpRequest http{.method = "POST",
                         .target = "/v1/responses",
                         .headers = {},
                         .client = {},
                         .body = run.body,
                         .has_body = true,
                         .reader = nullptr,
                         .owner = BatchOwner{.key = run.key, .responses = run.owner}};
  ASSIGN_OR_RETURN(ResponsesRequest request, parse_responses_request(run.body));
  request.messages.clear();  // they are in the conversation
  request.settings.store = context.counters.responses;
  request.settings.owner = run.owner;
  ASSIGN_OR_RETURN(ChatRequest chat, read_generation(context, http,
                                                     chat_of(std::move(request), run.conversation,
                                                             context.config.defaults)));
  RETURN_IF_ERROR(check_goes_on(context, claimed));
  if (const auto refusal = refuse_overload(context, num_samples(chat)))
    return Error{ErrorCode::kOverloaded, refusal->error, ""};
  go_on_in_background(context, std::move(chat), id, claimed);
  return {};
}

/// Goes on with the response, if its server has ended.
Result<void> adopt(ServiceContext& context, ResponseStore& store, const std::string& id) {
  ASSIGN_OR_RETURN(const auto claimed, store.claim(id, /*by_force=*/false));
  if (!claimed) return {};
  log_event(LogLevel::kInfo, "going on with a response in the background", kv("response", id));
  const auto adopted = try_adopt(context, id, *claimed);
  if (adopted.ok()) return {};
  // Another time there may be room.
  if (adopted.error().code == ErrorCode::kOverloaded) return store.release(id, claimed->token);
  return end_in_background(store, id, *claimed, "failed", adopted.error().message);
}

/// Counts the tokens of the conversation that a request would continue.
Result<Answer> try_count_input(ServiceContext& context, const HttpRequest& http,
                               Result<ResponsesRequest> parsed, ResponseSink& sink) {
  ASSIGN_OR_RETURN(ResponsesRequest request, std::move(parsed));
  ASSIGN_OR_RETURN(ChatRequest chat, with_conversation(context, http, std::move(request)));
  TokenizeRequest counted{.model = std::move(chat.model),
                          .render = {.prompt = std::move(chat.prompt)}};
  return try_render<TokenizeRequest, Rendering::Kind::kInputTokens>(context, http,
                                                                    std::move(counted), sink);
}

/// ID and what follows it in "/v1/responses/ID/more".
std::pair<std::string, std::string> response_path(const HttpRequest& http) {
  const std::string rest = unescaped(http.path().substr(kResponsesPath.size()));
  const std::size_t slash = rest.find('/');
  return {rest.substr(0, slash), slash == std::string::npos ? "" : rest.substr(slash + 1)};
}

Error no_such_path(const HttpRequest& http) {
  return {ErrorCode::kNotFound, "no such path: " + std::string(http.path().substr(0, 256)), ""};
}

/// The number of the last event that the client has; -1: none.
Result<std::int64_t> starting_after(const HttpRequest& http) {
  const auto text = query_value(http.target, "starting_after");
  if (!text) return -1;
  std::int64_t number = -1;
  const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error == std::errc() && stop == text->data() + text->size() && number >= 0) return number;
  return invalid_argument("starting_after is \"" + std::string(text->substr(0, 32)) +
                              "\", it must be the sequence_number of an event",
                          "starting_after");
}

Result<Answer> try_show_response(ServiceContext& context, const HttpRequest& http,
                                 ResponseSink& sink) {
  const auto [id, more] = response_path(http);
  if (!more.empty() && more != "input_items") return no_such_path(http);
  ASSIGN_OR_RETURN(ResponseStore * store, store_of(context));
  const std::string owner = owner_of(http);
  RETURN_IF_ERROR(store->get(id, owner));
  RETURN_IF_ERROR(adopt(context, *store, id));
  ASSIGN_OR_RETURN(const bool streams, query_flag(http.target, "stream"));
  if (streams) {
    if (http.method == "HEAD")
      return Error{ErrorCode::kUnsupported, "HEAD is not supported for streams, only GET", ""};
    ASSIGN_OR_RETURN(const std::int64_t after, starting_after(http));
    RETURN_IF_ERROR(store->events(id, owner, after, /*max_bytes=*/0));
    return Answer(follow_response(context, sink, id, owner, after));
  }
  ASSIGN_OR_RETURN(StoredResponse stored, store->get(id, owner));
  if (more.empty()) {
    sink.respond(json_response(std::move(stored.response)));
  } else {
    sink.respond(json_response("{\"object\":\"list\",\"data\":" + stored.input +
                               ",\"first_id\":null,\"last_id\":null,\"has_more\":false}"));
  }
  return Answer(nullptr);
}

Result<Answer> try_remove_response(ServiceContext& context, const HttpRequest& http,
                                   ResponseSink& sink) {
  const auto [id, more] = response_path(http);
  if (!more.empty()) return no_such_path(http);
  ASSIGN_OR_RETURN(ResponseStore * store, store_of(context));
  RETURN_IF_ERROR(store->remove(id, owner_of(http)));
  std::string json = "{\"id\":";
  append_json_string(json, id);
  sink.respond(json_response(json + ",\"object\":\"response\",\"deleted\":true}"));
  return Answer(nullptr);
}

Result<Answer> try_cancel_response(ServiceContext& context, const HttpRequest& http,
                                   ResponseSink& sink) {
  const auto [id, more] = response_path(http);
  if (more != "cancel") return no_such_path(http);
  ASSIGN_OR_RETURN(ResponseStore * store, store_of(context));
  const std::string owner = owner_of(http);
  RETURN_IF_ERROR(store->get(id, owner));
  ASSIGN_OR_RETURN(const auto claimed, store->claim(id, /*by_force=*/true));
  if (claimed) {
    RETURN_IF_ERROR(end_in_background(*store, id, *claimed, "cancelled", ""));
  } else if (!store->events(id, owner, -1, /*max_bytes=*/0).ok()) {
    return invalid_argument(
        "only background responses can be cancelled; others end with their connection",
        "response_id");
  }
  // One that has ended stays as it is.
  ASSIGN_OR_RETURN(StoredResponse stored, store->get(id, owner));
  sink.respond(json_response(std::move(stored.response)));
  return Answer(nullptr);
}

}  // namespace

Prepared prepare_responses(std::string_view body, const ServerDefaults&) {
  return with_request(parse_responses_request(body), try_respond);
}

Prepared prepare_input_tokens(std::string_view body, const ServerDefaults&) {
  return with_request(parse_responses_request(body), try_count_input);
}

Answer answer_stored_response(ServiceContext& context, const HttpRequest& http,
                              ResponseSink& sink) {
  return answer_or_refuse(try_show_response(context, http, sink), sink, kResponsesDialect);
}

Answer answer_removed_response(ServiceContext& context, const HttpRequest& http,
                               ResponseSink& sink) {
  return answer_or_refuse(try_remove_response(context, http, sink), sink, kResponsesDialect);
}

Answer answer_cancelled_response(ServiceContext& context, const HttpRequest& http,
                                 ResponseSink& sink) {
  return answer_or_refuse(try_cancel_response(context, http, sink), sink, kResponsesDialect);
}

void adopt_abandoned_responses(ServiceContext& context) {
  ResponseStore& store = *context.counters.responses;
  const auto ids = store.abandoned();
  if (!ids.ok()) return log_warning("stored responses", kv("reason", ids.error().message));
  for (const std::string& id : *ids) {
    const auto adopted = adopt(context, store, id);
    if (!adopted.ok())
      log_warning("response in the background", kv("response", id),
                  kv("reason", adopted.error().message));
  }
}

}  // namespace troupe
