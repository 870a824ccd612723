#pragma once
// Connections whose other side has yet to show who it is.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/transport/session.hpp"

namespace troupe {

/// Bounds them: each has a deadline, and when there are too many the oldest makes room. So whoever
/// opens connections and says nothing keeps nobody out. Thread-safe.
class Handshakes {
 public:
  Handshakes(std::size_t max_pending, std::chrono::milliseconds timeout)
      : max_pending_(max_pending), timeout_(timeout), sweeper_([this] { sweep(); }) {}
  ~Handshakes();
  Handshakes(const Handshakes&) = delete;
  Handshakes& operator=(const Handshakes&) = delete;

  /// The session of a connection that was just accepted, and its socket, which stays the caller's.
  /// What runs out of time is shut down: its session sees the end of the connection.
  void add(const std::shared_ptr<Session>& session, int socket);
  [[nodiscard]] std::size_t num_pending();

 private:
  struct Pending {
    std::weak_ptr<Session> session;
    FileDescriptor socket;  // a duplicate: the original's number may be another connection's by now
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
  std::thread sweeper_;  // last: it uses all of the above
};

}  // namespace troupe
