// Traces of the Scheduler: it runs with local caches, as in the actors it runs with remote ones.

#include <algorithm>
#include <deque>
#include <optional>
#include <unordered_set>

#include "runtime/base/check.hpp"
#include "runtime/scheduler/decision_log.hpp"
#include "runtime/scheduler/scheduler.hpp"
#include "tests/support/exact_grammar.hpp"
#include "tests/support/local_ports.hpp"
#include "tests/support/trace_format.hpp"
#include "tests/support/trace_replay.hpp"
#include "tests/support/trace_scripts.hpp"

namespace troupe {
namespace {

using nlohmann::json;

bool has(const json& object, const char* key) {
  return object.contains(key) && !object[key].is_null();
}

class SchedulerReplayer final : public TraceReplayer {
 public:
  explicit SchedulerReplayer(const std::vector<json>& trace)
      : cfg_(trace[0]["cfg"]),
        derived_(trace[0]["derived"]),
        ids_(trace),
        has_states_(std::ranges::any_of(trace, [](const json& line) { return has(line, "st"); })),
        v2_runner_(cfg_["v2_runner"]),
        hex_chars_(cfg_["hash"]["hex_chars"]),
        kv_cache_(cache_settings_from_json(cfg_, derived_)),
        kv_port_(kv_cache_),
        connector_(ids_),
        scheduler_(scheduler_config_from_json(cfg_, derived_), kv_port_, make_encoder_port(),
                   has(cfg_, "connector") ? &connector_ : nullptr) {}

  std::string replay(const json& line) override {
    const json& op = line["op"];
    json out = json::object();
    const std::string name = op["op"];
    if (name == "add") {
      add(op, out);
    } else if (name == "sched") {
      schedule(op, out);
    } else if (name == "update") {
      update(op, out);
    } else if (name == "finish") {
      finish(op, out);
    } else if (name == "drafts") {
      scheduler_.update_draft_token_ids(drafts_of(ids_, op["d"]));
    } else if (name == "reset_prefix_cache") {
      const bool running = op["running"];
      const bool ok =
          run_now(scheduler_.reset_prefix_cache(running, 0, op.value("connector", false)));
      if (running && !ok)
        out["raised"] = true;
      else
        out["ok"] = ok;
      if (running) previous_step_.clear();
    } else if (name == "reset_encoder_cache") {
      scheduler_.reset_encoder_cache();
    } else if (name == "pause") {
      scheduler_.set_pause_state(static_cast<PauseState>(op["state"].get<int>()));
    } else if (name == "grammar") {
      Result<std::unique_ptr<Grammar>> grammar = Error{};
      if (op["ok"].get<bool>()) grammar = exact_grammar(ScriptedGrammar(op["mod"]));
      scheduler_.set_grammar(ids_.number(op["id"]), std::move(grammar));
    } else if (name == "bitmask") {
      bitmask(op, out);
    } else if (name == "drafts_in_output") {
      drafts_in_output(op, out);
    } else if (name == "conn") {
      connector_.set_pending_frees(op["pending_frees"]);
    } else {
      return "operation " + name + " is not supported";
    }
    static_cast<void>(run_now(scheduler_.release_ended()));
    scheduler_.flush();
    out["conn"] = connector_.take_calls();
    std::string difference = describe_difference("out", line["out"], out);
    if (difference.empty() && has_states_)
      difference = compare_state(line.value("st", json::object()));
    return difference;
  }

 private:
  struct Step {
    std::uint64_t number = 0;
    SchedulerOutput output;
  };

  EncoderCachePort* make_encoder_port() {
    if (!has(cfg_, "mm")) return nullptr;
    encoder_cache_ = make_encoder_cache_manager(
        {.capacity = cfg_["mm"]["cache_size"],
         .split_items = !cfg_.value("disable_chunked_mm_input", false),
         .whole_runs = cfg_["mm"].value("whole_runs", false),
         .manager = cfg_["mm"].value("manager", std::string(kEncoderCacheManager))});
    encoder_port_.emplace(*encoder_cache_);
    return &*encoder_port_;
  }

