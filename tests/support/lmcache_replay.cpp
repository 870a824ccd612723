#include "tests/support/lmcache_replay.hpp"

#include <bit>
#include <fstream>
#include <map>
#include <stdexcept>

#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/cache_server/lm_session.hpp"
#include "runtime/kv_transfer/lmcache/cache_engine_key.hpp"
#include "runtime/kv_transfer/lmcache/chunk_hash.hpp"
#include "runtime/kv_transfer/lmcache/mp_messages.hpp"
#include "runtime/kv_transfer/lmcache/remote_metadata.hpp"

namespace troupe {
namespace {

using nlohmann::json;
using namespace lmcache;

using Tokens = std::vector<std::int64_t>;

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string hex_of(std::string_view bytes) {
  return troupe::to_hex(
      std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
}
template <std::size_t n>
std::string hex_of(const std::array<char, n>& bytes) {
  return hex_of(std::string_view(bytes.data(), n));
}

PythonInt python_int(const json& number) {
  return number.is_number_unsigned() ? PythonInt{number.get<std::uint64_t>(), false}
                                     : PythonInt::of(number.get<std::int64_t>());
}

std::string differs(const std::string& what, const std::string& found,
                    const std::string& expected) {
  return found == expected ? "" : what + " is " + found + ", expected " + expected;
}

Tokens lcg(std::size_t count, std::uint32_t x) {
  Tokens tokens;
  for (std::size_t i = 0; i < count; ++i) {
    x = (x * 1103515245U + 12345U) & 0x7fffffffU;
    tokens.push_back(x % 32000);
  }
  return tokens;
}

/// "iota_600", "1..40", "exact_256" (copies of 7), "lcg42_1000", or as the file defines it.
Tokens sequence(const json& definitions, std::string name) {
  Tokens tokens;
  if (const auto cut = name.find("_chunk"); cut != std::string::npos) name.resize(cut);
  long first = 0, last = 0;
  unsigned start = 0;
  if (std::sscanf(name.c_str(), "%ld..%ld", &first, &last) == 2) {
    for (; first <= last; ++first) tokens.push_back(first);
  } else if (std::sscanf(name.c_str(), "iota_%ld", &last) == 1) {
    for (; first < last; ++first) tokens.push_back(first);
  } else if (std::sscanf(name.c_str(), "short_%ld", &last) == 1) {
    for (first = 1; first <= last; ++first) tokens.push_back(first);
  } else if (std::sscanf(name.c_str(), "single_%ld", &first) == 1) {
    tokens.push_back(first);
  } else if (std::sscanf(name.c_str(), "exact_%ld_lcg%u", &last, &start) == 2) {
    tokens = lcg(static_cast<std::size_t>(last), start);
  } else if (std::sscanf(name.c_str(), "lcg%u_%ld", &start, &last) == 2) {
    tokens = lcg(static_cast<std::size_t>(last), start);
  } else if (std::sscanf(name.c_str(), "exact_%ld", &last) == 1) {
    tokens.assign(static_cast<std::size_t>(last), 7);
  } else if (name != "empty") {
    const json& definition = definitions.at(name);
    if (!definition.is_array()) throw std::runtime_error("unknown sequence " + name);
    tokens = definition.get<Tokens>();
  }
  return tokens;
}

// ---- the token database -------------------------------------------------------------------------

void replay_run(const json& run, const HashEnvironment& environment, const json& definitions,
                ReplayReport& report) {
  const auto algorithm = parse_chunk_hash_algorithm(run.at("algorithm").get<std::string>()).value();
  const PythonInt expected_none = python_int(run.at("NONE_HASH"));
  const auto none = none_hash(algorithm, environment);
  const bool is_random = algorithm == ChunkHashAlgorithm::kBuiltin && environment.has_vllm &&
                         !environment.seed.has_value();
  if (is_random)
    report.add(none.ok() ? "a random NONE_HASH was computed" : "");
  else
    report.add(none.ok() ? differs("NONE_HASH", to_hex(*none), to_hex(expected_none))
                         : none.error().message);
  const ChunkHasher hasher(algorithm, expected_none, run.at("chunk_size").get<std::size_t>());
  CacheEngineKey key{.model = run.at("model_name"),
                     .world_size = run.at("world_size"),
                     .worker = run.at("worker_id"),
                     .dtype = key_dtype(run.at("kv_dtype").get<std::string>()).value()};
  if (run.at("use_mla").get<bool>()) key.world_size = 1;  // all ranks have the same
  if (const json& configs = run.at("request_configs"); configs.is_object())
    for (const auto& [name, value] : configs.items())
      if (name.starts_with(kTagPrefix))
        key.tags.emplace_back(name.substr(kTagPrefix.size()), value.get<std::string>());
  for (const auto& [name, rows] : run.at("sequences").items()) {
    const auto chunks =
        hasher.chunks(sequence(definitions, name), run.at("save_unfull_chunk").get<bool>());
    if (chunks.size() != rows.size()) {
      report.add(name + ": " + std::to_string(chunks.size()) + " chunks, expected " +
                 std::to_string(rows.size()));
      continue;
    }
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const json& row = rows[i];
      key.hash = chunks[i].hash;
      key.layer.reset();
      std::string difference = chunks[i].begin == row.at("start") && chunks[i].end == row.at("end")
                                   ? ""
                                   : "range differs";
      difference += chunks[i].hash == python_int(row.at("chunk_hash")) ? "" : " hash differs";
      if (row.contains("key")) difference += differs(" key", key.text(), row.at("key"));
      for (std::size_t layer = 0; row.contains("layer_keys_0_1") && layer < 2; ++layer) {
        key.layer = static_cast<std::int32_t>(layer);
        difference += differs(" layer key", key.text(), row.at("layer_keys_0_1")[layer]);
        const auto parsed = parse_cache_engine_key(key.text());
        if (!parsed.ok() || *parsed != key) difference += " layer key is parsed otherwise";
      }
      report.add(difference.empty() ? ""
                                    : name + ", chunk " + std::to_string(i) + ": " + difference);
    }
  }
}

void replay_segments(const json& golden, PythonInt none, ReplayReport& report) {
  const ChunkHasher hasher(ChunkHashAlgorithm::kSha256Cbor, none, 256);
  const auto segments =
      hasher.segments(golden.at("tokens").get<Tokens>(), golden.at("sep_tokens").get<Tokens>());
  const json& rows = golden.at("segments");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i >= segments.size()) {
      report.add("segment " + std::to_string(i) + " is missing");
      continue;
    }
    CacheEngineKey key = parse_cache_engine_key(rows[i].at("key").get<std::string>()).value();
    const bool equal =
        segments[i].begin == rows[i].at("start") && segments[i].end == rows[i].at("end") &&
        segments[i].hash == python_int(rows[i].at("chunk_hash")) && segments[i].hash == key.hash;
    report.add(equal ? "" : "segment " + std::to_string(i) + " differs");
  }
  report.add(segments.size() == rows.size() ? "" : "there are more segments");
}

