#include "actors/shutdown_guard.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "runtime/base/log.hpp"

namespace troupe {

using namespace std::chrono_literals;

constexpr auto kGrace = 3s;

void ShutdownGuard::arm(int exit_code) {
  const auto leave = [exit_code] {
    std::fflush(stdout);
    std::_Exit(exit_code);
  };
  try {
    waiter_ = std::thread([this, leave] {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kGrace, [this] { return ended_; })) return;
      log_warning("the actor system does not shut down, ending the process");
      leave();
    });
  } catch (const std::system_error&) {  // no memory for a thread: a hang would go unnoticed
    leave();
  }
}

ShutdownGuard::~ShutdownGuard() {
  if (!waiter_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  waiter_.join();
}

}  // namespace troupe
