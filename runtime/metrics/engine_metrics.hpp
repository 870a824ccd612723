#pragma once
// Engine metrics with vLLM's names, labels and buckets, so that existing dashboards and routers can
// read them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/engine_output.hpp"
#include "runtime/metrics/http_metrics.hpp"
#include "runtime/metrics/registry.hpp"

namespace troupe {

/// One finished sample. Times are of the frontend's clock unless noted otherwise.
struct FinishedSample {
  FinishReason reason = FinishReason::kStop;
  RequestTimes times;  ///< engine clock
  double e2e_seconds = 0;
  std::int32_t num_prompt_tokens = 0;
  std::int32_t num_cached_tokens = 0;
  std::optional<std::int32_t> max_tokens;
};

/// Totals of one engine at one moment, for the statistics log.
struct EngineTotals {
  double prompt_tokens = 0;
  double generation_tokens = 0;
  double prefix_queries = 0;
  double prefix_hits = 0;
  double preemptions = 0;
  double running = 0;
  double waiting = 0;
  double kv_cache_usage = 0;
  bool operator==(const EngineTotals&) const = default;
};

/// Owns the registry. Thread-safe. Created by the Frontend, updated by the HTTP server.
class EngineMetrics {
 public:
  /// `num_engines`: engine indices are in [0, num_engines).
  EngineMetrics(const std::string& model_name, std::int32_t max_model_len,
                std::uint32_t num_engines = 1);
  ~EngineMetrics();

  void observe_step(const IterationStats& stats);
  /// The engine has ended: nothing runs or waits in it any more.
  void observe_loss(std::uint32_t engine);
  /// The first output of a sample: how its prompt was computed.
  void observe_prefill(std::uint32_t engine, const PrefillStats& prefill);
  void observe_first_token(std::uint32_t engine, double seconds_since_arrival);
  void observe_finished(std::uint32_t engine, const FinishedSample& sample);
  /// A request has finished: `n` samples, the longest with `max_generation_tokens`.
  void observe_request(std::uint32_t engine, std::int32_t n, std::int32_t max_generation_tokens);
  /// A request was rejected because the queue is full.
  void observe_rejection();
  /// Requests were resubmitted to another engine because theirs has ended.
  void observe_resubmissions(std::size_t count);
  void observe_http(const HttpObservation& request) { http_.observe(request); }
  /// max-loras, for vllm:lora_requests_info; set before the first step.
  void set_max_adapters(std::int32_t max_adapters) { max_adapters_ = max_adapters; }
  /// The fields of an engine's cache configuration, set once, for vllm:cache_config_info.
  void set_cache_config(std::uint32_t engine, Labels fields);

  [[nodiscard]] std::string prometheus_text() const { return registry_.text(); }
  [[nodiscard]] EngineTotals totals(std::uint32_t engine) const;
  [[nodiscard]] std::uint32_t num_engines() const noexcept;

 private:
  struct Engine;
  Engine& at(std::uint32_t engine);

  Registry registry_;
  HttpMetrics http_{registry_};
  std::vector<std::unique_ptr<Engine>> engines_;
  std::int32_t max_adapters_ = 0;
  Metric* rejections_;
  Metric* resubmissions_;
};

/// One engine's line of the statistics log, key=value, over the `seconds` between two totals.
[[nodiscard]] std::string format_stats_line(std::uint32_t engine, const EngineTotals& before,
                                            const EngineTotals& after, double seconds);

}  // namespace troupe
