// Block tables, free-queue order, hits and events of the reference manager, step by step.

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <map>

#include "runtime/base/json.hpp"
#include "runtime/cache/kv_cache_manager.hpp"

namespace troupe {
namespace {

using nlohmann::json;

// The prompts that the golden file was made from; it tells their lengths and what they share only
// through the results.
std::vector<TokenId> numbers(TokenId first, std::int32_t count) {
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

/// `shared` tokens of A's prompt, then own ones.
std::vector<TokenId> prompt_of(const std::string& name, std::int32_t shared, std::int32_t length) {
  std::vector<TokenId> tokens = numbers(0, shared);
  const std::vector<TokenId> own = numbers(10000 * (name[0] - 'A' + 1), length - shared);
  tokens.insert(tokens.end(), own.begin(), own.end());
  return tokens;
}

/// How many tokens of A's prompt a request's begins with. Told by the hits, where there are some; a
/// sibling without hits, as its blocks were evicted, is identified by the trace's name.
std::int32_t num_shared(const std::string& trace, const json& step) {
  const std::string name = step["req"];
  const std::int32_t length =
      step["hit_tokens"].get<std::int32_t>() + step["new_tokens"].get<std::int32_t>();
  if (name == "A") return length;
  if (trace.find("hybrid") == 0) return name == "B" ? length : 80;
  if (trace.find("sliding") == 0) return name == "B" ? length : 96;
  return step["hit_tokens"];
}

struct Replay {
  explicit Replay(const json& trace) : trace_(trace), manager_(settings_of(trace)) {}

  static KVCacheSettings settings_of(const json& trace) {
    KVCacheSettings settings;
    for (const json& group : trace["groups"]) {
      KVCacheSpec spec{.block_size = trace["block_size"]};
      if (group[0] == "sliding_window")
        spec.kind = SlidingWindowSpec{.window = {.num_tokens = group[1]}};
      settings.groups.push_back({.spec = spec});
    }
    settings.num_blocks = trace["num_blocks"];
    settings.max_model_len = settings.max_in_flight_tokens = 8192;
    settings.prefix_caching = trace["name"].get<std::string>().find("caching off") != 0;
    settings.retention_interval.reset();
    if (!trace["retention_interval"].is_null())
      settings.retention_interval = trace["retention_interval"].get<std::int32_t>();
    settings.events = true;
    return settings;
  }

  void run() {
    for (const json& step : trace_["steps"]) {
      BOOST_TEST_CONTEXT(step.dump().substr(0, 120)) {
        const std::string op = step["op"];
        if (op == "admit") admit(step);
        if (op == "step") decode(step);
        if (op == "free") manager_.free(request(step["req"]));
        compare(step);
      }
    }
  }

 private:
  CachedRequest& request(const std::string& name) {
    return manager_.request(RequestId{static_cast<std::uint64_t>(name[0])});
  }

  void admit(const json& step) {
    const std::string name = step["req"];
    const RequestId id{static_cast<std::uint64_t>(name[0])};
    if (!manager_.requests().contains(id)) {
      KVCacheRequest added;
      added.id = id;
      const std::int32_t length =
          step["hit_tokens"].get<std::int32_t>() + step["new_tokens"].get<std::int32_t>();
      added.token_ids = prompt_of(name, num_shared(trace_["name"], step), length);
      added.num_prompt_tokens = length;
      manager_.add_request(added);
    }
    CachedRequest& known = request(name);
    const CacheHit hit = manager_.get_computed_blocks(known);
    BOOST_TEST(hit.num_tokens == step["hit_tokens"].get<std::int32_t>());
    BOOST_TEST(hit.shared_prefix_boundary == step["shared_prefix_boundary"].get<std::int32_t>());
    known.shared_prefix_boundary = hit.shared_prefix_boundary;
    BlockTable blocks(known.groups.size());
    const bool fits =
        manager_.allocate_slots(known,
                                {.num_new_tokens = known.num_tokens() - hit.num_tokens,
                                 .num_hit_tokens = hit.num_tokens,
                                 .hit = &hit},
                                &blocks);
    BOOST_TEST(fits == step["ok"].get<bool>());
    if (fits) computed_[name] = known.num_tokens();
    check_blocks(step, fits, blocks);
  }

  void decode(const json& step) {
    const std::string name = step["req"];
    CachedRequest& known = request(name);
    manager_.append_tokens(known, step["appended"].get<std::vector<TokenId>>());
    const std::int32_t n = step["n"];
    BlockTable blocks(known.groups.size());
    const bool fits = manager_.allocate_slots(
        known, {.num_computed_tokens = computed_[name], .num_new_tokens = n}, &blocks);
    BOOST_TEST(fits == step["ok"].get<bool>());
    if (fits) computed_[name] += n;
    check_blocks(step, fits, blocks);
  }

  void check_blocks(const json& step, bool fits, const BlockTable& blocks) {
    if (fits) BOOST_TEST(json(blocks) == step["new_blocks"]);
    json table = json::array();
    for (const GroupBlocks& group : request(step["req"]).groups) table.push_back(group.blocks);
    BOOST_TEST(table == step["table"]);
  }

  void compare(const json& step) {
    BOOST_TEST(json(manager_.pool().free_queue()) == step["free_queue"]);
    BOOST_TEST(manager_.pool().num_free_blocks() == step["num_free"].get<std::int32_t>());
    BOOST_TEST(std::abs(manager_.usage() - step["usage"].get<double>()) < 1e-6);
    std::vector<std::string> events;
    for (const KVCacheEvent& event : manager_.take_events()) {
      if (const auto* stored = std::get_if<BlocksStored>(&event))
        events.push_back("BlockStored:g" + std::to_string(stored->group) + ":n" +
                         std::to_string(stored->hashes.size()));
      else if (const auto* removed = std::get_if<BlockRemoved>(&event))
        events.push_back("BlockRemoved:g" + std::to_string(removed->group) + ":n1");
    }
    BOOST_TEST(events == step["events"].get<std::vector<std::string>>(),
               boost::test_tools::per_element());
  }

  const json& trace_;
  KVCacheManager manager_;
  std::map<std::string, std::int32_t> computed_;
};

BOOST_AUTO_TEST_CASE(blocks_are_handed_out_kept_and_evicted_in_the_reference_s_order) {
  std::ifstream file(TROUPE_GOLDEN_DIR "/oracle/wire/golden_kv_manager.json");
  const json golden = json::parse(file);
  BOOST_REQUIRE(golden["traces"].size() == 10u);
  for (const json& trace : golden["traces"]) {
    BOOST_TEST_CONTEXT(trace["name"]) { Replay(trace).run(); }
  }
}

}  // namespace
}  // namespace troupe