void replay_token_database(const json& golden, ReplayReport& report) {
  for (const auto& [name, part] : golden.at("token_database").items()) {
    HashEnvironment environment{.has_vllm = part.at("vllm_importable"), .seed = {}};
    if (part.at("PYTHONHASHSEED").is_string()) environment.seed = part.at("PYTHONHASHSEED");
    for (const json& run : part.at("runs"))
      replay_run(run, environment, golden.at("sequence_definitions"), report);
    if (part.contains("segment_db"))
      replay_segments(part.at("segment_db"),
                      none_hash(ChunkHashAlgorithm::kSha256Cbor, environment).value(), report);
    if (part.contains("parse_example")) {
      const json& example = part.at("parse_example");
      const auto key = parse_cache_engine_key(example.at("in").get<std::string>());
      report.add(!key.ok() ? key.error().message
                           : differs("key", key->text(), example.at("roundtrip")));
      if (key.ok() && example.contains("layer_id"))
        report.add(key->layer == example.at("layer_id").get<std::int32_t>() &&
                           key->hash == python_int(example.at("chunk_hash"))
                       ? ""
                       : "the example's key is parsed otherwise");
    }
  }
}

// ---- lm:// --------------------------------------------------------------------------------------

/// A server whose values are in memory.
struct LmReplay {
  LmReplay() : metrics(registry), store({}, nullptr, registry) { connect(); }
  void connect() {
    session.emplace(store, tokens, metrics, [](const CacheKey&) {});
  }
  /// What comes back. Ends the connection, and makes another, when the server would.
  std::string answer(std::string bytes) {
    std::string out;
    while (!bytes.empty() && session->problem().empty()) {
      const std::span<char> input = session->input();
      const std::size_t count = std::min(bytes.size(), input.size());
      std::copy_n(bytes.data(), count, input.data());
      bytes.erase(0, count);
      session->received(count);
      while (true) {
        const LmSession::Output output = session->output();
        if (output.head.empty() && output.body.empty()) break;
        const std::span<const char> piece = output.head.empty() ? output.body : output.head;
        out.append(piece.data(), piece.size());
        session->sent(piece.size());
      }
    }
    if (!session->problem().empty()) connect();
    return out;
  }

