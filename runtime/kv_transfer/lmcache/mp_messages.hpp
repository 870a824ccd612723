#pragma once
// The messages of LMCache's server of several processes (`lmcache server`) over ZeroMQ, for
// engines that transfer through shared memory. Frames of a request: its number, the operation, one
// for each argument; of the reply: number, operation, and the result if it is not None. Each is
// msgpack.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/chunk_hash.hpp"

namespace troupe::lmcache {

enum class MpOperation : std::int32_t {
  kLookup = 8,
  kQueryPrefetchStatus = 9,
  kWaitPrefetchStatus = 10,
  kFreeLookupLocks = 12,
  kEndSession = 13,
  kRegisterContext = 14,
  kUnregisterContext = 15,
  kPrepareStore = 16,
  kCommitStore = 17,
  kPrepareRetrieve = 18,
  kCommitRetrieve = 19,
  kClear = 20,
  kGetChunkSize = 21,
  kPing = 22,
  kNoop = 24,
  kGetExperimental = 32,
  kProtocolHandshake = 33,
};

using MpFrames = std::vector<std::string>;

/// Whose tokens, and which of them.
struct MpKey {
  std::string model;
  std::int32_t world_size = 1;
  std::optional<std::int32_t> worker;  ///< none: of a lookup
  std::vector<std::int64_t> token_ids;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string request_id;
  std::string cache_salt;  ///< at most kMaxSaltBytes, without @ / \ and NUL
  std::optional<std::vector<std::pair<std::string, std::string>>> request_configs;
  std::int32_t num_kv_readers = 1;

  static constexpr std::size_t kMaxSaltBytes = 128;
};

/// An engine that transfers by itself.
struct MpContext {
  std::int64_t instance = 0;
  std::string model;
  std::int32_t world_size = 1;
  std::int32_t block_size = 16;
  std::int32_t num_layers = 0;
  std::int64_t hidden_dim = 0;
  std::string dtype;  ///< "float16"
  bool use_mla = false;
  std::optional<std::int64_t> num_physical_slots;
};

[[nodiscard]] MpFrames mp_noop(std::uint64_t number);
[[nodiscard]] MpFrames mp_get_chunk_size(std::uint64_t number);
[[nodiscard]] MpFrames mp_get_experimental(std::uint64_t number);
[[nodiscard]] MpFrames mp_ping(std::uint64_t number, std::optional<std::int64_t> instance);
[[nodiscard]] MpFrames mp_protocol_handshake(std::uint64_t number, std::int32_t version);
[[nodiscard]] MpFrames mp_register_context(std::uint64_t number, const MpContext& context);
[[nodiscard]] MpFrames mp_unregister_context(std::uint64_t number, std::int64_t instance);
/// Errors: kInvalidArgument, the salt; also of the next ones.
[[nodiscard]] Result<MpFrames> mp_lookup(std::uint64_t number, const MpKey& key,
                                         std::int32_t num_readers);
[[nodiscard]] Result<MpFrames> mp_free_lookup_locks(std::uint64_t number, const MpKey& key,
                                                    std::int32_t num_readers);
/// kPrepareStore, kPrepareRetrieve or kCommitRetrieve.
[[nodiscard]] Result<MpFrames> mp_transfer(std::uint64_t number, MpOperation operation,
                                           const MpKey& key, std::int64_t instance);
/// `data` is empty with shared memory.
[[nodiscard]] Result<MpFrames> mp_commit_store(std::uint64_t number, const MpKey& key,
                                               std::int64_t instance, std::string data);
[[nodiscard]] MpFrames mp_query_prefetch_status(std::uint64_t number,
                                                const std::string& request_id);
[[nodiscard]] MpFrames mp_wait_prefetch_status(std::uint64_t number, const std::string& request_id,
                                               double timeout_s);
[[nodiscard]] MpFrames mp_end_session(std::uint64_t number, const std::string& request_id);
[[nodiscard]] MpFrames mp_clear(std::uint64_t number, bool force);

struct MpReply {
  std::uint64_t number = 0;
  std::int32_t operation = 0;
  std::string result;  ///< msgpack; empty: None
};
/// Errors: kCorrupt; also of the next ones: the result is of another type.
[[nodiscard]] Result<MpReply> parse_mp_reply(const MpFrames& frames);

[[nodiscard]] Result<std::int64_t> mp_integer(const MpReply& reply);
[[nodiscard]] Result<bool> mp_bool(const MpReply& reply);
[[nodiscard]] Result<std::vector<std::string>> mp_texts(const MpReply& reply);

/// Of kRegisterContext.
struct MpPool {
  std::string shm_name;  ///< empty: there is no shared memory
  std::int64_t num_bytes = 0;
  bool operator==(const MpPool&) const = default;
};
[[nodiscard]] Result<MpPool> mp_pool(const MpReply& reply);

/// Of kPrepareStore and kPrepareRetrieve: where the chunks lie in shared memory.
struct MpSlots {
  struct Slot {
    std::int64_t offset = 0;
    std::int64_t num_bytes = 0;
    std::vector<std::int64_t> shape;
    std::string dtype;
    bool operator==(const Slot&) const = default;
  };
  bool success = true;
  std::vector<Slot> slots;
  std::vector<std::int64_t> chunk_indices;
  bool operator==(const MpSlots&) const = default;
};
[[nodiscard]] Result<MpSlots> mp_slots(const MpReply& reply);

/// Of an object of the server: world size, rank, local world size and local rank, a byte each.
[[nodiscard]] constexpr std::uint32_t mp_kv_rank(std::uint32_t world_size, std::uint32_t rank,
                                                 std::uint32_t local_world_size,
                                                 std::uint32_t local_rank) noexcept {
  return world_size << 24 | rank << 16 | local_world_size << 8 | local_rank;
}

/// Under which the server keeps an object on its second level.
struct MpObjectKey {
  MpChunkHash hash{};
  std::string model;
  std::uint32_t kv_rank = 0;
  std::uint32_t group = 0;
  std::string cache_salt;

  /// In stores of keys and values.
  [[nodiscard]] std::string text() const;
  /// In its file system.
  [[nodiscard]] std::string file_name() const;
};

}  // namespace troupe::lmcache
