#include "runtime/base/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/mapped_file.hpp"

namespace troupe {
namespace {

/// Children that have not been waited for, whose process ids therefore cannot be reused.
struct Children {
  std::mutex mutex;
  std::map<pid_t, int> handles;  ///< of those that were adopted; else -1
};
Children& children() {
  static Children all;
  return all;
}

OomKills& oom_kills() {
  static OomKills kills;
  return kills;
}

/// In the child, where only async-signal-safe functions may be called. Returns only on failure.
void become(char* const* arguments, pid_t parent, int input, ChildProcess::Orphan orphan) {
  if (orphan == ChildProcess::Orphan::kEnds) prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);  // it died before it could be told
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
                                                          const std::string& input, Orphan orphan) {
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
    become(pointers.data(), parent, input_file.get(), orphan);
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
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, FileDescriptor(), std::move(on_exit)));
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::adopt(pid_t pid,
                                                          std::function<void(ProcessEnd)> on_exit) {
  FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!handle.valid()) {
    return Error{ErrorCode::kNotFound,
                 "process " + std::to_string(pid) + ": " + std::strerror(errno)};
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(pid, std::move(handle), std::move(on_exit)));
}

namespace {

/// Leaves a child a zombie until the destructor, so that kill() cannot meet another process's
/// number.
ProcessEnd wait_for(pid_t pid) {
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  const int status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
  return describe_end(status, oom_kills());
}

ProcessEnd wait_for_adopted(int handle) {
  pollfd wanted{.fd = handle, .events = POLLIN, .revents = 0};
  while (poll(&wanted, 1, -1) < 0 && errno == EINTR) {
  }
  return {"how is not known, an earlier process had started it", ProcessEnd::Kind::kKilled};
}

}  // namespace

ChildProcess::ChildProcess(pid_t pid, FileDescriptor handle,
                           std::function<void(ProcessEnd)> on_exit)
    : pid_(pid),
      handle_(std::move(handle)),
      waiter_([pid, adopted = handle_.get(), on_exit = std::move(on_exit)] {
        on_exit(adopted < 0 ? wait_for(pid) : wait_for_adopted(adopted));
      }) {
  const std::lock_guard lock(children().mutex);
  children().handles.emplace(pid, handle_.get());
}

ChildProcess::~ChildProcess() {
  kill();
  waiter_.join();
  {
    const std::lock_guard lock(children().mutex);
    children().handles.erase(pid_);
  }
  if (!handle_.valid()) waitpid(pid_, nullptr, 0);
}

namespace {

void send_signal(pid_t pid, int handle, int signal) noexcept {
  if (handle < 0) {
    ::kill(pid, signal);
  } else {
    syscall(SYS_pidfd_send_signal, handle, signal, nullptr, 0);
  }
}

}  // namespace

void ChildProcess::kill() noexcept { send_signal(pid_, handle_.get(), SIGKILL); }

void ChildProcess::signal_all(int signal) {
  const std::lock_guard lock(children().mutex);
  for (const auto& [pid, handle] : children().handles) send_signal(pid, handle, signal);
}

}  // namespace troupe
