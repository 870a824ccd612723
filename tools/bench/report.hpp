#pragma once
// The results of a benchmark: percentiles, and metrics of a server under load. Definitions, row
// titles and JSON keys are those of `vllm bench`, so that results can be compared.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe::tools {

/// The `percent`-th percentile, with linear interpolation between the two nearest ranks (numpy's
/// default). 0 if there are no values. Pre: `sorted` ascends; percent in [0, 100].
[[nodiscard]] double percentile(std::span<const double> sorted, double percent);

struct Distribution {
  double mean = 0;
  double median = 0;
  double deviation = 0;             ///< of the population
  std::vector<double> percentiles;  ///< parallel to the requested percents
};
/// All zero if there are no values.
[[nodiscard]] Distribution describe(std::vector<double> values, std::span<const double> percents);

/// "99", "99.9": a percent as it appears in titles and keys.
[[nodiscard]] std::string percent_text(double percent);
/// Reads "50,90,99.9". Errors: kInvalidArgument for anything but numbers in [0, 100].
[[nodiscard]] Result<std::vector<double>> parse_percents(std::string_view text);

/// One request to a server. Times are seconds of the client's steady clock, from the start of the
/// run.
struct RequestRecord {
  bool success = false;
  std::string error;                    ///< if it failed
  double start = 0;                     ///< when it was sent
  double queued = 0;                    ///< waited for a free slot
  double first_token = 0;               ///< from start to the first chunk with text
  double latency = 0;                   ///< from start to the last chunk
  std::vector<double> token_latencies;  ///< gaps between chunks
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_output_tokens = 0;
  std::string text;
};

enum class ServingMetric : std::uint8_t {
  kTtft,  ///< time to the first token
  kTpot,  ///< time per output token after the first; of requests with two tokens or more
  kItl,   ///< time between two chunks
  kE2el,  ///< the whole request
};
inline constexpr std::size_t kNumServingMetrics = 4;
/// "ttft", "tpot", "itl", "e2el".
[[nodiscard]] std::string_view to_string(ServingMetric metric) noexcept;
/// Reads "ttft,tpot,itl". Errors: kInvalidArgument for an unknown name.
[[nodiscard]] Result<std::vector<ServingMetric>> parse_metrics(std::string_view text);

/// An upper bound for the metrics of a good request.
struct ServiceLevel {
  ServingMetric metric{};
  double limit = 0;  ///< seconds
};
/// Reads "ttft:200": milliseconds; ttft, tpot or e2el. Errors: kInvalidArgument.
[[nodiscard]] Result<ServiceLevel> parse_service_level(std::string_view text);

/// The setup of the run.
struct ServingSetup {
  std::vector<ServingMetric> shown;  ///< in the table with their percentiles
  std::vector<double> percents;
  std::vector<ServiceLevel> service_levels;                       ///< empty: no goodput
  double request_rate = std::numeric_limits<double>::infinity();  ///< per second
  std::optional<std::int64_t> max_concurrency;
};

struct ServingReport {
  double duration = 0;  ///< seconds
  std::int64_t num_completed = 0;
  std::int64_t num_failed = 0;
  std::int64_t num_input_tokens = 0;  ///< of the completed requests
  std::int64_t num_output_tokens = 0;
  double request_throughput = 0;  ///< per second, as all below
  std::optional<double> goodput;
  double output_throughput = 0;
  double total_throughput = 0;
  double peak_output_throughput = 0;  ///< maximum number of chunks in one second of the run
  /// Maximum number of requests active in one second of the run.
  std::int64_t peak_concurrency = 0;
  Distribution metrics[kNumServingMetrics];  ///< milliseconds, by ServingMetric
};

/// `duration`: seconds from the first request to the last response.
[[nodiscard]] ServingReport summarize(std::span<const RequestRecord> records, double duration,
                                      const ServingSetup& setup);

/// The result table.
[[nodiscard]] std::string serving_table(const ServingReport& report, const ServingSetup& setup);
/// A JSON object with the report and the records of all requests.
[[nodiscard]] std::string serving_json(const ServingReport& report, const ServingSetup& setup,
                                       std::span<const RequestRecord> records);

/// The final lines and the JSON object of a latency run. `latencies`: seconds, one per iteration.
[[nodiscard]] std::string latency_table(std::span<const double> latencies);
[[nodiscard]] std::string latency_json(std::span<const double> latencies);

struct ThroughputReport {
  double elapsed = 0;  ///< seconds
  std::int64_t num_requests = 0;
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_output_tokens = 0;
};
[[nodiscard]] std::string throughput_table(const ThroughputReport& report);
[[nodiscard]] std::string throughput_json(const ThroughputReport& report);

}  // namespace troupe::tools
