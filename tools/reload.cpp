#include "tools/reload.hpp"

#include "runtime/base/child_process.hpp"
#include "runtime/base/reload.hpp"

namespace troupe::tools {

void reload(const std::vector<std::string>& arguments) {
  CommandLine line;
  auto read = load_options(line.set, line.options, arguments, environment(), line.caf_entries);
  if (read.ok()) {
    set_log_level(line.options.log.log_level);
    log_info("settings read again", kv("log_level", line.options.log.log_level));
  } else {
    log_warning("settings are still the old ones", kv("reason", read.error().message));
  }
  ++reload_count;
  ChildProcess::signal_all(SIGHUP);
}

ReloadSignal::ReloadSignal(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {
  sigemptyset(&set_);
  sigaddset(&set_, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  std::signal(SIGHUP, SIG_DFL);
  taker_ = std::thread([this] {
    for (int signal = 0;;) {
      sigwait(&set_, &signal);
      if (stopping_) return;
      reload(arguments_);
    }
  });
}

ReloadSignal::~ReloadSignal() {
  stopping_ = true;
  pthread_kill(taker_.native_handle(), SIGHUP);
  taker_.join();
}

}  // namespace troupe::tools
