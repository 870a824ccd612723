// Loading and unloading adapters, with vLLM's statuses and texts.

#include <memory>
#include <string>
#include <utility>

#include "runtime/http/endpoints.hpp"
#include "runtime/http/engine_call.hpp"
#include "runtime/http/json_fields.hpp"

namespace troupe {
namespace {

constexpr std::string_view kInvalidUserInput = "InvalidUserInput";

Result<LoadAdapter> parse_load_adapter(std::string_view body) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  LoadAdapter load{.name = fields.text("lora_name").value_or(""),
                   .path = fields.text("lora_path").value_or(""),
                   .load_inplace = fields.boolean("load_inplace").value_or(false)};
  if (fields.boolean("is_3d_lora_weight").value_or(false))
    fields.wrong_value("is_3d_lora_weight", "is_3d_lora_weight is not supported");
  RETURN_IF_ERROR(fields.result());
  return load;
}

Result<UnloadAdapter> parse_unload_adapter(std::string_view body) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  UnloadAdapter unload{fields.text("lora_name").value_or("")};
  RETURN_IF_ERROR(fields.result());
  return unload;
}

/// Unless clients may change adapters.
std::optional<HttpResponse> refuse_updates(const ServiceContext& context, const HttpRequest& http) {
  if (context.config.enable_lora && context.config.allow_lora_updates) return std::nullopt;
  return error_response({ErrorCode::kNotFound,
                         "no such path: " + std::string(http.path().substr(0, 256)) +
                             " (see enable-lora and allow-runtime-lora-updating)",
                         ""});
}

HttpResponse adapter_error(const Error& error) {
  if (error.code == ErrorCode::kNotFound)
    return error_response(404, "NotFoundError", error.message);
  if (error.code == ErrorCode::kInvalidArgument)
    return error_response(400, kInvalidUserInput, error.message);
  if (error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout)
    return error_response(error);
  return error_response(400, "BadRequestError", error.message);
}

std::function<HttpResponse(const AdapterReply&)> say(const std::string& name,
                                                     std::string_view done) {
  return [text = "Success: LoRA adapter '" + name + "' " + std::string(done) +
                 " successfully."](const AdapterReply& reply) {
    if (reply.error) return adapter_error(*reply.error);
    return HttpResponse{.content_type = "text/plain; charset=utf-8", .body = text};
  };
}

Result<Answer> try_load(ServiceContext& context, const HttpRequest& http,
                        const Result<LoadAdapter>& parsed, ResponseSink& sink) {
  if (auto refusal = refuse_updates(context, http)) {
    sink.respond(*std::move(refusal));
    return Answer(nullptr);
  }
  ASSIGN_OR_RETURN(const LoadAdapter load, parsed);
  for (const std::string& name : context.config.model_names) {
    if (name != load.name) continue;
    sink.respond(error_response(
        400, kInvalidUserInput,
        "The lora adapter name '" + name.substr(0, 256) + "' is that of the base model."));
    return Answer(nullptr);
  }
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.load_adapter(load, call->reply<AdapterReply>(say(load.name, "added")));
  return Answer(std::move(call));
}

Result<Answer> try_unload(ServiceContext& context, const HttpRequest& http,
                          const Result<UnloadAdapter>& parsed, ResponseSink& sink) {
  if (auto refusal = refuse_updates(context, http)) {
    sink.respond(*std::move(refusal));
    return Answer(nullptr);
  }
  ASSIGN_OR_RETURN(const UnloadAdapter unload, parsed);
  if (unload.name.empty()) {
    sink.respond(error_response(400, kInvalidUserInput, "'lora_name' needs to be provided."));
    return Answer(nullptr);
  }
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.unload_adapter(unload, call->reply<AdapterReply>(say(unload.name, "removed")));
  return Answer(std::move(call));
}

}  // namespace

Prepared prepare_load_adapter(std::string_view body, const ServerDefaults&) {
  return [parsed = parse_load_adapter(body)](ServiceContext& context, const HttpRequest& http,
                                             ResponseSink& sink) {
    return try_load(context, http, parsed, sink);
  };
}

Prepared prepare_unload_adapter(std::string_view body, const ServerDefaults&) {
  return [parsed = parse_unload_adapter(body)](ServiceContext& context, const HttpRequest& http,
                                               ResponseSink& sink) {
    return try_unload(context, http, parsed, sink);
  };
}

}  // namespace troupe
