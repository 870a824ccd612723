#pragma once
// A process that has done its work ends.

#include <condition_variable>
#include <mutex>
#include <thread>

namespace troupe {

/// CAF 0.17 may wait for ever in the destructor of its actor system for a thread that has nothing
/// left to do (its issues 1196 and 1266), in an embedding application too. Declared before the
/// actor system and armed when all actors have ended, this ends the process if the actor system is
/// not gone within three seconds.
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
