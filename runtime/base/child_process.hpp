#pragma once
// A process of ours that runs another program.

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/result.hpp"

namespace troupe {

/// How a process ended, in words and as its Supervisor judges it.
struct ProcessEnd {
  std::string text;      ///< "exit code 1", "killed by signal 9 (Killed)"
  bool crashed = false;  ///< by a signal that its own instructions raise: SEGV, BUS, FPE, ILL, ABRT
};

/// Owns the process: it ends with this object, and the kernel ends it if this process is killed.
/// It is in a process group of its own: Ctrl-C in a terminal does not reach it.
class ChildProcess {
 public:
  /// arguments[0] is the program's path. `on_exit` is called once, from another thread. The process
  /// also ends with the thread that calls this. Errors: kIo if the program cannot be run.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(
      const std::vector<std::string>& arguments, std::function<void(ProcessEnd)> on_exit);
  /// Kills the process if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// At once, also if it is stopped.
  void kill() noexcept;

 private:
  ChildProcess(pid_t pid, std::function<void(ProcessEnd)> on_exit);

  pid_t pid_;
  std::thread waiter_;
};

}  // namespace troupe
