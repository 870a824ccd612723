#include "runtime/metrics/http_metrics.hpp"

#include <algorithm>
#include <string_view>

namespace troupe {
namespace {

const std::vector<double> kFineBounds = {.01, .025, .05, .075, .1,  .25, .5,  .75, 1,  1.5, 2,
                                         2.5, 3,    3.5, 4,    4.5, 5,   7.5, 10,  30, 60};
const std::vector<double> kCoarseBounds = {.1, .5, 1};
/// Clients can send any word as a method: all others share a series.
constexpr std::string_view kMethods[] = {"GET",    "HEAD",    "POST", "PUT",
                                         "DELETE", "OPTIONS", "PATCH"};

}  // namespace

HttpMetrics::HttpMetrics(Registry& registry)
    : registry_(registry),
      fine_duration_(registry.histogram("http_request_duration_highr_seconds",
                                        "Latency with many buckets but no API specific labels.", {},
                                        kFineBounds)) {}

void HttpMetrics::observe(const HttpObservation& request) {
  const bool usual =
      std::find(std::begin(kMethods), std::end(kMethods), request.method) != std::end(kMethods);
  const std::string method = usual ? request.method : "OTHER";
  const double seconds = request.end - request.start;
  const std::string status = std::to_string(request.status / 100) + "xx";
  const Labels handler = {{"handler", request.handler}};
  const Labels with_method = {{"handler", request.handler}, {"method", method}};
  Labels with_status = with_method;
  with_status.emplace_back("status", status);

  const std::lock_guard lock(mutex_);
  Metric*& count = requests_[request.handler + ' ' + method + ' ' + status];
  if (count == nullptr) {
    count = &registry_.counter(
        "http_requests", "Total number of requests by method, status and handler.", with_status);
  }
  Histogram*& duration = durations_[request.handler + ' ' + method];
  if (duration == nullptr) {
    duration = &registry_.histogram("http_request_duration_seconds",
                                    "Latency with only few buckets by handler.", with_method,
                                    kCoarseBounds);
  }
  Sizes& sizes = sizes_[request.handler];
  if (sizes.request == nullptr) {
    sizes.request = &registry_.summary("http_request_size_bytes",
                                       "Content length of incoming requests by handler.", handler);
    sizes.response = &registry_.summary(
        "http_response_size_bytes", "Content length of outgoing responses by handler.", handler);
  }
  count->add();
  duration->observe(seconds);
  fine_duration_.observe(seconds);
  sizes.request->observe(static_cast<double>(request.request_bytes));
  sizes.response->observe(static_cast<double>(request.response_bytes));
}

}  // namespace troupe
