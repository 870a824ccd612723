#pragma once
// Numbers the batches of KV events, and keeps them for subscribers that missed some.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/kv_events.hpp"
#include "runtime/kv_events/stored_blocks.hpp"
#include "runtime/kv_events/wire_form.hpp"

namespace troupe {

/// The message after its topic: frames two and three.
struct EventFrame {
  std::uint64_t sequence = 0;
  std::string payload;
};
using EventFrames = std::vector<std::shared_ptr<const EventFrame>>;

/// Owns the last batches, encoded, and the cache content that results from all batches so far. Used
/// by the publisher's thread only.
class EventLog {
 public:
  /// Keeps `buffer_steps` batches.
  EventLog(const KVEventForm& form, std::int64_t buffer_steps);

  /// The batch as the next frame; the first one has sequence 0.
  [[nodiscard]] std::shared_ptr<const EventFrame> append(const KVEventBatch& batch);

  /// The kept frames from sequence `start`, oldest first.
  [[nodiscard]] EventFrames replay(std::uint64_t start) const;

  /// Frames whose events build the current content from an empty cache. All have the sequence of
  /// the last batch included in the content, from which later batches continue. Empty before the
  /// first batch.
  [[nodiscard]] const EventFrames& snapshot();

  [[nodiscard]] const StoredBlocks& blocks() const noexcept { return blocks_; }

 private:
  KVEventForm form_;
  std::size_t buffer_steps_;
  std::uint64_t next_sequence_ = 0;
  double time_ = 0;  ///< of the last batch
  std::deque<std::shared_ptr<const EventFrame>> kept_;
  StoredBlocks blocks_;
  EventFrames snapshot_;  ///< of the current content; empty: not built
};

/// The sequence in wire format: eight bytes, big-endian.
[[nodiscard]] std::string sequence_bytes(std::uint64_t sequence);
inline constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};
/// Replaces the sequence in a request. Eight bytes, so that a vLLM engine takes it for a sequence
/// far ahead and replies only with the end of the replay.
inline constexpr std::string_view kSnapshotRequest = "snapshot";

struct ReplayRequest {
  bool snapshot = false;
  std::uint64_t start = 0;
};
/// Parses the frames after the sender's identity: an empty one and eight bytes. nullopt for
/// anything else.
[[nodiscard]] std::optional<ReplayRequest> parse_replay_request(
    std::span<const std::string_view> frames);

}  // namespace troupe
