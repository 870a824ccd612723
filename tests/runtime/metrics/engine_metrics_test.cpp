#include "runtime/metrics/engine_metrics.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

const std::string kLabels = "{engine=\"0\",model_name=\"m\"";

bool has(const std::string& text, const std::string& line) {
  return text.find(line + "\n") != std::string::npos;
}

BOOST_AUTO_TEST_CASE(a_step_sets_gauges_and_raises_counters) {
  EngineMetrics metrics("m", 100);
  IterationStats stats;
  stats.num_generation_tokens = 3;
  stats.num_prompt_tokens = 10;
  stats.num_preemptions = 1;
  stats.inter_token_latencies = {0.02, 0.2};
  stats.scheduler = {.num_running_reqs = 4,
                     .num_waiting_reqs = 2,
                     .num_deferred_reqs = 1,
                     .kv_cache_usage = 0.5,
                     .prefix_cache = {.requests = 1, .queries = 10, .hits = 8}};
  metrics.observe_step(stats);
  metrics.observe_step(stats);
  metrics.observe_step({});  // an abort: no step, nothing of the load
  const std::string text = metrics.prometheus_text();
  BOOST_TEST(has(text, "vllm:num_requests_running" + kLabels + "} 4.0"));
  BOOST_TEST(has(text, "vllm:num_requests_waiting" + kLabels + "} 3.0"));
  BOOST_TEST(
      has(text, "vllm:num_requests_waiting_by_reason" + kLabels + ",reason=\"deferred\"} 1.0"));
  BOOST_TEST(has(text, "vllm:kv_cache_usage_perc" + kLabels + "} 0.5"));
  BOOST_TEST(has(text, "vllm:prefix_cache_hits_total" + kLabels + "} 16.0"));
  BOOST_TEST(has(text, "vllm:generation_tokens_total" + kLabels + "} 6.0"));
  BOOST_TEST(has(text, "vllm:prompt_tokens_total" + kLabels + "} 20.0"));
  BOOST_TEST(has(text, "vllm:num_preemptions_total" + kLabels + "} 2.0"));
  BOOST_TEST(has(text, "vllm:inter_token_latency_seconds_bucket" + kLabels + ",le=\"0.025\"} 2.0"));
  BOOST_TEST(has(text, "vllm:inter_token_latency_seconds_count" + kLabels + "} 4.0"));
  BOOST_TEST(has(text, "vllm:iteration_tokens_total_bucket" + kLabels + ",le=\"16.0\"} 2.0"));
  BOOST_TEST(has(text, "vllm:iteration_tokens_total_count" + kLabels + "} 2.0"));
}

BOOST_AUTO_TEST_CASE(a_finished_sample_fills_the_histograms_of_its_times) {
  EngineMetrics metrics("m", 100, 2);
  metrics.observe_prefill(1, {.num_prompt_tokens = 10,
                              .num_computed_tokens = 6,
                              .num_cached_tokens = 4,
                              .num_local_cached_tokens = 4});
  metrics.observe_first_token(1, 0.03);
  metrics.observe_finished(1, {.reason = FinishReason::kLength,
                               .times = {.queued = 1,
                                         .scheduled = 1.5,
                                         .first_token = 2,
                                         .last_token = 4,
                                         .num_generation_tokens = 5},
                               .e2e_seconds = 3.5,
                               .num_prompt_tokens = 10,
                               .num_cached_tokens = 4,
                               .max_tokens = 5});
  metrics.observe_request(1, 1, 5);
  const std::string text = metrics.prometheus_text();
  const std::string labels = "{engine=\"1\",model_name=\"m\"";
  BOOST_TEST(has(text, "vllm:request_queue_time_seconds_sum" + labels + "} 0.5"));
  BOOST_TEST(has(text, "vllm:request_prefill_time_seconds_sum" + labels + "} 0.5"));
  BOOST_TEST(has(text, "vllm:request_decode_time_seconds_sum" + labels + "} 2.0"));
  BOOST_TEST(has(text, "vllm:request_inference_time_seconds_sum" + labels + "} 2.5"));
  BOOST_TEST(has(text, "vllm:request_time_per_output_token_seconds_sum" + labels + "} 0.5"));
  BOOST_TEST(has(text, "vllm:e2e_request_latency_seconds_sum" + labels + "} 3.5"));
  BOOST_TEST(has(text, "vllm:time_to_first_token_seconds_bucket" + labels + ",le=\"0.04\"} 1.0"));
  BOOST_TEST(has(text, "vllm:request_success_total" + labels + ",finished_reason=\"length\"} 1.0"));
  BOOST_TEST(has(text, "vllm:request_prefill_kv_computed_tokens_sum" + labels + "} 6.0"));
  BOOST_TEST(has(
      text, "vllm:prompt_tokens_by_source_total" + labels + ",source=\"local_cache_hit\"} 4.0"));
  BOOST_TEST(has(text, "vllm:request_prompt_tokens_bucket" + labels + ",le=\"100.0\"} 1.0"));
  BOOST_TEST(text.find("request_prompt_tokens_bucket" + labels + ",le=\"200.0\"") ==
             std::string::npos);
  BOOST_TEST(
      has(text, "vllm:request_success_total" + kLabels + ",finished_reason=\"length\"} 0.0"));
}

