#include "runtime/scheduler/decision_log.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

/// Names sort as the ids do.
std::string logged_name(RequestId id) {
  char text[32];
  std::snprintf(text, sizeof(text), "r%020llu", static_cast<unsigned long long>(value(id)));
  return text;
}

json group_json(const KVCacheGroup& group) {
  const KVCacheSpec& spec = group.spec;
  json result = {{"kind", "full"}, {"block_size", spec.block_size}};
  if (group.eagle) result["eagle"] = true;
  if (const AttentionWindow* window = spec.window()) {
    result["kind"] = "sliding_window";
    result["sliding_window"] = window->num_tokens;
    result["extra_retained_tokens"] = window->extra_retained_tokens;
  } else if (const auto* chunked = std::get_if<ChunkedLocalAttentionSpec>(&spec.kind)) {
    result["kind"] = "chunked_local";
    result["attention_chunk_size"] = chunked->chunk_size;
  } else if (const auto* states = std::get_if<MambaSpec>(&spec.kind)) {
    result["kind"] = "mamba";
    result["mode"] = states->mode == MambaMode::kAlign ? "align" : "none";
    result["num_speculative_blocks"] = states->num_speculative_blocks;
    result["num_prefill_checkpoint_blocks"] = states->num_prefill_checkpoint_blocks;
    if (states->prefill_checkpoint_alignment != 0)
      result["prefill_checkpoint_alignment"] = states->prefill_checkpoint_alignment;
  } else if (spec.is<CrossAttentionSpec>()) {
    result["kind"] = "cross";
  }
  return result;
}

json optional_json(const std::optional<std::int32_t>& number) {
  return number ? json(*number) : json();
}

json config_json(const SchedulerConfig& config, const KVCacheSettings& caches,
                 const EncoderCacheSettings* encoder_cache) {
  json cfg = {{"groups", json::array()},
              {"num_blocks", caches.num_blocks},
              {"max_model_len", config.max_model_len},
              {"max_num_seqs", config.max_num_seqs},
              {"max_num_active_seqs", config.max_num_active_seqs},
              {"max_num_batched_tokens", config.max_num_batched_tokens},
              {"max_num_scheduled_tokens", config.max_num_scheduled_tokens},
              {"prefix_caching", caches.prefix_caching},
              {"retention_interval", optional_json(caches.retention_interval)},
              {"prefix_match_unit", optional_json(caches.prefix_match_unit)},
              {"enable_chunked_prefill", config.enable_chunked_prefill},
              {"long_prefill_token_threshold", config.long_prefill_token_threshold},
              {"long_prefill_adaptive", config.long_prefill_adaptive},
              {"policy", config.policy == SchedulingPolicy::kPriority ? "priority" : "fcfs"},
              {"reserve_full_isl", config.reserve_full_sequence},
              {"watermark", caches.watermark},
              {"async_scheduling", config.async_scheduling},
              {"pp", config.pipeline_parallel_size},
              {"v2_runner", config.stagger_decodes},
              {"include_finished_set", config.include_finished_requests},
              {"hash", {{"none_seed", caches.hash_seed}, {"hex_chars", 16}}}};
  for (const KVCacheGroup& group : caches.groups) cfg["groups"].push_back(group_json(group));
  if (config.speculative.num_draft_tokens > 0)
    cfg["spec"]["k"] = config.speculative.num_draft_tokens;
  if (config.max_loras > 0)
    cfg["lora"] = {{"max_loras", config.max_loras}, {"max_bypasses", config.max_lora_bypasses}};
  if (config.pooling) cfg["runner"] = "pooling";
  if (encoder_cache != nullptr) {
    cfg["mm"] = {{"compute_budget", config.max_encoder_embeds},
                 {"cache_size", encoder_cache->capacity},
                 {"whole_runs", encoder_cache->whole_runs},
                 {"manager", encoder_cache->manager}};
    cfg["disable_chunked_mm_input"] = !encoder_cache->split_items;
    cfg["encoder_decoder"] = config.encoder_decoder;
  }
  return cfg;
}

