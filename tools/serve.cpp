// troupe serve: loads a model, opens the port, serves until a signal arrives.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "actors/module.hpp"
#include "actors/shutdown_guard.hpp"
#include "actors/system_config.hpp"
#include "runtime/base/child_process.hpp"
#include "runtime/config/topology.hpp"
#include "runtime/http/server.hpp"
#include "tools/commands.hpp"
#include "tools/keeper.hpp"
#include "tools/progress.hpp"
#include "tools/reload.hpp"

namespace troupe::tools {
namespace {

using namespace std::chrono_literals;

/// Signals that end the server, at once or when its connections have ended, and SIGHUP, which does
/// not. They are blocked in every thread and
/// taken by one of this object. While the server starts there is nothing to be drained, and a
/// second signal waits for nothing either: the process then ends at once, and with it the nodes
/// that it has started.
class ServerSignals {
 public:
  static constexpr int kEngineDied = SIGUSR1;
  static constexpr int kReplaced = SIGUSR2;

  explicit ServerSignals(std::function<void()> on_hangup) : on_hangup_(std::move(on_hangup)) {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, kEngineDied, kReplaced})
      sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    taker_ = std::thread([this] { take(); });
  }
  ~ServerSignals() {
    stopping_ = true;
    pthread_kill(taker_.native_handle(), kEngineDied);
    taker_.join();
  }
  ServerSignals(const ServerSignals&) = delete;
  ServerSignals& operator=(const ServerSignals&) = delete;

  /// From now on wait() returns the first signal.
  void begin_serving() { serving_ = true; }
  /// Once.
  [[nodiscard]] int wait() { return first_.get_future().get(); }

 private:
  void take() {
    bool is_first = true;
    for (;;) {
      int signal = 0;
      sigwait(&set_, &signal);
      if (stopping_) return;
      if (signal == SIGHUP) {
        on_hangup_();
        continue;
      }
      if (signal != kEngineDied && signal != kReplaced && (!serving_ || !is_first)) {
        log_warning("stopping at once, running requests are aborted",
                    kv("reason", is_first ? "not serving yet" : "a second signal"),
                    kv("signal", signal));
        ChildProcess::signal_all(SIGKILL);
        _exit(128 + signal);
      }
      if (std::exchange(is_first, false)) first_.set_value(signal);
    }
  }

  const std::function<void()> on_hangup_;
  sigset_t set_{};
  std::atomic<bool> serving_ = false;
  std::atomic<bool> stopping_ = false;
  std::promise<int> first_;
  std::thread taker_;
};

/// The stacks and heaps of the threads reserve more than a GiB of address space. If a thread cannot
/// be started, CAF waits forever or ends the process.
Result<void> check_address_space() {
  constexpr rlim_t kMinBytes = rlim_t{2} << 30;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= kMinBytes) return {};
  return Error{ErrorCode::kInternal, "out of memory: " + std::to_string(limit.rlim_cur) +
                                         " bytes of address space are allowed (ulimit -v), a "
                                         "server needs at least " +
                                         std::to_string(kMinBytes) + " plus the size of the model"};
}

void print_address(const Options& options, const Started& started, const std::string& model_name) {
  const bool everywhere = options.server.host == "0.0.0.0" || options.server.host == "::";
  const std::string host = everywhere ? "localhost" : options.server.host;
  const std::string url = (options.server.ssl_certfile.empty() ? "http://" : "https://") + host +
                          ":" + std::to_string(started.port);
  const bool open = options.server.api_key.empty() && options.server.api_key_file.empty();
  const char* key = open ? "" : " -H 'Authorization: Bearer YOUR-KEY'";
  std::printf(
      "Serving %s at %s\n\nTry:\n  curl %s/v1/chat/completions%s -H 'Content-Type: "
      "application/json' \\\n"
      "    -d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"Who are "
      "you?\"}]}'\n\n",
      model_name.c_str(), url.c_str(), url.c_str(), key, model_name.c_str());
  std::fflush(stdout);
}