  json hashes_json(const std::vector<BlockHash>& hashes, std::size_t from) const {
    json list = json::array();
    for (std::size_t i = from; i < hashes.size(); ++i)
      list.push_back(hash_text(hashes[i], hex_chars_));
    return list;
  }

  void add(const json& op, json& out) {
    const RequestId id = ids_.number(op["req"]["id"]);
    const bool is_new = scheduler_.request(id) == nullptr;
    EngineCoreRequest request = request_from_json(op["req"], id);
    connector_.add_request(id, op["req"].value("remote", json()));
    CHECK(scheduler_.add_request(std::move(request), 0).ok());
    scheduler_.flush();
    if (is_new && has_states_) {
      out["hashes"] = hashes_json(kv_cache_.request(id).hashes, 0);
      num_hashes_[id] = kv_cache_.request(id).hashes.size();
      expected_tables_[ids_.name(id)] = json::array();
    }
    if (!has_states_) return;
    const RequestState* state = scheduler_.request(id);
    out["status"] = state == nullptr ? json() : json(status_name(state->status));
  }

  static json table_json(const BlockTable& table) { return table; }

  void schedule(const json& op, json& out) {
    const bool throttle = op.value("throttle", false);
    Step& step = steps_.emplace_back();
    step.number = op["k"];
    step.output = run_now(scheduler_.schedule(0, throttle));
    const SchedulerOutput& output = step.output;
    const bool feeds_tokens =
        has_states_ && cfg_["pp"].get<int>() > 1 && !cfg_["async_scheduling"].get<bool>();

    std::map<RequestId, std::int32_t> num_scheduled, num_drafts;
    for (std::size_t i = 0; i < output.scheduled_ids.size(); ++i) {
      const RequestId id = output.scheduled_ids[i];
      num_scheduled[id] = output.num_scheduled_tokens[i];
      num_drafts[id] = output.num_draft_tokens.empty() ? 0 : output.num_draft_tokens[i];
    }
    out = plan_json(output, cfg_["groups"].size(), v2_runner_, name_of());
    for (json& entry : out["cached"]) {
      const RequestId id = ids_.number(entry["id"]);
      const auto& tokens = scheduler_.request(id)->token_ids;
      const std::int32_t computed = entry["computed"];
      if (feeds_tokens) {
        const auto end = std::min(
            tokens.size(), static_cast<std::size_t>(computed + num_scheduled[id] - num_drafts[id]));
        entry["tok"] = std::vector<TokenId>(tokens.begin() + computed,
                                            tokens.begin() + static_cast<std::ptrdiff_t>(end));
      }
      if (has_states_ && !v2_runner_ && !previous_step_.contains(id))
        entry["all_len"] = tokens.size();
    }
    if (cfg_.contains("spec") && !cfg_["spec"].is_null()) out["next_k"] = output.num_drafts_to_make;
    previous_step_.clear();
    previous_step_.insert(output.scheduled_ids.begin(), output.scheduled_ids.end());
    if (op.value("dropped", false)) steps_.pop_back();
  }

  static std::vector<std::pair<RequestId, std::vector<TokenId>>> drafts_of(const TraceIds& ids,
                                                                           const json& list) {
    std::vector<std::pair<RequestId, std::vector<TokenId>>> drafts;
    for (const json& entry : list)
      drafts.emplace_back(ids.number(entry[0]), entry[1].get<std::vector<TokenId>>());
    return drafts;
  }

  [[nodiscard]] RequestName name_of() const {
    return [this](RequestId id) { return ids_.name(id); };
  }

  Step& open_step(const json& op) {
    const auto step = std::find_if(steps_.begin(), steps_.end(), [&](const Step& other) {
      return other.number == op["k"].get<std::uint64_t>();
    });
    CHECK(step != steps_.end());
    return *step;
  }

  void bitmask(const json& op, json& out) {
    std::optional<GrammarStep> step = scheduler_.grammar_step(open_step(op).output);
    if (!step) return;
    const GrammarOutput output = fill_masks(*std::move(step)).output;
    out["ids"] = json::array();
    for (const RequestId id : output.ids) out["ids"].push_back(ids_.name(id));
    out["rows"] = output.bitmask;
    out["acceptable"] = output.num_acceptable_drafts;
  }

