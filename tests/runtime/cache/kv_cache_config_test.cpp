#include "runtime/cache/kv_cache_config.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <map>
#include <string>

#include "runtime/base/json.hpp"
#include "runtime/cache/kv_cache_settings.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr TokenShape kToken = {.num_kv_heads = 2, .head_dim = 64, .dtype = DType::kBF16};
constexpr TokenShape kLatent = {.num_kv_heads = 1, .head_dim = 576, .dtype = DType::kBF16};

KVCacheSpec full_spec() { return {.kind = FullAttentionSpec{kToken}}; }
KVCacheSpec latent_spec() { return {.kind = MlaSpec{kLatent}}; }
KVCacheSpec sliding_spec(std::int32_t window) {
  return {.kind = SlidingWindowSpec{kToken, {.num_tokens = window}}};
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
      BOOST_TEST(max_request_bytes(config->groups, 8192, limits) ==
                 grouping["max_memory_usage_bytes_one_request"].get<std::int64_t>());
      BOOST_REQUIRE(config->groups.size() == grouping["groups"].size());
      for (std::size_t g = 0; g < config->groups.size(); ++g) {
        BOOST_TEST(config->groups[g].layers.size() == grouping["groups"][g]["layers"].size());
        BOOST_TEST(config->groups[g].spec.is<SlidingWindowSpec>() ==
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

BOOST_AUTO_TEST_CASE(pages_are_as_large_as_what_a_layer_keeps) {
  KVCacheSpec spec = full_spec();  // 2 heads of 64, 16 tokens, bf16
  BOOST_TEST(spec.page_bytes() == 2 * (64 + 64) * 16 * 2);
  spec.token()->head_dim_v = 32;
  BOOST_TEST(spec.page_bytes() == 2 * (64 + 32) * 16 * 2);
  spec.token()->tokens_per_state = 4;
  BOOST_TEST(spec.page_bytes() == 2 * (64 + 32) * 4 * 2);
  BOOST_TEST(latent_spec().page_bytes() == 576 * 16 * 2);
  KVCacheSpec mamba{.kind = MambaSpec{.state_bytes = 5000}, .block_size = 1024};
  BOOST_TEST(mamba.page_bytes() == 5000);
  mamba.padded_page_bytes = 8192;
  BOOST_TEST(mamba.page_bytes() == 8192);
  KVCacheSpec scaled = full_spec();
  scaled.token()->dtype = DType::kI8;
  scaled.token()->scale_bytes = 4;
  BOOST_TEST(scaled.page_bytes() == 2 * (64 + 4 + 64 + 4) * 16);
}

BOOST_AUTO_TEST_CASE(each_kind_holds_the_tokens_that_it_can_attend_to) {
  const KVCacheLimits limits{.max_in_flight_tokens = 64, .max_encoder_tokens = 1500};
  const auto blocks = [&](const KVCacheSpec& spec, std::int32_t num_tokens) {
    const std::vector<KVCacheGroup> groups = {{.spec = spec, .layers = {0}}};
    return max_request_blocks(groups, num_tokens, limits);
  };
  for (const KVCacheSpec& spec : {full_spec(), latent_spec()}) BOOST_TEST(blocks(spec, 1001) == 63);
  AttentionWindow window{.num_tokens = 33};
  for (const KVCacheSpec& spec :
       {sliding_spec(33), KVCacheSpec{.kind = SlidingWindowMlaSpec{kLatent, window}}}) {
    BOOST_TEST(blocks(spec, 1001) == (32 + 64) / 16 + 1);
    BOOST_TEST(blocks(spec, 17) == 2 + 1);
  }
  window.extra_retained_tokens = 16;
  BOOST_TEST(blocks({.kind = SlidingWindowSpec{kToken, window}}, 1001) == (32 + 16 + 64) / 16 + 1);
  BOOST_TEST(blocks({.kind = ChunkedLocalAttentionSpec{kToken, 128}}, 1001) == (128 + 64) / 16);
  BOOST_TEST(blocks({.kind = CrossAttentionSpec{kToken}}, 1001) == 94);
  MambaSpec states{.num_speculative_blocks = 3};
  BOOST_TEST(blocks({.kind = states}, 1001) == 1 + 3);
  states.mode = MambaMode::kAlign;
  BOOST_TEST(blocks({.kind = states}, 1001) == 2 + 3);
  states.num_prefill_checkpoint_blocks = 1;
  BOOST_TEST(blocks({.kind = states}, 1001) == 2 + 3 + 1);
}

BOOST_AUTO_TEST_CASE(pages_that_do_not_divide_the_largest_are_padded_but_not_latent_ones) {
  KVCacheSpec state{.kind = MambaSpec{.state_bytes = 10000}, .block_size = 512};
  KVCacheSpec small = sliding_spec(64);
  small.token()->num_kv_heads = 1;
  const auto groups = group_layers(std::vector<KVCacheSpec>{state, full_spec(), small}, true);
  BOOST_REQUIRE(groups.ok());
  BOOST_REQUIRE(groups->size() == 3u);
  for (const KVCacheGroup& group : *groups) BOOST_TEST(group.spec.page_bytes() == 10000);
  BOOST_TEST((*groups)[1].spec.block_size == 16);
  const KVCacheSpec latent = latent_spec();
  const auto mixed = group_layers(std::vector<KVCacheSpec>{latent, state, latent}, true);
  BOOST_REQUIRE(mixed.ok());  // the state is smaller, and padded
  BOOST_TEST((*mixed)[1].spec.page_bytes() == latent.page_bytes());
  state.kind = MambaSpec{.state_bytes = 20000};
  const auto refused = group_layers(std::vector<KVCacheSpec>{latent, state}, true);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message.find("18432") != std::string::npos);
  BOOST_TEST(refused.error().message.find("20000") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(layers_that_hold_the_same_tokens_are_one_group_whatever_their_page_size) {
  KVCacheSpec small = full_spec();
  small.token()->num_kv_heads = 1;
  const KVCacheSpec latent = latent_spec();
  const std::vector<KVCacheSpec> layers = {full_spec(), small, latent, full_spec()};
  const std::int64_t block_bytes =
      2 * full_spec().page_bytes() + small.page_bytes() + latent.page_bytes();
  const auto config =
      make_kv_cache_config(layers, {.available_bytes = 10 * block_bytes, .max_model_len = 100});
  BOOST_REQUIRE(config.ok());
  BOOST_REQUIRE(config->groups.size() == 1u);
  BOOST_TEST((config->groups[0].layers == std::vector<std::int32_t>{0, 1, 2, 3}));
  BOOST_TEST((config->groups[0].layer_specs == layers));
  BOOST_TEST((config->groups[0].spec == full_spec()));
  BOOST_TEST(bytes_per_block(config->groups) == block_bytes);
  BOOST_TEST(config->num_blocks == 10);
  BOOST_TEST((config->page_bytes == std::vector{full_spec().page_bytes(), small.page_bytes(),
                                                latent.page_bytes(), full_spec().page_bytes()}));

  KVCacheSpec small_window = sliding_spec(64);
  small_window.token()->num_kv_heads = 1;
  const auto groups_of = [](std::vector<KVCacheSpec> specs) {
    const auto groups = group_layers(specs, true);
    BOOST_REQUIRE(groups.ok());
    return groups->size();
  };
  BOOST_TEST(groups_of({sliding_spec(64), small_window}) == 1u);
  // Other windows or blocks: other tokens.
  BOOST_TEST(groups_of({sliding_spec(32), small_window}) == 2u);
  small.block_size = 32;
  BOOST_TEST(groups_of({full_spec(), small}) == 2u);
  // Equal layers need no list.
  BOOST_TEST(
      (*group_layers(std::vector<KVCacheSpec>(2, full_spec()), true))[0].layer_specs.empty());
}

BOOST_AUTO_TEST_CASE(windows_beside_latent_layers_hold_all_tokens_if_pages_cannot_be_made_equal) {
  const KVCacheSpec latent = latent_spec();
  KVCacheSpec window = sliding_spec(64);
  window.token()->num_kv_heads = 5;  // 20480 bytes, and latent pages of 18432 are not padded
  const auto groups = group_layers(std::vector<KVCacheSpec>{latent, window, latent}, true);
  BOOST_REQUIRE(groups.ok());
  BOOST_REQUIRE(groups->size() == 1u);
  const KVCacheGroup& group = (*groups)[0];
  BOOST_TEST((group.spec == latent));
  BOOST_REQUIRE(group.layer_specs.size() == 3u);
  BOOST_TEST(group.layer_specs[1].is<FullAttentionSpec>());
  BOOST_TEST(group.layer_specs[1].page_bytes() == window.page_bytes());
  // Latent pages that are the larger ones: the window's are padded, and it stays a window.
  window.token()->num_kv_heads = 3;
  const auto padded = group_layers(std::vector<KVCacheSpec>{latent, window, latent}, true);
  BOOST_REQUIRE(padded.ok());
  BOOST_REQUIRE(padded->size() == 3u);
  BOOST_TEST((*padded)[2].spec.is<SlidingWindowSpec>());
  BOOST_TEST((*padded)[2].spec.page_bytes() == latent.page_bytes());
}

BOOST_AUTO_TEST_CASE(the_length_of_requests_can_follow_from_the_memory) {
  const std::vector<KVCacheSpec> layers(4, full_spec());
  const std::int64_t block_bytes = 4 * full_spec().page_bytes();
  KVCacheLimits limits{.available_bytes = 11 * block_bytes, .max_model_len = 4096, .shorten = true};
  const auto config = make_kv_cache_config(layers, limits);
  BOOST_REQUIRE(config.ok());
  BOOST_TEST(longest_request(*config, limits) == 160);
  limits.available_bytes = 1000 * block_bytes;
  BOOST_TEST(longest_request(make_kv_cache_config(layers, limits).value(), limits) == 4096);
  limits.available_bytes = block_bytes;  // the null block
  BOOST_TEST(!make_kv_cache_config(layers, limits).ok());
}

BOOST_AUTO_TEST_CASE(encoder_only_layers_need_no_cache) {
  const KVCacheSpec encoder{.kind = EncoderOnlyAttentionSpec{}};
  const auto none = make_kv_cache_config(std::vector<KVCacheSpec>(3, encoder),
                                         {.available_bytes = 1 << 20, .max_model_len = 512});
  BOOST_REQUIRE(none.ok());
  BOOST_TEST(none->groups.empty());
  BOOST_TEST(none->num_blocks == 1);
  const auto groups =
      group_layers(std::vector<KVCacheSpec>{encoder, full_spec(), encoder, full_spec()}, true);
  BOOST_REQUIRE(groups.ok());
  BOOST_REQUIRE(groups->size() == 1u);
  BOOST_TEST(((*groups)[0].layers == std::vector<std::int32_t>{1, 3}));
}

BOOST_AUTO_TEST_CASE(concurrency_and_the_longest_request_follow_from_the_blocks) {
  const std::vector<KVCacheSpec> layers(4, full_spec());
  KVCacheLimits limits{.available_bytes = 101 * 4 * full_spec().page_bytes(), .max_model_len = 400};
  const auto config = make_kv_cache_config(layers, limits);
  BOOST_REQUIRE(config.ok());
  BOOST_TEST(config->num_blocks == 101);
  BOOST_TEST(max_concurrency(*config, limits) == 101.0 / 25);
  limits.max_model_len = 1 << 20;
  BOOST_TEST(longest_request(*config, limits) == 1600);
  limits = {.max_model_len = 100, .num_blocks_override = 8};
  BOOST_TEST(make_kv_cache_config(layers, limits)->num_blocks == 8);
}

BOOST_AUTO_TEST_CASE(sink_attention_is_refused_by_name) {
  const KVCacheSpec sink{.kind = SinkFullAttentionSpec{kToken}};
  KVCacheSettings settings;
  settings.groups = {{.spec = full_spec()}, {.spec = sink}};
  const std::vector<KVCacheSpec> layers = {full_spec(), sink};
  for (const Error& error : {settings.check().error(), group_layers(layers, true).error(),
                             group_layers(layers, false).error()}) {
    BOOST_TEST((error.code == ErrorCode::kUnsupported));
    BOOST_TEST(error.message.find("sink_full_attention") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(the_retention_interval_must_go_with_the_groups) {
  KVCacheSettings settings;
  settings.groups = {{.spec = full_spec()}};
  settings.retention_interval = 0;
  BOOST_TEST(settings.check().ok());
  settings.retention_interval = 64;
  BOOST_TEST(!settings.check().ok());
  settings.groups.push_back({.spec = sliding_spec(64)});
  BOOST_TEST(settings.check().ok());
  settings.retention_interval = 40;
  BOOST_TEST(settings.check().error().message.find("40") != std::string::npos);
  settings.retention_interval.reset();
  BOOST_TEST(settings.check().ok());
  settings.prefix_match_unit = 12;
  BOOST_TEST(!settings.check().ok());
}

BOOST_AUTO_TEST_CASE(smaller_pages_become_equal_through_larger_blocks) {
  KVCacheSpec half = sliding_spec(64);
  half.token()->num_kv_heads = 1;
  const std::vector<KVCacheSpec> layers = {full_spec(), half};
  const auto groups = group_layers(layers, true);
  BOOST_REQUIRE(groups.ok());
  BOOST_REQUIRE(groups->size() == 2u);
  BOOST_TEST((*groups)[1].spec.block_size == 32);
  BOOST_TEST((*groups)[1].spec.page_bytes() == (*groups)[0].spec.page_bytes());
}

}  // namespace
}  // namespace troupe