/// Whether the port is free, where it is this host's: loading can take minutes. Processes of a
/// server that was killed need a moment to end.
Result<void> check_port(const StartOptions& start) {
  const Options& options = start.options;
  if (start.replaces_port != 0 || can_resume(start)) return {};  // a Frontend has it
  ASSIGN_OR_RETURN(const Topology topology, options_topology(options));
  if (!topology.node_of(Role::kFrontend).host.empty()) return {};
  const auto deadline = std::chrono::steady_clock::now() + 1s;
  for (;; std::this_thread::sleep_for(50ms)) {
    const auto free = check_address(options.server);
    if (free.ok() || free.error().code != ErrorCode::kIo ||
        std::chrono::steady_clock::now() > deadline)
      return free;
  }
}

}  // namespace

int serve(Arguments arguments) {
  if (const auto running = RunningServer::take(arguments)) return keep_alive(arguments, running);
  const auto kept = KeptServer::take(arguments);
  if (kept) report_to_keeper(kept->pipe);
  CommandLine line;
  if (const auto done = read_command_line(line, arguments, "serve [MODEL] [options]")) return *done;
  Options& options = line.options;
  if (auto resolved = resolve_model(options); !resolved.ok()) return fail(resolved.error());
  if (options.server.keep_alive) return keep_alive(arguments, std::nullopt);
  StartOptions start_options{
      .options = options,
      .node_program = std::filesystem::read_symlink("/proc/self/exe").string(),
      .node_arguments = {arguments.begin(), arguments.end()}};
  if (!options.model.revision.empty()) {
    std::vector<std::string>& own = start_options.node_arguments;
    const std::array revision = {std::string("--revision"), options.model.revision};
    own.insert(std::find(own.begin(), own.end(), "--"), revision.begin(), revision.end());
  }
  if (kept && (options.server.port == 0 || options.server.port == kept->replaces_port))
    start_options.replaces_port = kept->replaces_port;
  if (auto free = check_port(start_options); !free.ok()) return fail(free.error());
  if (auto enough = check_address_space(); !enough.ok()) return fail(enough.error());

  ServerSignals signals([&options] { reload(options); });
  SystemConfig config;
  if (auto applied = config.apply(line.caf_entries); !applied.ok()) return fail(applied.error());
  load_network(config);
  ShutdownGuard guard;
  caf::actor_system system{config};

  ProgressBar progress("loading");
  start_options.on_progress = [&](const LoadProgress& p) {
    progress.show(p.fraction, p.what);
    tell_keeper(kProgressReport, std::to_string(p.fraction));
  };
  start_options.on_failure = [](const std::string&) { kill(getpid(), ServerSignals::kEngineDied); };
  // Alone, the nodes wait for the next Supervisor: one that is stuck had better be killed.
  if (options.topology.supervisor_timeout_s > 0) {
    start_options.on_check = [patience = std::to_string(options.topology.node_timeout_s)] {
      tell_keeper(kAliveReport, patience);
    };
  }
  auto engine = start(system, start_options);
  if (!engine.ok()) {
    progress.finish();
    const int code = fail(engine.error());
    ChildProcess::signal_all(SIGKILL);  // should there be any left
    guard.arm(code);
    return code;
  }
  signals.begin_serving();
  progress.complete("ready");
  print_address(options, engine->started, options.model.served_model_name.front());
  tell_keeper(kReadyReport, std::to_string(engine->started.port));

  const int signal = signals.wait();
  if (signal == ServerSignals::kReplaced) {
    const bool clean = retire(system, *engine);
    const int code = clean ? kExitOk : kExitFailure;
    guard.arm(code);
    return code;
  }
  if (signal != ServerSignals::kEngineDied)
    log_info("shutting down", kv("timeout_s", options.server.shutdown_timeout));
  const bool clean = stop(system, *engine, options.server.shutdown_timeout);
  const int code = clean && signal != ServerSignals::kEngineDied ? kExitOk : kExitFailure;
  guard.arm(code);
  return code;
}

}  // namespace troupe::tools
