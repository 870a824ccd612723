#include "runtime/http/request_admission.hpp"

#include <charconv>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/base/ordered_json.hpp"
#include "runtime/http/json_object.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxSessionIdBytes = 1024;

/// X-Enable-Blending, for requests that do not say so themselves (kv_transfer_params).
Result<void> read_blending_header(const HttpRequest& http, std::string& kv_transfer_params) {
  const std::string_view header = http.header("X-Enable-Blending");
  if (header.empty()) return {};
  if (header != "true" && header != "false")
    return invalid_argument("X-Enable-Blending is \"" + std::string(header.substr(0, 32)) +
                                "\", it must be true or false",
                            "kv_transfer_params");
  ASSIGN_OR_RETURN(auto params,
                   parse_json_object(kv_transfer_params.empty() ? "{}" : kv_transfer_params));
  params.emplace("enable_blending", header == "true");  // not if it is there
  kv_transfer_params = params.dump();
  return {};
}

}  // namespace

std::optional<HttpResponse> refuse_overload(ServiceContext& context, std::int64_t num_samples) {
  ServiceCounters& counters = context.counters;
  const std::int64_t limit = context.config.max_num_queued_reqs;
  const std::string limit_text = "max_num_queued_reqs is " + std::to_string(limit);
  if (limit > 0 && num_samples > limit) {  // even if the engine is idle: a retry cannot help
    return error_response(invalid_argument(
        "request has " + std::to_string(num_samples) + " samples, " + limit_text, "n"));
  }
  const std::int64_t before = counters.num_samples.fetch_add(num_samples);
  if (limit == 0 || before + num_samples <= limit) return std::nullopt;
  counters.num_samples -= num_samples;
  context.metrics.observe_rejection();
  const std::int64_t retry_after_s = counters.completions.retry_after_s(
      before + num_samples - limit, context.environment.steady_clock());
  return error_response({ErrorCode::kOverloaded,
                         "request has " + std::to_string(num_samples) + " samples and " +
                             std::to_string(before) + " are queued, " + limit_text,
                         ""},
                        retry_after_s);
}

std::optional<HttpResponse> refuse_key(ServiceContext& context, GenerationFields& request) {
  const double now = context.environment.steady_clock();
  if (const auto limited = context.api_keys.begin_request(request.tenant, now)) {
    context.metrics.observe_rejection();
    return error_response(limited->error, limited->retry_after_s);
  }
  request.key_use = std::make_shared<const KeyUse>(context, request.tenant);
  return std::nullopt;
}

std::string base_id(const ServiceContext& context, const HttpRequest& http,
                    const GenerationFields& fields, bool must_be_new) {
  const std::string_view header = http.header("X-Request-Id");
  const std::string own = header.empty() ? fields.request_id : std::string(header);
  if (own.empty()) return context.random_id();
  return must_be_new ? own + "-" + context.random_id() : own;
}

Result<void> read_request_headers(const ServerDefaults& defaults, const HttpRequest& http,
                                  GenerationFields& request) {
  const std::string_view rank = http.header("X-data-parallel-rank");
  if (!rank.empty()) {
    std::int32_t number = -1;
    const auto [stop, error] = std::from_chars(rank.data(), rank.data() + rank.size(), number);
    if (error != std::errc() || stop != rank.data() + rank.size() || number < 0 ||
        number >= defaults.data_parallel_size) {
      return invalid_argument("X-data-parallel-rank is \"" + std::string(rank.substr(0, 32)) +
                                  "\", it must be between 0 and " +
                                  std::to_string(defaults.data_parallel_size - 1),
                              "data_parallel_rank");
    }
    request.placement.data_parallel_rank = number;
  }
  if (const std::string_view priority = http.header("X-Vllm-Priority"); !priority.empty()) {
    const auto [stop, error] =
        std::from_chars(priority.data(), priority.data() + priority.size(), request.priority);
    if (error != std::errc() || stop != priority.data() + priority.size())
      return invalid_argument("X-Vllm-Priority is \"" + std::string(priority.substr(0, 32)) +
                                  "\", it must be an integer of 32 bits",
                              "priority");
    if (request.priority != 0 && !defaults.by_priority) return not_by_priority(request.priority);
  }
  std::string& session = request.placement.session_id;
  if (const std::string_view header = http.header("X-Session-ID"); !header.empty())
    session = header;
  if (session.size() > kMaxSessionIdBytes) {
    return invalid_argument("the session's id has " + std::to_string(session.size()) +
                                " bytes, at most " + std::to_string(kMaxSessionIdBytes) +
                                " are allowed",
                            "session_id");
  }
  return read_blending_header(http, request.placement.kv_transfer_params);
}

std::shared_ptr<const ResumableStream> keep_stream(ServiceContext& context, const HttpRequest& http,
                                                   const GenerationFields& request,
                                                   std::size_t num_prompts, std::string id) {
  ResumableStream stream{.id = std::move(id), .arrival_time = context.environment.wall_clock()};
  for (std::size_t i = 0; i < num_prompts; ++i)
    stream.philox_keys.push_back(context.port.draw_key());
  stream.after.samples.resize(num_prompts * static_cast<std::size_t>(request.params.n));
  const auto kept = context.counters.kept_streams->keep({.id = stream.id,
                                                         .engine = context.config.engine_name,
                                                         .path = std::string(http.path()),
                                                         .body = http.body,
                                                         .tenant = request.tenant,
                                                         .arrival_time = stream.arrival_time,
                                                         .philox_keys = stream.philox_keys},
                                                        stream.arrival_time);
  if (!kept.ok()) {
    const bool broken = kept.error().code == ErrorCode::kIo;  // a disk error, not a full store
    log_event(broken ? LogLevel::kWarning : LogLevel::kDebug, "stream not kept",
              kv("request", stream.id), kv("error", kept.error().message));
    return nullptr;
  }
  return std::make_shared<const ResumableStream>(std::move(stream));
}

}  // namespace troupe
