#pragma once
// Ensures that a process ends after its work is done.

#include <condition_variable>
#include <mutex>
#include <thread>

namespace troupe {

/// CAF 0.17 may wait forever in the destructor of its actor system for a thread that has nothing
/// left to do (its issues 1196 and 1266), also in an embedding application. Declared before the
/// actor system and armed when all actors have ended, this ends the process if the actor system is
/// not destroyed within three seconds.
class ShutdownGuard {
 public:
  ShutdownGuard() = default;
  ~ShutdownGuard();
  ShutdownGuard(const ShutdownGuard&) = delete;
  ShutdownGuard& operator=(const ShutdownGuard&) = delete;

  void arm(int exit_code);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread waiter_;
};

}  // namespace troupe
