#include "runtime/cache/block_hash.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/hash.hpp"

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
    if (!golden_case["prompt_embeds"].is_null()) continue;  // prompts are tokens here
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
      num_blocks += hashes.size();
    }
  }
  BOOST_TEST(num_blocks > 120u);
}

BOOST_AUTO_TEST_CASE(hashes_do_not_depend_on_how_the_tokens_arrived) {
  const BlockHasher hasher(BlockHashAlgorithm::kSha256Cbor, 4);
  KVCacheRequest whole;
  for (TokenId token = 0; token < 23; ++token) whole.token_ids.push_back(token * 70000);
  std::vector<BlockHash> at_once;
  hasher.extend(whole, at_once);
  KVCacheRequest growing;
  std::vector<BlockHash> one_by_one;
  for (const TokenId token : whole.token_ids) {
    growing.token_ids.push_back(token);
    hasher.extend(growing, one_by_one);
  }
  BOOST_TEST((at_once == one_by_one));
  BOOST_TEST(at_once.size() == 5u);
}

}  // namespace
}  // namespace troupe
