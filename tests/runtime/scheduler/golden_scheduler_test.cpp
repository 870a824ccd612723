// Twenty-four small recordings of the reference scheduler, each about one rule, with the whole
// state after every operation.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <deque>
#include <fstream>
#include <map>

#include "runtime/base/json.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "tests/support/local_ports.hpp"
#include "tests/support/trace_format.hpp"
#include "tests/support/trace_replay.hpp"

namespace troupe {
namespace {

using nlohmann::json;

KVCacheSettings cache_settings(const json& config) {
  KVCacheSettings settings;
  settings.groups = {KVCacheGroup{.spec = {.block_size = config["block_size"]}}};
  settings.num_blocks = config["num_blocks"];
  settings.max_model_len = config["max_model_len"];
  settings.max_in_flight_tokens = config["max_num_batched_tokens"];
  settings.prefix_caching = config["enable_prefix_caching"];
  settings.watermark = config["watermark"];
  return settings;
}

SchedulerConfig scheduler_config(const json& config) {
  SchedulerConfig result;
  result.max_model_len = config["max_model_len"];
  result.num_blocks = config["num_blocks"];
  result.max_num_seqs = config["max_num_seqs"];
  result.max_num_batched_tokens = config["max_num_batched_tokens"];
  result.long_prefill_token_threshold = config["long_prefill_token_threshold"];
  result.long_prefill_adaptive = config["long_prefill_token_threshold_adaptive"];
  result.policy =
      config["policy"] == "priority" ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  result.reserve_full_sequence = config["scheduler_reserve_full_isl"];
  result.prefix_caching = config["enable_prefix_caching"];
  result.async_scheduling = config["async_scheduling"];
  result.stagger_decodes = false;
  result.speculative.num_draft_tokens = config["num_speculative_tokens"];
  return result;
}

class Recording {
 public:
  explicit Recording(const json& recording)
      : manager_(cache_settings(recording["config"])),
        port_(manager_),
        scheduler_(scheduler_config(recording["config"]), port_, nullptr) {
    // Ids are compared as strings there and as numbers here: the order must be the same.
    for (const json& op : recording["ops"])
      if (op["op"] == "add") numbers_[op["req"]] = {};
    for (auto& [name, number] : numbers_) {
      names_.push_back(name);
      number = RequestId{names_.size()};
    }
  }

  std::string replay(const json& op) {
    json got = json::object();
    const std::string name = op["op"];
    if (name == "add") {
      add(op);
      return {};
    }
    if (name == "schedule") schedule(got);
    if (name == "update") update(op, got);
    if (name == "abort") {
      std::vector<RequestId> ids;
      for (const json& id : op["ids"]) ids.push_back(number(id));
      got["result"] = scheduler_.finish_requests(ids, RequestStatus::kFinishedAborted).size();
    }
    if (name == "pause") {
      const std::string mode = op["mode"];
      scheduler_.set_pause_state(mode == "UNPAUSED"     ? PauseState::kUnpaused
                                 : mode == "PAUSED_NEW" ? PauseState::kPausedNew
                                                        : PauseState::kPausedAll);
    }
    if (name == "num_unfinished") got["result"] = scheduler_.num_unfinished_requests();
    if (name == "reset_prefix_cache") {
      got["result"] = run_now(scheduler_.reset_prefix_cache(op["reset_running"], 0));
      if (op["reset_running"]) previous_step_.clear();
    }
    if (name == "drafts") {
      std::vector<std::pair<RequestId, std::vector<TokenId>>> drafts;
      for (const auto& [id, tokens] : op["drafts"].items())
        drafts.emplace_back(number(id), tokens.get<std::vector<TokenId>>());
      scheduler_.update_draft_token_ids(drafts);
      return {};
    }
    scheduler_.flush();
    got["state"] = state();
    json expected = op;
    for (const char* input : {"op", "step", "for_total", "sampled", "ids", "mode", "reset_running"})
      expected.erase(input);
    return describe_difference(name, expected, got);
  }

 private:
  RequestId number(const std::string& name) const {
    const auto known = numbers_.find(name);
    return known == numbers_.end() ? RequestId{names_.size() + 1} : known->second;
  }
  const std::string& name(RequestId id) const { return names_.at(value(id) - 1); }

