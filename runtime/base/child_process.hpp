#pragma once
// A process of ours that runs another program.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/oom_kills.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// How a process ended, in words and as its Supervisor judges it.
struct ProcessEnd {
  enum class Kind : std::uint8_t {
    /// With exit code 0 or kMappedFileLostStatus, or by a signal that asks for it: TERM, INT, HUP.
    kEnded,
    kKilled,  ///< in another way, KILL for one
    /// By a signal that its own instructions raise (SEGV, BUS, FPE, ILL, ABRT), or by the kernel
    /// for lack of memory.
    kCrashed,
  };
  std::string text;  ///< "exit code 1", "killed by signal 9 (Killed)"
  Kind kind = Kind::kEnded;
};

/// `status`: as waitpid gives it.
[[nodiscard]] ProcessEnd describe_end(int status, OomKills& oom_kills);

/// Owns the process: it ends with this object, and the kernel ends it if this process is killed.
/// It is in a process group of its own: Ctrl-C in a terminal does not reach it.
class ChildProcess {
 public:
  /// arguments[0] is the program's path. `on_exit` is called once, from another thread. The process
  /// reads `input` from its standard input, where other users cannot read it, as they can the
  /// arguments. It also ends with the thread that calls this. Errors: kIo if the program cannot be
  /// run.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(
      const std::vector<std::string>& arguments, std::function<void(ProcessEnd)> on_exit,
      const std::string& input = {});
  /// Kills the process if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// At once, also if it is stopped.
  void kill() noexcept;
  /// Every process that one of these objects owns in this process. Each begins with SIGHUP ignored.
  static void signal_all(int signal);

 private:
  ChildProcess(pid_t pid, std::function<void(ProcessEnd)> on_exit);

  pid_t pid_;
  std::thread waiter_;
};

}  // namespace troupe
