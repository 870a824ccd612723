#pragma once
// Sits between a connection and the reader of frames: passes only complete and validated frames.

#include <vector>

#include "runtime/transport/frame_check.hpp"

namespace troupe {

/// Owns received bytes that were not read yet. A frame takes the memory of what was received, not
/// of its declared length. Malformed frames end the connection.
class FrameGate {
 public:
  FrameGate(std::shared_ptr<Session> session, FrameCheck check)
      : session_(std::move(session)), check_(std::move(check)) {}

  /// Both as of Session.
  std::optional<std::size_t> read(std::span<char> into);
  std::optional<std::size_t> write(std::span<const char> from) { return session_->write(from); }
  /// Readable without the socket.
  [[nodiscard]] std::size_t num_ready() const noexcept { return checked_ - begin_; }
  /// Why the connection ended; empty: the peer has closed it.
  [[nodiscard]] const std::string& error() const noexcept {
    return error_.empty() ? session_->error() : error_;
  }
  [[nodiscard]] bool established() const noexcept { return session_->established(); }

 private:
  /// Reads until a frame is complete or the socket is drained; false: the connection has ended.
  bool refill();
  void make_room();
  /// Checks received frames; false: the connection has ended.
  bool check_frames();

  std::shared_ptr<Session> session_;
  FrameCheck check_;
  // [begin_, checked_) is readable; [checked_, end_) is an incomplete frame.
  std::vector<char> bytes_;
  std::size_t begin_ = 0, checked_ = 0, end_ = 0;
  std::size_t frame_bytes_ = 0;  // of that frame; 0: its header is incomplete
  std::string error_;
};

}  // namespace troupe