  void add(const json& op) {
    EngineCoreRequest request;
    request.id = number(op["req"]);
    request.prompt_token_ids = op["prompt_token_ids"].get<std::vector<TokenId>>();
    request.arrival_time = op["arrival_time"];
    request.priority = op["priority"];
    request.params.max_tokens = op["max_tokens"].get<std::int32_t>();
    request.params.stop_token_ids = op["stop_token_ids"].get<std::vector<TokenId>>();
    request.params.min_tokens = op["min_tokens"];
    if (!op["eos"].is_null()) request.params.eos_token_id = op["eos"].get<TokenId>();
    BOOST_REQUIRE(scheduler_.add_request(std::move(request), 0).ok());
  }

  void schedule(json& got) {
    const SchedulerOutput step = run_now(scheduler_.schedule(0));
    got = {{"num_scheduled_tokens", json::array()}, {"total", step.total_num_scheduled_tokens}};
    auto draft = step.draft_token_ids.begin();
    for (std::size_t i = 0; i < step.scheduled_ids.size(); ++i) {
      const std::string& id = name(step.scheduled_ids[i]);
      got["num_scheduled_tokens"].push_back({id, step.num_scheduled_tokens[i]});
      const auto first = draft;
      if (!step.num_draft_tokens.empty()) draft += step.num_draft_tokens[i];
      if (first != draft) got["spec"][id] = std::vector<TokenId>(first, draft);
    }
    const CachedRequestData& cached = step.cached_requests;
    auto block = cached.new_block_ids.begin();
    for (std::size_t i = 0; i < cached.ids.size(); ++i) {
      json entry = {{"req", name(cached.ids[i])},
                    {"resumed", false},
                    {"num_computed_tokens", cached.num_computed_tokens[i]},
                    {"num_output_tokens", cached.num_output_tokens[i]}};
      const auto first = block;
      if (!cached.new_block_counts.empty()) block += cached.new_block_counts[i];
      if (first != block) entry["new_block_ids"] = {std::vector<BlockId>(first, block)};
      add_all_tokens(entry, cached.ids[i]);
      got["cached"].push_back(std::move(entry));
    }
    const std::size_t num_first_timers =
        step.new_requests.size() - static_cast<std::size_t>(step.num_resumed_requests);
    for (std::size_t i = 0; i < step.new_requests.size(); ++i) {
      const NewRequestData& data = step.new_requests[i];
      json entry = {{"req", name(data.id)}, {"num_computed_tokens", data.num_computed_tokens}};
      if (i < num_first_timers) {
        entry["block_ids"] = data.block_ids;
        got["new"].push_back(std::move(entry));
      } else {
        entry["resumed"] = true;
        entry["new_block_ids"] = data.block_ids;
        entry["num_output_tokens"] =
            static_cast<std::int32_t>(data.token_ids.size()) - data.num_prompt_tokens;
        add_all_tokens(entry, data.id);
        got["cached"].push_back(std::move(entry));
      }
    }
    got["finished"] = sorted_names(step.finished_ids);
    got["preempted"] = sorted_names(step.preempted_ids);
    previous_step_ = step.scheduled_ids;
    open_steps_.push_back(step);
  }

  /// Tokens are sent to workers that may have forgotten the request.
  void add_all_tokens(json& entry, RequestId id) const {
    if (std::find(previous_step_.begin(), previous_step_.end(), id) == previous_step_.end())
      entry["all_token_ids"] = scheduler_.request(id)->token_ids;
  }

  json sorted_names(const std::vector<RequestId>& ids) const {
    std::vector<std::string> names;
    for (const RequestId id : ids) names.push_back(name(id));
    std::sort(names.begin(), names.end());
    return names;
  }

