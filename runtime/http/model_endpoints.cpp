// GET /v1/models and /v1/models/NAME, in the form of OpenAI's API or of Anthropic's.
#include <string>
#include <string_view>
#include <vector>

#include "runtime/http/dialect.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

/// Anthropic's clients always send it.
bool wants_anthropic(const HttpRequest& http) { return !http.header("anthropic-version").empty(); }

/// A model that requests may name: the base model, or an adapter of it.
struct ModelCard {
  std::string name;
  std::string root;  ///< where it was loaded from
  bool is_adapter = false;
};

void append_openai_model(std::string& out, const ServiceContext& context, const ModelCard& model,
                         std::int64_t created) {
  out += "{\"id\":";
  append_json_string(out, model.name);
  out += ",\"object\":\"model\",\"created\":";
  append_json_integer(out, created);
  out += ",\"owned_by\":\"vllm\",\"root\":";
  append_json_string(out, model.root);
  out += ",\"parent\":";
  if (model.is_adapter)
    append_json_string(out, context.config.model_names.front());
  else
    out += "null";
  out += ",\"max_model_len\":";
  append_json_integer(out, context.config.defaults.max_model_len);
  out.append(",\"permission\":[{\"id\":\"modelperm-").append(context.random_id());
  out += "\",\"object\":\"model_permission\",\"created\":";
  append_json_integer(out, created);
  out +=
      ",\"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,"
      "\"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,"
      "\"organization\":\"*\",\"group\":null,\"is_blocking\":false}]}";
}

void append_anthropic_model(std::string& out, const ServiceContext& context, const ModelCard& model,
                            std::int64_t created) {
  out += R"({"type":"model","id":)";
  append_json_string(out, model.name);
  out += ",\"display_name\":";
  append_json_string(out, model.name);
  out += ",\"created_at\":\"" + utc_time_text(created) + "\",\"max_input_tokens\":";
  append_json_integer(out, context.config.defaults.max_model_len);
  out += '}';
}

void append_model(std::string& out, const ServiceContext& context, const HttpRequest& http,
                  const ModelCard& model) {
  const auto created = static_cast<std::int64_t>(context.environment.wall_clock());
  (wants_anthropic(http) ? append_anthropic_model : append_openai_model)(out, context, model,
                                                                         created);
}

Result<Answer> try_show_model(ServiceContext& context, const HttpRequest& http,
                              ResponseSink& sink) {
  ASSIGN_OR_RETURN(const ServedModel model,
                   context.resolve_model(unescaped(http.path().substr(kModelsPath.size() + 1))));
  std::string json;
  append_model(json, context, http,
               {.name = model.name,
                .root = model.lora ? model.lora->path : context.config.model_root,
                .is_adapter = model.lora.has_value()});
  sink.respond(json_response(std::move(json)));
  return Answer(nullptr);
}

}  // namespace

Answer answer_models(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  std::vector<ModelCard> models;
  for (const std::string& name : context.config.model_names)
    models.push_back({.name = name, .root = context.config.model_root});
  if (const auto adapters = context.port.adapters())
    for (const LoraRequest& adapter : adapters->adapters)
      models.push_back({.name = adapter.name, .root = adapter.path, .is_adapter = true});
  std::string json = wants_anthropic(http) ? "{\"data\":" : "{\"object\":\"list\",\"data\":";
  append_json_array(json, models, [&](std::string& out, const ModelCard& model) {
    append_model(out, context, http, model);
  });
  if (wants_anthropic(http)) {
    json += ",\"has_more\":false,\"first_id\":";
    append_json_string(json, models.front().name);
    json += ",\"last_id\":";
    append_json_string(json, models.back().name);
  }
  sink.respond(json_response(json + "}"));
  return nullptr;
}

Answer answer_model(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_show_model(context, http, sink), sink,
                          wants_anthropic(http) ? kAnthropicDialect : kOpenAiDialect);
}

}  // namespace troupe
