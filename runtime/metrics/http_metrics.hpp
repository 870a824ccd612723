#pragma once
// Metrics of HTTP requests, as prometheus-fastapi-instrumentator (which vLLM uses) names and cuts
// them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "runtime/metrics/registry.hpp"

namespace troupe {

/// One request that has been answered.
struct HttpObservation {
  std::string handler;  ///< path of its route; "none" if there is none; empty: not observed
  std::string method;   ///< in capitals
  std::string path;     ///< for the log: without a query, and without a name that opens something
  std::uint32_t tenant = 0;  ///< the number of its API key; 0: none
  int status = 0;
  double start = 0;                ///< seconds; when its head had been read
  double end = 0;                  ///< when the answer had left
  std::size_t request_bytes = 0;   ///< as its Content-Length says; 0: none
  std::size_t response_bytes = 0;  ///< the same; 0: in pieces
};

/// Registers a series when it is first seen. Any thread.
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
