#pragma once
// What engines tell each other to load blocks of a KV cache from one another, and how:
// little-endian frames (messages/wire.hpp) over a connection between two ranks.

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "messages/ids.hpp"
#include "messages/reflect.hpp"

namespace troupe {

/// XXH3 of what must be equal on both sides: model, types, and what a head of a layer takes.
using PeerOrigin = std::array<std::uint8_t, 16>;
/// SHA-256 of the tokens (and images, adapter, salt) whose KV is transferred.
using PrefixDigest = std::array<std::uint8_t, 32>;

/// How a rank keeps one layer. A block is a sequence of units of unit_tokens tokens; in a unit are
/// num_parts parts (keys and values, or latents) of num_heads heads of head_bytes bytes each.
struct PeerLayer {
  std::int32_t layer = 0;
  std::int32_t unit_tokens = 0;
  std::int32_t num_parts = 0;
  std::int32_t num_heads = 0;
  std::int64_t head_bytes = 0;
  bool operator==(const PeerLayer&) const = default;
};
TROUPE_MESSAGE(PeerLayer, layer, unit_tokens, num_parts, num_heads, head_bytes)

/// The connecting side's first frame.
struct PeerHello {
  std::uint32_t version = 0;
  PeerOrigin origin{};
  bool uses_devices = false;  ///< KV goes from device to device (PeerDevice)
  bool operator==(const PeerHello&) const = default;
};
TROUPE_MESSAGE(PeerHello, version, origin, uses_devices)

/// The answer to PeerHello.
struct PeerWelcome {
  std::string error;  ///< the connection ends
  std::int32_t tensor_rank = 0;
  std::int32_t tensor_parallel_size = 1;
  double lease_s = 0;  ///< without a sign of a reader blocks are held for so long
  std::vector<PeerLayer> layers;
  std::string device_id;  ///< of the pair of devices; empty: KV goes through the hosts
  bool operator==(const PeerWelcome&) const = default;
};
TROUPE_MESSAGE(PeerWelcome, error, tensor_rank, tensor_parallel_size, lease_s, layers, device_id)

/// Of a layer: heads [head_begin, head_end) of these units of the prefix.
struct PeerPiece {
  std::int32_t layer = 0;
  std::int32_t head_begin = 0;
  std::int32_t head_end = 0;
  std::vector<std::int32_t> units;
  bool operator==(const PeerPiece&) const = default;
};
TROUPE_MESSAGE(PeerPiece, layer, head_begin, head_end, units)

/// Answered with PeerData. The bytes are those of the pieces in order, of each piece those of the
/// units, of each unit those of the parts, of each part those of the heads.
struct PeerRead {
  std::string key;  ///< under which the blocks are held
  PrefixDigest digest{};
  std::vector<PeerPiece> pieces;
  std::uint64_t num_bytes = 0;
  bool shared = false;        ///< with the frame comes a SharedMemory of num_bytes to write to
  std::uint32_t wait_ms = 0;  ///< for what is not computed yet
  bool operator==(const PeerRead&) const = default;
};
TROUPE_MESSAGE(PeerRead, key, digest, pieces, num_bytes, shared, wait_ms)

struct PeerData {
  std::string error;  ///< no bytes follow; the connection goes on
  /// XXH3 of the bytes, which follow unless shared. Between devices nothing is checked here.
  std::array<std::uint8_t, 16> checksum{};
  bool pending = false;  ///< some of it is not computed yet: no bytes follow, to be asked again
  bool operator==(const PeerData&) const = default;
};
TROUPE_MESSAGE(PeerData, error, checksum, pending)

/// These are still wanted. Not answered.
struct PeerRenew {
  std::vector<std::string> keys;
  bool operator==(const PeerRenew&) const = default;
};
TROUPE_MESSAGE(PeerRenew, keys)

/// This one is not wanted any more; it is free when num_readers ranks have said so. Not answered.
struct PeerRelease {
  std::string key;
  std::int32_t num_readers = 1;
  bool operator==(const PeerRelease&) const = default;
};
TROUPE_MESSAGE(PeerRelease, key, num_readers)

struct PeerMessage {
  std::variant<PeerHello, PeerWelcome, PeerRead, PeerData, PeerRenew, PeerRelease> body;
  bool operator==(const PeerMessage&) const = default;
};
TROUPE_MESSAGE(PeerMessage, body)

inline constexpr std::uint32_t kPeerVersion = 3;

// ---- the Scheduler's side to the workers --------------------------------------------------------

/// Blocks that a worker keeps for others to read.
struct PeerHold {
  std::string key;
  RequestId id{};
  PrefixDigest digest{};
  std::int32_t num_tokens = 0;
  std::vector<std::vector<BlockId>> blocks;  ///< per KV-cache group
  bool operator==(const PeerHold&) const = default;
};
TROUPE_MESSAGE(PeerHold, key, id, digest, num_tokens, blocks)

/// A step computes a part of a prefix that others read meanwhile; a hold of the same key follows
/// when it is whole.
struct PeerStream {
  std::string key;
  RequestId id{};
  PrefixDigest digest{};
  std::int32_t num_tokens = 0;               ///< of the whole prefix
  std::int32_t num_ready = 0;                ///< of it after the step
  std::vector<std::vector<BlockId>> blocks;  ///< per KV-cache group: those since the last step
  bool operator==(const PeerStream&) const = default;
};
TROUPE_MESSAGE(PeerStream, key, id, digest, num_tokens, num_ready, blocks)

/// Where another engine holds a prefix.
struct PeerSource {
  std::string key;
  std::vector<std::string> endpoints;  ///< of its ranks
  std::int32_t tensor_parallel_size = 1;
  PrefixDigest digest{};
  bool operator==(const PeerSource&) const = default;
};
TROUPE_MESSAGE(PeerSource, key, endpoints, tensor_parallel_size, digest)

/// Loads are numbered in ascending order; one may be sent again after a failed step.
struct PeerLoad {
  std::uint64_t number = 0;
  RequestId id{};
  PeerSource source;
  std::int32_t begin_token = 0;
  std::int32_t end_token = 0;
  std::vector<std::vector<BlockId>> blocks;  ///< per KV-cache group
  bool operator==(const PeerLoad&) const = default;
};
TROUPE_MESSAGE(PeerLoad, number, id, source, begin_token, end_token, blocks)

/// The metadata of a step.
struct PeerOps {
  std::uint64_t oldest_load = 0;  ///< those of lower numbers have been reported by every rank
  std::vector<PeerHold> holds;
  std::vector<PeerSource> watches;  ///< to be renewed until they are loaded or released
  std::vector<PeerLoad> loads;
  std::vector<PeerSource> releases;  ///< without a load
  bool wants_endpoint = false;       ///< the Scheduler's side does not know all ranks' yet
  std::vector<PeerStream> streams;
  std::vector<std::string> ended_streams;  ///< their blocks are given to others
  bool ends_all_streams = false;           ///< that have begun in earlier steps
  [[nodiscard]] bool empty() const noexcept {
    return holds.empty() && watches.empty() && loads.empty() && releases.empty() &&
           !wants_endpoint && streams.empty() && ended_streams.empty() && !ends_all_streams;
  }
  bool operator==(const PeerOps&) const = default;
};
TROUPE_MESSAGE(PeerOps, oldest_load, holds, watches, loads, releases, wants_endpoint, streams,
               ended_streams, ends_all_streams)

}  // namespace troupe