BOOST_AUTO_TEST_CASE(features_have_no_metrics_until_they_are_used) {
  EngineMetrics metrics("m", 100);
  IterationStats stats;
  SchedulerStats& scheduler = stats.scheduler.emplace();
  metrics.observe_step(stats);
  BOOST_TEST(
      has(metrics.prometheus_text(), "vllm:external_prefix_cache_hits_total" + kLabels + "} 0.0"));
  BOOST_TEST(metrics.prometheus_text().find("kv_fetch") == std::string::npos);
  BOOST_TEST(metrics.prometheus_text().find("spec_decode") == std::string::npos);
  BOOST_TEST(metrics.prometheus_text().find("kv_block") == std::string::npos);
  scheduler.evicted_blocks = {{.lifetime_s = 3, .idle_s = 0.5, .reuse_gaps_s = {1, 0.25}}};
  scheduler.connector_prefix_cache = {.requests = 1, .queries = 9, .hits = 4};
  BOOST_TEST(metrics.prometheus_text().find("encoder_transfer") == std::string::npos);
  scheduler.encoder_transfer = {
      .num_queries = 3, .num_hits = 2, .num_failed = 1, .num_saved = 1, .num_fetched = 4};
  scheduler.num_kv_loads_in_progress = 2;
  scheduler.spec_decoding = {.num_requests = 2,
                             .num_draft_tokens = 6,
                             .num_accepted_tokens = 3,
                             .num_accepted_per_position = {2, 1, 0}};
  metrics.observe_step(stats);
  scheduler.evicted_blocks.clear();
  scheduler.num_kv_loads_in_progress = 0;
  metrics.observe_step(stats);
  const std::string text = metrics.prometheus_text();
  BOOST_TEST(has(text, "vllm:external_prefix_cache_queries_total" + kLabels + "} 18.0"));
  BOOST_TEST(has(text, "troupe:encoder_transfer_queries_total" + kLabels + "} 6.0"));
  BOOST_TEST(has(text, "troupe:encoder_transfer_hits_total" + kLabels + "} 4.0"));
  BOOST_TEST(has(text, "troupe:encoder_transfer_failures_total" + kLabels + "} 2.0"));
  BOOST_TEST(has(text, "troupe:encoder_transfer_saves_total" + kLabels + "} 2.0"));
  BOOST_TEST(has(text, "troupe:encoder_transfer_fetches_total" + kLabels + "} 8.0"));
  BOOST_TEST(
      has(text, "vllm:num_requests_kv_fetch_by_stage" + kLabels + ",stage=\"in_progress\"} 0.0"));
  BOOST_TEST(has(text, "vllm:spec_decode_num_drafts_total" + kLabels + "} 4.0"));
  BOOST_TEST(has(text, "vllm:spec_decode_num_accepted_tokens_total" + kLabels + "} 6.0"));
  BOOST_TEST(has(text, "vllm:spec_decode_num_accepted_tokens_per_pos_total" + kLabels +
                           ",position=\"1\"} 2.0"));
  BOOST_TEST(has(text, "vllm:kv_block_lifetime_seconds_bucket" + kLabels + ",le=\"5.0\"} 1.0"));
  BOOST_TEST(has(text, "vllm:kv_block_lifetime_seconds_bucket" + kLabels + ",le=\"2.0\"} 0.0"));
  BOOST_TEST(has(text, "vllm:kv_block_idle_before_evict_seconds_sum" + kLabels + "} 0.5"));
  BOOST_TEST(has(text, "vllm:kv_block_reuse_gap_seconds_count" + kLabels + "} 2.0"));
  BOOST_TEST(has(text, "vllm:kv_block_reuse_gap_seconds_sum" + kLabels + "} 1.25"));
}

BOOST_AUTO_TEST_CASE(the_cache_configuration_is_a_gauge_of_labels) {
  EngineMetrics metrics("m", 100);
  metrics.set_cache_config(0, {{"num_gpu_blocks", "7"}, {"block_size", "16"}});
  BOOST_TEST(
      has(metrics.prometheus_text(),
          "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"7\"} 1.0"));
}

BOOST_AUTO_TEST_CASE(the_statistics_line_shows_rates_between_two_moments) {
  const EngineTotals before{
      .prompt_tokens = 100, .generation_tokens = 10, .prefix_queries = 50, .prefix_hits = 50};
  const EngineTotals after{.prompt_tokens = 300,
                           .generation_tokens = 25,
                           .prefix_queries = 150,
                           .prefix_hits = 75,
                           .preemptions = 1,
                           .running = 2,
                           .waiting = 1,
                           .kv_cache_usage = 0.125};
  BOOST_TEST(format_stats_line(0, before, after, 10) ==
             "engine stats engine=0 prompt_tokens_per_s=20.0 generation_tokens_per_s=1.5 running=2 "
             "waiting=1 preemptions=1 kv_cache_usage_percent=12.5 prefix_hit_percent=25.0");
  BOOST_TEST(format_stats_line(3, after, after, 10).ends_with("prefix_hit_percent=0.0"));
}

}  // namespace
}  // namespace troupe
