#include "tests/support/trace_format.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "runtime/base/check.hpp"
#include "runtime/base/hash.hpp"

namespace troupe {

using nlohmann::json;

TraceIds::TraceIds(const std::vector<json>& trace) {
  std::set<std::string> sorted;
  for (const json& line : trace)
    if (line.contains("op") && line["op"].contains("req"))
      sorted.insert(line["op"]["req"]["id"].get<std::string>());
  names_.emplace_back();
  for (const std::string& name : sorted) {
    numbers_[name] = RequestId{names_.size()};
    names_.push_back(name);
  }
}

RequestId TraceIds::number(const std::string& name) const {
  const auto known = numbers_.find(name);
  return known == numbers_.end() ? RequestId{names_.size()} : known->second;
}

json TraceIds::sorted_names(std::span<const RequestId> ids) const {
  std::vector<std::string> names;
  for (const RequestId id : ids) names.push_back(name(id));
  std::sort(names.begin(), names.end());
  return names;
}

EngineCoreRequest request_from_json(const json& request, RequestId id) {
  EngineCoreRequest result;
  result.id = id;
  result.external_id = request["id"];
  result.client_index = request.value("client", 0u);
  result.prompt_token_ids = request["prompt"].get<std::vector<TokenId>>();
  result.arrival_time = request["arrival"];
  result.priority = request.value("priority", 0);
  result.pooling = request.value("pooling", false);
  result.resumable = request.value("resumable", false);
  result.report_all_cache_hits =
      request.value("kv_cache_report_mode", std::string("incremental")) == "full";
  if (request.contains("salt") && !request["salt"].is_null()) result.cache_salt = request["salt"];
  if (request.contains("session") && !request["session"].is_null())
    result.session_id = request["session"];
  if (request.contains("lora") && !request["lora"].is_null()) {
    const json& lora = request["lora"];
    result.lora = LoraRequest{lora["name"], lora["id"], lora["path"]};
  }
  if (request.contains("outputs"))
    result.output_token_ids = request["outputs"].get<std::vector<TokenId>>();
  SamplingParams& params = result.params;
  params.max_tokens = request["max_tokens"].get<std::int32_t>();
  if (request.contains("eos_token_id") && !request["eos_token_id"].is_null())
    params.eos_token_id = request["eos_token_id"].get<TokenId>();
  params.stop_token_ids = request.value("stop_token_ids", std::vector<TokenId>());
  params.min_tokens = request.value("min_tokens", 0);
  params.skip_reading_prefix_cache = request.value("skip_reading_prefix_cache", false);
  if (request.contains("repetition") && !request["repetition"].is_null()) {
    const json& rule = request["repetition"];
    params.repetition_detection = RepetitionDetection{rule[0], rule[1], rule[2]};
  }
  if (request.value("structured", false)) params.structured_outputs.emplace();
  for (const json& item : request.value("mm", json::array())) {
    MultiModalFeature& feature = result.mm_features.emplace_back();
    feature.identifier = item["hash"];
    feature.offset = item["offset"];
    feature.length = item["length"];
    if (item.contains("mask") && !item["mask"].is_null())
      for (const char c : item["mask"].get<std::string>()) feature.is_embed.push_back(c == '1');
  }
  return result;
}

KVCacheRequest cache_request_of(const EngineCoreRequest& request) {
  return {.id = request.id,
          .token_ids = request.prompt_token_ids,
          .num_prompt_tokens = static_cast<std::int32_t>(request.prompt_token_ids.size()),
          .mm_features = request.mm_features,
          .lora = request.lora,
          .cache_salt = request.cache_salt,
          .skip_reading_prefix_cache = request.params.skip_reading_prefix_cache,
          .report_all_hits = request.report_all_cache_hits,
          .session_id = request.session_id};
}

std::vector<KVCacheGroup> groups_from_json(const json& groups) {
  std::vector<KVCacheGroup> result;
  for (const json& group : groups) {
    KVCacheGroup& added = result.emplace_back();
    KVCacheSpec& spec = added.spec;
    const std::string kind = group["kind"];
    spec.block_size = group["block_size"];
    if (kind == "sliding_window") {
      spec.kind = SlidingWindowSpec{
          .window = {.num_tokens = group["sliding_window"],
                     .extra_retained_tokens = group.value("extra_retained_tokens", 0)}};
    } else if (kind == "chunked_local") {
      spec.kind = ChunkedLocalAttentionSpec{.chunk_size = group["attention_chunk_size"]};
    } else if (kind == "mamba") {
      MambaSpec states{
          .mode = group["mode"] == "align" ? MambaMode::kAlign : MambaMode::kNone,
          .num_speculative_blocks = group.value("num_speculative_blocks", 0),
          .num_prefill_checkpoint_blocks = group.value("num_prefill_checkpoint_blocks", 0)};
      if (group.contains("prefill_checkpoint_alignment") &&
          !group["prefill_checkpoint_alignment"].is_null())
        states.prefill_checkpoint_alignment = group["prefill_checkpoint_alignment"];
      spec.kind = states;
    } else if (kind == "cross") {
      spec.kind = CrossAttentionSpec{};
    } else {
      CHECK(kind == "full", kind);
    }
    added.eagle = group.value("eagle", false);
  }
  return result;
}

KVCacheSettings cache_settings_from_json(const json& cfg, const json& derived) {
  KVCacheSettings settings;
  settings.groups = groups_from_json(cfg["groups"]);
  settings.num_blocks = cfg["num_blocks"];
  settings.max_model_len = cfg["max_model_len"];
  settings.max_in_flight_tokens = cfg.contains("max_in_flight_tokens")
                                      ? cfg["max_in_flight_tokens"].get<std::int32_t>()
                                      : derived["max_in_flight_tokens"].get<std::int32_t>();
  settings.prefix_caching = cfg["prefix_caching"];
  settings.retention_interval.reset();
  if (cfg.contains("retention_interval") && !cfg["retention_interval"].is_null())
    settings.retention_interval = cfg["retention_interval"].get<std::int32_t>();
  if (cfg.contains("prefix_match_unit") && !cfg["prefix_match_unit"].is_null())
    settings.prefix_match_unit = cfg["prefix_match_unit"].get<std::int32_t>();
  settings.watermark = cfg.value("watermark", 0.0);
  settings.eagle_block_drop = cfg.contains("use_eagle") ? cfg["use_eagle"].get<bool>()
                                                        : derived.value("eagle_block_drop", false);
  settings.num_prefill_lookahead = cfg.contains("num_prefill_lookahead")
                                       ? cfg["num_prefill_lookahead"].get<std::int32_t>()
                                       : derived.value("num_prefill_lookahead", 0);
  settings.mamba_shared_prefix_checkpoint = cfg.value("mamba_shared_prefix_checkpoint", false);
  settings.kv_connector = cfg.contains("connector") && !cfg["connector"].is_null();
  settings.events = cfg.value("kv_events", false);
  settings.hash_seed = cfg["hash"]["none_seed"];
  CHECK(settings.scheduler_block_size() == derived["scheduler_block_size"].get<std::int32_t>());
  CHECK(settings.hash_block_size() == derived["hash_block_size"].get<std::int32_t>());
  CHECK(settings.partial_hash_hits() == derived["partial_hash_hits"].get<bool>());
  return settings;
}

namespace {
bool has(const json& object, const char* key) {
  return object.contains(key) && !object[key].is_null();
}
}  // namespace

SchedulerConfig scheduler_config_from_json(const json& cfg, const json& derived) {
  SchedulerConfig config;
  config.max_model_len = cfg["max_model_len"];
  config.num_blocks = cfg["num_blocks"];
  config.max_num_seqs = cfg["max_num_seqs"];
  config.max_num_active_seqs = cfg.value("max_num_active_seqs", 0);
  config.max_num_batched_tokens = cfg["max_num_batched_tokens"];
  config.max_num_scheduled_tokens = cfg.value("max_num_scheduled_tokens", 0);
  config.enable_chunked_prefill = cfg["enable_chunked_prefill"];
  config.long_prefill_token_threshold = cfg["long_prefill_token_threshold"];
  config.long_prefill_adaptive = cfg.value("long_prefill_adaptive", false);
  config.policy =
      cfg["policy"] == "priority" ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  config.reserve_full_sequence = cfg["reserve_full_isl"];
  config.prefix_caching = cfg["prefix_caching"];
  config.async_scheduling = cfg["async_scheduling"];
  config.pipeline_parallel_size = cfg["pp"];
  config.stagger_decodes = cfg["v2_runner"];
  config.pooling = cfg.value("runner", std::string()) == "pooling";
  config.speculative.num_draft_tokens = derived["num_spec_tokens"];
  config.speculative.num_lookahead_tokens = derived["num_lookahead_tokens"];
  config.speculative.num_prefill_lookahead = derived["num_prefill_lookahead"];
  config.speculative.draft_slots = derived["draft_slots"];
  if (!derived["dynamic_sd_lookup"].is_null())
    config.speculative.dynamic_lookup =
        derived["dynamic_sd_lookup"].get<std::vector<std::int32_t>>();
  if (has(cfg, "lora")) {
    config.max_loras = cfg["lora"]["max_loras"];
    config.max_lora_bypasses = cfg["lora"].value("max_bypasses", 0);  // vLLM has none
  }
  if (has(cfg, "mm")) config.max_encoder_embeds = cfg["mm"]["compute_budget"];
  config.include_finished_requests = cfg.value("include_finished_set", false);
  config.encoder_decoder = cfg.value("encoder_decoder", false);
  config.has_block_ops = derived["needs_zeroing"];
  if (has(cfg, "connector")) {
    const std::string role = cfg["connector"]["role"];
    config.kv_transfer = {
        .producer = role != "kv_consumer",
        .consumer = role != "kv_producer",
        .recompute_failed_loads = cfg["connector"]["failure_policy"] == "recompute",
        .block_size = derived["scheduler_block_size"]};
  }
  CHECK(config.max_concurrent_batches() == derived["max_concurrent_batches"].get<std::int32_t>());
  config.states = cache_settings_from_json(cfg, derived).state_positions();
  return config;
}

std::string hash_text(const BlockHash& hash, std::size_t hex_chars) {
  return to_hex(std::span(hash.bytes).first(hex_chars / 2));
}

namespace {
constexpr std::array<const char*, 13> kStatusNames = {"",
                                                      "WAITING",
                                                      "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",
                                                      "WAITING_FOR_REMOTE_KVS",
                                                      "WAITING_FOR_STREAMING_REQ",
                                                      "RUNNING",
                                                      "PREEMPTED",
                                                      "FINISHED_STOPPED",
                                                      "FINISHED_LENGTH_CAPPED",
                                                      "FINISHED_ABORTED",
                                                      "FINISHED_IGNORED",
                                                      "FINISHED_ERROR",
                                                      "FINISHED_REPETITION"};

std::string event_hash(const BlockHash& hash, const std::string& form) {
  const auto bytes = std::span(hash.bytes);
  return to_hex(form == "bytes" ? bytes : bytes.last(8));
}
}  // namespace

std::string status_name(RequestStatus status) {
  return kStatusNames.at(static_cast<std::size_t>(status));
}

RequestStatus status_from_name(const std::string& name) {
  const auto found = std::find(kStatusNames.begin(), kStatusNames.end(), name);
  CHECK(found != kStatusNames.end(), name);
  return static_cast<RequestStatus>(found - kStatusNames.begin());
}

json event_json(const KVCacheEvent& event, const std::string& event_hashes) {
  if (const auto* removed = std::get_if<BlockRemoved>(&event))
    return {{"ev", "removed"},
            {"hashes", {event_hash(removed->hash, event_hashes)}},
            {"medium", "GPU"},
            {"group", removed->group}};
  if (std::holds_alternative<AllBlocksCleared>(event)) return {{"ev", "cleared"}};
  const auto& stored = std::get<BlocksStored>(event);
  json result = {{"ev", "stored"},
                 {"hashes", json::array()},
                 {"tokens", stored.token_ids},
                 {"block_size", stored.block_size},
                 {"medium", "GPU"},
                 {"group", stored.group},
                 {"kind", stored.kind}};
  if (stored.parent) result["parent"] = event_hash(*stored.parent, event_hashes);
  if (stored.lora) {
    result["lora_id"] = stored.lora->int_id;
    result["lora_name"] = stored.lora->name;
  }
  if (stored.sliding_window > 0) result["window"] = stored.sliding_window;
  if (!stored.session_id.empty()) result["session"] = stored.session_id;
  for (const BlockHash& hash : stored.hashes)
    result["hashes"].push_back(event_hash(hash, event_hashes));
  for (const auto& keys : stored.extra_keys) {
    json list = json::array();
    for (const ExtraKey& key : keys) {
      if (const auto* text = std::get_if<std::string>(&key))
        list.push_back(*text);
      else
        list.push_back({std::get<1>(key).first, std::get<1>(key).second});
    }
    result["extra_keys"].push_back(keys.empty() ? json() : list);
  }
  return result;
}

std::string queue_digest(std::span<const BlockId> queue) {
  std::uint32_t digest = 0x811c9dc5;
  for (const BlockId block : queue)
    for (int shift = 0; shift < 32; shift += 8)
      digest = (digest ^ ((static_cast<std::uint32_t>(block) >> shift) & 0xff)) * 0x01000193u;
  const std::array<std::uint8_t, 4> bytes = {
      static_cast<std::uint8_t>(digest >> 24), static_cast<std::uint8_t>(digest >> 16),
      static_cast<std::uint8_t>(digest >> 8), static_cast<std::uint8_t>(digest)};
  return to_hex(bytes);
}

void add_pool_state(const BlockPool& pool, const json& expected, json& state) {
  const std::vector<BlockId> queue = pool.free_queue();
  CHECK(queue.size() == static_cast<std::size_t>(pool.num_free_blocks()), queue.size());
  state["free"] = pool.num_free_blocks();
  state["fq"] = queue_digest(queue);
  if (expected.contains("fql")) state["fql"] = queue;
  state["cached"] = pool.prefix_map().num_keys();
}

}  // namespace troupe
