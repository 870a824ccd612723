#include "runtime/kv_events/event_log.hpp"

#include <algorithm>

namespace troupe {
namespace {

/// Limits of blocks per event and events per frame of a snapshot, so that messages do not grow with
/// the cache.
constexpr std::size_t kMaxBlocksInEvent = 256;
constexpr std::size_t kMaxEventsInFrame = 64;

}  // namespace

EventLog::EventLog(const KVEventForm& form, std::int64_t buffer_steps)
    : form_(form), buffer_steps_(static_cast<std::size_t>(buffer_steps)) {}

std::shared_ptr<const EventFrame> EventLog::append(const KVEventBatch& batch) {
  for (const KVCacheEvent& event : batch.events) blocks_.apply(event);
  time_ = batch.time;
  snapshot_.clear();
  auto frame = std::make_shared<const EventFrame>(
      EventFrame{next_sequence_++, encode_kv_event_batch(batch.time, batch.events, form_)});
  kept_.push_back(frame);
  if (kept_.size() > buffer_steps_) kept_.pop_front();
  return frame;
}

EventFrames EventLog::replay(std::uint64_t start) const {
  const auto first = std::lower_bound(
      kept_.begin(), kept_.end(), start,
      [](const auto& frame, std::uint64_t sequence) { return frame->sequence < sequence; });
  return {first, kept_.end()};
}

const EventFrames& EventLog::snapshot() {
  if (next_sequence_ == 0 || !snapshot_.empty()) return snapshot_;
  const std::vector<KVCacheEvent> events = blocks_.events(kMaxBlocksInEvent);
  for (std::size_t begin = 0; begin < events.size(); begin += kMaxEventsInFrame) {
    const std::size_t count = std::min(kMaxEventsInFrame, events.size() - begin);
    const auto part = std::span(events).subspan(begin, count);
    snapshot_.push_back(std::make_shared<const EventFrame>(
        EventFrame{next_sequence_ - 1, encode_kv_event_batch(time_, part, form_)}));
  }
  return snapshot_;
}

std::string sequence_bytes(std::uint64_t sequence) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(sequence >> (56 - 8 * i));
  return bytes;
}

std::optional<ReplayRequest> parse_replay_request(std::span<const std::string_view> frames) {
  if (frames.size() != 2 || !frames[0].empty() || frames[1].size() != 8) return std::nullopt;
  if (frames[1] == kSnapshotRequest) return ReplayRequest{.snapshot = true};
  std::uint64_t start = 0;
  for (const char byte : frames[1]) start = start << 8 | static_cast<unsigned char>(byte);
  return ReplayRequest{.start = start};
}

}  // namespace troupe
