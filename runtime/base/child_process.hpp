#pragma once
// A child process that runs another program.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/file_descriptor.hpp"
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

/// Owns the process: it ends with this object. It is in a process group of its own: Ctrl-C in a
/// terminal does not reach it.
class ChildProcess {
 public:
  /// Whether it outlives this process, or the thread that has started it, when that is killed.
  enum class Orphan : std::uint8_t {
    kEnds,  ///< the kernel ends it
    kStays
  };
  /// arguments[0] is the program's path. `on_exit` is called once, from another thread. The process
  /// reads `input` from its standard input, where other users cannot read it, as they can the
  /// arguments. Errors: kIo if the program cannot be run.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(
      const std::vector<std::string>& arguments, std::function<void(ProcessEnd)> on_exit,
      const std::string& input = {}, Orphan orphan = Orphan::kEnds);
  /// Adopts a process that has outlived its parent. Only a parent gets the exit status: its end is
  /// reported as kKilled. Errors: kNotFound.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> adopt(
      pid_t pid, std::function<void(ProcessEnd)> on_exit);
  /// Kills the process if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Immediately, even if the process is stopped.
  void kill() noexcept;
  /// Signals all live ChildProcess objects of this process. A child starts with SIGHUP ignored.
  static void signal_all(int signal);

 private:
  ChildProcess(pid_t pid, FileDescriptor handle, std::function<void(ProcessEnd)> on_exit);

  pid_t pid_;
  FileDescriptor handle_;  ///< of one that was adopted (pidfd_open)
  std::thread waiter_;
};

}  // namespace troupe
