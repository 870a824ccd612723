// Percentiles, and metrics of a server under load.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "tools/bench/report.hpp"

namespace troupe::tools {
namespace {

constexpr std::string_view kMetricNames[kNumServingMetrics] = {"ttft", "tpot", "itl", "e2el"};

std::optional<double> parse_number(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

double per_output_token(const RequestRecord& record) {
  if (record.num_output_tokens <= 1) return 0;
  return (record.latency - record.first_token) / static_cast<double>(record.num_output_tokens - 1);
}

bool keeps(const RequestRecord& record, const ServiceLevel& level) {
  switch (level.metric) {
    case ServingMetric::kTtft:
      return record.first_token <= level.limit;
    case ServingMetric::kTpot:
      return per_output_token(record) <= level.limit;
    default:
      return record.latency <= level.limit;
  }
}

/// Counts chunks and requests in each second since the first request was sent.
void find_peaks(std::span<const RequestRecord> records, ServingReport& report) {
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const RequestRecord& record : records) {
    if (!record.success) continue;
    begin = std::min(begin, record.start);
    end = std::max(end, record.start + record.latency);
  }
  if (report.num_completed == 0) return;
  const auto second = [&](double time) { return static_cast<std::size_t>(time - begin); };
  std::vector<std::int64_t> chunks(second(end) + 1), requests(second(end) + 1);
  for (const RequestRecord& record : records) {
    if (!record.success) continue;
    double time = record.start + record.first_token;
    ++chunks[second(time)];
    for (const double gap : record.token_latencies) {
      time = std::min(time + gap, end);  // sums of gaps round differently
      ++chunks[second(time)];
    }
    for (std::size_t s = second(record.start); s <= second(record.start + record.latency); ++s) {
      ++requests[s];
    }
  }
  report.peak_output_throughput =
      static_cast<double>(*std::max_element(chunks.begin(), chunks.end()));
  report.peak_concurrency = *std::max_element(requests.begin(), requests.end());
}

}  // namespace

double percentile(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return 0;
  const double rank = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - std::floor(rank));
}

Distribution describe(std::vector<double> values, std::span<const double> percents) {
  Distribution result;
  result.percentiles.resize(percents.size());
  if (values.empty()) return result;
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  result.median = percentile(values, 50);
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.deviation = std::sqrt(squares / count);
  for (std::size_t i = 0; i < percents.size(); ++i) {
    result.percentiles[i] = percentile(values, percents[i]);
  }
  return result;
}

std::string percent_text(double percent) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, percent).ptr};
}

Result<std::vector<double>> parse_percents(std::string_view text) {
  std::vector<double> percents;
  for (const std::string_view part : split(text, ',')) {
    const auto percent = parse_number(part);
    if (!percent || *percent < 0 || *percent > 100) {
      return invalid_argument("percentile '" + std::string(part) +
                              "': expected a number from 0 to 100");
    }
    percents.push_back(*percent);
  }
  return percents;
}

std::string_view to_string(ServingMetric metric) noexcept {
  return kMetricNames[static_cast<std::size_t>(metric)];
}

Result<std::vector<ServingMetric>> parse_metrics(std::string_view text) {
  std::vector<ServingMetric> metrics;
  for (const std::string_view part : split(text, ',')) {
    const auto* const name = std::find(std::begin(kMetricNames), std::end(kMetricNames), part);
    if (name == std::end(kMetricNames)) {
      return invalid_argument("metric '" + std::string(part) +
                              "': expected ttft, tpot, itl or e2el");
    }
    metrics.push_back(static_cast<ServingMetric>(name - kMetricNames));
  }
  return metrics;
}

Result<ServiceLevel> parse_service_level(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ':');
  const auto wrong = [&] {
    return invalid_argument("service level '" + std::string(text) +
                            "': expected ttft, tpot or e2el with milliseconds, as in ttft:200");
  };
  if (parts.size() != 2) return wrong();
  const auto metrics = parse_metrics(parts[0]);
  const auto limit_ms = parse_number(parts[1]);
  if (!metrics.ok() || metrics->size() != 1 || metrics->front() == ServingMetric::kItl ||
      !limit_ms || *limit_ms < 0) {
    return wrong();
  }
  return ServiceLevel{metrics->front(), *limit_ms / 1000};
}

ServingReport summarize(std::span<const RequestRecord> records, double duration,
                        const ServingSetup& setup) {
  ServingReport report;
  report.duration = duration;
  std::vector<double> milliseconds[kNumServingMetrics];
  const auto add = [&](ServingMetric metric, double seconds) {
    milliseconds[static_cast<std::size_t>(metric)].push_back(seconds * 1000);
  };
  std::int64_t num_good = 0;
  for (const RequestRecord& record : records) {
    if (!record.success) {
      ++report.num_failed;
      continue;
    }
    ++report.num_completed;
    report.num_input_tokens += record.num_prompt_tokens;
    report.num_output_tokens += record.num_output_tokens;
    add(ServingMetric::kTtft, record.first_token);
    if (record.num_output_tokens > 1) add(ServingMetric::kTpot, per_output_token(record));
    for (const double gap : record.token_latencies) add(ServingMetric::kItl, gap);
    add(ServingMetric::kE2el, record.latency);
    num_good += std::all_of(setup.service_levels.begin(), setup.service_levels.end(),
                            [&](const ServiceLevel& level) { return keeps(record, level); });
  }
  const auto rate = [&](std::int64_t count) {
    return duration > 0 ? static_cast<double>(count) / duration : 0;
  };
  report.request_throughput = rate(report.num_completed);
  report.output_throughput = rate(report.num_output_tokens);
  report.total_throughput = rate(report.num_input_tokens + report.num_output_tokens);
  if (!setup.service_levels.empty()) report.goodput = rate(num_good);
  for (std::size_t i = 0; i < kNumServingMetrics; ++i) {
    report.metrics[i] = describe(std::move(milliseconds[i]), setup.percents);
  }
  find_peaks(records, report);
  return report;
}

}  // namespace troupe::tools
