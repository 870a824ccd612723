// Traces of direct calls of the KVCacheManager and the EncoderCacheManager.

#include <algorithm>
#include <map>
#include <optional>

#include "messages/encoder_input.hpp"
#include "runtime/base/check.hpp"
#include "runtime/cache/encoder_cache_manager.hpp"
#include "tests/support/trace_format.hpp"
#include "tests/support/trace_replay.hpp"

namespace troupe {
namespace {

using nlohmann::json;

class KVCacheReplayer final : public TraceReplayer {
 public:
  explicit KVCacheReplayer(const std::vector<json>& trace)
      : cfg_(trace[0]["cfg"]),
        ids_(trace),
        hex_chars_(cfg_["hash"]["hex_chars"]),
        manager_(cache_settings_from_json(cfg_, trace[0]["derived"])) {}

  std::string replay(const json& line) override {
    const json& op = line["op"];
    json out = json::object();
    const std::string difference = run(op, out);
    if (!difference.empty()) return difference;
    const std::string in_result = describe_difference("out", line["out"], out);
    return in_result.empty() ? compare_state(line["st"]) : in_result;
  }

 private:
  /// A request's counters, which only `set` changes.
  struct Counters {
    std::int32_t computed = 0;
    std::int32_t in_flight = 0;
    std::string status = "WAITING";
    CacheHit hit;
  };

  json hashes_json(const std::vector<BlockHash>& hashes, std::size_t from) const {
    json list = json::array();
    for (std::size_t i = from; i < hashes.size(); ++i)
      list.push_back(hash_text(hashes[i], hex_chars_));
    return list;
  }

  std::string run(const json& op, json& out) {
    const std::string name = op["op"];
    const RequestId id = op.contains("id") ? ids_.number(op["id"]) : RequestId{};
    if (name == "new") {
      const RequestId added = ids_.number(op["req"]["id"]);
      const CachedRequest& request =
          manager_.add_request(cache_request_of(request_from_json(op["req"], added)));
      counters_[added] = {};
      out["hashes"] = hashes_json(request.hashes, 0);
    } else if (name == "get_computed") {
      CacheHit& hit = counters_[id].hit = manager_.get_computed_blocks(manager_.request(id));
      out = {{"blocks", hit.blocks},
             {"num", hit.num_tokens},
             {"boundary", hit.shared_prefix_boundary}};
    } else if (name == "alloc") {
      allocate(op, id, out);
    } else if (name == "set") {
      Counters& counters = counters_[id];
      counters.computed = op.value("computed", counters.computed);
      counters.in_flight = op.value("in_flight", counters.in_flight);
      counters.status = op.value("status", counters.status);
      CachedRequest& request = manager_.request(id);
      request.num_computed_tokens = counters.computed;
      request.shared_prefix_boundary = op.value("boundary", request.shared_prefix_boundary);
    } else if (name == "append") {
      CachedRequest& request = manager_.request(id);
      const std::size_t before = request.hashes.size();
      manager_.append_tokens(request, op["toks"].get<std::vector<TokenId>>());
      out["hashes"] = hashes_json(request.hashes, before);
    } else if (name == "cache") {
      manager_.cache_blocks(manager_.request(id), op["n"]);
    } else if (name == "skip") {
      manager_.remove_skipped_blocks(manager_.request(id), op["n"]);
    } else if (name == "free") {
      if (op.value("drop", false))
        manager_.forget(id);
      else
        manager_.free(manager_.request(id));
    } else if (name == "pop_free") {
      popped_[id] = manager_.pop_blocks_for_free(id);
      out["blocks"] = popped_[id];
    } else if (name == "free_popped") {
      std::vector<BlockId>& blocks = popped_[id];
      std::reverse(blocks.begin(), blocks.end());
      manager_.pool().free(blocks);
      popped_.erase(id);
    } else if (name == "evict") {
      for (const BlockId block : op["ids"]) manager_.pool().drop_content(block);
    } else if (name == "reset") {
      out["ok"] = manager_.reset_prefix_cache();
    } else if (name == "new_step") {
      manager_.new_step_starts();
    } else if (name == "events") {
      for (const KVCacheEvent& event : manager_.take_events())
        out["events"].push_back(event_json(event, cfg_.value("event_hashes", "int64")));
    } else if (name == "take_new_ids") {
      out["ids"] = manager_.coordinator().take_new_blocks();
    } else if (name == "take_copies") {
      out["copies"] = manager_.take_block_copies();
    } else if (name == "common") {
      out["n"] = std::vector<int>(cfg_["groups"].size(), 0);
    } else if (name == "estimate") {
      out["n"] = manager_.estimate_cached_tokens(manager_.request(id));
    } else if (name == "clip") {
      out["blocks"] = manager_.clipped_block_table(manager_.request(id), op["n"]);
    } else {
      return "operation " + name + " is not supported";
    }
    return {};
  }

