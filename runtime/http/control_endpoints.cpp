#include <sys/utsname.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "runtime/http/admin.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/engine_call.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

Result<PauseScheduler> parse_pause(std::string_view target) {
  PauseScheduler pause;
  ASSIGN_OR_RETURN(pause.clear_caches, query_flag(target, "clear_cache", true));
  ASSIGN_OR_RETURN(const bool waits, query_flag(target, "wait_for_inflight_requests"));
  const std::string_view mode = query_value(target, "mode").value_or("abort");
  if (mode == "wait" || waits) {
    pause.mode = PauseMode::kWait;
  } else if (mode == "keep") {
    pause.mode = PauseMode::kKeep;
  } else if (mode != "abort") {
    return invalid_argument(
        "mode is \"" + std::string(mode.substr(0, 32)) + "\", must be abort, wait or keep", "mode");
  }
  return pause;
}

Result<Answer> try_pause(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  ASSIGN_OR_RETURN(const PauseScheduler pause, parse_pause(http.target));
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.pause(pause, call->reply<PauseStatus>([](const PauseStatus& status) {
    return status.paused ? json_response(R"({"status":"paused"})")
                         : error_response(409, "Conflict",
                                          "resumed before the requests in the engine had ended");
  }));
  return Answer(std::move(call));
}

Result<Answer> try_drain(ServiceContext& context, const Result<DrainGroup>& parsed,
                         ResponseSink& sink) {
  ASSIGN_OR_RETURN(const DrainGroup drain, parsed);
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.drain_group(drain, call->reply<Status>([](const Status& status) {
    return status.error ? error_response(*status.error) : json_response(R"({"status":"drained"})");
  }));
  return Answer(std::move(call));
}

/// The variables of the environment that are options; their values may be secrets.
void append_environment(std::string& json) {
  constexpr std::string_view kPrefix = "TROUPE_";
  json += '{';
  bool first = true;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with(kPrefix)) continue;
    if (!std::exchange(first, false)) json += ',';
    append_json_string(json, text.substr(0, text.find('=')));
    json += ":\"is set\"";
  }
  json += '}';
}

void append_machine(std::string& json) {
  utsname names{};
  uname(&names);
  const std::pair<std::string_view, std::string_view> fields[] = {
      {"os", names.sysname},      {"os_release", names.release}, {"os_version", names.version},
      {"machine", names.machine}, {"compiler", __VERSION__},
  };
  json += '{';
  for (const auto& [name, value] : fields) {
    append_json_string(json, name);
    json += ':';
    append_json_string(json, value);
    json += ',';
  }
  json += "\"num_cpus\":";
  append_json_integer(json, sysconf(_SC_NPROCESSORS_ONLN));
  json += ",\"memory_bytes\":";
  append_json_integer(json, sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
  json += '}';
}

Result<Answer> try_server_info(ServiceContext& context, const HttpRequest& http,
                               ResponseSink& sink) {
  const std::string_view format = query_value(http.target, "config_format").value_or("text");
  if (format != "text" && format != "json") {
    return invalid_argument(
        "config_format is \"" + std::string(format.substr(0, 32)) + "\", must be text or json",
        "config_format");
  }
  std::string json = "{\"version\":";
  append_json_string(json, context.config.version);
  json += ",\"vllm_config\":";
  if (format == "json") {
    json += context.config.options_json.empty() ? "{}" : context.config.options_json;
  } else {
    append_json_string(json, context.config.options_text);
  }
  json += ",\"vllm_env\":";
  append_environment(json);
  json += ",\"system_env\":";
  append_machine(json);
  sink.respond(json_response(json + "}"));
  return Answer(nullptr);
}

}  // namespace

Answer answer_server_info(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_server_info(context, http, sink), sink);
}

Answer answer_reset_encoder_cache(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.reset_caches({.encoder_cache = true},
                            call->reply<CachesReset>([](const auto&) { return HttpResponse{}; }));
  return call;
}

Answer answer_reset_mm_cache(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.reset_caches({.mm_cache = true},
                            call->reply<CachesReset>([](const auto&) { return HttpResponse{}; }));
  return call;
}

Answer answer_pause(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_pause(context, http, sink), sink);
}

Answer answer_resume(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.resume(call->reply<PauseStatus>(
      [](const auto&) { return json_response(R"({"status":"resumed"})"); }));
  return call;
}

Answer answer_is_paused(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.ask_paused(call->reply<PauseStatus>([](const PauseStatus& status) {
    return json_response(status.paused ? R"({"is_paused":true})" : R"({"is_paused":false})");
  }));
  return call;
}

Prepared prepare_drain(std::string_view body, const ServerDefaults&) {
  return [parsed = parse_drain_group(body)](ServiceContext& context, const HttpRequest&,
                                            ResponseSink& sink) {
    return try_drain(context, parsed, sink);
  };
}

Answer answer_topology(ServiceContext& context, const HttpRequest&, ResponseSink& sink) {
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.ask_topology(call->reply<TopologyStatus>(
      [](const TopologyStatus& status) { return json_response(topology_json(status)); }));
  return call;
}

}  // namespace troupe
