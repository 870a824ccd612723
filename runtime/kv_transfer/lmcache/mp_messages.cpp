#include "runtime/kv_transfer/lmcache/mp_messages.hpp"

#include <array>
#include <charconv>
#include <cstdio>

#include "messages/msgpack.hpp"
#include "messages/msgpack_reader.hpp"
#include "runtime/base/hash.hpp"

namespace troupe::lmcache {
namespace {

using msgspec::encode;
using msgspec::Reader;
using msgspec::Writer;

template <class... Arguments>
MpFrames request(std::uint64_t number, MpOperation operation, Arguments... arguments) {
  return {encode(number), encode(static_cast<std::int32_t>(operation)), std::move(arguments)...};
}

template <class T>
void put_field(Writer& writer, const char* name, const T& value) {
  writer.put(name);
  writer.put(value);
}

Result<std::string> pack_key(const MpKey& key) {
  constexpr std::string_view kForbidden("@/\\\0", 4);
  if (key.cache_salt.size() > MpKey::kMaxSaltBytes ||
      key.cache_salt.find_first_of(kForbidden) != std::string::npos)
    return invalid_argument(
        "cache_salt is '" + key.cache_salt + "', it may have 128 bytes and none of @ / \\ NUL",
        "cache_salt");
  std::string out;
  Writer writer(out);
  writer.put_map(10);
  put_field(writer, "model_name", key.model);
  put_field(writer, "world_size", key.world_size);
  put_field(writer, "worker_id", key.worker);
  put_field(writer, "token_ids", key.token_ids);
  put_field(writer, "start", key.begin);
  put_field(writer, "end", key.end);
  put_field(writer, "request_id", key.request_id);
  put_field(writer, "cache_salt", key.cache_salt);
  writer.put("request_configs");
  if (key.request_configs) {
    writer.put_map(static_cast<std::uint32_t>(key.request_configs->size()));
    for (const auto& [name, value] : *key.request_configs) writer.put(name), writer.put(value);
  } else {
    writer.put(std::monostate{});
  }
  put_field(writer, "num_kv_readers", key.num_kv_readers);
  return out;
}

// ---- replies ------------------------------------------------------------------------------------

Error bad_result(const MpReply& reply, const char* type) {
  return {ErrorCode::kCorrupt,
          "the LMCache server's reply to operation " + std::to_string(reply.operation) + " is no " +
              type,
          {}};
}

std::vector<std::int64_t> read_integers(Reader& reader) {
  std::vector<std::int64_t> integers;
  for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
    integers.push_back(reader.integer());
  return integers;
}

}  // namespace

MpFrames mp_noop(std::uint64_t number) { return request(number, MpOperation::kNoop); }
MpFrames mp_get_chunk_size(std::uint64_t number) {
  return request(number, MpOperation::kGetChunkSize);
}
MpFrames mp_get_experimental(std::uint64_t number) {
  return request(number, MpOperation::kGetExperimental);
}
MpFrames mp_ping(std::uint64_t number, std::optional<std::int64_t> instance) {
  return request(number, MpOperation::kPing, encode(instance));
}
MpFrames mp_protocol_handshake(std::uint64_t number, std::int32_t version) {
  return request(number, MpOperation::kProtocolHandshake, encode(version));
}

MpFrames mp_register_context(std::uint64_t number, const MpContext& context) {
  std::string out;
  Writer writer(out);
  writer.put_map(9);
  put_field(writer, "instance_id", context.instance);
  put_field(writer, "model_name", context.model);
  put_field(writer, "world_size", context.world_size);
  put_field(writer, "block_size", context.block_size);
  put_field(writer, "num_layers", context.num_layers);
  put_field(writer, "hidden_dim_size", context.hidden_dim);
  put_field(writer, "dtype_str", context.dtype);
  put_field(writer, "use_mla", context.use_mla);
  put_field(writer, "num_physical_slots", context.num_physical_slots);
  return request(number, MpOperation::kRegisterContext, std::move(out));
}
MpFrames mp_unregister_context(std::uint64_t number, std::int64_t instance) {
  return request(number, MpOperation::kUnregisterContext, encode(instance));
}

Result<MpFrames> mp_lookup(std::uint64_t number, const MpKey& key, std::int32_t num_readers) {
  ASSIGN_OR_RETURN(std::string packed, pack_key(key));
  return request(number, MpOperation::kLookup, std::move(packed), encode(num_readers));
}
Result<MpFrames> mp_free_lookup_locks(std::uint64_t number, const MpKey& key,
                                      std::int32_t num_readers) {
  ASSIGN_OR_RETURN(std::string packed, pack_key(key));
  return request(number, MpOperation::kFreeLookupLocks, std::move(packed), encode(num_readers));
}
Result<MpFrames> mp_transfer(std::uint64_t number, MpOperation operation, const MpKey& key,
                             std::int64_t instance) {
  ASSIGN_OR_RETURN(std::string packed, pack_key(key));
  return request(number, operation, std::move(packed), encode(instance));
}
Result<MpFrames> mp_commit_store(std::uint64_t number, const MpKey& key, std::int64_t instance,
                                 std::string data) {
  ASSIGN_OR_RETURN(std::string packed, pack_key(key));
  return request(number, MpOperation::kCommitStore, std::move(packed), encode(instance),
                 encode(msgspec::Bytes{std::move(data)}));
}

MpFrames mp_query_prefetch_status(std::uint64_t number, const std::string& request_id) {
  return request(number, MpOperation::kQueryPrefetchStatus, encode(request_id));
}
MpFrames mp_wait_prefetch_status(std::uint64_t number, const std::string& request_id,
                                 double timeout_s) {
  return request(number, MpOperation::kWaitPrefetchStatus, encode(request_id), encode(timeout_s));
}
MpFrames mp_end_session(std::uint64_t number, const std::string& request_id) {
  return request(number, MpOperation::kEndSession, encode(request_id));
}
MpFrames mp_clear(std::uint64_t number, bool force) {
  return request(number, MpOperation::kClear, encode(force));
}

Result<MpReply> parse_mp_reply(const MpFrames& frames) {
  const Error malformed{ErrorCode::kCorrupt, "malformed reply of the LMCache server", {}};
  if (frames.size() < 2 || frames.size() > 3) return malformed;
  Reader number(frames[0]);
  Reader operation(frames[1]);
  MpReply reply{static_cast<std::uint64_t>(number.integer()),
                static_cast<std::int32_t>(operation.integer()),
                frames.size() == 3 ? frames[2] : std::string()};
  if (!number.at_end() || !operation.at_end()) return malformed;
  return reply;
}

Result<std::int64_t> mp_integer(const MpReply& reply) {
  Reader reader(reply.result);
  const std::int64_t value = reader.integer();
  if (!reader.at_end()) return bad_result(reply, "integer");
  return value;
}
Result<bool> mp_bool(const MpReply& reply) {
  Reader reader(reply.result);
  const bool value = reader.boolean();
  if (!reader.at_end()) return bad_result(reply, "boolean");
  return value;
}
Result<std::vector<std::string>> mp_texts(const MpReply& reply) {
  Reader reader(reply.result);
  std::vector<std::string> texts;
  for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
    texts.push_back(reader.text());
  if (!reader.at_end()) return bad_result(reply, "list of texts");
  return texts;
}

Result<MpPool> mp_pool(const MpReply& reply) {
  Reader reader(reply.result);
  MpPool pool;
  reader.fields([&](const std::string& name) {
    if (name == "shm_name")
      pool.shm_name = reader.text();
    else if (name == "pool_size")
      pool.num_bytes = reader.integer();
    else
      reader.skip();
  });
  if (!reader.at_end()) return bad_result(reply, "memory pool");
  return pool;
}

Result<MpSlots> mp_slots(const MpReply& reply) {
  Reader reader(reply.result);
  MpSlots slots;
  const auto read_slot = [&](const std::string& name) {
    MpSlots::Slot& slot = slots.slots.back();
    if (name == "offset")
      slot.offset = reader.integer();
    else if (name == "length")
      slot.num_bytes = reader.integer();
    else if (name == "shape")
      slot.shape = read_integers(reader);
    else if (name == "dtype")
      slot.dtype = reader.text();
    else
      reader.skip();
  };
  const auto read_context = [&](const std::string& name) {
    if (name == "slots") {
      for (std::size_t left = reader.array(); reader.ok() && left > 0; --left) {
        slots.slots.emplace_back();
        reader.fields(read_slot);
      }
    } else if (name == "chunk_indices") {
      slots.chunk_indices = read_integers(reader);
    } else {
      reader.skip();
    }
  };
  reader.fields([&](const std::string& name) {
    if (name == "success")
      slots.success = reader.boolean();
    else if (name == "context")
      reader.fields(read_context);
    else
      read_context(name);
  });
  if (!reader.at_end()) return bad_result(reply, "list of slots");
  return slots;
}

std::string MpObjectKey::text() const {
  std::array<char, 16> rank;
  const int size = std::snprintf(rank.data(), rank.size(), "%08x", kv_rank);
  std::array<char, 16> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), group, 16).ptr;
  std::string text = model + '@' + std::string(rank.data(), static_cast<std::size_t>(size)) + '@' +
                     std::string(digits.data(), end) + '@' + troupe::to_hex(hash);
  if (!cache_salt.empty()) text += '@' + cache_salt;
  return text;
}

std::string MpObjectKey::file_name() const {
  std::string name;
  for (const char c : model) c == '/' ? name += "-SEP-" : name += c;
  return name + "@0x" + text().substr(model.size() + 1) + ".data";
}

}  // namespace troupe::lmcache