  void drafts_in_output(const json& op, json& out) {
    SchedulerOutput& step = open_step(op).output;
    scheduler_.update_draft_token_ids_in_output(step, drafts_of(ids_, op["d"]));
    out["spec"] = drafts_json(step, name_of());
    for (const auto& [id, n] : step.num_invalid_draft_tokens) out["invalid"][ids_.name(id)] = n;
  }

  std::vector<RequestId> numbers_of(const json& names) const {
    std::vector<RequestId> numbers;
    for (const json& name : names) numbers.push_back(ids_.number(name));
    return numbers;
  }

  void update(const json& op, json& out) {
    CHECK(!steps_.empty() && steps_.front().number == op["k"].get<std::uint64_t>());
    const Step step = std::move(steps_.front());
    steps_.pop_front();
    ModelRunnerOutput result;
    result.step = step.output.step;
    for (const json& entry : op["toks"]) {
      result.ids.push_back(ids_.number(entry[0]));
      const auto tokens = entry[1].get<std::vector<TokenId>>();
      result.num_sampled.push_back(static_cast<std::int32_t>(tokens.size()));
      result.sampled_token_ids.insert(result.sampled_token_ids.end(), tokens.begin(), tokens.end());
    }
    for (const json& id : op.value("pooled", json::array()))
      result.pooling_outputs.emplace_back(ids_.number(id), std::vector<float>{1});
    const json report = op.value("kv", json::object());
    const json none = json::array();
    result.kv_connector = {.finished_sending = numbers_of(report.value("sent", none)),
                           .finished_recving = numbers_of(report.value("recved", none)),
                           .failed_recving = numbers_of(report.value("failed", none)),
                           .invalid_block_ids = report.value("invalid", std::vector<BlockId>())};
    const EngineCoreOutputs outputs =
        run_now(scheduler_.update_from_output(step.output, result, 0));
    scheduler_.flush();

    out = outputs_json(outputs, name_of());
    const SchedulerStats& stats = outputs.stats.value();
    if (has(cfg_, "connector"))
      out["stats"]["fetch"] = {stats.num_kv_loads_to_start, stats.num_kv_loads_in_progress,
                               stats.num_kv_loads_waiting};
    const std::string event_hashes = cfg_.value("event_hashes", std::string("int64"));
    for (const KVCacheEvent& event : kv_cache_.take_events())
      out["events"].push_back(event_json(event, event_hashes));
  }

  void finish(const json& op, json& out) {
    const RequestStatus status = status_from_name(op["status"]);
    std::vector<RequestId> done;
    if (op["id"].is_null()) {
      done = scheduler_.finish_all_requests(status);
    } else {
      const RequestId id = ids_.number(op["id"]);
      done = scheduler_.finish_requests(std::span(&id, 1), status);
    }
    out["done"] = json::array();
    for (const RequestId id : done) out["done"].push_back(ids_.name(id));
  }

  // ---- state ----

  template <class List>
  json names_of(const List& requests) const {
    json names = json::array();
    for (const RequestState* request : requests) names.push_back(ids_.name(request->id));
    return names;
  }

  json row_of(const RequestState& request) const {
    return {status_name(request.status),
            request.num_computed_tokens,
            request.num_tokens(),
            request.num_output_tokens(),
            request.num_output_placeholders,
            request.num_in_flight_tokens,
            request.num_stale_tokens,
            request.num_preemptions,
            request.draft_token_ids.size(),
            request.shared_prefix_boundary};
  }

