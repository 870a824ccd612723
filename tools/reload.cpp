#include "tools/reload.hpp"

#include "runtime/base/child_process.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/reload.hpp"

namespace troupe::tools {

void reload(const Options& options) {
  const auto read = options.read_again();
  ++reload_count;  // first: whoever sees the line finds the settings in effect
  if (read.ok()) {
    set_log_level(read->log.log_level);
    log_info("settings reloaded", kv("log_level", read->log.log_level));
  } else {
    log_warning("settings not reloaded, the old ones stay in effect",
                kv("reason", read.error().message));
  }
  ChildProcess::signal_all(SIGHUP);
}

ReloadSignal::ReloadSignal(const Options& options) : options_(options) {
  sigemptyset(&set_);
  sigaddset(&set_, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  std::signal(SIGHUP, SIG_DFL);
  taker_ = std::thread([this] {
    for (int signal = 0;;) {
      sigwait(&set_, &signal);
      if (stopping_) return;
      reload(options_);
    }
  });
}

ReloadSignal::~ReloadSignal() {
  stopping_ = true;
  pthread_kill(taker_.native_handle(), SIGHUP);
  taker_.join();
}

}  // namespace troupe::tools
