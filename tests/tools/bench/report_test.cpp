#include "tools/bench/report.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "runtime/base/json.hpp"

namespace troupe::tools {
namespace {

namespace utf = boost::unit_test;

RequestRecord record(double start, double first_token, std::vector<double> gaps) {
  RequestRecord result;
  result.success = true;
  result.start = start;
  result.first_token = first_token;
  result.latency = first_token;
  for (const double gap : gaps) result.latency += gap;
  result.num_prompt_tokens = 10;
  result.num_output_tokens = static_cast<std::int64_t>(gaps.size()) + 1;
  result.token_latencies = std::move(gaps);
  result.text = "text";
  return result;
}

RequestRecord failure(const std::string& error) {
  RequestRecord result;
  result.error = error;
  return result;
}

ServingSetup setup_of_all() {
  return {.shown = {ServingMetric::kTtft, ServingMetric::kTpot, ServingMetric::kItl,
                    ServingMetric::kE2el},
          .percents = {50, 99}};
}

const Distribution& of(const ServingReport& report, ServingMetric metric) {
  return report.metrics[static_cast<std::size_t>(metric)];
}

BOOST_AUTO_TEST_CASE(percentiles_interpolate_between_the_nearest_ranks, *utf::tolerance(1e-12)) {
  // numpy.percentile([1, 2, 3, 4], [0, 25, 50, 90, 100])
  const std::vector<double> values = {1, 2, 3, 4};
  BOOST_TEST(percentile(values, 0) == 1.0);
  BOOST_TEST(percentile(values, 25) == 1.75);
  BOOST_TEST(percentile(values, 50) == 2.5);
  BOOST_TEST(percentile(values, 90) == 3.7);
  BOOST_TEST(percentile(values, 100) == 4.0);
  BOOST_TEST(percentile(std::vector<double>{7}, 99) == 7.0);
  BOOST_TEST(percentile({}, 99) == 0.0);
}

BOOST_AUTO_TEST_CASE(a_distribution_takes_values_in_any_order, *utf::tolerance(1e-12)) {
  const std::vector<double> percents = {10, 90};
  const Distribution values = describe({4, 1, 3, 2}, percents);
  BOOST_TEST(values.mean == 2.5);
  BOOST_TEST(values.median == 2.5);
  BOOST_TEST(values.deviation == std::sqrt(1.25));
  BOOST_TEST(values.percentiles.at(0) == 1.3);
  BOOST_TEST(values.percentiles.at(1) == 3.7);
  const Distribution nothing = describe({}, percents);
  BOOST_TEST(nothing.mean == 0.0);
  BOOST_TEST(nothing.percentiles.size() == 2u);
}

BOOST_AUTO_TEST_CASE(times_per_token_leave_out_the_first_token_and_requests_of_one,
                     *utf::tolerance(1e-9)) {
  const std::vector<RequestRecord> records = {record(0, 0.2, {0.1, 0.3}), record(0, 0.4, {}),
                                              failure("refused")};
  const ServingReport report = summarize(records, 2, setup_of_all());
  BOOST_TEST(report.num_completed == 2);
  BOOST_TEST(report.num_failed == 1);
  BOOST_TEST(report.num_input_tokens == 20);
  BOOST_TEST(report.num_output_tokens == 4);
  BOOST_TEST(report.request_throughput == 1.0);
  BOOST_TEST(report.output_throughput == 2.0);
  BOOST_TEST(report.total_throughput == 12.0);
  BOOST_TEST(!report.goodput.has_value());
  BOOST_TEST(of(report, ServingMetric::kTtft).mean == 300.0);
  BOOST_TEST(of(report, ServingMetric::kTpot).mean == 200.0);
  BOOST_TEST(of(report, ServingMetric::kItl).median == 200.0);
  BOOST_TEST(of(report, ServingMetric::kE2el).mean == 500.0);
}

BOOST_AUTO_TEST_CASE(a_good_request_keeps_every_bound) {
  const std::vector<RequestRecord> records = {record(0, 0.1, {0.01}), record(0, 0.3, {0.01}),
                                              record(0, 0.1, {0.5}), failure("no")};
  ServingSetup setup = setup_of_all();
  setup.service_levels = {{ServingMetric::kTtft, 0.2}, {ServingMetric::kTpot, 0.05}};
  BOOST_TEST(*summarize(records, 2, setup).goodput == 0.5);
  setup.service_levels = {{ServingMetric::kE2el, 0.35}};
  BOOST_TEST(*summarize(records, 2, setup).goodput == 1.0);
}

BOOST_AUTO_TEST_CASE(peaks_are_counted_in_seconds_since_the_first_request) {
  const std::vector<RequestRecord> records = {record(10, 0.25, {0.25, 0.25, 0.5}),
                                              record(11.5, 0.25, {}), failure("no")};
  const ServingReport report = summarize(records, 2, setup_of_all());
  BOOST_TEST(report.peak_output_throughput == 3.0);  // at 10.25, 10.5 and 10.75
  BOOST_TEST(report.peak_concurrency == 2);          // both touch the second from 11 to 12
}

BOOST_AUTO_TEST_CASE(a_run_without_answers_reports_zeros) {
  const std::vector<RequestRecord> records = {failure("connection refused")};
  const ServingReport report = summarize(records, 0, setup_of_all());
  BOOST_TEST(report.num_failed == 1);
  BOOST_TEST(report.request_throughput == 0.0);
  BOOST_TEST(report.peak_concurrency == 0);
  BOOST_TEST(of(report, ServingMetric::kTtft).percentiles.at(1) == 0.0);
}

BOOST_AUTO_TEST_CASE(the_table_has_the_rows_of_vllm_bench) {
  const std::vector<RequestRecord> records = {record(0, 0.2, {0.1, 0.1})};
  ServingSetup setup = {
      .shown = {ServingMetric::kTtft, ServingMetric::kTpot}, .percents = {99.9}, .request_rate = 4};
  setup.max_concurrency = 8;
  setup.service_levels = {{ServingMetric::kTtft, 1}};
  BOOST_TEST(serving_table(summarize(records, 0.5, setup), setup) ==
             "============ Serving Benchmark Result ============\n"
             "Successful requests:                     1         \n"
             "Failed requests:                         0         \n"
             "Maximum request concurrency:             8         \n"
             "Request rate configured (RPS):           4.00      \n"
             "Benchmark duration (s):                  0.50      \n"
             "Total input tokens:                      10        \n"
             "Total generated tokens:                  3         \n"
             "Request throughput (req/s):              2.00      \n"
             "Request goodput (req/s):                 2.00      \n"
             "Output token throughput (tok/s):         6.00      \n"
             "Peak output token throughput (tok/s):    3.00      \n"
             "Peak concurrent requests:                1.00      \n"
             "Total token throughput (tok/s):          26.00     \n"
             "---------------Time to First Token----------------\n"
             "Mean TTFT (ms):                          200.00    \n"
             "Median TTFT (ms):                        200.00    \n"
             "P99.9 TTFT (ms):                         200.00    \n"
             "-----Time per Output Token (excl. 1st token)------\n"
             "Mean TPOT (ms):                          100.00    \n"
             "Median TPOT (ms):                        100.00    \n"
             "P99.9 TPOT (ms):                         100.00    \n"
             "==================================================\n");
}

BOOST_AUTO_TEST_CASE(the_json_has_every_key_of_vllm_bench) {
  std::vector<RequestRecord> records = {record(0, 0.2, {0.1, 0.1}), failure("refused")};
  records[0].text = "half a character: \xC3";
  const ServingSetup setup = setup_of_all();
  const auto json =
      nlohmann::json::parse(serving_json(summarize(records, 0.5, setup), setup, records));
  for (const char* key : {"duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "input_lens",
                          "output_lens",
                          "ttfts",
                          "itls",
                          "latencies",
                          "start_times",
                          "queue_times",
                          "generated_texts",
                          "errors",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests"}) {
    BOOST_TEST(json.contains(key), key);
  }
  for (const std::string metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const std::string figure : {"mean", "median", "std", "p50", "p99"}) {
      BOOST_TEST(json.at(figure + "_" + metric + "_ms").is_number(), figure + metric);
    }
  }
  BOOST_TEST(json["request_rate"] == "inf");
  BOOST_TEST(json["errors"][1] == "refused");
  BOOST_TEST(json["itls"][0].size() == 2u);
}

BOOST_AUTO_TEST_CASE(metrics_percents_and_bounds_are_read_or_refused) {
  BOOST_TEST((*parse_metrics("ttft,e2el") ==
              std::vector<ServingMetric>{ServingMetric::kTtft, ServingMetric::kE2el}));
  BOOST_TEST(!parse_metrics("ttft,").ok());
  BOOST_TEST(parse_metrics("ttfb").error().message.find("ttfb") != std::string::npos);
  BOOST_TEST((*parse_percents("50,99.9") == std::vector<double>{50, 99.9}));
  for (const char* text : {"", "101", "-1", "50;60", "nan"}) {
    BOOST_TEST(!parse_percents(text).ok(), text);
  }
  const auto level = parse_service_level("tpot:50");
  BOOST_TEST((level->metric == ServingMetric::kTpot));
  BOOST_TEST(level->limit == 0.05, boost::test_tools::tolerance(1e-12));
  for (const char* text : {"ttft", "ttft:", "ttft:x", "itl:5", "ttft:-1", "ttft:1:2", ":5"}) {
    BOOST_TEST(!parse_service_level(text).ok(), text);
  }
}

BOOST_AUTO_TEST_CASE(latency_and_throughput_print_what_vllm_bench_prints) {
  const std::vector<double> latencies = {3, 1, 2};
  BOOST_TEST(latency_table(latencies) ==
             "Avg latency: 2.000000 seconds\n"
             "10% percentile latency: 1.200000 seconds\n"
             "25% percentile latency: 1.500000 seconds\n"
             "50% percentile latency: 2.000000 seconds\n"
             "75% percentile latency: 2.500000 seconds\n"
             "90% percentile latency: 2.800000 seconds\n"
             "99% percentile latency: 2.980000 seconds\n");
  const auto latency = nlohmann::json::parse(latency_json(latencies));
  BOOST_TEST((latency["latencies"] == latencies));
  BOOST_TEST(latency["percentiles"]["50"] == 2.0);

  const ThroughputReport report = {
      .elapsed = 2, .num_requests = 4, .num_prompt_tokens = 30, .num_output_tokens = 10};
  BOOST_TEST(throughput_table(report).starts_with(
      "Throughput: 2.00 requests/s, 20.00 total tokens/s, 5.00 output tokens/s\n"));
  const auto throughput = nlohmann::json::parse(throughput_json(report));
  BOOST_TEST(throughput["total_num_tokens"] == 40);
  BOOST_TEST(throughput["tokens_per_second"] == 20.0);
}

}  // namespace
}  // namespace troupe::tools
