// POST /collective_rpc: calls a method on all workers, with vLLM's fields.

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/http/endpoints.hpp"
#include "runtime/http/engine_call.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

constexpr double kMaxTimeoutS = 120;

/// One row for each alternative of WorkerMethod. Those that change an engine's state cannot be
/// called here, as its other actors would not know.
struct NamedMethod {
  WorkerMethod method;
  std::string_view refusal;  ///< empty: can be called
};

std::vector<NamedMethod> named_methods() {
  constexpr std::string_view kForStart = "is called when an engine starts only";
  return {{LoadModel{}, kForStart},
          {InitializeKVCache{}, kForStart},
          {WarmUp{}, kForStart},
          {LoadAdapter{}, "is called by POST /v1/load_lora_adapter"},
          {UnloadAdapter{}, "is called by POST /v1/unload_lora_adapter"},
          {ListAdapters{}, ""}};
}

Result<WorkerMethod> find_method(const std::string& name) {
  std::string callable;
  for (NamedMethod& each : named_methods()) {
    const std::string_view each_name = name_of(each.method);
    if (each.refusal.empty()) {
      if (each_name == name) return std::move(each.method);
      callable.append(callable.empty() ? "" : ", ").append(each_name);
    } else if (each_name == name) {
      return invalid_argument("method \"" + name + "\" " + std::string(each.refusal), "method");
    }
  }
  return invalid_argument("unknown method \"" + name.substr(0, 64) + "\", there is: " + callable,
                          "method");
}

Result<CollectiveRpc> parse_collective_rpc(std::string_view body) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  fields.require("method");
  const std::string name = fields.text("method").value_or("");
  const double timeout_s =
      fields.number("timeout", {.min = 0, .max = kMaxTimeoutS, .min_open = true})
          .value_or(kMaxTimeoutS);
  std::size_t num_arguments = 0;
  if (fields.raw("args", JsonKind::kArray)) num_arguments += fields.count_values("args") - 1;
  if (fields.raw("kwargs", JsonKind::kObject)) num_arguments += fields.count_values("kwargs") - 1;
  if (const auto other = fields.other_name({"method", "args", "kwargs", "timeout"}))
    fields.wrong_value(*other, "unknown field \"" + other->substr(0, 64) + "\"");
  RETURN_IF_ERROR(fields.result());
  ASSIGN_OR_RETURN(WorkerMethod method, find_method(name));
  if (num_arguments > 0)
    return invalid_argument("method \"" + name + "\" takes no arguments", "args");
  return CollectiveRpc{.method = std::move(method), .timeout_s = timeout_s};
}

void append_result(std::string& json, const WorkerResult& result) {
  const auto* const list = std::get_if<AdapterList>(&result);
  if (list == nullptr) {
    json += "null";
    return;
  }
  append_json_array(json, list->adapters, [](std::string& out, const LoraRequest& adapter) {
    out += "{\"lora_name\":";
    append_json_string(out, adapter.name);
    out += ",\"lora_int_id\":";
    append_json_integer(out, adapter.int_id);
    out += ",\"lora_path\":";
    append_json_string(out, adapter.path);
    out += '}';
  });
}

HttpResponse rpc_response(const CollectiveRpcReply& reply) {
  if (reply.error) return error_response(*reply.error);
  std::string json = "{\"results\":";
  append_json_array(json, reply.results, append_result);
  return json_response(json + "}");
}

Result<Answer> try_collective_rpc(ServiceContext& context, const Result<CollectiveRpc>& parsed,
                                  ResponseSink& sink) {
  ASSIGN_OR_RETURN(const CollectiveRpc rpc, parsed);
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.call_workers(rpc, call->reply<CollectiveRpcReply>(rpc_response));
  return Answer(std::move(call));
}

}  // namespace

Prepared prepare_collective_rpc(std::string_view body, const ServerDefaults&) {
  return [parsed = parse_collective_rpc(body)](ServiceContext& context, const HttpRequest&,
                                               ResponseSink& sink) {
    return try_collective_rpc(context, parsed, sink);
  };
}

}  // namespace troupe
