#include "runtime/transport/handshakes.hpp"

#include <fcntl.h>
#include <sys/socket.h>

namespace troupe {

Handshakes::~Handshakes() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  sweeper_.join();
}

void Handshakes::add(const std::shared_ptr<Session>& session, int socket) {
  const std::lock_guard lock(mutex_);
  drop_ended();
  while (pending_.size() >= max_pending_) drop_oldest();
  pending_.push_back({session, FileDescriptor(fcntl(socket, F_DUPFD_CLOEXEC, 0)),
                      std::chrono::steady_clock::now() + timeout_});
  changed_.notify_one();
}

std::size_t Handshakes::num_pending() {
  const std::lock_guard lock(mutex_);
  drop_ended();
  return pending_.size();
}

void Handshakes::drop_ended() {
  std::erase_if(pending_, [](const Pending& pending) {
    const auto session = pending.session.lock();
    return !session || session->established();
  });
}

void Handshakes::drop_oldest() {
  shutdown(pending_.front().socket.get(), SHUT_RDWR);
  pending_.pop_front();
}

void Handshakes::sweep() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    drop_ended();
    if (pending_.empty()) {
      changed_.wait(lock);
    } else if (pending_.front().deadline > std::chrono::steady_clock::now()) {
      const auto deadline = pending_.front().deadline;  // the entry may be gone by then
      changed_.wait_until(lock, deadline);
    } else {
      drop_oldest();
    }
  }
}

}  // namespace troupe
