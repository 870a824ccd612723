// troupe serve --keep-alive: the Supervisor in a child process, which is started again when a
// signal ends it. The next one finds the nodes of the last one, and takes them over.
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tools/commands.hpp"

extern char** environ;

namespace troupe::tools {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// One that has lived for so long is started again at once, others after a pause that doubles.
constexpr auto kShortLife = 10s;
constexpr auto kMinPause = 100ms;
constexpr auto kMaxPause = 10s;

/// This program again, with all signals as usual, in a process group of its own: Ctrl-C reaches it
/// through this process alone.
Result<pid_t> run_again(const std::vector<std::string>& arguments) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<char*> pointers;
  for (const std::string& argument : arguments)
    pointers.push_back(const_cast<char*>(argument.c_str()));  // as posix_spawn wants it
  pointers.push_back(nullptr);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, program.c_str(), nullptr, &attributes, pointers.data(), environ);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return Error{ErrorCode::kIo, program + ": " + std::strerror(error)};
  return pid;
}

/// Takes what has ended: the nodes of a Supervisor that has died are children of this process. The
/// status of `supervisor` if it is among them.
std::optional<int> reap(pid_t supervisor) {
  std::optional<int> found;
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == supervisor) found = status;
  }
  return found;
}

}  // namespace

int keep_alive(Arguments given) {
  std::vector<std::string> arguments = {"troupe", "serve"};
  const auto end_of_options = std::find(given.begin(), given.end(), "--");
  arguments.insert(arguments.end(), given.begin(), end_of_options);
  arguments.emplace_back("--no-keep-alive");
  arguments.insert(arguments.end(), end_of_options, given.end());

  prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGCHLD, SIGHUP, SIGINT, SIGTERM}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  auto pause = std::chrono::milliseconds(kMinPause);
  for (bool stopping = false;;) {
    const auto started_at = Clock::now();
    const auto supervisor = run_again(arguments);
    if (!supervisor.ok()) return fail(supervisor.error());
    std::optional<int> status;
    while (!status) {
      int signal = 0;
      sigwait(&signals, &signal);
      if (signal == SIGCHLD) {
        status = reap(*supervisor);
      } else {
        stopping |= signal != SIGHUP;
        kill(*supervisor, signal);
      }
    }
    if (WIFEXITED(*status)) return WEXITSTATUS(*status);
    if (stopping) return 128 + WTERMSIG(*status);
    pause = Clock::now() - started_at >= kShortLife ? std::chrono::milliseconds(kMinPause)
                                                    : std::min(2 * pause, {kMaxPause});
    log_error("the supervisor has died", kv("signal", WTERMSIG(*status)), kv("pid", *supervisor),
              kv("again_in_ms", pause.count()));
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace troupe::tools
