// Tables and JSON.
#include "tools/bench/report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/base/ordered_json.hpp"

namespace troupe::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTableWidth = 50;
constexpr double kLatencyPercents[] = {10, 25, 50, 75, 90, 99};

struct MetricTitles {
  const char* row;
  const char* section;
};
constexpr MetricTitles kTitles[kNumServingMetrics] = {
    {"TTFT", "Time to First Token"},
    {"TPOT", "Time per Output Token (excl. 1st token)"},
    {"ITL", "Inter-token Latency"},
    {"E2EL", "End-to-end Latency"},
};

/// `text` centered in a line of `fill`.
std::string centered(std::string_view text, char fill) {
  const auto width = static_cast<std::size_t>(kTableWidth);
  const std::size_t padding = width > text.size() ? width - text.size() : 0;
  return std::string(padding / 2, fill)
      .append(text)
      .append(padding - padding / 2, fill)
      .append(1, '\n');
}

std::string fixed(double number, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, number);
  return text;
}

std::string row(const std::string& title, const std::string& value) {
  char text[128];
  std::snprintf(text, sizeof text, "%-40s %-10s\n", title.c_str(), value.c_str());
  return text;
}
std::string row(const std::string& title, std::int64_t count) {
  return row(title, std::to_string(count));
}
std::string row(const std::string& title, double number) { return row(title, fixed(number, 2)); }

std::string metric_section(ServingMetric metric, const ServingReport& report,
                           std::span<const double> percents) {
  const auto index = static_cast<std::size_t>(metric);
  const Distribution& values = report.metrics[index];
  const std::string unit = std::string(" ") + kTitles[index].row + " (ms):";
  std::string text = centered(kTitles[index].section, '-');
  text += row("Mean" + unit, values.mean);
  text += row("Median" + unit, values.median);
  for (std::size_t i = 0; i < percents.size(); ++i) {
    text += row("P" + percent_text(percents[i]) + unit, values.percentiles[i]);
  }
  return text;
}

/// One value of every record.
template <class Value>
Json each(std::span<const RequestRecord> records, Value&& value) {
  Json list = Json::array();
  for (const RequestRecord& record : records) list.push_back(value(record));
  return list;
}