json derived_json(const SchedulerConfig& config, const KVCacheSettings& caches) {
  const SpeculativeConfig& drafts = config.speculative;
  return {
      {"scheduler_block_size", caches.scheduler_block_size()},
      {"hash_block_size", caches.hash_block_size()},
      {"partial_hash_hits", caches.partial_hash_hits()},
      {"max_in_flight_tokens", caches.max_in_flight_tokens},
      {"max_concurrent_batches", config.max_concurrent_batches()},
      {"num_spec_tokens", drafts.num_draft_tokens},
      {"num_lookahead_tokens", drafts.num_lookahead_tokens},
      {"num_prefill_lookahead", drafts.num_prefill_lookahead},
      {"draft_slots", drafts.draft_slots},
      {"eagle_block_drop", caches.eagle_block_drop},
      {"dynamic_sd_lookup", drafts.dynamic_lookup.empty() ? json() : json(drafts.dynamic_lookup)},
      {"needs_zeroing", config.has_block_ops},
      {"defer_block_free", false}};
}

json item_json(const MultiModalFeature& item) {
  json result = {{"hash", item.identifier}, {"offset", item.offset}, {"length", item.length}};
  if (item.is_embed.empty()) return result;
  std::string mask;
  for (const std::uint8_t is_embed : item.is_embed) mask += is_embed != 0 ? '1' : '0';
  result["mask"] = mask;
  return result;
}

json request_json(const EngineCoreRequest& request, std::int32_t max_model_len) {
  const SamplingParams& params = request.params;
  json result = {{"id", logged_name(request.id)},
                 {"prompt", request.prompt_token_ids},
                 {"max_tokens", params.max_tokens.value_or(max_model_len)},
                 {"arrival", request.arrival_time},
                 {"priority", request.priority},
                 {"client", request.client_index},
                 {"stop_token_ids", params.stop_token_ids},
                 {"min_tokens", params.min_tokens},
                 {"skip_reading_prefix_cache", params.skip_reading_prefix_cache},
                 {"pooling", request.pooling},
                 {"resumable", request.resumable},
                 {"structured", params.structured_outputs.has_value()}};
  if (!request.output_token_ids.empty()) result["outputs"] = request.output_token_ids;
  if (params.eos_token_id) result["eos_token_id"] = *params.eos_token_id;
  if (const auto& rule = params.repetition_detection)
    result["repetition"] = {rule->max_pattern_size, rule->min_pattern_size, rule->min_count};
  if (!request.cache_salt.empty()) result["salt"] = request.cache_salt;
  if (!request.session_id.empty()) result["session"] = request.session_id;
  if (const auto& lora = request.lora)
    result["lora"] = {{"name", lora->name}, {"id", lora->int_id}, {"path", lora->path}};
  for (const MultiModalFeature& item : request.mm_features) result["mm"].push_back(item_json(item));
  return result;
}

json sorted_names(std::span<const RequestId> ids, const RequestName& name) {
  std::vector<std::string> names;
  for (const RequestId id : ids) names.push_back(name(id));
  std::ranges::sort(names);
  return names;
}

json prefix_stats_json(const PrefixCacheStats& stats) {
  return {stats.requests,          stats.queries,        stats.hits, stats.preempted_requests,
          stats.preempted_queries, stats.preempted_hits, stats.reset};
}

}  // namespace

json drafts_json(const SchedulerOutput& step, const RequestName& name) {
  json drafts = json::object();
  auto next = step.draft_token_ids.begin();
  for (std::size_t i = 0; i < step.num_draft_tokens.size(); ++i) {
    const auto begin = next;
    next += step.num_draft_tokens[i];
    if (begin != next) drafts[name(step.scheduled_ids[i])] = std::vector<TokenId>(begin, next);
  }
  return drafts;
}

