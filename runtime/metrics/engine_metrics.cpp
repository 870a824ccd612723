#include "runtime/metrics/engine_metrics.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <tuple>

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"

namespace troupe {
namespace {

constexpr std::size_t kNumReasons = static_cast<std::size_t>(FinishReason::kTimeout) + 1;

const std::vector<double> kLatencyBounds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokenLatencyBounds = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                                 .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kFirstTokenBounds = {.001, .005, .01, .02, .04, .06, .08, .1,
                                               .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                               20,   40,   80,  160, 640, 2560};
const std::vector<double> kIterationBounds = {1,   8,    16,   32,   64,   128,  256,
                                              512, 1024, 2048, 4096, 8192, 16384};
const std::vector<double> kBlockTimeBounds = {.001, .002, .005, .01, .02, .05,  .1,
                                              .2,   .5,   1,    2,   5,   10,   20,
                                              30,   60,   120,  300, 600, 1200, 1800};
const std::vector<double> kParamsNBounds = {1, 2, 5, 10, 20};
const std::vector<double> kPreemptionBounds = {1, 2, 3, 4, 5, 10, 20};

/// 1, 2, 5, 10, 20, 50, ... up to `max`.
std::vector<double> one_two_five(double max) {
  std::vector<double> bounds;
  for (double decade = 1;; decade *= 10) {
    for (const double mantissa : {1, 2, 5}) {
      if (mantissa * decade > max) return bounds;
      bounds.push_back(mantissa * decade);
    }
  }
}

}  // namespace

/// The metrics labelled with one engine.
struct EngineMetrics::Engine {
  Engine(Registry& registry, const std::string& model_name, std::int32_t max_model_len,
         std::uint32_t index)
      : registry(registry), labels{{"engine", std::to_string(index)}, {"model_name", model_name}} {
    const auto gauge = [&](const std::string& name, const std::string& help) {
      return &registry.gauge(prefix + name, help, labels);
    };
    const auto counter = [&](const std::string& name, const std::string& help) {
      return &registry.counter(prefix + name, help, labels);
    };
    const auto histogram = [&](const std::string& name, const std::string& help,
                               const std::vector<double>& bounds) {
      return &registry.histogram(prefix + name, help, labels, bounds);
    };

    running = gauge("num_requests_running", "Requests in the running batch.");
    waiting = gauge("num_requests_waiting", "Requests waiting to be scheduled.");
    for (const auto& [reason, metric] :
         {std::pair{"capacity", &waiting_capacity}, std::pair{"deferred", &waiting_deferred}}) {
      *metric = &registry.gauge(prefix + "num_requests_waiting_by_reason",
                                "Waiting requests by reason.", with("reason", reason));
    }
    kv_cache_usage = gauge("kv_cache_usage_perc", "Fraction of the KV cache in use, 0 to 1.");
    pinned_blocks =
        &registry.gauge("troupe:pinned_cache_blocks",
                        "Blocks of the KV cache that prompts with cache_control hold.", labels);

    prefix_queries = counter("prefix_cache_queries", "Tokens looked up in the prefix cache.");
    prefix_hits = counter("prefix_cache_hits", "Tokens found in the prefix cache.");
    external_prefix_queries =
        counter("external_prefix_cache_queries", "Tokens looked up by the KV connector.");
    external_prefix_hits =
        counter("external_prefix_cache_hits", "Tokens found by the KV connector.");
    mm_queries = counter("mm_cache_queries", "Images looked up in the processor cache.");
    mm_hits = counter("mm_cache_hits", "Images found in the processor cache.");
    encoder_queries = &registry.counter("troupe:encoder_cache_queries",
                                        "Images whose encoder output a step needed.", labels);
    encoder_hits = &registry.counter("troupe:encoder_cache_hits",
                                     "Images whose encoder output was there.", labels);
    preemptions = counter("num_preemptions", "Preemptions of running requests.");
    prompt_tokens = counter("prompt_tokens", "Prompt tokens prefilled.");
    generation_tokens = counter("generation_tokens", "Tokens generated.");
    prompt_tokens_cached = counter("prompt_tokens_cached", "Prompt tokens taken from a cache.");
    for (const auto& [source, metric] : {std::pair{"local_compute", &prompt_computed},
                                         std::pair{"local_cache_hit", &prompt_local_hit},
                                         std::pair{"external_kv_transfer", &prompt_external}}) {
      *metric = &registry.counter(prefix + "prompt_tokens_by_source",
                                  "Prompt tokens by source of their KV.", with("source", source));
    }
    for (std::size_t i = 0; i < kNumReasons; ++i) {
      success[i] =
          &registry.counter(prefix + "request_success", "Finished requests.",
                            with("finished_reason", to_string(static_cast<FinishReason>(i))));
    }

    const std::vector<double> token_bounds = one_two_five(max_model_len);
    request_prompt_tokens =
        histogram("request_prompt_tokens", "Prompt tokens of a request.", token_bounds);
    request_generation_tokens =
        histogram("request_generation_tokens", "Tokens generated for a request.", token_bounds);
    request_max_generation_tokens =
        histogram("request_max_num_generation_tokens", "Tokens of the longest sample of a request.",
                  token_bounds);
    request_max_tokens =
        histogram("request_params_max_tokens", "max_tokens of a request.", token_bounds);
    request_computed_tokens =
        histogram("request_prefill_kv_computed_tokens",
                  "Prompt tokens computed for a request, excluding cached ones.", token_bounds);
    iteration_tokens =
        histogram("iteration_tokens_total", "Tokens of one engine step.", kIterationBounds);
    request_n = histogram("request_params_n", "n of a request.", kParamsNBounds);
    request_preemptions = histogram("request_num_preemptions",
                                    "Number of preemptions of a request.", kPreemptionBounds);
    first_token =
        histogram("time_to_first_token_seconds",
                  "Time from arrival to the first output, at the frontend.", kFirstTokenBounds);
    inter_token = histogram("inter_token_latency_seconds",
                            "Time between two token batches of a request.", kTokenLatencyBounds);
    time_per_token =
        histogram("request_time_per_output_token_seconds",
                  "Mean time per token after the first of a request.", kTokenLatencyBounds);
    e2e = histogram("e2e_request_latency_seconds", "Time from arrival to the end of a request.",
                    kLatencyBounds);
    queue_time =
        histogram("request_queue_time_seconds", "Time that a request waited.", kLatencyBounds);
    inference_time = histogram("request_inference_time_seconds",
                               "Time from scheduling to the last token.", kLatencyBounds);
    prefill_time = histogram("request_prefill_time_seconds",
                             "Time from scheduling to the first token.", kLatencyBounds);
    decode_time = histogram("request_decode_time_seconds", "Time from the first to the last token.",
                            kLatencyBounds);
  }

