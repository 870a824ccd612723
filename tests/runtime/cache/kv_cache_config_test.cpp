#include "runtime/cache/kv_cache_config.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe {
namespace {

using nlohmann::json;

KVCacheSpec full_spec() {
  KVCacheSpec spec;
  spec.num_kv_heads = 2;
  spec.head_dim = 64;
  spec.dtype = DType::kBF16;
  return spec;
}

KVCacheSpec sliding_spec(std::int32_t window) {
  KVCacheSpec spec = full_spec();
  spec.kind = KVCacheKind::kSlidingWindow;
  spec.sliding_window = window;
  return spec;
}

/// The layers of a golden case, rebuilt from its groups. With hybrid groups off the golden shows
/// what the windows have become, so every sixth layer was full.
std::vector<KVCacheSpec> layers_of(const json& grouping) {
  std::map<std::size_t, KVCacheSpec> layers;
  const auto number = [&](const std::string& name) {
    const std::string layer = grouping["name"].get<std::string>().find("two windows") == 0
                                  ? std::to_string((name[0] == 'a'   ? 0
                                                    : name[0] == 'b' ? 4
                                                                     : 6) +
                                                   (name[1] - '0'))
                                  : name.substr(name.find_first_of("0123456789"));
    return std::stoul(layer);
  };
  for (const json& group : grouping["groups"]) {
    for (const json& name : group["layers"]) {
      const std::size_t layer = number(name);
      if (grouping["disable_hybrid"])
        layers[layer] = layer % 6 == 5 ? full_spec() : sliding_spec(512);
      else
        layers[layer] = group["window"].is_null() ? full_spec() : sliding_spec(group["window"]);
    }
  }
  std::vector<KVCacheSpec> result;
  for (const auto& [layer, spec] : layers) result.push_back(spec);
  return result;
}

BOOST_AUTO_TEST_CASE(layers_are_grouped_and_blocks_counted_as_the_reference_does) {
  std::ifstream file(TROUPE_GOLDEN_DIR "/oracle/wire/golden_kv_manager.json");
  const json golden = json::parse(file);
  BOOST_REQUIRE(golden["grouping"].size() >= 6);
  for (const json& grouping : golden["grouping"]) {
    BOOST_TEST_CONTEXT(grouping["name"]) {
      const std::vector<KVCacheSpec> layers = layers_of(grouping);
      BOOST_REQUIRE(layers.size() == grouping["num_layers"].get<std::size_t>());
      BOOST_REQUIRE(full_spec().page_bytes() == grouping["groups"][0]["page_size_bytes"]);
      KVCacheLimits limits{.available_bytes = grouping["available_bytes"],
                           .max_model_len = 8192,
                           .max_in_flight_tokens = 2048,
                           .hybrid_groups = !grouping["disable_hybrid"]};
      const auto config = make_kv_cache_config(layers, limits);
      BOOST_REQUIRE(config.ok());
      BOOST_TEST(config->num_blocks == grouping["num_blocks"].get<std::int32_t>());
      BOOST_TEST(bytes_per_block(config->groups) ==
                 grouping["bytes_per_block"].get<std::int64_t>());
      BOOST_TEST(max_request_bytes(config->groups, 8192, 2048) ==
                 grouping["max_memory_usage_bytes_one_request"].get<std::int64_t>());
      BOOST_REQUIRE(config->groups.size() == grouping["groups"].size());
      for (std::size_t g = 0; g < config->groups.size(); ++g) {
        BOOST_TEST(config->groups[g].layers.size() == grouping["groups"][g]["layers"].size());
        BOOST_TEST((config->groups[g].spec.kind == KVCacheKind::kSlidingWindow) ==
                   !grouping["groups"][g]["window"].is_null());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(too_little_memory_names_the_longest_request_that_would_fit) {
  const std::vector<KVCacheSpec> layers(4, full_spec());
  const std::int64_t block_bytes = 4 * full_spec().page_bytes();
  const auto config =
      make_kv_cache_config(layers, {.available_bytes = 11 * block_bytes, .max_model_len = 4096});
  BOOST_REQUIRE(!config.ok());
  BOOST_TEST(config.error().param == "max_model_len");
  // Sizes are in units that fit them, also for small models.
  BOOST_TEST(config.error().message.find(" MiB of KV cache") != std::string::npos);
  BOOST_TEST_MESSAGE(config.error().message);
  BOOST_TEST(config.error().message.find("estimated maximum is 160 tokens") != std::string::npos);
  BOOST_TEST(
      make_kv_cache_config(layers, {.available_bytes = 11 * block_bytes, .max_model_len = 160})
          .ok());
}

BOOST_AUTO_TEST_CASE(smaller_pages_become_equal_through_larger_blocks) {
  KVCacheSpec half = sliding_spec(64);
  half.num_kv_heads = 1;
  const std::vector<KVCacheSpec> layers = {full_spec(), half};
  const auto groups = group_layers(layers, true);
  BOOST_REQUIRE(groups.ok());
  BOOST_REQUIRE(groups->size() == 2u);
  BOOST_TEST((*groups)[1].spec.block_size == 32);
  BOOST_TEST((*groups)[1].spec.page_bytes() == (*groups)[0].spec.page_bytes());
}

}  // namespace
}  // namespace troupe