json plan_json(const SchedulerOutput& step, std::size_t num_groups, bool sends_resumed_as_new,
               const RequestName& name) {
  json out = {{"num", json::array()},
              {"spec", drafts_json(step, name)},
              {"total", step.total_num_scheduled_tokens},
              {"finished", sorted_names(step.finished_ids, name)},
              {"preempted", sorted_names(step.preempted_ids, name)},
              {"new", json::array()},
              {"cached", json::array()},
              {"sync_loads", step.has_sync_kv_loads},
              {"structured", step.has_structured_output_requests},
              {"pending_structured", step.pending_structured_output_tokens},
              {"free_mm", step.free_encoder_identifiers},
              {"zero", step.blocks_to_zero},
              {"copies", step.block_copies}};
  for (std::size_t i = 0; i < step.scheduled_ids.size(); ++i)
    out["num"].push_back({name(step.scheduled_ids[i]), step.num_scheduled_tokens[i]});
  const CachedRequestData& cached = step.cached_requests;
  std::size_t next_block = 0;
  for (std::size_t i = 0; i < cached.ids.size(); ++i) {
    json entry = {{"id", name(cached.ids[i])},
                  {"resumed", false},
                  {"computed", cached.num_computed_tokens[i]},
                  {"nout", cached.num_output_tokens[i]}};
    BlockTable blocks(num_groups);
    bool any = false;
    for (std::size_t g = 0; g < num_groups && !cached.new_block_counts.empty(); ++g) {
      for (std::int32_t n = 0; n < cached.new_block_counts[i * num_groups + g]; ++n) {
        blocks[g].push_back(cached.new_block_ids[next_block++]);
        any = true;
      }
    }
    if (any) entry["blocks"] = blocks;
    out["cached"].push_back(std::move(entry));
  }
  const std::size_t num_first_timers =
      step.new_requests.size() - static_cast<std::size_t>(step.num_resumed_requests);
  for (std::size_t i = 0; i < step.new_requests.size(); ++i) {
    const NewRequestData& data = step.new_requests[i];
    json entry = {
        {"id", name(data.id)}, {"blocks", data.block_ids}, {"computed", data.num_computed_tokens}};
    if (i < num_first_timers || sends_resumed_as_new) {
      if (sends_resumed_as_new) entry["prefill_len"] = data.token_ids.size();
      out["new"].push_back(std::move(entry));
    } else {
      entry["resumed"] = true;
      entry["nout"] = static_cast<std::int32_t>(data.token_ids.size()) - data.num_prompt_tokens;
      out["cached"].push_back(std::move(entry));
    }
  }
  for (const auto& [id, item] : step.scheduled_encoder_inputs) out["enc"][name(id)].push_back(item);
  return out;
}

json outputs_json(const EngineCoreOutputs& outputs, const RequestName& name) {
  json out = {{"outs", json::array()}};
  for (const EngineCoreOutput& output : outputs.outputs) {
    json entry = {
        {"id", name(output.id)}, {"toks", output.new_token_ids}, {"client", output.client_index}};
    if (output.finish_reason) entry["fin"] = to_string(*output.finish_reason);
    if (const auto* token = std::get_if<TokenId>(&output.stop_reason))
      entry["stop_reason"] = *token;
    if (const auto* text = std::get_if<std::string>(&output.stop_reason))
      entry["stop_reason"] = *text;
    if (output.pooling_output) entry["pooled"] = true;
    if (!output.kv_transfer_params.empty())
      entry["kv_params"] = json::parse(output.kv_transfer_params);
    if (const auto& stats = output.prefill_stats)
      entry["prefill"] = {stats->num_prompt_tokens,          stats->num_computed_tokens,
                          stats->num_cached_tokens,          stats->num_local_cached_tokens,
                          stats->num_external_cached_tokens, stats->num_cache_creation_tokens};
    out["outs"].push_back(std::move(entry));
  }
  for (const auto& [client, id] : outputs.finished_requests)
    out["finished"][std::to_string(client)].push_back(name(id));
  if (out.contains("finished"))
    for (json& names : out["finished"]) std::sort(names.begin(), names.end());
  if (!outputs.stats) return out;
  const SchedulerStats& stats = *outputs.stats;
  out["stats"] = {{"running", stats.num_running_reqs},
                  {"waiting", stats.num_waiting_reqs},
                  {"skipped", stats.num_deferred_reqs}};
  if (stats.prefix_cache != PrefixCacheStats{})
    out["stats"]["prefix"] = prefix_stats_json(stats.prefix_cache);
  if (stats.connector_prefix_cache != PrefixCacheStats{})
    out["stats"]["ext_prefix"] = prefix_stats_json(stats.connector_prefix_cache);
  const SpecDecodingStats& spec = stats.spec_decoding;
  if (spec.num_requests > 0)
    out["stats"]["spec"] = {spec.num_requests, spec.num_draft_tokens, spec.num_accepted_tokens,
                            spec.num_accepted_per_position, spec.num_drafted_per_position};
  return out;
}