  Registry registry;
  LmMetrics metrics;
  ClientTokens tokens;
  CacheStore store;
  std::optional<LmSession> session;
};

std::string replay_client_bytes(const json& step, const std::string& bytes) {
  if (bytes.size() < kLmRequestBytes) return {};
  const auto head = std::span<const char, kLmRequestBytes>(bytes.data(), kLmRequestBytes);
  const auto request = parse_lm_request(head);
  const bool is_unknown = step.at("step").get<std::string>().starts_with("unknown");
  if (!request.ok()) return is_unknown ? "" : request.error().message;
  if (is_unknown) return "an unknown command was read";
  if (step.contains("key") && request->key != step.at("key")) return "the key is " + request->key;
  if (request->command == LmCommand::kPut &&
      static_cast<std::size_t>(request->length) != bytes.size() - kLmRequestBytes)
    return "the length is " + std::to_string(request->length);
  // A request for a key alone has the defaults.
  LmRequest ours{.command = request->command, .key = request->key};
  if (request->command == LmCommand::kPut) ours = *request;
  return differs("the request", hex_of(pack_lm_request(ours)),
                 hex_of(std::string_view(bytes).substr(0, kLmRequestBytes)));
}

void replay_lm_protocol(const json& golden, ReplayReport& report) {
  LmReplay server;
  for (const json& step : golden.at("steps")) {
    const std::string title = "lm://, " + step.at("step").get<std::string>() + ": ";
    const std::string client = bytes_of(step.at("client_to_server_hex"));
    const std::string expected = step.at("server_to_client_hex");
    std::string difference = replay_client_bytes(step, client);
    difference += differs(" the reply", hex_of(server.answer(client)), expected);
    if (const std::string bytes = bytes_of(expected); bytes.size() >= kLmReplyBytes) {
      const auto reply =
          parse_lm_reply(std::span<const char, kLmReplyBytes>(bytes.data(), kLmReplyBytes));
      difference += reply.ok() ? differs(" the reply again", hex_of(pack_lm_reply(*reply)),
                                         hex_of(bytes.substr(0, kLmReplyBytes)))
                               : reply.error().message;
    }
    report.add(difference.empty() ? "" : title + difference);
  }
  for (const auto& [name, hex] : golden.at("remote_metadata").items()) {
    const auto metadata = parse_remote_metadata(bytes_of(hex));
    report.add(metadata.ok() ? differs(name, hex_of(pack_remote_metadata(*metadata)), hex)
                             : name + ": " + metadata.error().message);
    long length = 0;
    if (metadata.ok() && std::sscanf(name.c_str(), "%*[a-z]_%*[a-z]_%ldB", &length) == 1)
      report.add(metadata->length == length ? "" : name + ": the length differs");
  }
}

// ---- the MP server ------------------------------------------------------------------------------

/// Of a request as the file has it, which our functions are to make again.
MpKey mp_key_of(const json& map) {
  MpKey key{.model = map.at("model_name"),
            .world_size = map.at("world_size"),
            .worker = {},
            .token_ids = map.at("token_ids").get<Tokens>(),
            .begin = map.at("start"),
            .end = map.at("end"),
            .request_id = map.at("request_id"),
            .cache_salt = map.at("cache_salt"),
            .request_configs = {},
            .num_kv_readers = map.at("num_kv_readers")};
  if (!map.at("worker_id").is_null()) key.worker = map.at("worker_id").get<std::int32_t>();
  if (const json& configs = map.at("request_configs"); configs.is_object())
    for (const auto& [name, value] : configs.items())
      key.request_configs.emplace().emplace_back(name, value.get<std::string>());
  return key;
}

