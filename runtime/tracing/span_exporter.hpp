#pragma once
// OpenTelemetry spans over OTLP/HTTP, as JSON.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/tracing/trace_context.hpp"

namespace troupe {

/// Of a request that the server has answered.
struct Span {
  TraceContext context;
  std::string id;  ///< 16 hexadecimal digits
  std::string name;
  double start = 0;  ///< seconds since 1970
  double end = 0;
  bool is_error = false;
  std::vector<std::pair<std::string, std::variant<std::string, std::int64_t, double>>> attributes;
};

/// OTLP's JSON of these spans.
[[nodiscard]] std::string otlp_json(const std::vector<Span>& spans, const std::string& service_name,
                                    const std::string& version);

/// Sends spans from a thread of its own, in batches. A collector that does not answer costs spans,
/// never requests: what does not fit in the queue is dropped, and logged once a minute.
class SpanExporter {
 public:
  struct Options {
    std::string endpoint;  ///< http(s)://HOST:PORT/PATH
    std::string service_name = "troupe";
    std::string version;
  };
  explicit SpanExporter(Options options);
  /// Sends what is left, for two seconds at most.
  ~SpanExporter();
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  /// Any thread; does not block.
  void add(Span span);

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace troupe
