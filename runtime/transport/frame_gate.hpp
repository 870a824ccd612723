#pragma once
// Between a connection and whoever reads frames from it: gives out frames that have come whole and
// have been checked, and nothing else.

#include <vector>

#include "runtime/transport/frame_check.hpp"

namespace troupe {

/// Owns the bytes that have come and were not read yet. A frame takes the memory that it has sent,
/// not what it announces. What is malformed ends the connection.
class FrameGate {
 public:
  FrameGate(std::shared_ptr<Session> session, FrameCheck check)
      : session_(std::move(session)), check_(std::move(check)) {}

  /// Both as of Session.
  std::optional<std::size_t> read(std::span<char> into);
  std::optional<std::size_t> write(std::span<const char> from) { return session_->write(from); }
  /// Can be read without the socket.
  [[nodiscard]] std::size_t num_ready() const noexcept { return checked_ - begin_; }
  /// Why the connection is over; empty: the other side has closed it.
  [[nodiscard]] const std::string& error() const noexcept {
    return error_.empty() ? session_->error() : error_;
  }
  [[nodiscard]] bool established() const noexcept { return session_->established(); }

 private:
  /// Reads until a frame is whole or the socket has no more; false: over.
  bool refill();
  void make_room();
  /// Checks what has come; false: over.
  bool check_frames();

  std::shared_ptr<Session> session_;
  FrameCheck check_;
  // [begin_, checked_) may be read; [checked_, end_) is the beginning of a frame.
  std::vector<char> bytes_;
  std::size_t begin_ = 0, checked_ = 0, end_ = 0;
  std::size_t frame_bytes_ = 0;  // of that frame; 0: its header has not come
  std::string error_;
};

}  // namespace troupe