  void allocate(const json& op, RequestId id, json& out) {
    const Counters& counters = counters_[id];
    const bool waits = counters.status == "WAITING" || counters.status == "PREEMPTED";
    KVCacheManager::Slots slots;
    slots.num_computed_tokens = counters.computed;
    slots.num_in_flight_tokens = counters.in_flight;
    slots.num_new_tokens = op["num_new"];
    slots.num_hit_tokens = op.value("num_new_computed", 0);
    slots.hit = op.value("use_hit", false) ? &counters.hit : nullptr;
    slots.num_external_tokens = op.value("ext", 0);
    slots.num_lookahead_tokens = op.value("lookahead", 0);
    slots.delay_caching = op.value("delay", false);
    slots.full_sequence_must_fit = op.value("full_fit", false);
    slots.num_reserved_blocks = op.value("reserved", 0);
    slots.num_watermark_blocks =
        waits && op.value("has_scheduled", true) ? manager_.watermark_blocks() : 0;
    BlockTable blocks(cfg_["groups"].size());
    if (manager_.allocate_slots(manager_.request(id), slots, &blocks)) out["blocks"] = blocks;
  }

  std::string compare_state(const json& changed) {
    json state = json::object();
    add_pool_state(manager_.pool(), changed, state);
    if (changed.contains("cached")) expected_["cached"] = changed["cached"];
    json expected = {{"free", changed["free"]}, {"fq", changed["fq"]}};
    expected["cached"] = expected_["cached"];
    if (changed.contains("fql")) expected["fql"] = changed["fql"];
    std::string difference = describe_difference("st", expected, state);
    if (!difference.empty()) return difference;

    for (const json& row : changed.value("blocks", json::array()))
      expected_blocks_[row[0].get<BlockId>()] = row;
    for (BlockId block = 1; block < manager_.pool().num_blocks(); ++block) {
      const json got = block_row(block);
      const auto known = expected_blocks_.find(block);
      const json wanted = known == expected_blocks_.end()
                              ? json{block, 0, nullptr, nullptr, nullptr}
                              : known->second;
      if (got != wanted) return "st.blocks: expected " + wanted.dump() + ", got " + got.dump();
    }
    const json tables = changed.value("bt", json::object());
    for (const auto& [name, table] : tables.items()) expected_tables_[name] = table;
    for (const auto& [name, table] : expected_tables_.items()) {
      const json got = table_json(ids_.number(name));
      if (got != table)
        return "st.bt." + name + ": expected " + table.dump() + ", got " + got.dump();
    }
    if (changed.contains("dups")) expected_["dups"] = changed["dups"];
    return describe_difference("st.dups", expected_["dups"], duplicates());
  }

  json block_row(BlockId block) const {
    const BlockPool& pool = manager_.pool();
    json row = {block, pool.num_references(block), nullptr, nullptr, nullptr};
    if (pool.prefix_map().has_entry(block)) {
      const BlockKey key = pool.prefix_map().key(block);
      row[2] = hash_text(key.hash, hex_chars_);
      row[3] = key.group;
      row[4] = pool.prefix_map().num_tokens(block);
    }
    return row;
  }