Result<std::shared_ptr<DecisionLog>> DecisionLog::open(const std::filesystem::path& file,
                                                       const SchedulerConfig& config,
                                                       const KVCacheSettings& caches,
                                                       const EncoderCacheSettings* encoder_cache) {
  constexpr const char* kOption = "dev-scheduler-log";
  const auto refuse = [&](const std::string& what) {
    return invalid_argument(std::string(kOption) + ": decisions cannot be replayed with " + what,
                            kOption);
  };
  if (config.policy == SchedulingPolicy::kFair) return refuse("scheduling-policy fair");
  if (config.max_queue_bypasses > 0) return refuse("max-queue-bypasses");
  if (config.priority_preemption) return refuse("enable-priority-preemption");
  if (config.preemption_victim != PreemptionVictim::kLast) return refuse("preemption-victim");
  if (config.session_ttl_s > 0) return refuse("session-ttl-s");
  if (config.speculative.adaptive) return refuse("a speculative-config that adapts");
  if (config.max_proposed_tokens > 0) return refuse("enable-jump-forward");
  if (config.encode_ahead) return refuse("encoder-step-ms other than 0");
  if (caches.kv_connector) return refuse("a kv-transfer-config");
  // A restarted engine goes on with another trace.
  const auto mode = config.incarnation > 1 ? std::ios::app : std::ios::trunc;
  std::ofstream stream(file, std::ios::out | mode);
  if (!stream) return Error{ErrorCode::kIo, file.string() + " cannot be written", kOption};
  std::shared_ptr<DecisionLog> log(
      new DecisionLog(std::move(stream), config, caches.groups.size()));
  const json header = {{"family", "engine"},
                       {"format", 1},
                       {"cfg", config_json(config, caches, encoder_cache)},
                       {"derived", derived_json(config, caches)}};
  // Readers find a trace's begin by its first key.
  log->file_ << "{\"trace\":\"engine/" << config.incarnation << "\"," << header.dump().substr(1)
             << '\n'
             << std::flush;
  return log;
}

void DecisionLog::write(const json& operation, const json& result) {
  file_ << json{{"op", operation}, {"out", result}}.dump() << '\n' << std::flush;
}

void DecisionLog::on_added(const EngineCoreRequest& request) {
  write({{"op", "add"}, {"req", request_json(request, max_model_len_)}}, json::object());
}

void DecisionLog::on_planned(const SchedulerOutput& step, bool is_sent) {
  json operation = {{"op", "sched"}, {"k", step.step}};
  if (!is_sent) operation["dropped"] = true;
  json plan = plan_json(step, num_groups_, sends_resumed_as_new_, logged_name);
  if (has_drafts_) plan["next_k"] = step.num_drafts_to_make;
  write(operation, plan);
}

void DecisionLog::on_result(const ModelRunnerOutput& result, const EngineCoreOutputs& outputs) {
  json operation = {{"op", "update"}, {"k", result.step}, {"toks", json::array()}};
  auto next = result.sampled_token_ids.begin();
  for (std::size_t i = 0; i < result.ids.size(); ++i) {
    const auto begin = next;
    next += result.num_sampled[i];
    operation["toks"].push_back({logged_name(result.ids[i]), std::vector<TokenId>(begin, next)});
  }
  for (const auto& [id, vector] : result.pooling_outputs)
    operation["pooled"].push_back(logged_name(id));
  write(operation, outputs_json(outputs, logged_name));
}

void DecisionLog::on_drafts(std::span<const std::pair<RequestId, std::vector<TokenId>>> drafts) {
  if (drafts.empty()) return;
  json operation = {{"op", "drafts"}, {"d", json::array()}};
  for (const auto& [id, tokens] : drafts) operation["d"].push_back({logged_name(id), tokens});
  write(operation, json::object());
}

void DecisionLog::on_aborted(std::span<const RequestId> ids, std::span<const RequestId> done) {
  for (const RequestId id : ids) {
    json result = {{"done", json::array()}};
    if (std::ranges::find(done, id) != done.end()) result["done"].push_back(logged_name(id));
    write({{"op", "finish"}, {"id", logged_name(id)}, {"status", "FINISHED_ABORTED"}}, result);
  }
}

void DecisionLog::on_other(std::string_view what) { write({{"op", what}}, json::object()); }

}  // namespace troupe
