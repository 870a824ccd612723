#pragma once
// Connections that are not authenticated yet.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/transport/session.hpp"

namespace troupe {

/// Limits them: each has a deadline, and when there are too many the oldest is dropped, so that
/// idle connections cannot lock others out. Thread-safe.
class Handshakes {
 public:
  Handshakes(std::size_t max_pending, std::chrono::milliseconds timeout)
      : max_pending_(max_pending), timeout_(timeout), sweeper_([this] { sweep(); }) {}
  ~Handshakes();
  Handshakes(const Handshakes&) = delete;
  Handshakes& operator=(const Handshakes&) = delete;

  /// Adds the session of an accepted connection and its socket, which remains the caller's. On
  /// timeout the socket is shut down, and the session sees the end of the connection.
  void add(const std::shared_ptr<Session>& session, int socket);
  [[nodiscard]] std::size_t num_pending();

 private:
  struct Pending {
    std::weak_ptr<Session> session;
    FileDescriptor socket;  // a duplicate, since the original's number may be reused
    std::chrono::steady_clock::time_point deadline;
  };

  void sweep();
  void drop_ended();
  void drop_oldest();

  const std::size_t max_pending_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Pending> pending_;  // oldest first
  bool stopping_ = false;
  std::thread sweeper_;  // last, since it uses the members above
};

}  // namespace troupe
