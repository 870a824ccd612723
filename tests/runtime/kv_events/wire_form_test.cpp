// Byte for byte against what vLLM's own structs encode to.
#include "runtime/kv_events/wire_form.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <numeric>

#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/kv_events/event_log.hpp"
#include "runtime/kv_events/kv_events_config.hpp"

namespace troupe {
namespace {

using nlohmann::json;

json golden() {
  std::ifstream file(TROUPE_GOLDEN_DIR "/oracle/wire/golden_kv_events.json");
  return json::parse(file);
}

std::string to_hex(const std::string& bytes) {
  return troupe::to_hex(
      std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

msgspec::Bytes read_bytes(const json& value) { return {from_hex(value["bytes_hex"])}; }

// ---- golden values -> wire structs; absent keys stay absent -------------------------------------

void read(const json& value, std::int32_t& target) { target = value.get<std::int32_t>(); }
void read(const json& value, std::int64_t& target) { target = value.get<std::int64_t>(); }
void read(const json& value, std::string& target) { target = value.get<std::string>(); }
void read(const json& value, kv_wire::Hash& target) {
  if (value.is_object())
    target = read_bytes(value);
  else
    target = value.get<std::uint64_t>();
}
void read(const json& value, kv_wire::Key& target) {
  if (value.is_object())
    target = read_bytes(value);
  else if (value.is_array())
    target = std::pair(value[0].get<std::string>(), value[1].get<std::int32_t>());
  else
    target = value.get<std::string>();
}
template <class T>
void read(const json& value, std::optional<T>& target);
template <class T>
void read(const json& value, std::vector<T>& target) {
  for (const json& element : value) read(element, target.emplace_back());
}
template <class T>
void read(const json& value, std::optional<T>& target) {
  if (!value.is_null()) read(value, target.emplace());
}

template <class T>
T read_struct(const json& value) {
  T result;
  for_each_field(result, [&](const char* name, auto& field) {
    if (value.contains(name)) read(value[name], field);
  });
  return result;
}

kv_wire::Event read_event(const json& value) {
  if (value["type"] == kv_wire::BlockStored::kTag) return read_struct<kv_wire::BlockStored>(value);
  if (value["type"] == kv_wire::BlockRemoved::kTag)
    return read_struct<kv_wire::BlockRemoved>(value);
  BOOST_REQUIRE(value["type"] == kv_wire::AllBlocksCleared::kTag);
  return kv_wire::AllBlocksCleared{};
}

BOOST_AUTO_TEST_CASE(every_golden_batch_is_encoded_to_its_bytes) {
  const json file = golden();
  BOOST_REQUIRE_EQUAL(file["vectors"].size(), 18u);
  for (const json& vector : file["vectors"]) {
    const json& value = vector["generic_decode"];
    std::string encoded;
    if (value.is_object()) {
      encoded = msgspec::encode(read_event(value));
    } else {
      kv_wire::EventBatch batch{.ts = value[0]};
      for (const json& event : value[1]) batch.events.push_back(read_event(event));
      read(value[2], batch.data_parallel_rank);
      encoded = msgspec::encode(batch);
    }
    BOOST_TEST_CONTEXT(vector["name"]) {
      BOOST_TEST(to_hex(encoded) == vector["hex"].get<std::string>());
    }
  }
}

// ---- what the KVCacheManager records -> bytes ---------------------------------------------------

BlockHash hash_from(std::uint8_t first) {
  BlockHash hash;
  std::iota(hash.bytes.begin(), hash.bytes.end(), first);
  return hash;
}
const BlockHash kA = hash_from(0x00);
const BlockHash kB = hash_from(0x20);
const BlockHash kC = hash_from(0x40);

BlocksStored row(std::vector<BlockHash> hashes, std::vector<TokenId> token_ids) {
  BlocksStored event;
  event.extra_keys.resize(hashes.size());
  event.hashes = std::move(hashes);
  event.token_ids = std::move(token_ids);
  event.block_size = 16;
  event.kind = FullAttentionSpec::kName;
  return event;
}

std::vector<TokenId> count_up(std::int32_t n) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::string golden_hex(const std::string& name) {
  const json file = golden();
  for (const json& vector : file["vectors"])
    if (vector["name"] == name) return vector["hex"];
  BOOST_FAIL(name);
  return {};
}

std::string encode(KVCacheEvent event, const KVEventForm& form = {}) {
  return to_hex(encode_kv_event_batch(1700000000.5, {&event, 1}, form));
}

BOOST_AUTO_TEST_CASE(recorded_events_are_encoded_as_the_reference_publishes_them) {
  BOOST_TEST(encode(row({kA, kB}, count_up(32))) == golden_hex("stored-typical-dp0"));

  BlocksStored next = row({kC}, {1, 127, 128, 255, 256, 65535, 65536, 2147483647});
  next.token_ids.resize(16);
  next.parent = kB;
  BOOST_TEST(encode(next) == golden_hex("stored-parent"));

  BlocksStored lora = row({kA}, std::vector<TokenId>(16, 5));
  lora.lora = LoraRequest{"my-lora", 7, "/somewhere"};
  lora.extra_keys = {{"my-lora"}};
  BOOST_TEST(encode(lora, {.data_parallel_rank = 1}) == golden_hex("stored-lora"));

  BlocksStored salted = row({kA, kB}, std::vector<TokenId>(32, 5));
  salted.extra_keys = {{std::pair<std::string, std::int32_t>("hashA", 5), "tenant-A"},
                       {std::pair<std::string, std::int32_t>("hashA", -11)}};
  BOOST_TEST(encode(salted) == golden_hex("stored-salt-mm"));

  BlocksStored embeds = row({kA}, std::vector<TokenId>(16, 0));
  BlockHash digest;
  digest.bytes.fill(0x11);
  embeds.extra_keys = {{digest}};
  BOOST_TEST(encode(embeds) == golden_hex("stored-embeds"));

  BlocksStored window = row({kA}, count_up(16));
  window.group = 1;
  window.kind = "sliding_window";
  window.sliding_window = 1024;
  window.session_id = "sess-1";
  BOOST_TEST(encode(window) == golden_hex("stored-swa-session"));

  BOOST_TEST(encode(BlockRemoved{kA, 0}) == golden_hex("removed"));
  BOOST_TEST(encode(BlockRemoved{kA, 2}, {.int_block_hashes = false, .data_parallel_rank = 3}) ==
             golden_hex("removed-bytes"));
  BOOST_TEST(encode(AllBlocksCleared{}) == golden_hex("cleared"));

  const std::vector<KVCacheEvent> mixed = {BlockRemoved{kC, 0}, row({kA, kB}, count_up(32)),
                                           AllBlocksCleared{}};
  BOOST_TEST(to_hex(encode_kv_event_batch(1763000000.123456, mixed, {})) == golden_hex("mixed"));
}

BOOST_AUTO_TEST_CASE(short_hashes_end_where_their_algorithm_ends) {
  const std::string encoded = encode(BlockRemoved{kA, 0}, {.hash_bytes = 16});
  BOOST_TEST(encoded.find("cf08090a0b0c0d0e0f") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_a_connector_stores_and_drops_has_its_own_medium) {
  BlocksStored stored = row({kA}, {});
  stored.extra_keys.clear();
  stored.medium = "CPU";
  const std::string cpu = to_hex("CPU");
  const std::string gpu = to_hex("GPU");
  BOOST_TEST(encode(stored).find(cpu) != std::string::npos);
  BOOST_TEST(encode(stored).find(gpu) == std::string::npos);
  BOOST_TEST(encode(stored).find(to_hex("extra_keys")) == std::string::npos);
  const BlockRemoved removed{.hash = kA, .medium = "STORAGE"};
  BOOST_TEST(encode(removed).find(to_hex("STORAGE")) != std::string::npos);
  BOOST_TEST(encode(BlockRemoved{.hash = kA}).find(gpu) != std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_event_without_kept_blocks_has_no_extra_keys) {
  BOOST_TEST(encode(row({}, count_up(16))).find(to_hex("extra_keys")) == std::string::npos);
}

// ---- endpoints and options ----------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(endpoints_of_ranks_are_those_of_the_reference) {
  const json file = golden();
  for (const json& line : file["zmq"]["endpoint_offset"]) {
    const std::string endpoint = line["endpoint"];
    BOOST_TEST(is_bound_endpoint(endpoint) == line["binds"].get<bool>(), endpoint);
    for (const std::int32_t rank : {0, 1, 3}) {
      const std::string expected = line["dp" + std::to_string(rank)];
      const auto offset = offset_endpoint(endpoint, rank);
      if (expected.starts_with("ValueError"))
        BOOST_TEST(!offset.ok(), endpoint);
      else
        BOOST_TEST(offset.value() == expected, endpoint);
    }
  }
  BOOST_TEST(offset_endpoint("tcp://*:0", 2).value() == "tcp://*:0");
  BOOST_TEST(!offset_endpoint("tcp://*", 1).ok());
  BOOST_TEST(!offset_endpoint("tcp://*:65535", 1).ok());
}

BOOST_AUTO_TEST_CASE(the_configuration_has_the_reference_s_keys_and_defaults) {
  const auto defaults = parse_kv_events_config("");
  BOOST_TEST(!defaults->publishes());
  const auto config = parse_kv_events_config(
      R"({"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:7","replay_endpoint":null,
          "buffer_steps":3,"hwm":4,"max_queue_size":5,"topic":"t"})");
  BOOST_REQUIRE(config.ok());
  BOOST_TEST(config.value().publishes());
  BOOST_TEST(config.value().endpoint == "tcp://*:7");
  BOOST_TEST(config.value().replay_endpoint == "");
  BOOST_TEST(config.value().buffer_steps == 3);
  BOOST_TEST(config.value().topic == "t");
  BOOST_TEST(!parse_kv_events_config(R"({"enable_kv_cache_events":true,"publisher":"null"})")
                  ->publishes());
  for (const char* wrong :
       {"[]", "{", R"({"buffer_step":1})", R"({"hwm":-1})", R"({"hwm":"1"})",
        R"({"publisher":"kafka"})", R"({"endpoint":""})", R"({"enable_kv_cache_events":1})"}) {
    const auto refused = parse_kv_events_config(wrong);
    BOOST_TEST(!refused.ok(), wrong);
    if (!refused.ok()) BOOST_TEST(refused.error().message.starts_with("kv-events-config"));
  }
}

}  // namespace
}  // namespace troupe