  void update(const json& op, json& got) {
    // Results of steps without tokens are not in the recording.
    while (open_steps_.front().total_num_scheduled_tokens != op["for_total"].get<std::int32_t>())
      open_steps_.pop_front();
    const SchedulerOutput step = open_steps_.front();
    open_steps_.pop_front();
    ModelRunnerOutput result;
    result.ids = step.scheduled_ids;
    for (const RequestId id : step.scheduled_ids) {
      const auto tokens = op["sampled"].value(name(id), std::vector<TokenId>());
      result.num_sampled.push_back(static_cast<std::int32_t>(tokens.size()));
      result.sampled_token_ids.insert(result.sampled_token_ids.end(), tokens.begin(), tokens.end());
    }
    const EngineCoreOutputs outputs = run_now(scheduler_.update_from_output(step, result, 0));
    for (const EngineCoreOutput& output : outputs.outputs) {
      constexpr const char* kEvents[] = {"", "QUEUED", "SCHEDULED", "PREEMPTED"};
      json entry = {{"req", name(output.id)}, {"new_token_ids", output.new_token_ids}};
      if (output.finish_reason) entry["finish_reason"] = to_string(*output.finish_reason);
      if (const auto* token = std::get_if<TokenId>(&output.stop_reason))
        entry["stop_reason"] = *token;
      for (const EngineEvent& event : output.events)
        entry["events"].push_back(kEvents[static_cast<std::size_t>(event.kind)]);
      if (const auto& stats = output.prefill_stats)
        entry["prefill_stats"] = {{"num_prompt_tokens", stats->num_prompt_tokens},
                                  {"num_computed_tokens", stats->num_computed_tokens},
                                  {"num_cached_tokens", stats->num_cached_tokens},
                                  {"num_local_cached_tokens", stats->num_local_cached_tokens},
                                  {"num_cache_creation_tokens", stats->num_cache_creation_tokens}};
      got["outputs"].push_back(std::move(entry));
    }
    const SchedulerStats& stats = outputs.stats.value();
    const PrefixCacheStats& prefix = stats.prefix_cache;
    // SchedulerStats has the usage as of the last answer; the manager knows it now.
    scheduler_.flush();
    BOOST_TEST(std::abs(manager_.usage() - op["stats"]["kv_cache_usage"].get<double>()) < 1e-6);
    got["stats"] = {{"num_running", stats.num_running_reqs},
                    {"num_waiting", stats.num_waiting_reqs},
                    {"num_skipped_waiting", stats.num_deferred_reqs},
                    {"kv_cache_usage", op["stats"]["kv_cache_usage"]},
                    {"prefix",
                     {{"requests", prefix.requests},
                      {"queries", prefix.queries},
                      {"hits", prefix.hits},
                      {"preempted_requests", prefix.preempted_requests},
                      {"preempted_queries", prefix.preempted_queries},
                      {"preempted_hits", prefix.preempted_hits}}}};
  }

  template <class List>
  json names_of(const List& requests) const {
    json names = json::array();
    for (const RequestState* request : requests) names.push_back(name(request->id));
    return names;
  }

  json state() {
    json state = {{"running", names_of(scheduler_.running())},
                  {"kv_holding_waiting", names_of(scheduler_.holding().list())},
                  {"waiting", names_of(scheduler_.waiting().list())},
                  {"free_blocks", manager_.pool().num_free_blocks()}};
    std::vector<BlockId> queue = manager_.pool().free_queue();
    queue.resize(std::min<std::size_t>(queue.size(), 12));
    state["free_queue_head"] = queue;
    for (const auto& [id, cached] : manager_.requests()) {
      state["tables"][name(id)] = cached->groups[0].blocks;
      const RequestState& request = *scheduler_.request(id);
      state["requests"][name(id)] = {{"status", status_name(request.status)},
                                     {"num_tokens", request.num_tokens()},
                                     {"num_computed", request.num_computed_tokens},
                                     {"placeholders", request.num_output_placeholders},
                                     {"in_flight", request.num_in_flight_tokens},
                                     {"stale", request.num_stale_tokens},
                                     {"spec", request.draft_token_ids},
                                     {"preemptions", request.num_preemptions},
                                     {"is_prefill_chunk", request.is_prefill_chunk}};
    }
    return state;
  }

  KVCacheManager manager_;
  LocalKVCache port_;
  Scheduler scheduler_;
  std::map<std::string, RequestId> numbers_;
  std::vector<std::string> names_;
  std::deque<SchedulerOutput> open_steps_;
  std::vector<RequestId> previous_step_;
};

BOOST_AUTO_TEST_CASE(every_small_recording_is_reproduced) {
  std::ifstream file(TROUPE_GOLDEN_DIR "/oracle/wire/golden_scheduler.json");
  const json golden = json::parse(file);
  BOOST_TEST(golden["traces"].size() == 24u);
  for (const json& recording : golden["traces"]) {
    BOOST_TEST_CONTEXT(recording["name"].get<std::string>()) {
      Recording replayed(recording);
      std::size_t index = 0;
      for (const json& op : recording["ops"]) {
        const std::string difference = replayed.replay(op);
        BOOST_TEST(difference.empty(), "operation " << index << ": " << difference);
        if (!difference.empty()) break;
        ++index;
      }
    }
  }
}

}  // namespace
}  // namespace troupe