  json table_json(RequestId id) const {
    json blocks = json::array(), cached = json::array();
    const auto known = manager_.requests().find(id);
    for (std::size_t g = 0; g < cfg_["groups"].size(); ++g) {
      if (known == manager_.requests().end()) {
        blocks.push_back(json::array());
        cached.push_back(nullptr);
        continue;
      }
      const GroupBlocks& own = known->second->groups[g];
      blocks.push_back(own.blocks);
      cached.push_back(own.num_cached_blocks ? json(*own.num_cached_blocks) : json());
    }
    return {blocks, cached};
  }

  json duplicates() const {
    json list = json::array();
    for (const PrefixMap::Holders& holders : manager_.pool().prefix_map().shared_keys())
      list.push_back({hash_text(holders.key.hash, hex_chars_), holders.key.group, holders.blocks});
    std::sort(list.begin(), list.end());
    return list;
  }

  json cfg_;
  TraceIds ids_;
  std::size_t hex_chars_;
  KVCacheManager manager_;
  std::map<RequestId, Counters> counters_;
  std::map<RequestId, std::vector<BlockId>> popped_;
  json expected_ = json::object();
  std::map<BlockId, json> expected_blocks_;
  json expected_tables_ = json::object();
};

class EncoderCacheReplayer final : public TraceReplayer {
 public:
  explicit EncoderCacheReplayer(const std::vector<json>& trace)
      : ids_(trace), manager_({.capacity = trace[0]["cfg"]["cache_size"]}) {}

  std::string replay(const json& line) override {
    const json& op = line["op"];
    json out = json::object();
    const std::string name = op["op"];
    const RequestId id = op.contains("id") ? ids_.number(op["id"]) : RequestId{};
    const std::int32_t item = op.value("i", 0);
    if (name == "new") {
      const EngineCoreRequest request = request_from_json(op["req"], ids_.number(op["req"]["id"]));
      for (const MultiModalFeature& feature : request.mm_features)
        out["embeds"].push_back(num_embeds(feature));
      manager_.set_request(request.id, request.mm_features);
    } else if (name == "embeds") {
      const std::int32_t n = manager_.cached_embeds(id, item);
      if (n >= 0) out["n"] = n;
    } else if (name == "check") {
      out["hit"] = manager_.check_and_reference(id, item);
    } else if (name == "can") {
      out["ok"] = manager_.can_allocate(id, item, op["budget"], op["sched"]);
    } else if (name == "allocate") {
      manager_.allocate(id, item);
    } else if (name == "ids") {
      out["ids"] = manager_.referenced_items(id);
    } else if (name == "free_input") {
      manager_.free_input(id, item);
    } else if (name == "free") {
      manager_.free(id);
    } else if (name == "freed") {
      out["hashes"] = manager_.take_freed_identifiers();
    } else if (name == "reset") {
      manager_.reset();
    } else {
      return "operation " + name + " is not supported";
    }
    const std::string difference = describe_difference("out", line["out"], out);
    return difference.empty() ? describe_difference("st", line["st"], state()) : difference;
  }

 private:
  json state() const {
    json state = {{"free", manager_.num_free()},
                  {"freeable", manager_.num_freeable()},
                  {"cached", json::object()},
                  {"lru", json::array()},
                  {"freed", manager_.freed()}};
    for (const auto& [identifier, output] : manager_.cached()) {
      json users = json::array();
      for (const RequestId id : output.users) users.push_back(ids_.name(id));
      state["cached"][identifier] = users;
    }
    for (const std::string& identifier : manager_.evictable())
      state["lru"].push_back({identifier, manager_.cached().at(identifier).num_embeds});
    return state;
  }

  TraceIds ids_;
  EncoderCacheManager manager_;
};

}  // namespace

std::unique_ptr<TraceReplayer> make_kv_cache_replayer(const std::vector<json>& trace) {
  return std::make_unique<KVCacheReplayer>(trace);
}

std::unique_ptr<TraceReplayer> make_encoder_cache_replayer(const std::vector<json>& trace) {
  return std::make_unique<EncoderCacheReplayer>(trace);
}

}  // namespace troupe
