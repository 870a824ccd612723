#include "runtime/transport/frame_gate.hpp"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

/// Minimum read size; larger than a TLS record, so that nothing stays in the TLS layer.
constexpr std::size_t kReadBytes = 64 << 10;
/// Larger buffers of large frames are freed.
constexpr std::size_t kMaxIdleBytes = 1 << 20;

}  // namespace

void FrameGate::make_room() {
  if (begin_ != 0) {
    std::copy(bytes_.begin() + static_cast<std::ptrdiff_t>(begin_),
              bytes_.begin() + static_cast<std::ptrdiff_t>(end_), bytes_.begin());
    end_ -= begin_;
    checked_ -= begin_;
    begin_ = 0;
  }
  if (bytes_.size() > kMaxIdleBytes && end_ <= kReadBytes) {
    bytes_.resize(2 * kReadBytes);
    bytes_.shrink_to_fit();
  }
  if (bytes_.size() >= end_ + kReadBytes) return;
  // Grow geometrically, to keep copying linear.
  bytes_.resize(std::max(end_ + kReadBytes, std::min(2 * end_, frame_bytes_ + kReadBytes)));
}

bool FrameGate::check_frames() {
  while (end_ - checked_ >= kFrameHeaderBytes) {
    const char* const frame = bytes_.data() + checked_;
    if (frame_bytes_ == 0) {
      const auto payload_bytes =
          check_.check_header(std::span<const char, kFrameHeaderBytes>(frame, kFrameHeaderBytes));
      if (!payload_bytes.ok()) {
        error_ = payload_bytes.error().message;
        return false;
      }
      frame_bytes_ = kFrameHeaderBytes + *payload_bytes;
    }
    if (end_ - checked_ < frame_bytes_) return true;
    const auto checked =
        check_.check_payload({frame + kFrameHeaderBytes, frame_bytes_ - kFrameHeaderBytes});
    if (!checked.ok()) {
      error_ = checked.error().message;
      return false;
    }
    const std::size_t num_bytes = std::exchange(frame_bytes_, 0);
    if (*checked == FrameUse::kPass) {
      checked_ += num_bytes;
      continue;
    }
    std::copy(bytes_.begin() + static_cast<std::ptrdiff_t>(checked_ + num_bytes),
              bytes_.begin() + static_cast<std::ptrdiff_t>(end_),
              bytes_.begin() + static_cast<std::ptrdiff_t>(checked_));
    end_ -= num_bytes;
  }
  return true;
}

bool FrameGate::refill() {
  while (num_ready() == 0) {
    make_room();
    const auto received = session_->read(std::span(bytes_).subspan(end_));
    if (!received) return false;
    if (*received == 0) return true;
    end_ += *received;
    if (!check_frames()) return false;
  }
  return true;
}

std::optional<std::size_t> FrameGate::read(std::span<char> into) {
  if (!error_.empty()) return std::nullopt;
  if (num_ready() == 0 && !refill()) return std::nullopt;
  const std::size_t count = std::min(into.size(), num_ready());
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(begin_), count, into.begin());
  begin_ += count;
  return count;
}

}  // namespace troupe
