#pragma once
// Metrics of HTTP requests, with the names and buckets of prometheus-fastapi-instrumentator (which
// vLLM uses).

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "runtime/metrics/registry.hpp"

namespace troupe {

/// One completed request.
struct HttpObservation {
  std::string handler;       ///< path of its route; "none": no route; empty: not observed
  std::string method;        ///< upper case
  std::string path;          ///< for the log: without query and secret ids
  std::uint32_t tenant = 0;  ///< the number of its API key; 0: none
  int status = 0;
  std::string traceparent;         ///< the client's header
  double start = 0;                ///< seconds; when its head had been read
  double end = 0;                  ///< when the response had been sent
  std::size_t request_bytes = 0;   ///< its Content-Length; 0: none
  std::size_t response_bytes = 0;  ///< as above; 0: chunked
};

/// Registers a series on first use. Thread-safe.
class HttpMetrics {
 public:
  explicit HttpMetrics(Registry& registry);
  void observe(const HttpObservation& request);

 private:
  struct Sizes {
    Summary* request = nullptr;
    Summary* response = nullptr;
  };
  Registry& registry_;
  Histogram& fine_duration_;
  std::mutex mutex_;  ///< guards the maps, not what they point to
  std::map<std::string, Metric*> requests_;
  std::map<std::string, Histogram*> durations_;
  std::map<std::string, Sizes> sizes_;
};

}  // namespace troupe
