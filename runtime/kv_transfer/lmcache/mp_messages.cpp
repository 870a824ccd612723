#include "runtime/kv_transfer/lmcache/mp_messages.hpp"

#include <array>
#include <charconv>
#include <cstdio>

#include "messages/msgpack.hpp"
#include "runtime/base/hash.hpp"

namespace troupe::lmcache {
namespace {

using msgspec::encode;
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

/// Reads msgpack. After malformed input ok() stays false and every value is empty.
class MpReader {
 public:
  explicit MpReader(std::string_view bytes) : bytes_(bytes) {}

  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] bool at_end() const noexcept { return ok_ && bytes_.empty(); }

  std::int64_t integer() {
    const std::uint8_t first = byte();
    if (first < 0x80 || first >= 0xe0) return static_cast<std::int8_t>(first);
    switch (first) {
      case 0xcc:
        return static_cast<std::int64_t>(word(1));
      case 0xcd:
        return static_cast<std::int64_t>(word(2));
      case 0xce:
        return static_cast<std::int64_t>(word(4));
      case 0xcf: {
        const std::uint64_t x = word(8);
        if (x > INT64_MAX) ok_ = false;
        return ok_ ? static_cast<std::int64_t>(x) : 0;
      }
      case 0xd0:
        return static_cast<std::int8_t>(word(1));
      case 0xd1:
        return static_cast<std::int16_t>(word(2));
      case 0xd2:
        return static_cast<std::int32_t>(word(4));
      case 0xd3:
        return static_cast<std::int64_t>(word(8));
      default:
        ok_ = false;
        return 0;
    }
  }
  bool boolean() {
    const std::uint8_t first = byte();
    if (first != 0xc2 && first != 0xc3) ok_ = false;
    return ok_ && first == 0xc3;
  }
  std::string text() { return std::string(take(size(0xa0, 0x1f, 0xd9, 1))); }
  std::size_t array() { return limited(size(0x90, 0x0f, 0xdc, 2), 1); }
  std::size_t map() { return limited(size(0x80, 0x0f, 0xde, 2), 2); }
  /// Any value of the types that replies have, at most kMaxDepth deep.
  void skip(int depth = 0) {
    if (!ok_ || bytes_.empty() || depth > kMaxDepth) {
      ok_ = false;
      return;
    }
    const auto first = static_cast<std::uint8_t>(bytes_.front());
    if (first < 0x80 || first >= 0xe0 || (first >= 0xcc && first <= 0xd3)) {
      integer();
    } else if (first == 0xc0) {
      byte();
    } else if (first == 0xc2 || first == 0xc3) {
      boolean();
    } else if (first >= 0xc4 && first <= 0xc6) {
      byte();
      take(word(std::size_t{1} << (first - 0xc4)));
    } else if (first == 0xca || first == 0xcb) {
      byte();
      word(first == 0xca ? 4 : 8);
    } else if ((first & 0xe0) == 0xa0 || (first >= 0xd9 && first <= 0xdb)) {
      text();
    } else if ((first & 0xf0) == 0x90 || first == 0xdc || first == 0xdd) {
      for (std::size_t left = array(); ok_ && left > 0; --left) skip(depth + 1);
    } else {
      for (std::size_t left = 2 * map(); ok_ && left > 0; --left) skip(depth + 1);
    }
  }

 private:
  static constexpr int kMaxDepth = 16;

  std::string_view take(std::uint64_t count) {
    if (!ok_ || count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(word(1)); }
  std::uint64_t word(std::size_t num_bytes) {
    std::uint64_t x = 0;
    for (const char c : take(num_bytes)) x = x << 8 | static_cast<std::uint8_t>(c);
    return x;
  }
  /// Of a text, array or map: in the first byte, or in words behind it, from `wide` on, the first
  /// of which has `num_bytes`.
  std::uint64_t size(std::uint8_t fixed, std::uint8_t mask, std::uint8_t wide,
                     std::size_t num_bytes) {
    const std::uint8_t first = byte();
    if ((first & ~mask) == fixed) return first & mask;
    const std::size_t num_widths = wide == 0xd9 ? 3 : 2;
    for (std::size_t i = 0; i < num_widths; ++i)
      if (first == wide + i) return word(num_bytes << i);
    ok_ = false;
    return 0;
  }
  /// What cannot be in the bytes that are left is malformed.
  std::size_t limited(std::uint64_t count, std::size_t least_bytes) {
    if (count > bytes_.size() / least_bytes) ok_ = false;
    return ok_ ? count : 0;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

Error bad_result(const MpReply& reply, const char* type) {
  return {ErrorCode::kCorrupt,
          "the LMCache server's reply to operation " + std::to_string(reply.operation) + " is no " +
              type,
          {}};
}

std::vector<std::int64_t> read_integers(MpReader& reader) {
  std::vector<std::int64_t> integers;
  for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
    integers.push_back(reader.integer());
  return integers;
}

/// Calls read(name) for each field of a map; it reads the value.
template <class Read>
void read_map(MpReader& reader, Read&& read) {
  for (std::size_t left = reader.map(); reader.ok() && left > 0; --left) read(reader.text());
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
Result<MpFrames> mp_free_lookup_locks(std::uint64_t number, const MpKey& key) {
  ASSIGN_OR_RETURN(std::string packed, pack_key(key));
  return request(number, MpOperation::kFreeLookupLocks, std::move(packed));
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
  MpReader number(frames[0]);
  MpReader operation(frames[1]);
  MpReply reply{static_cast<std::uint64_t>(number.integer()),
                static_cast<std::int32_t>(operation.integer()),
                frames.size() == 3 ? frames[2] : std::string()};
  if (!number.at_end() || !operation.at_end()) return malformed;
  return reply;
}

Result<std::int64_t> mp_integer(const MpReply& reply) {
  MpReader reader(reply.result);
  const std::int64_t value = reader.integer();
  if (!reader.at_end()) return bad_result(reply, "integer");
  return value;
}
Result<bool> mp_bool(const MpReply& reply) {
  MpReader reader(reply.result);
  const bool value = reader.boolean();
  if (!reader.at_end()) return bad_result(reply, "boolean");
  return value;
}
Result<std::vector<std::string>> mp_texts(const MpReply& reply) {
  MpReader reader(reply.result);
  std::vector<std::string> texts;
  for (std::size_t left = reader.array(); reader.ok() && left > 0; --left)
    texts.push_back(reader.text());
  if (!reader.at_end()) return bad_result(reply, "list of texts");
  return texts;
}

Result<MpPool> mp_pool(const MpReply& reply) {
  MpReader reader(reply.result);
  MpPool pool;
  read_map(reader, [&](const std::string& name) {
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
  MpReader reader(reply.result);
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
        read_map(reader, read_slot);
      }
    } else if (name == "chunk_indices") {
      slots.chunk_indices = read_integers(reader);
    } else {
      reader.skip();
    }
  };
  read_map(reader, [&](const std::string& name) {
    if (name == "success")
      slots.success = reader.boolean();
    else if (name == "context")
      read_map(reader, read_context);
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