  [[nodiscard]] Labels with(const std::string& label, const std::string& value) const {
    Labels extended = labels;
    extended.emplace_back(label, value);
    return extended;
  }

  void show_load(const SchedulerStats& stats) {
    running->set(stats.num_running_reqs);
    waiting->set(stats.num_waiting_reqs + stats.num_deferred_reqs);
    waiting_capacity->set(stats.num_waiting_reqs);
    waiting_deferred->set(stats.num_deferred_reqs);
    kv_cache_usage->set(stats.kv_cache_usage);
    pinned_blocks->set(stats.num_pinned_blocks);
  }

  /// Exported once a KV connector has loaded something.
  void observe_kv_loads(const SchedulerStats& stats) {
    const std::array<std::pair<const char*, std::int32_t>, 3> stages = {
        std::pair{"waiting_to_start", stats.num_kv_loads_to_start},
        std::pair{"in_progress", stats.num_kv_loads_in_progress},
        std::pair{"completed_waiting", stats.num_kv_loads_waiting}};
    if (kv_loads[0] == nullptr) {
      if (std::none_of(stages.begin(), stages.end(), [](auto& stage) { return stage.second > 0; }))
        return;
      for (std::size_t i = 0; i < stages.size(); ++i) {
        kv_loads[i] = &registry.gauge(prefix + "num_requests_kv_fetch_by_stage",
                                      "Requests whose KV is loaded, by state.",
                                      with("stage", stages[i].first));
      }
    }
    for (std::size_t i = 0; i < stages.size(); ++i) kv_loads[i]->set(stages[i].second);
  }

