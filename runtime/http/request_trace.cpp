#include "runtime/http/request_trace.hpp"

#include <utility>

#include "runtime/tracing/span_exporter.hpp"

namespace troupe {

void trace_request(const ServiceContext& context, const HttpObservation& request,
                   const WorkDone& work) {
  auto parent = parse_traceparent(request.traceparent);
  if (parent && !parent->is_sampled) return;
  const ServiceEnvironment& environment = context.environment;
  Span span{.context = parent ? *std::move(parent)
                              : TraceContext{.trace_id = random_hex(16, environment.random)},
            .id = random_hex(8, environment.random),
            .name = request.method + " " + request.path,
            .end = environment.wall_clock(),
            .is_error = request.status >= 500};
  span.start = span.end - (request.end - request.start);
  const auto add = [&](const char* name, auto value) {
    span.attributes.emplace_back(name, std::move(value));
  };
  add("http.request.method", request.method);
  add("http.route", request.handler);
  add("http.response.status_code", std::int64_t{request.status});
  if (!work.id.empty()) {
    add("gen_ai.provider.name", std::string("troupe"));
    add("gen_ai.operation.name",
        std::string(request.handler == "/v1/completions" ? "text_completion" : "chat"));
    add("gen_ai.request.model", context.config.model_names.front());
    add("gen_ai.response.id", work.id);
    add("gen_ai.usage.input_tokens", work.num_prompt_tokens);
    add("gen_ai.usage.output_tokens", work.num_output_tokens);
    add("gen_ai.latency.e2e", request.end - request.start);
    if (work.queue_s) add("gen_ai.latency.time_in_queue", *work.queue_s);
    if (work.first_token_s) add("gen_ai.latency.time_to_first_token", *work.first_token_s);
  }
  context.counters.spans->add(std::move(span));
}

}  // namespace troupe
