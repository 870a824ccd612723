// troupe serve --keep-alive: the keeper. It runs the server in a child process, starts it again
// when a signal ends it, and replaces it by another one when `troupe upgrade` says so. The next
// Supervisor finds the nodes of the last one, and takes them over.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <map>
#include <set>

#include "runtime/base/clock.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/transport/supervisor_file.hpp"
#include "tools/keeper.hpp"

extern char** environ;

namespace troupe::tools {
namespace {

/// One that has lived for so long is started again at once, others after a pause that doubles.
constexpr double kShortLife_s = 10;
constexpr double kMinPause_s = 0.1;
constexpr double kMaxPause_s = 10;
/// The time that a new server has to end.
constexpr double kEndTimeout_s = 5;
/// For the one who orders to say it all.
constexpr double kOrderTimeout_s = 5;
constexpr std::size_t kMaxOrderBytes = 4 << 20;
/// Where a server finds its end of the pipe.
constexpr int kPipeOfServer = 3;

Error io_error(const std::string& what) {
  return {ErrorCode::kIo, what + ": " + std::strerror(errno)};
}

std::string program_of_this_process() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

std::vector<char*> pointers_to(const std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  for (const std::string& argument : arguments)
    pointers.push_back(const_cast<char*>(argument.c_str()));  // as posix_spawn and execv want it
  pointers.push_back(nullptr);
  return pointers;
}

/// With all signals as usual, in a process group of its own: Ctrl-C reaches it through this process
/// alone. It writes to `pipe`.
Result<pid_t> run(const std::string& program, const std::vector<std::string>& arguments, int pipe) {
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe, kPipeOfServer);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &actions, &attributes,
                                pointers_to(arguments).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return Error{ErrorCode::kIo, program + ": " + std::strerror(error)};
  return pid;
}

void tell(const FileDescriptor& client, const std::string& text) {
  if (!client.valid()) return;
  const std::string line = text + "\n";
  // A client that has disconnected or does not read is ignored.
  ::send(client.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// The nodes that a Supervisor has started, by name.
std::map<std::string, ProcessId> nodes_of(pid_t supervisor) {
  const auto record = SupervisorFile::find(supervisor);
  return record ? std::map<std::string, ProcessId>(record->nodes.begin(), record->nodes.end())
                : std::map<std::string, ProcessId>();
}

/// A process of `troupe serve`.
struct ServerProcess {
  std::string program;
  std::vector<std::string> arguments;
  std::uint16_t replaces_port = 0;
  pid_t pid = 0;           ///< 0: it has ended
  FileDescriptor pipe;     ///< none: it has nothing more to say
  std::string heard;       ///< of a line that is not complete
  std::string failure;     ///< as it has said itself
  std::uint16_t port = 0;  ///< 0: it is not ready
  bool retires = false;    ///< it has been replaced by another one
  double started_at = 0;
  double pause_s = kMinPause_s;
  double again_at = 0;    ///< 0: never
  double ends_at = 0;     ///< when it is killed; 0: never
  double heard_at = 0;    ///< when it was alive
  double patience_s = 0;  ///< after which it is killed if it has said nothing; 0: it need not
  FileDescriptor client;  ///< receives reports on it

  [[nodiscard]] Result<void> start(double now);
};

Result<void> ServerProcess::start(double now) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return io_error("no pipe");
  pipe = FileDescriptor(ends[0]);
  const FileDescriptor other(ends[1]);
  std::vector<std::string> all = {"troupe", "serve"};
  const auto end_of_options = std::find(arguments.begin(), arguments.end(), "--");
  all.insert(all.end(), arguments.begin(), end_of_options);
  all.emplace_back("--no-keep-alive");
  all.insert(all.end(), end_of_options, arguments.end());
  all.push_back(KeptServer{kPipeOfServer, replaces_port}.encode());
  heard.clear();
  failure.clear();
  port = 0;
  again_at = ends_at = patience_s = 0;
  started_at = now;
  ASSIGN_OR_RETURN(pid, run(program, all, other.get()));
  return {};
}

/// A client whose order has not arrived completely.
struct OrderInput {
  FileDescriptor client;
  std::string text;
  double deadline = 0;
};

class Keeper {
 public:
  explicit Keeper(Arguments arguments) : own_program_(program_of_this_process()) {
    current_ = &servers_.emplace_back();
    current_->program = own_program_;
    current_->arguments.assign(arguments.begin(), arguments.end());
  }

  int run(const std::optional<RunningServer>& running) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGCHLD, SIGHUP, SIGINT, SIGTERM}) sigaddset(&signals, signal);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    signals_ = FileDescriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) return fail(io_error("signalfd"));
    if (auto opened = open_door(); !opened.ok())
      log_warning("troupe upgrade cannot reach this server", kv("reason", opened.error().message));
    if (running) {
      current_->pid = running->pid;
      current_->port = running->port;
      current_->pipe = FileDescriptor(running->pipe);
      fcntl(running->pipe, F_SETFD, FD_CLOEXEC);
      current_->started_at = now_seconds();
    } else if (auto started = current_->start(now_seconds()); !started.ok()) {
      close_door();
      return fail(started.error());
    }
    while (!is_over()) {
      wait();
      take_signals();
      reap();
      for (ServerProcess& server : servers_) listen_to(server);
      take_orders();
      watch_clock();
      forget_ended();
      become_next();
    }
    close_door();
    return *exit_code_;
  }

 private:
  // ---- Events

  /// Waits for the next event.
  void wait() {
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}};
    if (door_.valid()) polled.push_back({door_.get(), POLLIN, 0});
    for (const ServerProcess& server : servers_)
      if (server.pipe.valid()) polled.push_back({server.pipe.get(), POLLIN, 0});
    for (const OrderInput& order : orders_) polled.push_back({order.client.get(), POLLIN, 0});
    const double wait_s = next_time() - now_seconds();
    constexpr double kLong_s = 3600;
    const int wait_ms = static_cast<int>(1000 * std::clamp(wait_s, 0.0, kLong_s)) + 1;
    poll(polled.data(), polled.size(), wait_ms);
  }

  [[nodiscard]] double next_time() const {
    double next = now_seconds() + 3600;
    const auto consider = [&](double time) {
      if (time > 0) next = std::min(next, time);
    };
    for (const ServerProcess& server : servers_) {
      consider(server.again_at);
      consider(server.ends_at);
      // Often enough that a pause of this process itself can be told from the server's silence.
      if (server.patience_s > 0) consider(now_seconds() + server.patience_s / 8);
    }
    for (const OrderInput& order : orders_) consider(order.deadline);
    consider(next_deadline_);
    return next;
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      stopping_ |= signal != SIGHUP;
      for (const ServerProcess& server : servers_)
        if (server.pid > 0) kill(server.pid, signal);
      if (!stopping_) continue;
      for (ServerProcess& server : servers_) server.again_at = 0;
      if (current_->pid == 0) exit_code_ = 128 + signal;
    }
  }

  /// Takes what has ended: the nodes of a Supervisor that has died are children of this process.
  void reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto server = std::find_if(servers_.begin(), servers_.end(),
                                       [&](const auto& each) { return each.pid == pid; });
      if (server == servers_.end()) continue;
      listen_to(*server);  // it may have said why
      server->pid = 0;
      server->pipe = FileDescriptor();
      if (&*server == next_) {
        end_upgrade(pid, server->failure.empty() ? how_ended(pid, status) : server->failure);
      } else if (server->retires) {
        on_retired(*server, pid, status);
      } else {
        on_current_ended(pid, status);
      }
    }
  }

  static std::string how_ended(pid_t pid, int status) {
    return "process " + std::to_string(pid) + " ended with " +
           (WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                                : "exit code " + std::to_string(WEXITSTATUS(status))) +
           " before it was ready, see the log of the server";
  }

  void on_current_ended(pid_t pid, int status) {
    if (WIFEXITED(status) || stopping_) {
      exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      for (const ServerProcess& server : servers_)
        if (server.pid > 0 && !stopping_) kill(server.pid, SIGTERM);
      stopping_ = true;
      return;
    }
    start_again(*current_, pid, WTERMSIG(status));
  }

  /// One that serves its last connections is brought up again too: they are its Frontend's.
  void on_retired(ServerProcess& server, pid_t pid, int status) {
    if (WIFSIGNALED(status) && !stopping_) return start_again(server, pid, WTERMSIG(status));
    tell(server.client, "server " + std::to_string(pid) + " has ended");
    tell(server.client, std::string(kUpgraded));
  }

  void start_again(ServerProcess& server, pid_t pid, int signal) {
    const double now = now_seconds();
    server.pause_s = now - server.started_at >= kShortLife_s
                         ? kMinPause_s
                         : std::min(2 * server.pause_s, kMaxPause_s);
    server.again_at = now + server.pause_s;
    server.port = 0;
    server.replaces_port = 0;
    log_error("the supervisor has died", kv("signal", signal), kv("pid", pid),
              kv("again_in_ms", static_cast<int>(1000 * server.pause_s)));
  }

  void listen_to(ServerProcess& server) {
    std::array<char, 4096> piece;
    while (server.pipe.valid()) {
      const ssize_t size = read(server.pipe.get(), piece.data(), piece.size());
      if (size < 0 && errno == EAGAIN) return;
      if (size <= 0) {
        server.pipe = FileDescriptor();
        return;
      }
      server.heard.append(piece.data(), static_cast<std::size_t>(size));
      for (std::size_t end = 0; (end = server.heard.find('\n')) != std::string::npos;) {
        on_report(server, server.heard.substr(0, end));
        server.heard.erase(0, end + 1);
      }
    }
  }

  void on_report(ServerProcess& server, const std::string& line) {
    const auto rest = [&](std::string_view report) { return line.substr(report.size()); };
    if (line.starts_with(kAliveReport)) {
      server.heard_at = now_seconds();
      server.patience_s = std::atof(rest(kAliveReport).c_str());
    } else if (line.starts_with(kFailureReport)) {
      server.failure = rest(kFailureReport);
    } else if (line.starts_with(kProgressReport)) {
      const int tenth = static_cast<int>(10 * std::atof(rest(kProgressReport).c_str()));
      if (&server == next_ && std::exchange(told_tenth_, std::max(told_tenth_, tenth)) < tenth)
        tell(server.client, "loading " + std::to_string(10 * tenth) + " %");
    } else if (line.starts_with(kReadyReport)) {
      const std::string port = rest(kReadyReport);
      std::from_chars(port.data(), port.data() + port.size(), server.port);
      if (&server == next_) {
        promote();
      } else if (server.retires) {
        kill(server.pid, SIGUSR2);
      }
    }
  }

  void watch_clock() {
    const double now = now_seconds();
    const double own_pause_s = now - std::exchange(watched_at_, now);
    if (next_deadline_ > 0 && now >= next_deadline_) {
      next_deadline_ = 0;
      next_->failure = "the new server was not ready within " + deadline_text_ + " s";
      kill(next_->pid, SIGTERM);
      next_->ends_at = now + kEndTimeout_s;
    }
    for (ServerProcess& server : servers_) {
      // Unless this process has been stopped as well.
      if (own_pause_s > server.patience_s / 2) server.heard_at = now;
      if (server.pid > 0 && server.patience_s > 0 && now >= server.heard_at + server.patience_s) {
        log_error("the supervisor has been silent", kv("pid", server.pid),
                  kv("ms", static_cast<int>(1000 * server.patience_s)));
        server.patience_s = 0;
        kill(server.pid, SIGKILL);
      }
      if (server.pid > 0 && server.ends_at > 0 && now >= server.ends_at) {
        server.ends_at = 0;
        kill(server.pid, SIGKILL);
      }
      if (server.pid > 0 || server.again_at == 0 || now < server.again_at) continue;
      if (auto started = server.start(now); !started.ok()) {
        log_error("the supervisor cannot be started", kv("reason", started.error().message));
        server.again_at = now + kMaxPause_s;
      }
    }
    std::erase_if(orders_, [&](const OrderInput& order) { return now >= order.deadline; });
  }

  /// Those that have been replaced, and have ended.
  void forget_ended() {
    servers_.remove_if([&](const ServerProcess& server) {
      return server.retires && server.pid == 0 && server.again_at == 0;
    });
  }

  [[nodiscard]] bool is_over() const {
    return exit_code_ && std::none_of(servers_.begin(), servers_.end(),
                                      [](const auto& server) { return server.pid > 0; });
  }

  // ---- Upgrades

  Result<void> open_door() {
    ASSIGN_OR_RETURN(door_path_, keeper_socket(getpid()));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (door_path_.size() >= sizeof address.sun_path)
      return Error{ErrorCode::kIo, door_path_ + " is too long for a Unix socket"};
    std::memcpy(address.sun_path, door_path_.c_str(), door_path_.size() + 1);
    unlink(door_path_.c_str());
    FileDescriptor door(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!door.valid() ||
        bind(door.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        listen(door.get(), SOMAXCONN) != 0)
      return io_error(door_path_);
    door_ = std::move(door);
    return {};
  }
  void close_door() {
    if (door_.valid()) unlink(door_path_.c_str());
  }

  void take_orders() {
    if (!door_.valid()) return;
    for (;;) {
      FileDescriptor client(accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!client.valid()) break;
      orders_.push_back({std::move(client), {}, now_seconds() + kOrderTimeout_s});
    }
    for (auto order = orders_.begin(); order != orders_.end();) {
      std::array<char, 4096> piece;
      const ssize_t size = read(order->client.get(), piece.data(), piece.size());
      if (size > 0 && order->text.size() < kMaxOrderBytes) {
        order->text.append(piece.data(), static_cast<std::size_t>(size));
        continue;
      }
      if (size < 0 && errno == EAGAIN) {
        ++order;
        continue;
      }
      if (size == 0) begin_upgrade(std::move(order->client), order->text);
      order = orders_.erase(order);
    }
  }

  void begin_upgrade(FileDescriptor client, const std::string& text) {
    const auto refuse = [&](const std::string& why) {
      log_warning("upgrade refused", kv("reason", why));
      tell(client, std::string(kFailureReport) + why);
    };
    const auto order = UpgradeOrder::decode(text);
    if (!order) return refuse("the order is of another version of troupe upgrade");
    if (stopping_) return refuse("the server is shutting down");
    if (next_ != nullptr) {
      return refuse("an upgrade is under way: process " + std::to_string(next_->pid) +
                    " is not ready yet");
    }
    if (current_->port == 0) return refuse("the server is not ready itself");
    next_ = &servers_.emplace_back();
    next_->program = order->program;
    next_->arguments = order->arguments.value_or(current_->arguments);
    next_->replaces_port = current_->port;
    next_->client = std::move(client);
    if (auto started = next_->start(now_seconds()); !started.ok())
      return end_upgrade(0, started.error().message);
    told_tenth_ = -1;
    next_deadline_ = now_seconds() + order->deadline_s;
    deadline_text_ = std::to_string(order->deadline_s);
    deadline_text_.resize(deadline_text_.find('.'));
    log_info("upgrade begins", kv("program", next_->program), kv("pid", next_->pid));
    tell(next_->client, "starting " + next_->program + " as process " + std::to_string(next_->pid) +
                            " beside " + std::to_string(current_->pid));
  }

  /// It has failed, and its process `pid` is gone. What that one has started is of no use.
  void end_upgrade(pid_t pid, const std::string& why) {
    log_error("upgrade failed", kv("reason", why));
    tell(next_->client, std::string(kFailureReport) + why);
    for (const auto& [name, node] : nodes_of(pid))
      if (node.is_alive()) kill(node.pid, SIGKILL);
    servers_.remove_if([&](const ServerProcess& server) { return &server == next_; });
    next_ = nullptr;
    next_deadline_ = 0;
  }

  /// The new server accepts connections: the old one need not.
  void promote() {
    const auto before = nodes_of(current_->pid), after = nodes_of(next_->pid);
    const FileDescriptor& client = next_->client;
    tell(client, "supervisor: " + std::to_string(current_->pid) + " -> " +
                     std::to_string(next_->pid) + ", port " + std::to_string(next_->port));
    std::set<std::string> names;
    for (const auto& [name, node] : before) names.insert(name);
    for (const auto& [name, node] : after) names.insert(name);
    for (const std::string& name : names) {
      const auto pid_in = [&](const std::map<std::string, ProcessId>& nodes) {
        const auto found = nodes.find(name);
        return found == nodes.end() ? std::string("none") : std::to_string(found->second.pid);
      };
      tell(client, "node " + name + ": " + pid_in(before) + " -> " + pid_in(after));
    }
    log_info("upgraded", kv("old_pid", current_->pid), kv("new_pid", next_->pid));
    tell(client, "server " + std::to_string(current_->pid) + " finishes its connections");
    current_->retires = true;
    current_->client = std::move(next_->client);
    if (current_->port != 0) kill(current_->pid, SIGUSR2);  // else when it is up again
    current_ = std::exchange(next_, nullptr);
    next_deadline_ = 0;
  }

  /// Executes the program of the server that it keeps, as the same process, once that is the only
  /// one and no client waits for an answer.
  void become_next() {
    if (servers_.size() > 1 || !orders_.empty() || stopping_ || current_->port == 0 ||
        current_->program == own_program_)
      return;
    std::vector<std::string> arguments = {"troupe", "serve"};
    arguments.insert(arguments.end(), current_->arguments.begin(), current_->arguments.end());
    arguments.push_back(
        RunningServer{current_->pid, current_->port, current_->pipe.get()}.encode());
    fcntl(current_->pipe.get(), F_SETFD, 0);
    log_info("the keeper executes the new program", kv("program", current_->program));
    close_door();
    execv(current_->program.c_str(), pointers_to(arguments).data());
    log_error("the keeper stays the old program", kv("reason", std::strerror(errno)));
    own_program_ = current_->program;
    if (auto opened = open_door(); !opened.ok())
      log_warning("troupe upgrade cannot reach this server", kv("reason", opened.error().message));
  }

  std::string own_program_;
  FileDescriptor signals_;
  FileDescriptor door_;  ///< orders come here
  std::string door_path_;
  std::list<OrderInput> orders_;
  std::list<ServerProcess> servers_;
  ServerProcess* current_ = nullptr;
  ServerProcess* next_ = nullptr;  ///< not ready yet; null: no upgrade is under way
  double next_deadline_ = 0;       ///< 0: none
  std::string deadline_text_;
  double watched_at_ = 0;
  int told_tenth_ = -1;  ///< of the progress of next_
  bool stopping_ = false;
  std::optional<int> exit_code_;  ///< when no process is left
};

}  // namespace

int keep_alive(Arguments arguments, const std::optional<RunningServer>& running) {
  return Keeper(arguments).run(running);
}

}  // namespace troupe::tools