Result<MpFrames> mp_request_of(const std::string& op, const std::vector<json>& frames) {
  const std::uint64_t number = frames[0];
  const auto argument = [&](std::size_t i) -> const json& { return frames.at(2 + i); };
  if (op == "noop") return mp_noop(number);
  if (op == "get_chunk_size") return mp_get_chunk_size(number);
  if (op == "get_experimental") return mp_get_experimental(number);
  if (op == "ping")
    return mp_ping(number, argument(0).is_null() ? std::optional<std::int64_t>()
                                                 : argument(0).get<std::int64_t>());
  if (op == "cb_protocol_handshake") return mp_protocol_handshake(number, argument(0));
  if (op == "lookup") return mp_lookup(number, mp_key_of(argument(0)), argument(1));
  if (op == "free_lookup_locks")
    return mp_free_lookup_locks(number, mp_key_of(argument(0)), argument(1));
  if (op == "query_prefetch_status") return mp_query_prefetch_status(number, argument(0));
  if (op == "wait_prefetch_status")
    return mp_wait_prefetch_status(number, argument(0), argument(1));
  if (op == "end_session") return mp_end_session(number, argument(0));
  if (op == "clear") return mp_clear(number, argument(0));
  if (op == "unregister_kv_cache_engine_driven_context")
    return mp_unregister_context(number, argument(0));
  if (op == "register_kv_cache_engine_driven_context") {
    const json& map = argument(0);
    MpContext context{.instance = map.at("instance_id"),
                      .model = map.at("model_name"),
                      .world_size = map.at("world_size"),
                      .block_size = map.at("block_size"),
                      .num_layers = map.at("num_layers"),
                      .hidden_dim = map.at("hidden_dim_size"),
                      .dtype = map.at("dtype_str"),
                      .use_mla = map.at("use_mla"),
                      .num_physical_slots = {}};
    if (const json& slots = map.at("num_physical_slots"); !slots.is_null())
      context.num_physical_slots = slots.get<std::int64_t>();
    return mp_register_context(number, context);
  }
  const std::map<std::string, MpOperation> transfers = {
      {"prepare_store", MpOperation::kPrepareStore},
      {"prepare_retrieve", MpOperation::kPrepareRetrieve},
      {"commit_retrieve", MpOperation::kCommitRetrieve}};
  if (const auto found = transfers.find(op); found != transfers.end())
    return mp_transfer(number, found->second, mp_key_of(argument(0)), argument(1));
  if (op == "commit_store") {
    const json::binary_t& data = argument(2).get_binary();
    return mp_commit_store(number, mp_key_of(argument(0)), argument(1), {data.begin(), data.end()});
  }
  return Error{ErrorCode::kNotFound, "the operation is unknown", {}};
}

std::string replay_mp_reply(const std::string& op, const json& frames) {
  MpFrames reply_frames;
  for (const std::string hex : frames) {
    // A tensor as Python's pickle, shortened in the file: nothing that an engine with shared memory
    // gets.
    if (hex.find_first_not_of("0123456789abcdef") != std::string::npos) return {};
    reply_frames.push_back(bytes_of(hex));
  }
  const auto reply = parse_mp_reply(reply_frames);
  if (!reply.ok()) return reply.error().message;
  if (reply->result.empty()) return frames.size() == 2 ? "" : "there is a result";
  const json result = json::from_msgpack(reply->result);
  std::string error;
  const auto check = [&](const auto& read, const json& expected) {
    if (!read.ok())
      error = read.error().message;
    else if (json(*read) != expected)
      error = "the result is " + json(*read).dump() + ", expected " + expected.dump();
  };
  if (result.is_boolean()) {
    check(mp_bool(*reply), result);
  } else if (result.is_number_integer()) {
    check(mp_integer(*reply), result);
  } else if (result.is_array()) {
    check(mp_texts(*reply), result);
  } else if (op.starts_with("register")) {
    const auto pool = mp_pool(*reply);
    if (!pool.ok() ||
        *pool != MpPool{result.at("shm_name").get<std::string>(), result.at("pool_size")})
      error = "the memory pool differs";
  } else if (result.is_object()) {
    const auto slots = mp_slots(*reply);
    const json& context = result.contains("context") ? result.at("context") : result;
    if (!slots.ok() || slots->slots.size() != context.value("slots", json::array()).size())
      error = "the slots differ";
  }
  return error;
}