  /// Exported once a sampled block has been evicted.
  void observe_evictions(const std::vector<BlockResidency>& evicted) {
    if (evicted.empty()) return;
    if (block_lifetime == nullptr) {
      block_lifetime = &registry.histogram(
          prefix + "kv_block_lifetime_seconds",
          "Time from the allocation of a KV cache block to its next allocation.", labels,
          kBlockTimeBounds);
      block_idle = &registry.histogram(
          prefix + "kv_block_idle_before_evict_seconds",
          "Time from the last use of a KV cache block to its eviction.", labels, kBlockTimeBounds);
      block_reuse_gap = &registry.histogram(prefix + "kv_block_reuse_gap_seconds",
                                            "Time between two hits of a KV cache block.", labels,
                                            kBlockTimeBounds);
    }
    for (const BlockResidency& block : evicted) {
      block_lifetime->observe(block.lifetime_s);
      block_idle->observe(block.idle_s);
      for (const double gap : block.reuse_gaps_s) block_reuse_gap->observe(gap);
    }
  }

  /// Exported once something has been drafted.
  void observe_speculation(const SpecDecodingStats& stats) {
    if (stats.num_requests == 0) return;
    if (drafts == nullptr) {
      drafts = &registry.counter(prefix + "spec_decode_num_drafts", "Drafts.", labels);
      draft_tokens =
          &registry.counter(prefix + "spec_decode_num_draft_tokens", "Tokens drafted.", labels);
      accepted_tokens = &registry.counter(prefix + "spec_decode_num_accepted_tokens",
                                          "Drafted tokens that were accepted.", labels);
    }
    drafts->add(stats.num_requests);
    draft_tokens->add(stats.num_draft_tokens);
    accepted_tokens->add(stats.num_accepted_tokens);
    for (std::size_t i = 0; i < stats.num_accepted_per_position.size(); ++i) {
      if (i == accepted_at.size()) {
        accepted_at.push_back(&registry.counter(prefix + "spec_decode_num_accepted_tokens_per_pos",
                                                "Accepted tokens by position in the draft.",
                                                with("position", std::to_string(i))));
      }
      accepted_at[i]->add(stats.num_accepted_per_position[i]);
    }
  }

  /// vLLM's lora_requests_info: the names are labels, the value is the time. Only the last one is
  /// exported, once there is an adapter.
  void observe_adapters(const SchedulerStats& stats, std::int32_t max_adapters) {
    const auto joined = [](const std::vector<std::string>& names) {
      std::string text;
      for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
      return text;
    };
    const std::string running_names = joined(stats.running_adapters);
    const std::string waiting_names = joined(stats.waiting_adapters);
    if (adapters == nullptr && running_names.empty() && waiting_names.empty()) return;
    if (adapters == nullptr || running_names != running_adapters ||
        waiting_names != waiting_adapters) {
      if (adapters != nullptr) registry.remove(*adapters);
      Labels own = with("max_lora", std::to_string(max_adapters));
      own.emplace_back("waiting_lora_adapters", waiting_names);
      own.emplace_back("running_lora_adapters", running_names);
      adapters = &registry.gauge(prefix + "lora_requests_info",
                                 "Adapters of running and waiting requests.", own);
      running_adapters = running_names;
      waiting_adapters = waiting_names;
    }
    adapters->set(wall_seconds());
  }

  /// Exported once an EC connector has been asked for something.
  void observe_encoder_transfer(const EncoderTransferStats& stats) {
    const std::array<std::tuple<const char*, const char*, std::int32_t>, 5> counts = {
        std::tuple{"queries", "Items looked up by the EC connector.", stats.num_queries},
        std::tuple{"hits", "Items whose encoder output the EC connector has.", stats.num_hits},
        std::tuple{"failures", "Encoder outputs that could not be loaded.", stats.num_failed},
        std::tuple{"saves", "Encoder outputs saved by the EC connector.", stats.num_saved},
        std::tuple{"fetches", "Encoder outputs fetched over a network before a step needed them.",
                   stats.num_fetched}};
    if (stats == EncoderTransferStats{}) return;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto& [name, help, count] = counts[i];
      if (encoder_transfers[i] == nullptr)
        encoder_transfers[i] =
            &registry.counter("troupe:encoder_transfer_" + std::string(name), help, labels);
      encoder_transfers[i]->add(count);
    }
  }

