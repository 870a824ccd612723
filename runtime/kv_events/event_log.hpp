#pragma once
// Numbers the batches of KV events, and keeps what subscribers that missed some may ask for.

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

/// What follows the topic in a message: frames two and three.
struct EventFrame {
  std::uint64_t sequence = 0;
  std::string payload;
};
using EventFrames = std::vector<std::shared_ptr<const EventFrame>>;

/// Owns the last batches, encoded, and the content that all batches so far add up to. Called by the
/// publisher's thread only.
class EventLog {
 public:
  /// Keeps `buffer_steps` batches.
  EventLog(const KVEventForm& form, std::int64_t buffer_steps);

  /// The batch as the next frame; the first one has sequence 0.
  [[nodiscard]] std::shared_ptr<const EventFrame> append(const KVEventBatch& batch);

  /// The kept frames from sequence `start` on, oldest first.
  [[nodiscard]] EventFrames replay(std::uint64_t start) const;

  /// Frames whose events build the present content out of nothing. All carry the sequence of the
  /// last batch that the content includes: what follows it continues from there. None if there was
  /// no batch yet.
  [[nodiscard]] const EventFrames& snapshot();

  [[nodiscard]] const StoredBlocks& blocks() const noexcept { return blocks_; }

 private:
  KVEventForm form_;
  std::size_t buffer_steps_;
  std::uint64_t next_sequence_ = 0;
  double time_ = 0;  ///< of the last batch
  std::deque<std::shared_ptr<const EventFrame>> kept_;
  StoredBlocks blocks_;
  EventFrames snapshot_;  ///< of the present content; empty: not made
};

/// The sequence as it is sent: eight bytes, big-endian.
[[nodiscard]] std::string sequence_bytes(std::uint64_t sequence);
inline constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};
/// Instead of a sequence in a request. Eight bytes as well, so that a vLLM engine takes it for a
/// sequence far ahead and answers with the end of the replay alone.
inline constexpr std::string_view kSnapshotRequest = "snapshot";

struct ReplayRequest {
  bool snapshot = false;
  std::uint64_t start = 0;
};
/// Frames behind the sender's identity: an empty one and eight bytes. None if it is anything else.
[[nodiscard]] std::optional<ReplayRequest> parse_replay_request(
    std::span<const std::string_view> frames);

}  // namespace troupe