void replay_mp_protocol(const json& golden, ReplayReport& report) {
  for (const json& step : golden.at("steps")) {
    const std::string op = step.at("op");
    std::vector<json> frames;
    std::vector<std::string> expected;
    bool complete = true;
    for (const std::string hex : step.at("request_frames_hex")) {
      complete = complete && hex.find_first_not_of("0123456789abcdef") == std::string::npos;
      expected.push_back(hex);
      frames.push_back(complete ? json::from_msgpack(bytes_of(hex)) : json::binary({}));
    }
    const auto ours = mp_request_of(op, frames);
    std::string difference = ours.ok() ? "" : ours.error().message;
    for (std::size_t i = 0; ours.ok() && i < expected.size(); ++i) {
      if (i + 1 == expected.size() && !complete) continue;  // shortened in the file
      difference += differs("frame " + std::to_string(i),
                            i < ours->size() ? hex_of((*ours)[i]) : "missing", expected[i]);
    }
    if (!step.at("reply_frames_hex").is_null())
      difference += replay_mp_reply(op, step.at("reply_frames_hex"));
    report.add(difference.empty() ? "" : "MP, " + op + ": " + difference);
  }
}

/// The hash of None in the process that made it, from NONE_HASH = hash((0, (0,), None)).
std::int64_t hash_of_none(std::int64_t none) {
  constexpr auto inverse = [](std::uint64_t odd) {
    std::uint64_t x = odd;  // Newton's iteration doubles the bits that are right
    for (int i = 0; i < 6; ++i) x *= 2 - odd * x;
    return x;
  };
  constexpr std::uint64_t kPrime1 = 11400714785074694791U;
  constexpr std::uint64_t kPrime2 = 14029467366897019727U;
  constexpr std::uint64_t kPrime5 = 2870177450012600261U;
  const std::array<std::int64_t, 2> known = {0,
                                             python_hash_integers(std::array<std::int64_t, 1>{})};
  std::uint64_t sum = kPrime5;
  for (const std::int64_t element : known)
    sum = std::rotl(sum + static_cast<std::uint64_t>(element) * kPrime2, 31) * kPrime1;
  const std::uint64_t last = static_cast<std::uint64_t>(none) - (3 ^ (kPrime5 ^ 3527539U));
  return static_cast<std::int64_t>((std::rotr(last * inverse(kPrime1), 31) - sum) *
                                   inverse(kPrime2));
}

void replay_mp_hashes(const json& golden, const json& definitions, ReplayReport& report) {
  for (const json& row : golden.at("token_hasher")) {
    const std::string algorithm = row.at("algorithm");
    const Tokens tokens = sequence(definitions, row.at("tokens"));
    const auto size = row.at("chunk_size").get<std::size_t>();
    std::vector<std::string> hashes;
    if (algorithm == "blake3") {
      report.add(differs("MP NONE_HASH", troupe::to_hex(mp_none_hash()), row.at("none_hash")));
      for (const MpChunkHash& hash : mp_chunk_hashes(tokens, size))
        hashes.push_back(troupe::to_hex(hash));
    } else {
      PythonInt parent = python_int(row.at("none_hash"));
      const std::int64_t none = hash_of_none(row.at("none_hash").get<std::int64_t>());
      for (std::size_t begin = 0; begin + size <= tokens.size(); begin += size) {
        const std::int64_t hash =
            mp_builtin_hash(parent, std::span(tokens).subspan(begin, size), none);
        parent = PythonInt::of(hash);
        std::array<char, 17> digits;
        std::snprintf(digits.data(), digits.size(), "%016llx",
                      static_cast<unsigned long long>(hash));
        hashes.emplace_back(digits.data());
      }
    }
    report.add(differs("MP hashes of " + algorithm, json(hashes).dump(), row.at("hashes").dump()));
  }
  for (const auto& [name, rank] : golden.at("kv_rank_examples").items()) {
    unsigned world_size = 0, number = 0;
    if (std::sscanf(name.c_str(), "ws%u_r%u", &world_size, &number) != 2) continue;
    report.add(differs(name, std::to_string(mp_kv_rank(world_size, number, world_size, number)),
                       rank.dump()));
  }
}

}  // namespace

ReplayReport replay_lmcache(const std::filesystem::path& file) {
  ReplayReport report;
  std::ifstream stream(file);
  const json golden = json::parse(stream);
  replay_token_database(golden, report);
  replay_lm_protocol(golden.at("lm_protocol"), report);
  replay_mp_protocol(golden.at("mp_protocol"), report);
  replay_mp_hashes(golden.at("mp_protocol"), golden.at("sequence_definitions"), report);
  return report;
}

}  // namespace troupe