  Registry& registry;
  const Labels labels;
  const std::string prefix = "vllm:";
  std::array<Metric*, 5> encoder_transfers{};
  std::array<Metric*, 3> kv_loads{};
  Metric* adapters = nullptr;
  std::string running_adapters, waiting_adapters;  ///< labels of `adapters`
  Metric *drafts = nullptr, *draft_tokens = nullptr, *accepted_tokens = nullptr;
  std::vector<Metric*> accepted_at;
  Metric *running, *waiting, *waiting_capacity, *waiting_deferred, *kv_cache_usage, *pinned_blocks;
  Metric *prefix_queries, *prefix_hits, *external_prefix_queries, *external_prefix_hits;
  Metric *mm_queries, *mm_hits, *encoder_queries, *encoder_hits;
  Metric* preemptions;
  Metric *prompt_tokens, *generation_tokens, *prompt_tokens_cached;
  Metric *prompt_computed, *prompt_local_hit, *prompt_external;
  std::array<Metric*, kNumReasons> success;
  Histogram *request_prompt_tokens, *request_generation_tokens, *request_max_generation_tokens;
  Histogram *request_max_tokens, *request_computed_tokens, *iteration_tokens, *request_n;
  Histogram *request_preemptions, *first_token, *inter_token, *time_per_token, *e2e, *queue_time;
  Histogram *inference_time, *prefill_time, *decode_time;
  Histogram *block_lifetime = nullptr, *block_idle = nullptr, *block_reuse_gap = nullptr;
};

EngineMetrics::EngineMetrics(const std::string& model_name, std::int32_t max_model_len,
                             std::uint32_t num_engines) {
  for (std::uint32_t i = 0; i < num_engines; ++i) {
    engines_.push_back(std::make_unique<Engine>(registry_, model_name, max_model_len, i));
  }
  rejections_ = &registry_.counter("vllm:admission_rejections",
                                   "Requests rejected because the queue is full.",
                                   {{"model_name", model_name}, {"reason", "max_num_queued_reqs"}});
  resubmissions_ =
      &registry_.counter("troupe:request_resubmissions", "Requests resubmitted to another engine.",
                         {{"model_name", model_name}});
}

EngineMetrics::~EngineMetrics() = default;

void EngineMetrics::set_cache_config(std::uint32_t engine, Labels fields) {
  fields.emplace_back("engine", std::to_string(engine));
  std::sort(fields.begin(), fields.end());
  registry_.gauge("vllm:cache_config_info", "Information of the cache config.", fields).set(1);
}

EngineMetrics::Engine& EngineMetrics::at(std::uint32_t engine) {
  CHECK(engine < engines_.size(), engine, engines_.size());
  return *engines_[engine];
}

std::uint32_t EngineMetrics::num_engines() const noexcept {
  return static_cast<std::uint32_t>(engines_.size());
}

void EngineMetrics::observe_step(const IterationStats& stats) {
  if (!stats.scheduler) return;
  Engine& engine = at(stats.engine_index);
  const SchedulerStats& scheduler = *stats.scheduler;
  engine.show_load(scheduler);
  engine.prefix_queries->add(static_cast<double>(scheduler.prefix_cache.queries));
  engine.prefix_hits->add(static_cast<double>(scheduler.prefix_cache.hits));
  engine.external_prefix_queries->add(
      static_cast<double>(scheduler.connector_prefix_cache.queries));
  engine.external_prefix_hits->add(static_cast<double>(scheduler.connector_prefix_cache.hits));
  engine.encoder_queries->add(static_cast<double>(scheduler.encoder_cache.queries));
  engine.encoder_hits->add(static_cast<double>(scheduler.encoder_cache.hits));
  engine.observe_kv_loads(scheduler);
  engine.observe_encoder_transfer(scheduler.encoder_transfer);
  engine.observe_speculation(scheduler.spec_decoding);
  engine.observe_adapters(scheduler, max_adapters_);
  engine.observe_evictions(scheduler.evicted_blocks);
  engine.preemptions->add(stats.num_preemptions);
  engine.prompt_tokens->add(stats.num_prompt_tokens);
  engine.generation_tokens->add(stats.num_generation_tokens);
  engine.iteration_tokens->observe(stats.num_prompt_tokens + stats.num_generation_tokens);
  for (const double seconds : stats.inter_token_latencies) engine.inter_token->observe(seconds);
}

void EngineMetrics::observe_loss(std::uint32_t engine) { at(engine).show_load({}); }