/// Texts come from a server and may contain anything.
std::string dump(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<double> ascending(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

double per_second(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

std::string serving_table(const ServingReport& report, const ServingSetup& setup) {
  std::string text = centered(" Serving Benchmark Result ", '=');
  text += row("Successful requests:", report.num_completed);
  text += row("Failed requests:", report.num_failed);
  if (setup.max_concurrency) text += row("Maximum request concurrency:", *setup.max_concurrency);
  if (std::isfinite(setup.request_rate)) {
    text += row("Request rate configured (RPS):", setup.request_rate);
  }
  text += row("Benchmark duration (s):", report.duration);
  text += row("Total input tokens:", report.num_input_tokens);
  text += row("Total generated tokens:", report.num_output_tokens);
  text += row("Request throughput (req/s):", report.request_throughput);
  if (report.goodput) text += row("Request goodput (req/s):", *report.goodput);
  text += row("Output token throughput (tok/s):", report.output_throughput);
  text += row("Peak output token throughput (tok/s):", report.peak_output_throughput);
  text += row("Peak concurrent requests:", static_cast<double>(report.peak_concurrency));
  text += row("Total token throughput (tok/s):", report.total_throughput);
  for (const ServingMetric metric : setup.shown) {
    text += metric_section(metric, report, setup.percents);
  }
  return text + centered("", '=');
}

std::string serving_json(const ServingReport& report, const ServingSetup& setup,
                         std::span<const RequestRecord> records) {
  Json json;
  json["request_rate"] = std::isfinite(setup.request_rate) ? Json(setup.request_rate) : "inf";
  json["max_concurrency"] = setup.max_concurrency ? Json(*setup.max_concurrency) : Json();
  json["duration"] = report.duration;
  json["completed"] = report.num_completed;
  json["failed"] = report.num_failed;
  json["total_input_tokens"] = report.num_input_tokens;
  json["total_output_tokens"] = report.num_output_tokens;
  json["request_throughput"] = report.request_throughput;
  json["request_goodput"] = report.goodput ? Json(*report.goodput) : Json();
  json["output_throughput"] = report.output_throughput;
  json["total_token_throughput"] = report.total_throughput;
  json["max_output_tokens_per_s"] = report.peak_output_throughput;
  json["max_concurrent_requests"] = report.peak_concurrency;
  for (std::size_t i = 0; i < kNumServingMetrics; ++i) {
    const std::string unit = std::string("_") + std::string(to_string(ServingMetric(i))) + "_ms";
    json["mean" + unit] = report.metrics[i].mean;
    json["median" + unit] = report.metrics[i].median;
    json["std" + unit] = report.metrics[i].deviation;
    for (std::size_t p = 0; p < setup.percents.size(); ++p) {
      json["p" + percent_text(setup.percents[p]) + unit] = report.metrics[i].percentiles[p];
    }
  }
  json["input_lens"] = each(records, [](const auto& r) { return r.num_prompt_tokens; });
  json["output_lens"] = each(records, [](const auto& r) { return r.num_output_tokens; });
  json["ttfts"] = each(records, [](const auto& r) { return r.first_token; });
  json["itls"] = each(records, [](const auto& r) { return r.token_latencies; });
  json["latencies"] = each(records, [](const auto& r) { return r.latency; });
  json["start_times"] = each(records, [](const auto& r) { return r.start; });
  json["queue_times"] = each(records, [](const auto& r) { return r.queued; });
  json["generated_texts"] = each(records, [](const auto& r) { return r.text; });
  json["errors"] = each(records, [](const auto& r) { return r.error; });
  return dump(json);
}

std::string latency_table(std::span<const double> latencies) {
  const std::vector<double> sorted = ascending(latencies);
  std::string text = "Avg latency: " + fixed(describe(sorted, {}).mean, 6) + " seconds\n";
  for (const double percent : kLatencyPercents) {
    text += percent_text(percent) +
            "% percentile latency: " + fixed(percentile(sorted, percent), 6) + " seconds\n";
  }
  return text;
}

std::string latency_json(std::span<const double> latencies) {
  const std::vector<double> sorted = ascending(latencies);
  Json json;
  json["avg_latency"] = describe(sorted, {}).mean;
  json["latencies"] = std::vector<double>(latencies.begin(), latencies.end());
  for (const double percent : kLatencyPercents) {
    json["percentiles"][percent_text(percent)] = percentile(sorted, percent);
  }
  return dump(json);
}

std::string throughput_table(const ThroughputReport& report) {
  const std::int64_t num_tokens = report.num_prompt_tokens + report.num_output_tokens;
  return "Throughput: " + fixed(per_second(report.num_requests, report.elapsed), 2) +
         " requests/s, " + fixed(per_second(num_tokens, report.elapsed), 2) + " total tokens/s, " +
         fixed(per_second(report.num_output_tokens, report.elapsed), 2) + " output tokens/s\n" +
         "Total num prompt tokens:  " + std::to_string(report.num_prompt_tokens) + "\n" +
         "Total num output tokens:  " + std::to_string(report.num_output_tokens) + "\n";
}

std::string throughput_json(const ThroughputReport& report) {
  const std::int64_t num_tokens = report.num_prompt_tokens + report.num_output_tokens;
  Json json;
  json["elapsed_time"] = report.elapsed;
  json["num_requests"] = report.num_requests;
  json["total_num_tokens"] = num_tokens;
  json["requests_per_second"] = per_second(report.num_requests, report.elapsed);
  json["tokens_per_second"] = per_second(num_tokens, report.elapsed);
  return dump(json);
}

}  // namespace troupe::tools
