#include "runtime/cache/block_hash.hpp"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <fstream>

#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/cache/kv_events.hpp"

namespace troupe {
namespace {

using nlohmann::json;

json golden() {
  std::ifstream file(TROUPE_GOLDEN_DIR "/oracle/wire/golden_block_hashes.json");
  return json::parse(file);
}

KVCacheRequest request_of(const json& golden_case) {
  KVCacheRequest request;
  request.token_ids = golden_case["token_ids"].get<std::vector<TokenId>>();
  request.num_prompt_tokens = static_cast<std::int32_t>(request.token_ids.size());
  if (!golden_case["lora"].is_null()) {
    const json& lora = golden_case["lora"];
    request.lora = LoraRequest{lora["lora_name"], lora["lora_int_id"], lora["lora_path"]};
  }
  if (!golden_case["cache_salt"].is_null()) request.cache_salt = golden_case["cache_salt"];
  for (const json& item : golden_case["mm_features"]) {
    MultiModalFeature& feature = request.mm_features.emplace_back();
    feature.identifier = item["identifier"];
    feature.offset = item["offset"];
    feature.length = item["length"];
  }
  if (const auto embeds = golden_case.find("prompt_embeds");
      embeds != golden_case.end() && !embeds->is_null()) {
    const bool half = (*embeds)["dtype"] == "bfloat16";
    std::vector<char> bytes;
    for (const float x : (*embeds)["values"]) {
      const auto bits = std::bit_cast<std::uint32_t>(x);  // exact in bfloat16 too
      for (int shift = half ? 16 : 0; shift < 32; shift += 8)
        bytes.push_back(static_cast<char>(bits >> shift));
    }
    request.prompt_embed_row_bytes = (*embeds)["shape"][1].get<std::int32_t>() * (half ? 2 : 4);
    request.prompt_embeds = std::make_shared<const std::vector<char>>(std::move(bytes));
  }
  return request;
}

std::string hex(const BlockHash& hash, std::size_t size) {
  return to_hex(std::span(hash.bytes).first(size));
}

BOOST_AUTO_TEST_CASE(the_parent_of_first_blocks_is_the_reference_s_for_every_algorithm_and_seed) {
  const json entries = golden()["none_hash"];
  BOOST_REQUIRE(entries.size() == 22u);
  for (const json& entry : entries) {
    const BlockHasher hasher(*parse_block_hash_algorithm(entry["algo"].get<std::string>()), 16,
                             entry["seed_string"].get<std::string>());
    BOOST_TEST(hex(hasher.none_hash(), hasher.hash_size()) ==
               entry["none_hash_hex"].get<std::string>());
  }
}

BOOST_AUTO_TEST_CASE(block_hashes_are_the_reference_s_byte_for_byte) {
  std::size_t num_blocks = 0;
  const json cases = golden()["cases"];
  for (const json& golden_case : cases) {
    BOOST_TEST_CONTEXT(golden_case["name"]) {
      const std::string seed = golden_case["PYTHONHASHSEED"].is_null()
                                   ? std::string(BlockHasher::kDefaultSeed)
                                   : golden_case["PYTHONHASHSEED"].get<std::string>();
      const BlockHasher hasher(*parse_block_hash_algorithm(golden_case["algo"].get<std::string>()),
                               golden_case["hash_block_size"], seed);
      std::vector<BlockHash> hashes;
      hasher.extend(request_of(golden_case), hashes);
      BOOST_REQUIRE(hashes.size() == golden_case["blocks"].size());
      for (std::size_t i = 0; i < hashes.size(); ++i)
        BOOST_TEST(hex(hashes[i], hasher.hash_size()) ==
                   golden_case["blocks"][i]["hash_hex"].get<std::string>());
      for (std::size_t i = 0; i < hashes.size(); ++i) {
        std::uint64_t low_bits = 0;  // events show these as an integer
        for (std::size_t b = hasher.hash_size() - 8; b < hasher.hash_size(); ++b)
          low_bits = low_bits << 8 | hashes[i].bytes[b];
        BOOST_TEST(low_bits == golden_case["blocks"][i]["event_u64"].get<std::uint64_t>());
      }
      num_blocks += hashes.size();
    }
  }
  BOOST_TEST(cases.size() == 56u);
  BOOST_TEST(num_blocks == 140u);
}

/// As the goldens show it: a text, an item's name and place, or a digest.
json shown(const ExtraKey& key) {
  if (const auto* text = std::get_if<std::string>(&key)) return *text;
  if (const auto* digest = std::get_if<BlockHash>(&key)) return {{"bytes_hex", hex(*digest, 32)}};
  const auto& [identifier, offset] = std::get<std::pair<std::string, std::int32_t>>(key);
  return json::array({identifier, offset});
}

BOOST_AUTO_TEST_CASE(events_show_the_extra_keys_that_the_reference_shows) {
  std::size_t num_keys = 0, num_digests = 0;
  const json cases = golden()["cases"];
  for (const json& golden_case : cases) {
    BOOST_TEST_CONTEXT(golden_case["name"]) {
      const KVCacheRequest request = request_of(golden_case);
      for (const json& block : golden_case["blocks"]) {
        const json& expected = block["event_extra_keys"];
        const std::vector<ExtraKey> keys = extra_keys(request, block["start"], block["end"]);
        BOOST_REQUIRE(keys.size() == (expected.is_null() ? 0 : expected.size()));
        for (std::size_t i = 0; i < keys.size(); ++i) {
          BOOST_TEST(shown(keys[i]) == expected[i]);
          num_digests += std::holds_alternative<BlockHash>(keys[i]);
        }
        num_keys += keys.size();
      }
    }
  }
  BOOST_TEST(num_keys > 50u);
  BOOST_TEST(num_digests > 2u);
}

BOOST_AUTO_TEST_CASE(a_coarser_block_has_the_hash_of_its_last_unit) {
  const json views = golden()["blocksize_view"];
  BOOST_REQUIRE(views.size() == 4u);
  for (const json& view : views) {
    const std::int32_t unit = view["hash_block_size"], block = view["target_block_size"];
    const BlockHasher hasher(*parse_block_hash_algorithm(view["algo"].get<std::string>()), unit);
    KVCacheRequest request;
    request.token_ids = view["token_ids"].get<std::vector<TokenId>>();
    std::vector<BlockHash> fine;
    hasher.extend(request, fine);
    std::vector<std::string> coarse;
    for (std::int32_t end = block; end <= static_cast<std::int32_t>(fine.size()) * unit;
         end += block)
      coarse.push_back(hex(hash_of_prefix(fine, end, unit), 32));
    BOOST_TEST(coarse == view["view"].get<std::vector<std::string>>(),
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(equal_identifiers_are_distinct_objects_to_the_pickled_algorithms) {
  const json traps = golden()["identity_trap"];
  BOOST_REQUIRE(traps.size() == 2u);
  for (const json& trap : traps) {
    KVCacheRequest request = request_of({{"token_ids", trap["token_ids"]},
                                         {"mm_features", trap["mm_features"]},
                                         {"lora", nullptr},
                                         {"cache_salt", nullptr}});
    // One shared object is what a process that makes its own identifiers would see; they come over
    // the wire, as distinct ones.
    const bool shared = trap["label"].get<std::string>().find("ONE shared") != std::string::npos;
    for (const char* algorithm : {"sha256", "sha256_cbor"}) {
      const BlockHasher hasher(*parse_block_hash_algorithm(algorithm), 16, "0");
      std::vector<BlockHash> hashes;
      hasher.extend(request, hashes);
      const bool equal = hex(hashes.at(0), 32) == trap[algorithm]["hash_hex"].get<std::string>();
      BOOST_TEST(equal == !(shared && std::string(algorithm) == "sha256"));
    }
  }
}

BOOST_AUTO_TEST_CASE(hashes_do_not_depend_on_how_the_tokens_arrived) {
  const BlockHasher hasher(BlockHashAlgorithm::kSha256Cbor, 4);
  KVCacheRequest whole;
  for (TokenId token = 0; token < 23; ++token) whole.token_ids.edit().push_back(token * 70000);
  std::vector<BlockHash> at_once;
  hasher.extend(whole, at_once);
  KVCacheRequest growing;
  std::vector<BlockHash> one_by_one;
  for (const TokenId token : whole.token_ids) {
    growing.token_ids.edit().push_back(token);
    hasher.extend(growing, one_by_one);
  }
  BOOST_TEST((at_once == one_by_one));
  BOOST_TEST(at_once.size() == 5u);
}

}  // namespace
}  // namespace troupe