void EngineMetrics::observe_prefill(std::uint32_t index, const PrefillStats& prefill) {
  Engine& engine = at(index);
  engine.prompt_tokens_cached->add(prefill.num_cached_tokens);
  engine.prompt_computed->add(prefill.num_computed_tokens);
  engine.prompt_local_hit->add(prefill.num_local_cached_tokens);
  // Of the external ones those that were not computed: blended ones were.
  engine.prompt_external->add(prefill.num_cached_tokens - prefill.num_local_cached_tokens);
  engine.mm_queries->add(prefill.num_mm_queries);
  engine.mm_hits->add(prefill.num_mm_hits);
}

void EngineMetrics::observe_first_token(std::uint32_t engine, double seconds_since_arrival) {
  at(engine).first_token->observe(seconds_since_arrival);
}

void EngineMetrics::observe_finished(std::uint32_t index, const FinishedSample& sample) {
  Engine& engine = at(index);
  const RequestTimes& times = sample.times;
  engine.success[static_cast<std::size_t>(sample.reason)]->add();
  engine.e2e->observe(sample.e2e_seconds);
  // A request that timed out has not reached all of these.
  if (times.scheduled >= times.queued) engine.queue_time->observe(times.scheduled - times.queued);
  if (times.first_token >= times.scheduled) {
    engine.prefill_time->observe(times.first_token - times.scheduled);
    engine.decode_time->observe(times.last_token - times.first_token);
    engine.inference_time->observe(times.last_token - times.scheduled);
  }
  const std::int32_t num_timed_tokens = times.num_generation_tokens - times.num_earlier_tokens;
  if (num_timed_tokens > 1) {
    engine.time_per_token->observe((times.last_token - times.first_token) / (num_timed_tokens - 1));
  }
  engine.request_prompt_tokens->observe(sample.num_prompt_tokens);
  engine.request_computed_tokens->observe(sample.num_prompt_tokens - sample.num_cached_tokens);
  engine.request_generation_tokens->observe(times.num_generation_tokens);
  engine.request_preemptions->observe(times.num_preemptions);
  if (sample.max_tokens) engine.request_max_tokens->observe(*sample.max_tokens);
}

void EngineMetrics::observe_request(std::uint32_t index, std::int32_t n,
                                    std::int32_t max_generation_tokens) {
  at(index).request_n->observe(n);
  at(index).request_max_generation_tokens->observe(max_generation_tokens);
}

void EngineMetrics::observe_rejection() { rejections_->add(); }

void EngineMetrics::observe_resubmissions(std::size_t count) {
  resubmissions_->add(static_cast<double>(count));
}

EngineTotals EngineMetrics::totals(std::uint32_t index) const {
  CHECK(index < engines_.size(), index);
  const Engine& engine = *engines_[index];
  return {.prompt_tokens = engine.prompt_tokens->value(),
          .generation_tokens = engine.generation_tokens->value(),
          .prefix_queries = engine.prefix_queries->value(),
          .prefix_hits = engine.prefix_hits->value(),
          .preemptions = engine.preemptions->value(),
          .running = engine.running->value(),
          .waiting = engine.waiting->value(),
          .kv_cache_usage = engine.kv_cache_usage->value()};
}

std::string format_stats_line(std::uint32_t engine, const EngineTotals& before,
                              const EngineTotals& after, double seconds) {
  CHECK(seconds > 0, seconds);
  const double queries = after.prefix_queries - before.prefix_queries;
  const double hits = after.prefix_hits - before.prefix_hits;
  char line[320];
  const int length = std::snprintf(
      line, sizeof line,
      "engine stats engine=%u prompt_tokens_per_s=%.1f generation_tokens_per_s=%.1f running=%.0f "
      "waiting=%.0f preemptions=%.0f kv_cache_usage_percent=%.1f prefix_hit_percent=%.1f",
      engine, (after.prompt_tokens - before.prompt_tokens) / seconds,
      (after.generation_tokens - before.generation_tokens) / seconds, after.running, after.waiting,
      after.preemptions - before.preemptions, 100 * after.kv_cache_usage,
      queries > 0 ? 100 * hits / queries : 0.0);
  return std::string(line, static_cast<std::size_t>(length) < sizeof line
                               ? static_cast<std::size_t>(length)
                               : sizeof line - 1);
}

}  // namespace troupe
