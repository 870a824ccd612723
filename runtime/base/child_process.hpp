#pragma once
// A child process that runs another program.

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

/// How a process ended, as text and as a category for the Supervisor.
struct ProcessEnd {
  enum class Kind : std::uint8_t {
    /// With exit code 0 or kMappedFileLostStatus, or by a termination signal: TERM, INT, HUP.
    kEnded,
    kKilled,  ///< otherwise, for example by KILL
    /// By a signal that its own instructions raise (SEGV, BUS, FPE, ILL, ABRT), or by the OOM
    /// killer.
    kCrashed,
  };
  std::string text;  ///< "exit code 1", "killed by signal 9 (Killed)"
  Kind kind = Kind::kEnded;
};

/// `status`: from waitpid.
[[nodiscard]] ProcessEnd describe_end(int status, OomKills& oom_kills);

/// Owns the process: it ends with this object, and is killed by the kernel if this process dies. It
/// has its own process group: Ctrl-C in a terminal does not reach it.
class ChildProcess {
 public:
  /// arguments[0] is the program's path. `on_exit` is called once, from another thread. `input` is
  /// the process's standard input, which other users cannot read, unlike arguments. The process
  /// also ends with the calling thread. Errors: kIo if the program cannot be run.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(
      const std::vector<std::string>& arguments, std::function<void(ProcessEnd)> on_exit,
      const std::string& input = {});
  /// Kills the process if it is running.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Immediately, even if the process is stopped.
  void kill() noexcept;
  /// Signals all live ChildProcess objects of this process. A child starts with SIGHUP ignored.
  static void signal_all(int signal);

 private:
  ChildProcess(pid_t pid, std::function<void(ProcessEnd)> on_exit);

  pid_t pid_;
  std::thread waiter_;
};

}  // namespace troupe