  std::string compare_state(const json& changed) {
    for (const auto& [key, value] : changed.items()) {
      if (key == "reqs" || key == "bt") {
        json& kept = key == "reqs" ? expected_rows_ : expected_tables_;
        for (const auto& [id, entry] : value.items()) {
          if (entry.is_null())
            kept.erase(id);
          else
            kept[id] = entry;
        }
      } else if (key == "nh") {
        for (const auto& [id, entry] : value.items()) {
          const auto& hashes = kv_cache_.request(ids_.number(id)).hashes;
          const std::string difference = describe_difference(
              "st.nh." + id, entry[1], hashes_json(hashes, entry[0].get<std::size_t>()));
          if (!difference.empty()) return difference;
          num_hashes_[ids_.number(id)] = hashes.size();
        }
      } else if (key != "fql" && key != "fq" && key != "free") {
        expected_state_[key] = value;
      }
    }
    json state = json::object();
    add_pool_state(kv_cache_.pool(), changed, state);
    json expected = expected_state_;
    for (const char* key : {"free", "fq", "fql"})
      if (changed.contains(key)) expected[key] = changed[key];
    state["run"] = names_of(scheduler_.running());
    state["wait"] = names_of(scheduler_.waiting().list());
    state["hold"] = names_of(scheduler_.holding().list());
    std::vector<RequestId> deferred;
    for (const auto& list : {scheduler_.waiting().list(), scheduler_.holding().list()})
      for (const RequestState* request : list)
        if (request->deferred) deferred.push_back(request->id);
    state["def"] = ids_.sorted_names(deferred);
    state["unfinished"] = scheduler_.num_unfinished_requests();
    state["has"] = scheduler_.has_requests();
    if (derived_["defer_block_free"].get<bool>()) {
      state["deferred_frees"] = json::array();
      for (std::size_t i = 0; i < kv_cache_.deferred_frees().size(); ++i)
        state["deferred_frees"].push_back(
            {scheduler_.deferred_fences()[i], kv_cache_.deferred_frees()[i]});
    }
    if (expected.contains("step")) state["step"] = scheduler_.step();
    if (expected.contains("enc")) state["enc"] = encoder_state();
    std::string difference = describe_difference("st", expected, state);
    if (!difference.empty()) return difference;
    return compare_requests();
  }

  json encoder_state() const {
    json state = {{"free", encoder_cache_->num_free()},
                  {"freeable", encoder_cache_->num_freeable()},
                  {"cached", json::object()},
                  {"lru", encoder_cache_->evictable()}};
    for (const auto& [identifier, output] : encoder_cache_->cached()) {
      json users = json::array();
      for (const RequestId id : output.users) users.push_back(ids_.name(id));
      state["cached"][identifier] = users;
    }
    return state;
  }

  std::string compare_requests() {
    for (const auto& [name, row] : expected_rows_.items()) {
      const RequestState* request = scheduler_.request(ids_.number(name));
      const json got = request == nullptr ? json() : row_of(*request);
      if (got != row) return "st.reqs." + name + ": expected " + row.dump() + ", got " + got.dump();
    }
    if (kv_cache_.requests().size() != expected_rows_.size())
      return "st.reqs: expected " + std::to_string(expected_rows_.size()) + " requests, got " +
             std::to_string(kv_cache_.requests().size());
    for (const auto& [id, request] : kv_cache_.requests()) {
      if (num_hashes_[id] != request->hashes.size())
        return "st.nh." + ids_.name(id) + ": expected no new hash";
      json table = json::array();
      for (const GroupBlocks& group : request->groups) table.push_back(group.blocks);
      const json& expected = expected_tables_[ids_.name(id)];
      const std::string difference =
          describe_difference("st.bt." + ids_.name(id), expected.empty() ? table : expected, table);
      if (!difference.empty()) return difference;
    }
    return {};
  }

  json cfg_;
  json derived_;
  TraceIds ids_;
  bool has_states_;  ///< a log of the engine has decisions alone
  bool v2_runner_;
  std::size_t hex_chars_;
  KVCacheManager kv_cache_;
  LocalKVCache kv_port_;
  std::unique_ptr<EncoderCacheManager> encoder_cache_;
  std::optional<LocalEncoderCache> encoder_port_;
  ScriptedConnector connector_;
  Scheduler scheduler_;
  std::deque<Step> steps_;
  std::unordered_set<RequestId> previous_step_;
  json expected_state_ = json::object();
  json expected_rows_ = json::object();
  json expected_tables_ = json::object();
  std::map<RequestId, std::size_t> num_hashes_;
};

}  // namespace

std::unique_ptr<TraceReplayer> make_scheduler_replayer(const std::vector<json>& trace) {
  return std::make_unique<SchedulerReplayer>(trace);
}

}  // namespace troupe
