#include "runtime/base/child_process.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/mapped_file.hpp"

namespace troupe {
namespace {

/// Children that have not been waited for, whose process ids therefore cannot be reused.
struct Children {
  std::mutex mutex;
  std::set<pid_t> pids;
};
Children& children() {
  static Children all;
  return all;
}

OomKills& oom_kills() {
  static OomKills kills;
  return kills;
}

/// Runs in the child, where only async-signal-safe functions are allowed. Returns only on failure.
void become(char* const* arguments, pid_t parent, int input) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);  // the parent died before the death signal was set
  setpgid(0, 0);
  signal(SIGHUP, SIG_IGN);  // until the child installs a handler
  dup2(input, STDIN_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv(arguments[0], arguments);
}

}  // namespace

ProcessEnd describe_end(int status, OomKills& oom_kills) {
  using Kind = ProcessEnd::Kind;
  if (!WIFSIGNALED(status)) {
    const int code = WEXITSTATUS(status);
    if (code == kMappedFileLostStatus)
      return {"exit code " + std::to_string(code) + " (a mapped file was cut or cannot be read)",
              Kind::kEnded};
    return {"exit code " + std::to_string(code), code == 0 ? Kind::kEnded : Kind::kKilled};
  }
  const int signal = WTERMSIG(status);
  if (signal == SIGKILL && oom_kills.take())
    return {"killed by the kernel for lack of memory", Kind::kCrashed};
  const bool crashed = signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE ||
                       signal == SIGILL || signal == SIGABRT;
  const bool asked = signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
  return {"killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")",
          crashed ? Kind::kCrashed
          : asked ? Kind::kEnded
                  : Kind::kKilled};
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& arguments,
                                                          std::function<void(ProcessEnd)> on_exit,
                                                          const std::string& input) {
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) {
    pointers.push_back(const_cast<char*>(argument.c_str()));  // execv's signature predates const
  }
  pointers.push_back(nullptr);
  const FileDescriptor input_file(memfd_create("input", MFD_CLOEXEC));
  if (!input_file.valid() || !write_all(input_file.get(), std::as_bytes(std::span(input)), 0))
    return Error{ErrorCode::kIo, std::string("memfd_create: ") + std::strerror(errno)};
  // Closed by a successful exec; a failed one writes errno to it.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Error{ErrorCode::kIo, std::string("pipe: ") + std::strerror(errno)};
  const FileDescriptor report(ends[0]);
  FileDescriptor failure(ends[1]);
  static_cast<void>(oom_kills());  // counts from the first start on
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    become(pointers.data(), parent, input_file.get());
    const int reason = errno;
    if (write(failure.get(), &reason, sizeof reason) < 0) _exit(126);
    _exit(127);
  }
  const int fork_errno = errno;
  failure = FileDescriptor();
  int reason = 0;
  const bool failed = pid > 0 && read(report.get(), &reason, sizeof reason) > 0;
  if (pid < 0) return Error{ErrorCode::kIo, std::string("fork: ") + std::strerror(fork_errno)};
  if (failed) {
    waitpid(pid, nullptr, 0);
    return Error{ErrorCode::kIo,
                 "cannot run '" + arguments.front() + "': " + std::strerror(reason)};
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, std::move(on_exit)));
}

ChildProcess::ChildProcess(pid_t pid, std::function<void(ProcessEnd)> on_exit)
    : pid_(pid), waiter_([pid, on_exit = std::move(on_exit)] {
        // Kept as a zombie until the destructor, so that kill() cannot hit a reused process id.
        siginfo_t info{};
        while (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 &&
               errno == EINTR) {
        }
        const int status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
        on_exit(describe_end(status, oom_kills()));
      }) {
  const std::lock_guard lock(children().mutex);
  children().pids.insert(pid);
}

ChildProcess::~ChildProcess() {
  kill();
  waiter_.join();
  {
    const std::lock_guard lock(children().mutex);
    children().pids.erase(pid_);
  }
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::kill() noexcept { ::kill(pid_, SIGKILL); }

void ChildProcess::signal_all(int signal) {
  const std::lock_guard lock(children().mutex);
  for (const pid_t pid : children().pids) ::kill(pid, signal);
}

}  // namespace troupe
